//! Whole directories as tar: `tree.read` and `tree.write`. A worker with the user's own ids does the work.

pub use archive::{header, pax};

pub mod methods;
pub mod pack;
pub mod reader;
pub mod unpack;
