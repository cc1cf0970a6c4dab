//! layerd fills the data of layers when they are read. `docs/layers.md` has the form of layers, `docs/wire.md` the methods.
//!
//! Reading order: [`family`] (which processes there are, and why) - [`loader`] (events in, answers out) - [`layer`], [`chunk_map`], [`filled`], [`trace`] (the
//! files of a layer) - [`source`] (the blob store), [`peer`] (other nodes).

pub use layer_form::{chunk_map, digest};

pub mod data_dir;
pub mod failure;
pub mod family;
pub mod filled;
pub mod layer;
pub mod loader;
pub mod options;
pub mod peer;
pub mod places;
pub mod request;
pub mod source;
pub mod sys;
pub mod trace;
