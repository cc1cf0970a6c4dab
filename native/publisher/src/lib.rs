//! The publisher makes layers and sets of a node of what processes that are not root's have made: what the edge has fetched or merged, what the packer has
//! packed. They hand over a directory of their own; its files are copied, since what somebody else can still write to must not be mounted, and it is
//! the copy that is checked. A layer is what its name says, or it is not there.
//!
//! Reading order: [`serve`] (who may ask) - [`request`] - [`layers`], [`sets`] (what is checked) - [`handed`] (what others can still write to) - [`draft`]
//! (what nobody else can).

pub mod draft;
pub mod failure;
pub mod handed;
pub mod layers;
pub mod node;
pub mod options;
pub mod record;
pub mod request;
pub mod serve;
pub mod sets;

pub use daemon::{Errno, Result};
