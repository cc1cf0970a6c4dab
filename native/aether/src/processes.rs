//! The method `processes`, in pieces: a sandbox may have thousands.

use std::os::fd::AsRawFd;

use serde_json::{Value, json};

use crate::clock;
use crate::connection::StreamKey;
use crate::dispatch::Reply;
use crate::errors::Outcome;
use crate::event_loop::Aether;
use crate::info::{NoParams, page_size};
use crate::params;
use crate::proc::Proc;
use crate::streams::{After, Stream};
use crate::sys::fd;

const MAX_LISTED: usize = 4_096;
/// Looked at in one turn.
const PER_TURN: usize = 64;
/// Shown of a command line.
const MAX_COMMAND: usize = 256;

#[derive(Debug)]
pub struct Listing {
    /// Still to be looked at, in reverse order.
    pids: Vec<i32>,
    found: Vec<Value>,
}

pub fn processes(aether: &mut Aether, at: StreamKey, text: &str) -> Outcome<Reply> {
    let NoParams {} = params::parse(text)?;
    let mut pids = aether.proc.pids();
    pids.sort_unstable();
    pids.truncate(MAX_LISTED);
    pids.reverse();
    aether.queue(at);
    Ok(Reply::Stream(Stream::Processes(Box::new(Listing { pids, found: Vec::new() }))))
}

impl Listing {
    pub fn on_turn(&mut self, aether: &mut Aether, at: StreamKey) -> After {
        for _ in 0..PER_TURN {
            let Some(pid) = self.pids.pop() else {
                aether.answer(at, Ok(json!({ "processes": std::mem::take(&mut self.found) })));
                return After::Done;
            };
            self.found.extend(describe(&aether.proc, pid));
        }
        aether.queue(at);
        After::Keep
    }
}

fn describe(proc: &Proc, pid: i32) -> Option<Value> {
    let stat = proc.stat(pid)?;
    let file = proc.open_file(&format!("{pid}/cmdline")).ok()?;
    // SAFETY: a stat of zeros is valid; the path ends with NUL.
    let uid = unsafe {
        let path = std::ffi::CString::new(pid.to_string()).ok()?;
        let mut owner: libc::stat = std::mem::zeroed();
        libc::fstatat(proc.root().as_raw_fd(), path.as_ptr(), &mut owner, 0);
        owner.st_uid
    };
    let mut command = fd::read_to_limit(&file, MAX_COMMAND).unwrap_or_default();
    while command.last() == Some(&0) {
        command.pop();
    }
    if command.is_empty() {
        // A kernel thread or a zombie: its name.
        let name = proc.open_file(&format!("{pid}/comm")).ok()?;
        command = fd::read_to_limit(&name, MAX_COMMAND).unwrap_or_default();
        command.retain(|&byte| byte != b'\n');
    }
    // The NULs between arguments, and what JSON would make six bytes of: the whole list fits into one frame.
    for byte in &mut command {
        if byte.is_ascii_control() {
            *byte = b' ';
        }
    }
    Some(json!({
        "pid": pid,
        "ppid": stat.ppid,
        "uid": uid,
        "command": String::from_utf8_lossy(&command),
        "startedAtMs": clock::boot_ms() + stat.start * 10,
        "rssBytes": stat.rss_pages * page_size(),
    }))
}
