//! Which files may be the program, and how its failure to start is told.

use std::ffi::CString;

use super::spawn::{SpawnError, Stage};
use crate::errors::{Failure, errno_name};

/// Longest search path that is followed.
const MAX_CANDIDATES: usize = 128;

/// The files that execvp would try for `name`.
pub fn candidates(name: &str, path: &str) -> Vec<CString> {
    let make = |text: String| CString::new(text).ok();
    if name.contains('/') {
        return make(name.to_owned()).into_iter().collect();
    }
    if name.is_empty() {
        return Vec::new();
    }
    path.split(':')
        .take(MAX_CANDIDATES)
        .filter_map(|directory| {
            make(if directory.is_empty() { format!("./{name}") } else { format!("{directory}/{name}") })
        })
        .collect()
}

/// What the caller is told when `program` did not start.
pub fn start_failure(error: SpawnError, program: &str, cwd: &str, user: &str) -> Failure {
    let errno = errno_name(error.errno);
    let failure = match (error.stage, error.errno) {
        (Stage::Clone | Stage::Exec, libc::EAGAIN) => {
            Failure::new("pids_exhausted", "The sandbox has as many processes as it may have.")
        }
        (_, libc::ENOMEM) => Failure::new("internal", format!("There is no memory to start {program}.")),
        (Stage::Cwd, _) => {
            Failure::new("cwd_not_found", format!("The working directory {cwd} cannot be entered ({errno})."))
                .with("cwd", cwd)
        }
        (Stage::Identity, libc::EINVAL | libc::EPERM) => {
            Failure::new("user_not_found", format!("The user {user} is outside of the ids of the sandbox."))
                .with("user", user)
        }
        (Stage::Exec, libc::ENOENT | libc::ENOTDIR) => {
            Failure::new("command_not_found", format!("{program}: command not found."))
                .with("program", program)
                .with("exitCode", 127)
        }
        (Stage::Exec, libc::E2BIG) => Failure::new(
            "argv_too_long",
            format!("The arguments and environment of {program} are more than the kernel takes."),
        ),
        (Stage::Exec, _) => Failure::new("command_not_executable", format!("{program}: cannot be executed ({errno})."))
            .with("program", program)
            .with("exitCode", 126),
        (stage, _) => Failure::new("internal", format!("{program} could not be started: {stage:?} ({errno}).")),
    };
    failure.with("errno", errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_a_slash_are_taken_as_they_are_and_others_searched() {
        let all = |name, path| {
            candidates(name, path).into_iter().map(|file| file.into_string().expect("UTF-8")).collect::<Vec<_>>()
        };
        assert_eq!(all("./a", "/bin"), ["./a"]);
        assert_eq!(all("a", "/bin::/usr/bin"), ["/bin/a", "./a", "/usr/bin/a"]);
        assert!(all("", "/bin").is_empty());
    }
}
