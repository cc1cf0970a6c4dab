//! A layer that was handed over becomes one of the node.

use std::os::fd::{AsFd, OwnedFd};

use layer_form::chunk_map::{CHUNK_BYTES, ChunkMap, ENTRY_BYTES, HEADER_BYTES, MAX_CHUNKS, PACK_BYTES};
use layer_form::digest::{Digest, Hasher};
use rustix::fs::{AtFlags, Mode, OFlags, fsync, ftruncate, openat, statat};

use crate::draft::{self, Draft};
use crate::failure::{self, Failure, Kind};
use crate::handed::{self, Handed};
use crate::node::Node;
use crate::record::{self, LAYER_RECORD, LayerRecord, MAX_RECORD_BYTES, Part};
use crate::request::Form;
use crate::{Errno, Result};

const METADATA: &str = "rootfs.erofs";
const MAP: &str = "chunks";
const DATA: &str = "data";
const MAX_METADATA_BYTES: u64 = 4 << 30;
const MAX_MAP_BYTES: u64 = HEADER_BYTES as u64 + MAX_CHUNKS as u64 * (PACK_BYTES + ENTRY_BYTES) as u64;
const MAX_DATA_BYTES: u64 = MAX_CHUNKS as u64 * CHUNK_BYTES;
const BLOCK_BYTES: usize = 4_096;

/// Where what a layer is made of is handed over.
fn place(form: Form, digest: &Digest) -> String {
    match form {
        Form::Fetched => format!("state/edge/layers/{}", digest.hex()),
        Form::Packed => format!("state/packer/layers/{}", digest.hex()),
    }
}

/// Makes the layer, unless it is there. It is durable then.
pub fn publish(node: &Node, digest: &Digest, form: Form, owner: u32) -> std::result::Result<(), Failure> {
    let file = |name: &'static str| move |errno| failure::file(Kind::Layer, digest, name, errno);
    if is_there(node, digest).map_err(file(LAYER_RECORD))? {
        return Ok(());
    }
    let handed = Handed::open(node.root.as_fd(), &place(form, digest), owner).map_err(file(""))?;
    let bytes = handed.bytes(LAYER_RECORD, MAX_RECORD_BYTES).map_err(file(LAYER_RECORD))?;
    let record = record::layer(&bytes, digest).ok_or_else(|| corrupt(digest, "has no record, or that of another"))?;
    if record.metadata.size_bytes > MAX_METADATA_BYTES || record.data.size_bytes > MAX_DATA_BYTES {
        return Err(corrupt(digest, "is larger than a layer may be"));
    }
    let draft = Draft::new(node.layers.as_fd()).map_err(file(""))?;
    let metadata = draft.copy(&handed, METADATA, record.metadata.size_bytes);
    if !record.metadata.is(metadata).map_err(file(METADATA))? {
        return Err(corrupt(digest, "has other metadata"));
    }
    match form {
        Form::Fetched => take_map(&handed, &draft, digest, &record)?,
        Form::Packed => take_data(&handed, &draft, digest, &record)?,
    }
    draft.write(LAYER_RECORD, &bytes).map_err(file(LAYER_RECORD))?;
    // Somebody else may have published it meanwhile, and it may be mounted.
    if is_there(node, digest).map_err(file(LAYER_RECORD))? {
        return Ok(());
    }
    draft.settle(&digest.hex()).map_err(file(""))
}

/// Whether there is a layer of this name: a record of it, and files of the lengths that it gives. They have been nobody else's to change.
fn is_there(node: &Node, digest: &Digest) -> Result<bool> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = match openat(&node.layers, digest.hex(), flags, Mode::empty()) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(false),
        other => other?,
    };
    let there = Handed::own(directory);
    let bytes = match there.bytes(LAYER_RECORD, MAX_RECORD_BYTES) {
        Err(Errno::NOENT | Errno::INVAL | Errno::FBIG | Errno::LOOP) => return Ok(false),
        other => other?,
    };
    let Some(record) = record::layer(&bytes, digest) else { return Ok(false) };
    let is_long = |name: &str, size_bytes: u64| match statat(there.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(stat.st_size as u64 == size_bytes),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno),
    };
    Ok(is_long(METADATA, record.metadata.size_bytes)?
        && (record.data.size_bytes == 0 || is_long(DATA, record.data.size_bytes)?))
}

/// The data are filled where they are read: there is a map, and a file of their length.
fn take_map(from: &Handed, to: &Draft<'_>, digest: &Digest, record: &LayerRecord) -> std::result::Result<(), Failure> {
    let file = |name: &'static str| move |errno| failure::file(Kind::Layer, digest, name, errno);
    let bytes = from.bytes(MAP, MAX_MAP_BYTES).map_err(file(MAP))?;
    let map = ChunkMap::parse(&bytes).map_err(|why| corrupt(digest, format_args!("has a chunk map that {why}")))?;
    if (Part { digest: map.chunks_digest, size_bytes: map.header.data_bytes }) != record.data {
        return Err(corrupt(digest, "has the chunk map of another"));
    }
    to.write(MAP, &bytes).map_err(file(MAP))?;
    if record.data.size_bytes > 0 {
        to.create(DATA, 0o600).and_then(|data| end(&data, record.data.size_bytes)).map_err(file(DATA))?;
    }
    Ok(())
}

/// All data are there.
fn take_data(from: &Handed, to: &Draft<'_>, digest: &Digest, record: &LayerRecord) -> std::result::Result<(), Failure> {
    let file = |errno| failure::file(Kind::Layer, digest, DATA, errno);
    let source = match from.file(DATA) {
        // One without file contents has no data.
        Err(Errno::NOENT) if record.data == (Part { digest: Digest::of(b""), size_bytes: 0 }) => return Ok(()),
        other => other.map_err(file)?,
    };
    let size_bytes = record.data.size_bytes;
    if size_bytes == 0 || !size_bytes.is_multiple_of(BLOCK_BYTES as u64) {
        return Err(corrupt(digest, "has data that are not whole blocks"));
    }
    let copied = to.create(DATA, 0o644).and_then(|target| copy_data(&source, &target, size_bytes));
    if record.data.is(copied).map_err(file)? { Ok(()) } else { Err(corrupt(digest, "has other data")) }
}

/// Copies data, durably, with holes where there are only zeros; the digest is that of the digests of the chunks.
fn copy_data(source: &OwnedFd, target: &OwnedFd, most: u64) -> Result<Part> {
    let mut chunks = Hasher::default();
    let mut offset = 0;
    let size_bytes = handed::pieces(source, most, |piece| {
        for chunk in piece.chunks(CHUNK_BYTES as usize) {
            let digest = if is_zero(chunk) { Digest::HOLE } else { Digest::of(chunk) };
            chunks.update(&digest.0);
            write_blocks(target, chunk, offset)?;
            offset += chunk.len() as u64;
        }
        Ok(())
    })?;
    end(target, size_bytes)?;
    Ok(Part { digest: chunks.finish(), size_bytes })
}

/// Writes the blocks that are not zero, neighbours at once.
fn write_blocks(target: &OwnedFd, chunk: &[u8], offset: u64) -> Result<()> {
    let mut at = 0;
    for run in chunk.chunks(BLOCK_BYTES).collect::<Vec<_>>().chunk_by(|one, next| is_zero(one) == is_zero(next)) {
        let length: usize = run.iter().map(|block| block.len()).sum();
        if run.first().is_some_and(|block| !is_zero(block)) {
            draft::write_at(target, &chunk[at..at + length], offset + at as u64)?;
        }
        at += length;
    }
    Ok(())
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

fn end(file: &OwnedFd, size_bytes: u64) -> Result<()> {
    ftruncate(file, size_bytes)?;
    fsync(file)
}

fn corrupt(digest: &Digest, what: impl std::fmt::Display) -> Failure {
    failure::corrupt(Kind::Layer, digest, what)
}
