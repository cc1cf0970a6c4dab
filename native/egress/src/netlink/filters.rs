//! Programs on devices: the qdisc clsact and its filters (tc-bpf(8)). They live as long as the device, whoever put them there. Links of tcx would do the same, but
//! each waits until all processors have left what they were at: 15 ms, twice for each sandbox.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use super::message::Batch;
use crate::kernel::Programs;

const PUT: libc::c_int = libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
const CLSACT_HANDLE: u32 = 0xFFFF_0000;
const CLSACT: u32 = 0xFFFF_FFF1;
const CLSACT_INGRESS: u32 = 0xFFFF_FFF2;
const CLSACT_EGRESS: u32 = 0xFFFF_FFF3;
const PRIORITY: u32 = 1;
const ALL_PROTOCOLS: u16 = 0x0003;
const TCA_BPF_FD: u16 = 6;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_FLAGS: u16 = 8;
/// The program's answer is the verdict.
const ACT_DIRECT: u32 = 1;

/// `struct tcmsg`.
fn body(index: u32, handle: u32, parent: u32, info: u32) -> [u8; 20] {
    let mut body = [0; 20];
    for (at, word) in [(4, index), (8, handle), (12, parent), (16, info)] {
        body[at..at + 4].copy_from_slice(&word.to_ne_bytes());
    }
    body
}

/// Attaches both programs to a device, each at once in the place of one that is there.
pub fn put_programs(index: u32, programs: &Programs) -> Batch {
    Batch::default()
        .request(libc::RTM_NEWQDISC, PUT, &body(index, CLSACT_HANDLE, CLSACT, 0))
        .text_attribute(libc::TCA_KIND, "clsact")
        .and(put_program(index, CLSACT_INGRESS, "from_sandbox", programs.from_sandbox.as_fd()))
        .and(put_program(index, CLSACT_EGRESS, "to_sandbox", programs.to_sandbox.as_fd()))
}

fn put_program(index: u32, parent: u32, name: &str, program: BorrowedFd<'_>) -> Batch {
    let info = PRIORITY << 16 | u32::from(ALL_PROTOCOLS.to_be());
    Batch::default()
        .request(libc::RTM_NEWTFILTER, PUT, &body(index, 1, parent, info))
        .text_attribute(libc::TCA_KIND, "bpf")
        .nested(libc::TCA_OPTIONS, |batch| {
            batch
                .number_attribute(TCA_BPF_FD, program.as_raw_fd().unsigned_abs())
                .text_attribute(TCA_BPF_NAME, name)
                .number_attribute(TCA_BPF_FLAGS, ACT_DIRECT)
        })
}
