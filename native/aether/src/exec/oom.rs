//! Memory that runs out: the counter of what the kernel killed, and who goes first. Both by files that the launcher opened, as aether,
//! which nobody may look into, can open none of its own in /proc.

use std::os::fd::{BorrowedFd, RawFd};

use crate::sys::fd;

/// The contract with the launcher: memory.oom_control (v1) or memory.events (v2), open for reading; may be absent.
pub const COUNTER_FD: RawFd = 4;
const FILE_SIZE: usize = 512;
/// The contract with the launcher: aether's own oom_score_adj, open for reading and writing; may be absent.
pub const SCORE_FD: RawFd = 5;
/// Programs are killed for memory before aether is. Their descendants inherit it.
const PROGRAM_SCORE: &[u8] = b"500";
const SCORE_SIZE: usize = 16;

/// The number in the line `oom_kill N`.
pub fn parse_kills(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

/// Kills so far; `None` when there is no such file.
pub fn kills() -> Option<u64> {
    let mut buffer = [0; FILE_SIZE];
    // SAFETY: reading from a number that is closed or something else fails or finds no such line.
    let file = unsafe { BorrowedFd::borrow_raw(COUNTER_FD) };
    let n = fd::pread(&file, &mut buffer, 0).ok()?;
    parse_kills(&buffer[..n])
}

/// aether with the score of its programs, which inherit it from the moment they exist: a mark that is put on a program later misses what
/// it has forked by then. The new process gives it back before it becomes the program, so that none ever sees aether with it. Without the file nothing
/// changes but the order of the OOM killer.
pub struct ProgramScore {
    own: [u8; SCORE_SIZE],
    /// 0: there is nothing to give back.
    length: usize,
}

impl ProgramScore {
    pub fn take() -> Self {
        // SAFETY: reading from and writing to a number that is closed or something else fails.
        let file = unsafe { BorrowedFd::borrow_raw(SCORE_FD) };
        let mut own = [0; SCORE_SIZE];
        let length = fd::pread(&file, &mut own, 0).unwrap_or(0);
        if length > 0 {
            let _ = fd::write(&file, PROGRAM_SCORE);
        }
        Self { own, length }
    }

    /// Makes one system call and no allocation: a child that shares memory may call it.
    pub fn give_back(&mut self) {
        if self.length > 0 {
            // SAFETY: as in `take`.
            let _ = fd::write(&unsafe { BorrowedFd::borrow_raw(SCORE_FD) }, &self.own[..self.length]);
            self.length = 0;
        }
    }
}

/// For a child that was killed before it could, and for none.
impl Drop for ProgramScore {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_of_the_file_are_read() {
        assert_eq!(parse_kills(b"oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"), Some(3));
        assert_eq!(parse_kills(b"low 0\nhigh 0\nmax 9\noom 4\noom_kill 12\noom_group_kill 0\n"), Some(12));
        assert_eq!(parse_kills(b"oom_kill_disable 0\n"), None);
        assert_eq!(parse_kills(b"oom_kill x\xff"), None);
    }
}
