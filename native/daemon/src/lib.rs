//! What the Rust daemons of a node have in common.

pub mod failure;
pub mod given;
pub mod link;
pub mod log;
pub mod socket;

pub use rustix::io::{Errno, Result};
