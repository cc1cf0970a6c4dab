//! The one place where a child is confined before it becomes the program: called in the child, as root of the sandbox, after
//! its descriptors are in place and before it changes to its user.
//!
//! Nothing is taken away here: what the launcher gave to the sandbox as a whole is the boundary, and setuid programs (sudo, apt's
//! helpers, su) must go on working, so no_new_privs stays unset.

/// # Safety
/// Runs between clone and exec in memory that is shared with the parent: only plain system calls, no allocation, no locks.
pub unsafe fn confine_child() {}
