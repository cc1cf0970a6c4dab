//! bpf(2): entries of maps, and trial runs of programs.

use std::os::fd::{AsRawFd, BorrowedFd};

use super::{Errno, Result, check};
use crate::layout::Plain;

const MAP_LOOKUP: libc::c_int = 1;
const MAP_UPDATE: libc::c_int = 2;
const MAP_DELETE: libc::c_int = 3;
const MAP_NEXT_KEY: libc::c_int = 4;
const PROGRAM_TEST_RUN: libc::c_int = 10;

#[repr(C)]
#[derive(Default)]
struct Element {
    map: u32,
    unused: u32,
    key: u64,
    /// Value, or next key.
    value: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct TestRun {
    program: u32,
    outcome: u32,
    bytes_in: u32,
    bytes_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    context_in_bytes: u32,
    context_out_bytes: u32,
    context_in: u64,
    context_out: u64,
}

fn call<T>(command: libc::c_int, attributes: &mut T) -> Result<libc::c_long> {
    // SAFETY: `attributes` has the form of the command, and what it points to outlives the call; see the callers.
    check(unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size_of::<T>()) })
}

fn number(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().unsigned_abs()
}

fn address<T>(value: &T) -> u64 {
    std::ptr::from_ref(value) as u64
}

fn address_mut<T>(value: &mut T) -> u64 {
    std::ptr::from_mut(value) as u64
}

/// The value of a key, whose form is that of the map.
pub fn lookup<K: Plain, V: Plain>(map: BorrowedFd<'_>, key: &K) -> Result<Option<V>> {
    let mut value = V::zeroed();
    let mut element =
        Element { map: number(map), key: address(key), value: address_mut(&mut value), ..Element::default() };
    match call(MAP_LOOKUP, &mut element) {
        Ok(_) => Ok(Some(value)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// `NOSPC`, or `2BIG` of a hash: the map is full.
pub fn update<K: Plain, V: Plain>(map: BorrowedFd<'_>, key: &K, value: &V) -> Result<()> {
    let mut element = Element { map: number(map), key: address(key), value: address(value), ..Element::default() };
    call(MAP_UPDATE, &mut element).map(drop)
}

pub fn delete<K: Plain>(map: BorrowedFd<'_>, key: &K) -> Result<()> {
    let mut element = Element { map: number(map), key: address(key), ..Element::default() };
    match call(MAP_DELETE, &mut element) {
        Ok(_) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error),
    }
}

/// All keys, as long as nobody changes the map meanwhile.
pub fn keys<K: Plain>(map: BorrowedFd<'_>) -> Result<Vec<K>> {
    let mut keys: Vec<K> = Vec::new();
    loop {
        let mut next = K::zeroed();
        let last = keys.last().map_or(0, address);
        let mut element = Element { map: number(map), key: last, value: address_mut(&mut next), ..Element::default() };
        match call(MAP_NEXT_KEY, &mut element) {
            Ok(_) => keys.push(next),
            Err(Errno::NOENT) => return Ok(keys),
            Err(error) => return Err(error),
        }
    }
}

/// `struct __sk_buff`, as a test run takes and gives it.
#[derive(Clone, Copy)]
#[repr(C)]
struct PacketContext {
    length: u32,
    kind: u32,
    mark: u32,
    others: [u32; 45],
}

/// Runs a program once on a frame. What it returned, and the mark that it left.
pub fn test_run(program: BorrowedFd<'_>, frame: &[u8], mark: u32) -> Result<(u32, u32)> {
    let context_in = PacketContext { length: 0, kind: 0, mark, others: [0; 45] };
    let mut context_out = context_in;
    let mut run = TestRun {
        program: number(program),
        bytes_in: frame.len() as u32,
        data_in: frame.as_ptr() as u64,
        repeat: 1,
        context_in_bytes: size_of::<PacketContext>() as u32,
        context_out_bytes: size_of::<PacketContext>() as u32,
        context_in: address(&context_in),
        context_out: address_mut(&mut context_out),
        ..TestRun::default()
    };
    call(PROGRAM_TEST_RUN, &mut run)?;
    Ok((run.outcome, context_out.mark))
}
