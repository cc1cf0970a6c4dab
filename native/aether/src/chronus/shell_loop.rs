//! The program of a session's shell.

use std::os::fd::RawFd;

/// The shell stops the script that it runs when it gets this signal (a real-time one that nobody uses).
pub const ABORT_SIGNAL: i32 = 41;
/// What the script that was stopped returns.
pub const ABORTED_EXIT: i32 = 124;

/// The first line of the status pipe: from here on the abort signal does no harm. (A run has a number from 1.)
pub const READY: &str = "0 0";

/// The descriptors of one kind of shell. They are closed while a script runs; the shell keeps close-on-exec copies meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// Opened for each run.
    pub script: RawFd,
    pub status: RawFd,
    pub room: RawFd,
    pub control: RawFd,
}

/// bash: out of the way of what scripts use.
pub const BASH: Numbers = Numbers { script: 100, status: 101, room: 102, control: 103 };
/// Other shells know one digit only.
pub const POSIX: Numbers = Numbers { script: 6, status: 7, room: 8, control: 9 };

/// The loop, in POSIX shell. `command .` keeps a shell alive whose `.` would end it on a syntax error.
pub fn text(numbers: Numbers) -> String {
    let Numbers { script, status, room, control } = numbers;
    let dot = if numbers == BASH { "." } else { "command ." };
    format!(
        "trap '' {ABORT_SIGNAL}
__dsec_status() {{ return \"$1\"; }}
printf '{READY}\\n' >&{status}
while read -r __dsec_run <&{control}; do
__dsec_done=lost
{{
trap 'return {ABORTED_EXIT} 2>/dev/null' {ABORT_SIGNAL}
{dot} /proc/self/fd/{script}
__dsec_done=$?
trap '' {ABORT_SIGNAL}
}} </dev/null >/proc/self/fd/{room}/o$__dsec_run 2>/proc/self/fd/{room}/e$__dsec_run {script}</proc/self/fd/{room}/s$__dsec_run {control}<&- {room}<&- {status}>&-
printf '%s %s\\n' \"$__dsec_run\" \"$__dsec_done\" >&{status}
done"
    )
}

/// A script as the loop sources it. Its first words close the descriptor it is read from, of which the shell has its own copy, and
/// give it the `$?` of the run before, except under `set -e`, where that would end the shell.
pub fn script_text(numbers: Numbers, last_exit: i32, script: &str) -> String {
    let status = match last_exit {
        0 => String::new(),
        code => format!("case $- in *e*) ;; *) __dsec_status {code} ;; esac; "),
    };
    format!("exec {}<&-; {status}{script}", numbers.script)
}

/// A line of the status pipe: run and exit code. The code is absent when the run's files could not be opened.
pub fn parse_status(line: &[u8]) -> Option<(u64, Option<i32>)> {
    let text = std::str::from_utf8(line).ok()?;
    let (run, exit) = text.trim_end().split_once(' ')?;
    Some((run.parse().ok()?, exit.parse::<u8>().ok().map(i32::from)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_lines_that_are_not_ours_are_nothing() {
        assert_eq!(parse_status(b"7 0\n"), Some((7, Some(0))));
        assert_eq!(parse_status(b"7 lost\n"), Some((7, None)));
        assert_eq!(parse_status(b"7 256"), Some((7, None)));
        assert_eq!(parse_status(b"x 0"), None);
        assert_eq!(parse_status(b"\xff"), None);
    }
}
