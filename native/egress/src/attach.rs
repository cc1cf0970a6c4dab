//! How the programs hold on to a device: by links of tcx that are pinned, or by filters of clsact where the kernel has no tcx (before 6.6).

use std::os::fd::AsFd;

use crate::block::Block;
use crate::kernel::Programs;
use crate::netlink::{Netlink, filters};
use crate::place::Place;
use crate::sys::bpf::{self, Hook};
use crate::sys::{Errno, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attachment {
    /// tcx, or else clsact.
    Best,
    Clsact,
}

impl Attachment {
    /// Attaches both programs to the device of a slot, or puts them in the place of those that an egressd before has attached.
    pub fn attach(
        self,
        place: &Place,
        netlink: &mut Netlink,
        block: &Block,
        (slot, programs): (u32, &Programs),
    ) -> Result<()> {
        if self == Self::Best && replace(place, slot, programs)? {
            return Ok(());
        }
        detach(place, slot)?;
        if self == Self::Best {
            match link(place, block, slot, programs) {
                Err(Errno::INVAL | Errno::OPNOTSUPP) => {}
                other => return other,
            }
        }
        let index = block.index(slot);
        let batch = filters::put_clsact(index)
            .and(filters::put_program(index, Hook::Ingress, programs.from_sandbox.as_fd()))
            .and(filters::put_program(index, Hook::Egress, programs.to_sandbox.as_fd()));
        netlink.ask_one(batch)
    }
}

fn link(place: &Place, block: &Block, slot: u32, programs: &Programs) -> Result<()> {
    let index = block.index(slot);
    for (program, hook) in [(&programs.from_sandbox, Hook::Ingress), (&programs.to_sandbox, Hook::Egress)] {
        let link = bpf::link_tcx(program.as_fd(), index, hook)?;
        bpf::pin(link.as_fd(), &place.link(slot, hook == Hook::Ingress))?;
    }
    Ok(())
}

/// Whether both links are there and hold on to a device.
fn replace(place: &Place, slot: u32, programs: &Programs) -> Result<bool> {
    for (program, is_ingress) in [(&programs.from_sandbox, true), (&programs.to_sandbox, false)] {
        let link = match bpf::open_pin(&place.link(slot, is_ingress)) {
            Err(Errno::NOENT) => return Ok(false),
            other => other?,
        };
        match bpf::replace(&link, program.as_fd()) {
            // Its device is gone.
            Err(Errno::NOLINK) => return Ok(false),
            other => other?,
        }
    }
    Ok(true)
}

/// Takes the pins away; with the device goes the rest.
pub fn detach(place: &Place, slot: u32) -> Result<()> {
    for is_ingress in [true, false] {
        match rustix::fs::unlink(place.link(slot, is_ingress)) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
