//! Reads the arguments of processes. The kernel may wait for a process's memory for as long as the process likes, so a thread of its own does it, and who asks waits no longer
//! than it wants to.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};

use launcher::behaviour::facts;
use rustix::event::{EventfdFlags, eventfd};

use crate::sys::{Errno, Result};

/// Questions that wait for the thread.
const MAX_WAITING: usize = 256;
/// Of all arguments of a process together.
const MAX_BYTES: u64 = 4_096;
/// Numbers of /proc/PID/stat behind the name, of which this is when the process has begun (proc_pid_stat(5)).
const BEGAN: usize = 19;
const NANOSECONDS: u64 = 1_000_000_000;

/// A process that had this number at this moment of `CLOCK_BOOTTIME`.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    pub ticket: u64,
    pub pid: u32,
    pub at_ns: u64,
}

pub struct Arguments {
    questions: SyncSender<Question>,
    answers: Receiver<(u64, Vec<String>)>,
    signal: OwnedFd,
}

impl Arguments {
    pub fn start() -> Result<Self> {
        let (questions, asked) = sync_channel::<Question>(MAX_WAITING);
        let (done, answers) = channel();
        let signal = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let far = signal.try_clone().map_err(|_| Errno::MFILE)?;
        let thread = std::thread::Builder::new().name("arguments".to_owned());
        let started = thread.spawn(move || {
            for question in asked {
                if done.send((question.ticket, read(question).unwrap_or_default())).is_err() {
                    return;
                }
                // Full: then it is readable anyway.
                let _ = rustix::io::write(&far, &1u64.to_ne_bytes());
            }
        });
        started.map_err(|_| Errno::AGAIN)?;
        Ok(Self { questions, answers, signal })
    }

    /// Whether there will be an answer, if the kernel gives one.
    pub fn ask(&self, question: Question) -> bool {
        self.questions.try_send(question).is_ok()
    }

    /// Tickets that were answered since; nothing is known of a process that has ended.
    pub fn take(&self) -> Vec<(u64, Vec<String>)> {
        let _ = rustix::io::read(&self.signal, &mut [0; 8]);
        self.answers.try_iter().collect()
    }
}

impl AsFd for Arguments {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signal.as_fd()
    }
}

fn read(question: Question) -> Option<Vec<String>> {
    let mut bytes = Vec::new();
    File::open(format!("/proc/{}/cmdline", question.pid)).ok()?.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    let stat = std::fs::read(format!("/proc/{}/stat", question.pid)).ok()?;
    // Looked at afterwards: who has the number now and had it then has had it all the time.
    (began_ns(&stat)? <= question.at_ns).then(|| facts::parse_arguments(&bytes))
}

/// When a process has begun, by its line of /proc/PID/stat. Its name may have any bytes in it.
fn began_ns(stat: &[u8]) -> Option<u64> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let numbers = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    let ticks: u64 = numbers.split_ascii_whitespace().nth(BEGAN)?.parse().ok()?;
    ticks.checked_mul(NANOSECONDS / rustix::param::clock_ticks_per_second())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pins::boot_ns;

    #[test]
    fn names_with_parentheses_do_not_move_what_is_read() {
        let mut line = b"7 (a) S 1 (b\n) S".to_vec();
        line.extend((1..=40).flat_map(|number| format!(" {number}").into_bytes()));
        assert_eq!(began_ns(&line), Some(19 * NANOSECONDS / rustix::param::clock_ticks_per_second()));
        assert_eq!(began_ns(b"7 (a) S 1 2"), None);
        assert_eq!(began_ns(b""), None);
    }

    #[test]
    fn a_number_that_was_anothers_tells_nothing() {
        let own = std::process::id();
        let argv: Vec<String> = std::env::args().collect();
        assert_eq!(read(Question { ticket: 0, pid: own, at_ns: boot_ns() }), Some(argv));
        assert_eq!(read(Question { ticket: 0, pid: own, at_ns: 1 }), None);
    }
}
