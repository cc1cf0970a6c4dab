//! What a sandbox uses.

use rustix::fs::{Mode, OFlags, openat};
use serde_json::{Value, json};

use crate::node::Node;
use crate::sandbox::Sandbox;
use crate::sys::Result;

/// Processes that are looked at where no group counts cpu time.
const MAX_PROCESSES: usize = 4_096;
/// USER_HZ, the unit of /proc/PID/stat.
const TICKS_PER_SECOND: u64 = 100;

pub fn of(node: &Node, sandbox: &Sandbox) -> Result<Value> {
    let name = Node::slot_name(sandbox.slot);
    let used = node.cgroups.usage(&name)?;
    let cpu_usec = match used.cpu_usec {
        Some(microseconds) => microseconds,
        None => cpu_of_processes(node, sandbox.pid, &node.cgroups.processes(&name)),
    };
    Ok(json!({
        "memoryBytes": used.memory_bytes,
        "memoryPeakBytes": used.memory_peak_bytes,
        "cpuUsec": cpu_usec,
        "pids": used.pids,
        // 0 where nothing counts them.
        "diskBytes": node.volume.usage(&name)?.unwrap_or(0),
        "oomKills": used.oom_kills,
    }))
}

/// Where cpuacct is a hierarchy of its own (joining it would cost every create): the time of the living processes, and, through the first
/// process, which inherits all orphans, of those that have ended and were waited for.
fn cpu_of_processes(node: &Node, first: u32, processes: &[u32]) -> u64 {
    let of_process = |pid: &u32| {
        let times = times(node, *pid)?;
        Some(if *pid == first { times.iter().sum() } else { times[0] + times[1] })
    };
    let total: u64 = processes.iter().take(MAX_PROCESSES).filter_map(of_process).sum();
    total * (1_000_000 / TICKS_PER_SECOND)
}

/// utime, stime, cutime and cstime of /proc/PID/stat, in ticks.
fn times(node: &Node, pid: u32) -> Option<[u64; 4]> {
    let file = openat(&node.proc, format!("{pid}/stat"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0; 1_024];
    let length = rustix::io::read(&file, &mut text).ok()?;
    parse_times(std::str::from_utf8(&text[..length]).ok()?)
}

fn parse_times(stat: &str) -> Option<[u64; 4]> {
    // The name may hold anything, also parentheses: fields count from the last one.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse().ok();
    Some([next()?, next()?, next()?, next()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_any_name() {
        let stat = "7 (a) 9 (b) S 1 7 7 0 -1 4194560 100 200 0 0 11 12 13 14 20 0 1 0 5 6 7";
        assert_eq!(parse_times(stat), Some([11, 12, 13, 14]));
        assert_eq!(parse_times("7 (a"), None);
        assert_eq!(parse_times("7 (a) S 1"), None);
    }
}
