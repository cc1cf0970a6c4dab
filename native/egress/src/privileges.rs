//! What egressd may still do once it has begun.

use crate::sys::Result;
use crate::sys::process::{
    CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON, CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN, CAP_SYS_PTRACE, keep_only_capabilities,
};

/// Devices, routes and marks; maps and programs; the network namespaces of sandboxes, which are found by their processes; to start a gate, which becomes another user.
const KEPT: [u32; 7] = [CAP_NET_ADMIN, CAP_BPF, CAP_PERFMON, CAP_SYS_ADMIN, CAP_SYS_PTRACE, CAP_SETUID, CAP_SETGID];

/// Must come before any thread is started.
pub fn reduce() -> Result<()> {
    keep_only_capabilities(&KEPT)
}
