//! Errors that leave the launcher.

pub use daemon::failure::{Failure, errno_name};

use crate::sys::Errno;

/// A step of a create that the kernel refused.
pub fn stage(stage: &str, errno: Errno) -> Failure {
    let code = match errno {
        Errno::NOSPC | Errno::DQUOT => "disk_full",
        _ => "create_failed",
    };
    Failure::new(code, format!("the kernel refused the step {stage}"))
        .with("stage", stage)
        .with("errno", errno_name(errno))
}
