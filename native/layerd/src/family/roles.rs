//! Who does what: locks of bytes of `run/layerd.lock`.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, openat};

use crate::sys::Result;
use crate::sys::lock::{self, Kind};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Holder = 0,
    Standby = 1,
    Worker = 2,
    /// All of them, shared.
    Member = 3,
}

/// This process's own opening of the lock file: its roles end when it closes.
pub struct Roles(OwnedFd);

impl Roles {
    pub fn open(run: impl std::os::fd::AsFd) -> Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self(openat(run, "layerd.lock", flags, Mode::from_raw_mode(0o600))?))
    }

    /// Joins those that keep the group alive.
    pub fn join(&self) -> Result<()> {
        lock::wait(&self.0, Role::Member as i64, Kind::Shared)
    }

    /// Whether no process of a family lives; then none comes to life until this one joins or ends.
    pub fn is_alone(&self) -> Result<bool> {
        lock::try_set(&self.0, Role::Member as i64, Kind::Exclusive)
    }

    pub fn try_take(&self, role: Role) -> Result<bool> {
        lock::try_set(&self.0, role as i64, Kind::Exclusive)
    }

    pub fn take(&self, role: Role) -> Result<()> {
        lock::wait(&self.0, role as i64, Kind::Exclusive)
    }

    pub fn leave(&self, role: Role) -> Result<()> {
        lock::try_set(&self.0, role as i64, Kind::Free).map(drop)
    }

    /// Waits until nobody has the role.
    pub fn wait_until_vacant(&self, role: Role) -> Result<()> {
        self.take(role)?;
        self.leave(role)
    }
}
