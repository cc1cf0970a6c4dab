//! Errors that leave the publisher.

pub use daemon::failure::{Failure, errno_name};
use layer_form::digest::Digest;

use crate::Errno;

/// What is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Layer,
    Set,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Layer => "layer",
            Self::Set => "set",
        }
    }
}

/// It is not what it is to be named.
pub fn corrupt(kind: Kind, digest: &Digest, what: impl std::fmt::Display) -> Failure {
    let (name, digest) = (kind.name(), digest.to_string());
    match kind {
        Kind::Layer => Failure::new("layer_corrupt", format!("the layer {digest} {what}")),
        Kind::Set => Failure::invalid("set", &format!("{digest}, as it was handed over, {what}")),
    }
    .with(name, digest.as_str())
    .with("digest", digest.as_str())
}

/// A file that the kernel refused.
pub fn file(kind: Kind, digest: &Digest, name: &str, errno: Errno) -> Failure {
    let code = match (errno, kind) {
        (Errno::NOENT, Kind::Layer) => "layer_not_found",
        (Errno::NOENT, Kind::Set) => "invalid_argument",
        (Errno::NOSPC | Errno::DQUOT, _) => "disk_full",
        _ => "internal",
    };
    Failure::new(code, format!("the file {name} of the {} {digest} cannot be used", kind.name()))
        .with(kind.name(), digest.to_string())
        .with("errno", errno_name(errno))
}
