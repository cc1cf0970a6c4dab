//! bpf(2): entries of maps, links, and trial runs of programs.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::{Errno, Result, check};
use crate::layout::Plain;

const MAP_LOOKUP: libc::c_int = 1;
const MAP_UPDATE: libc::c_int = 2;
const MAP_DELETE: libc::c_int = 3;
const MAP_NEXT_KEY: libc::c_int = 4;
const OBJECT_PIN: libc::c_int = 6;
const OBJECT_GET: libc::c_int = 7;
const PROGRAM_TEST_RUN: libc::c_int = 10;
const LINK_CREATE: libc::c_int = 28;
const LINK_UPDATE: libc::c_int = 29;

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

/// Where of a cgroup a program is run (`enum bpf_attach_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Hook {
    SocketCreate = 2,
    Connect4 = 10,
    Connect6 = 11,
    UdpSend4 = 14,
    UdpSend6 = 15,
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    target: u32,
    hook: u32,
    flags: u32,
}

#[repr(C)]
struct LinkUpdate {
    link: u32,
    program: u32,
    flags: u32,
    program_before: u32,
}

#[repr(C)]
struct Pin {
    path: u64,
    fd: u32,
    flags: u32,
}

/// Has a program run for all of a cgroup and below, beside those of others, as long as the link or a pin of it is there.
pub fn link(program: BorrowedFd<'_>, cgroup: BorrowedFd<'_>, hook: Hook) -> Result<OwnedFd> {
    let mut attributes = LinkCreate { program: number(program), target: number(cgroup), hook: hook as u32, flags: 0 };
    let fd = call(LINK_CREATE, &mut attributes)?;
    // SAFETY: a descriptor that is nobody's yet; the kernel sets it to be closed at an exec.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

/// Another program takes the place of a link's: every call runs one of both.
pub fn replace(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> Result<()> {
    let mut attributes = LinkUpdate { link: number(link), program: number(program), flags: 0, program_before: 0 };
    call(LINK_UPDATE, &mut attributes).map(drop)
}

/// Keeps what the descriptor is of under a name in a bpffs.
pub fn pin(fd: BorrowedFd<'_>, path: &CStr) -> Result<()> {
    call(OBJECT_PIN, &mut Pin { path: path.as_ptr() as u64, fd: number(fd), flags: 0 }).map(drop)
}

/// What has a name in a bpffs.
pub fn pinned(path: &CStr) -> Result<Option<OwnedFd>> {
    match call(OBJECT_GET, &mut Pin { path: path.as_ptr() as u64, fd: 0, flags: 0 }) {
        // SAFETY: as in `link`.
        Ok(fd) => Ok(Some(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
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
