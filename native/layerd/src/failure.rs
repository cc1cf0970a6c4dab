//! Errors that leave layerd.

pub use daemon::failure::{Failure, errno_name};

use crate::digest::Digest;
use crate::sys::Errno;

pub fn corrupt(layer: &Digest, what: impl std::fmt::Display) -> Failure {
    let layer = layer.to_string();
    Failure::new("layer_corrupt", format!("{what} of the layer {layer}"))
        .with("layer", layer.as_str())
        .with("digest", layer.as_str())
}

/// A file of a layer that the kernel refused.
pub fn file(layer: &Digest, name: &str, errno: Errno) -> Failure {
    let code = match errno {
        Errno::NOENT => "layer_not_found",
        Errno::NOSPC | Errno::DQUOT => "disk_full",
        _ => "internal",
    };
    Failure::new(code, format!("the file {name} of the layer {layer} cannot be used"))
        .with("layer", layer.to_string())
        .with("errno", errno_name(errno))
}
