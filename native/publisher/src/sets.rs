//! A set that the edge has made becomes one of the node, and is removed.
//!
//! A set is named by its layers and not by its bytes: that the image is the right one can only be seen by making it again. What is checked is that
//! its name is that of its layers, and that the image is the one of its record; from then on nobody else can change it, mounted or not.

use std::os::fd::AsFd;

use layer_form::digest::Digest;

use crate::draft::{self, Draft};
use crate::failure::{self, Failure, Kind};
use crate::handed::Handed;
use crate::node::Node;
use crate::record::{self, MAX_RECORD_BYTES, SET_RECORD};

const IMAGE: &str = "rootfs.erofs";
/// Those of all layers are 512 MiB at most, and the merged ones hardly more.
const MAX_IMAGE_BYTES: u64 = 1 << 30;

/// Makes the set, in the place of one that is there: the edge asks for one that it has found to be missing or unusable.
pub fn publish(node: &Node, digest: &Digest, owner: u32) -> Result<(), Failure> {
    let file = |name: &'static str| move |errno| failure::file(Kind::Set, digest, name, errno);
    let corrupt = |what: &str| failure::corrupt(Kind::Set, digest, what);
    let place = format!("state/edge/sets/{}", digest.hex());
    let handed = Handed::open(node.root.as_fd(), &place, owner).map_err(file(""))?;
    let bytes = handed.bytes(SET_RECORD, MAX_RECORD_BYTES).map_err(file(SET_RECORD))?;
    let record = record::set(&bytes, digest).ok_or_else(|| corrupt("has no record, or that of another"))?;
    if record.image.size_bytes > MAX_IMAGE_BYTES {
        return Err(corrupt("is larger than a set may be"));
    }
    let draft = Draft::new(node.sets.as_fd()).map_err(file(""))?;
    if !record.image.is(draft.copy(&handed, IMAGE, record.image.size_bytes)).map_err(file(IMAGE))? {
        return Err(corrupt("has another image than its record says"));
    }
    draft.write(SET_RECORD, &bytes).map_err(file(SET_RECORD))?;
    draft.settle(&digest.hex()).map_err(file(""))
}

/// Removes a set, or what stands in its place; none is no error. One that is mounted stays usable for whoever stands on it.
pub fn remove(node: &Node, digest: &Digest) -> Result<(), Failure> {
    draft::remove(node.sets.as_fd(), &digest.hex()).map_err(|errno| failure::file(Kind::Set, digest, "", errno))
}
