//! Thin, typed wrappers of the system calls that are used more than once. Errors are bare error numbers.

pub mod dir;
pub mod fd;
pub mod poll;
pub mod scratch;
pub mod signals;
pub mod socket;

pub type Errno = i32;

/// The error number of the last failed call.
pub fn errno() -> Errno {
    // SAFETY: always points to this thread's errno.
    unsafe { *libc::__errno_location() }
}

/// Turns the -1 of a libc function into its error number.
pub fn check<T: Into<i64> + Copy>(result: T) -> Result<T, Errno> {
    if result.into() < 0 { Err(errno()) } else { Ok(result) }
}

/// Repeats a call that a signal interrupted.
pub fn retry<T: Into<i64> + Copy>(mut call: impl FnMut() -> T) -> Result<T, Errno> {
    loop {
        match check(call()) {
            Err(libc::EINTR) => {}
            outcome => return outcome,
        }
    }
}
