//! What programs the kernel runs for the root of all cgroups.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use egress::sys::{bpf, cgroup};

const OBJECT_INFO: libc::c_int = 15;
const PROGRAM_QUERY: libc::c_int = 16;
const CONNECT4: u32 = 10;
const MOST: usize = 256;

fn call<T>(command: libc::c_int, attributes: &mut T) {
    // SAFETY: `attributes` has the form of the command, and what it points to outlives the call.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size_of::<T>()) };
    assert_eq!(done, 0, "bpf {command}: {}", std::io::Error::last_os_error());
}

#[repr(C)]
struct Info {
    fd: u32,
    length: u32,
    at: u64,
}

/// The number of the program that a pinned link runs.
pub fn program_of(link: &Path) -> u32 {
    let path = CString::new(link.to_str().expect("text")).expect("no zero");
    let link: OwnedFd = bpf::pinned(&path).expect("a link").expect("pinned");
    // Type, number of the link, number of its program.
    let mut words = [0u32; 64];
    let at = words.as_mut_ptr() as u64;
    call(OBJECT_INFO, &mut Info { fd: link.as_raw_fd().cast_unsigned(), length: size_of_val(&words) as u32, at });
    words[2]
}

#[repr(C)]
struct Query {
    target: u32,
    hook: u32,
    query_flags: u32,
    attach_flags: u32,
    numbers: u64,
    count: u32,
    unused: u32,
}

/// Programs that look at connections.
pub fn programs() -> Vec<u32> {
    let root = cgroup::root().expect("cgroups");
    let mut numbers = vec![0u32; MOST];
    let mut query = Query {
        target: root.as_raw_fd().cast_unsigned(),
        hook: CONNECT4,
        query_flags: 0,
        attach_flags: 0,
        numbers: numbers.as_mut_ptr() as u64,
        count: MOST as u32,
        unused: 0,
    };
    call(PROGRAM_QUERY, &mut query);
    numbers.truncate(query.count as usize);
    numbers
}
