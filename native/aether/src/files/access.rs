//! Acting on files as a user: filesystem ids, groups, and with them the capabilities that concern files.

use crate::errors::{Failure, Outcome};
use crate::event_loop::Aether;
use crate::identity::{self, Identity};

/// While it lives, file operations are those of the user. One thread, so nobody else is affected.
#[derive(Debug)]
pub struct AsUser {
    is_changed: bool,
}

/// Asks for the present id, as the kernel refuses this one.
const ASK: u32 = u32::MAX;

impl AsUser {
    pub fn enter(identity: &Identity) -> Outcome<Self> {
        if identity.uid == 0 && identity.gid == 0 {
            return Ok(Self { is_changed: false });
        }
        let guard = Self { is_changed: true };
        // SAFETY: raw calls, because glibc's act on all threads of a process; the group list is valid for its length. setfsuid to
        // another than 0 also takes the file capabilities away.
        let is_entered = unsafe {
            let groups = &identity.groups;
            libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) == 0 && {
                libc::syscall(libc::SYS_setfsgid, identity.gid);
                libc::syscall(libc::SYS_setfsuid, identity.uid);
                // They report no errors: an id that the user namespace does not map changes nothing.
                libc::syscall(libc::SYS_setfsgid, ASK) == i64::from(identity.gid)
                    && libc::syscall(libc::SYS_setfsuid, ASK) == i64::from(identity.uid)
            }
        };
        if !is_entered {
            let message = format!("The user {} is outside of the ids of the sandbox.", identity.name);
            return Err(Failure::new("user_not_found", message).with("user", identity.name.as_str()));
        }
        Ok(guard)
    }
}

impl Drop for AsUser {
    fn drop(&mut self) {
        if self.is_changed {
            // SAFETY: raw calls; aether is root of its user namespace and may always go back.
            unsafe {
                libc::syscall(libc::SYS_setfsuid, 0);
                libc::syscall(libc::SYS_setfsgid, 0);
                libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<u32>());
                // Each change of ids has set the mark by the rules of /proc/sys/fs/suid_dumpable.
                libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
            }
        }
    }
}

impl Aether {
    /// The user of a file method: root unless named.
    pub fn file_user(&mut self, user: Option<&str>) -> Outcome<Identity> {
        identity::resolve(&mut self.accounts, user.unwrap_or("root"))
    }
}
