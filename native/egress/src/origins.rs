//! Which process of a sandbox is behind a packet. Programs of cgroups note it with the socket; they are attached to the root of all cgroups and pinned, so that they outlive
//! egressd, and look no further than whether a socket is in one of the networks that are named here. Where the kernel takes no such programs nothing is known, and everything else
//! goes on.

use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use launcher::behaviour::facts::uid_inside;

use crate::kernel::{self, Noting};
use crate::layout::{FLOW_PLACES, Flow, FlowKey, Origin, Plain, Space};
use crate::namespace::Namespace;
use crate::sys::bpf::{self, Hook};
use crate::sys::{Errno, Result, cgroup, socket_space};
use daemon::failure::errno_name;

/// A socket of a sandbox, as whoever it has asked sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// Of IP.
    pub protocol: u8,
    pub is_ipv6: bool,
    pub port: u16,
}

/// The process that is behind a socket, as its sandbox knows it.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    pub origin: Origin,
    pub uid: u32,
}

pub struct Origins {
    flows: OwnedFd,
    /// Absent where the kernel takes no programs.
    spaces: Option<OwnedFd>,
    by_slot: HashMap<u32, (u64, Space)>,
    /// Why nothing is known.
    pub lack: Option<String>,
}

impl Origins {
    /// Must come before capabilities are given up: it opens the hierarchy of cgroups.
    pub fn start(pins: &Path, flows: OwnedFd) -> Self {
        let (spaces, lack) = match note(pins) {
            Ok(spaces) => (Some(spaces), None),
            Err(lack) => (None, Some(lack)),
        };
        Self { flows, spaces, by_slot: HashMap::new(), lack }
    }

    /// Goes on with what an egressd before has named, as far as these slots have their sandbox still.
    pub fn adopt(&mut self, is_live: impl Fn(u32) -> bool) -> Result<()> {
        let Some(spaces) = &self.spaces else { return Ok(()) };
        for cookie in bpf::keys::<Cookie>(spaces.as_fd())? {
            match bpf::lookup::<_, Space>(spaces.as_fd(), &cookie)? {
                Some(space) if is_live(space.slot) => drop(self.by_slot.insert(space.slot, (cookie.0, space))),
                _ => bpf::delete(spaces.as_fd(), &cookie)?,
            }
        }
        Ok(())
    }

    pub fn is_missing(&self, slot: u32) -> bool {
        self.spaces.is_some() && !self.by_slot.contains_key(&slot)
    }

    /// Sockets of this network are looked at from now on.
    pub fn open(&mut self, slot: u32, home: &OwnedFd, namespace: &Namespace) -> Result<()> {
        let Some(spaces) = &self.spaces else { return Ok(()) };
        let Some(people) = namespace.people else { return Err(Errno::NOENT) };
        let cookie = socket_space::cookie_of(home.as_fd(), namespace.fd.as_fd())?;
        let space = Space { slot, pid_inode: people.pid_inode, first_user: people.first_user, unused: 0 };
        bpf::update(spaces.as_fd(), &Cookie(cookie), &space)?;
        self.by_slot.insert(slot, (cookie, space));
        Ok(())
    }

    pub fn close(&mut self, slot: u32) {
        if let (Some((cookie, _)), Some(spaces)) = (self.by_slot.remove(&slot), &self.spaces) {
            // One that stays names a network that is gone; the next egressd removes it.
            let _ = bpf::delete(spaces.as_fd(), &Cookie(cookie));
        }
    }

    /// Whose it is; nothing when it was noted for another sandbox, or not at all.
    pub fn know(&self, slot: u32, origin: &Origin) -> Option<Known> {
        let (cookie, space) = self.by_slot.get(&slot)?;
        if origin.net_cookie != *cookie || origin.pid == 0 {
            return None;
        }
        Some(Known { origin: *origin, uid: uid_inside(origin.user, space.first_user) })
    }

    /// Who has asked the resolver, a service or the gate something by this socket.
    pub fn of_asker(&self, slot: u32, asker: Asker) -> Option<Known> {
        let key =
            FlowKey { slot, place: asker.port % FLOW_PLACES, protocol: asker.protocol, is_ipv6: asker.is_ipv6.into() };
        let flow = bpf::lookup::<_, Flow>(self.flows.as_fd(), &key).ok()??;
        if flow.port != u64::from(asker.port) {
            return None;
        }
        self.know(slot, &flow.origin)
    }
}

#[derive(Clone, Copy)]
#[repr(transparent)]
struct Cookie(u64);

// SAFETY: an integer.
unsafe impl Plain for Cookie {}

/// Loads the programs and attaches them. A link of an egressd before gets the new program, so that no socket goes unnoticed meanwhile.
fn note(pins: &Path) -> std::result::Result<OwnedFd, String> {
    let Noting { programs, spaces } = kernel::load_noting(pins)?;
    let failed = |what: &'static str| move |errno: Errno| format!("{what}: {}", errno_name(errno));
    let root = cgroup::root().map_err(failed("cgroups v2"))?;
    for (name, hook, program) in &programs {
        attach(&pins.join(format!("link-{name}")), (*hook, program), &root).map_err(failed(name))?;
    }
    Ok(spaces)
}

fn attach(pin: &Path, (hook, program): (Hook, &OwnedFd), root: &OwnedFd) -> Result<()> {
    let path = CString::new(pin.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
    if let Some(link) = bpf::pinned(&path)? {
        if bpf::replace(link.as_fd(), program.as_fd()).is_ok() {
            return Ok(());
        }
        // Its cgroup is gone, such as that of a container in which another egressd ran.
        rustix::fs::unlink(pin)?;
    }
    bpf::pin(bpf::link(program.as_fd(), root.as_fd(), hook)?.as_fd(), &path)
}
