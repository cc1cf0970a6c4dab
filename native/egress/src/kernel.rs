//! Maps and programs of `bpf/`: loaded once, pinned, and found again by the next egressd.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use aya::maps::{Map, MapData, RingBuf};
use aya::programs::{CgroupSock, CgroupSockAddr, SchedClassifier};
use aya::{Ebpf, EbpfLoader};

use crate::layout::{self, Counters, MAX_UPLINKS, Uplink};
use crate::sys::bpf::{self, Hook};
use crate::sys::mapped::Mapped;
use daemon::failure::errno_name;

const OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/egress.o"));
const ORIGINS: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/origins.o"));

pub struct Programs {
    pub from_sandbox: OwnedFd,
    pub to_sandbox: OwnedFd,
}

/// What the programs share with egressd.
pub struct Maps {
    pub uplinks: Mapped<Uplink>,
    pub counters: Mapped<Counters>,
    pub rules: OwnedFd,
    pub pins: OwnedFd,
    pub node: OwnedFd,
    pub flows: OwnedFd,
}

/// Programs of cgroups, which note who is behind a socket, and the networks where they look.
pub struct Noting {
    pub programs: Vec<(&'static str, Hook, OwnedFd)>,
    pub spaces: OwnedFd,
}

pub struct Kernel {
    pub programs: Programs,
    pub maps: Maps,
    pub denials: RingBuf<MapData>,
}

type Failed = String;

/// Loads the programs. Maps that are pinned in `pins` are used as they are.
pub fn load(pins: &Path) -> Result<Kernel, Failed> {
    let failed = |error: aya::EbpfError| format!("the eBPF programs cannot be loaded: {}", chain(&error));
    let mut object = EbpfLoader::new().default_map_pin_directory(pins).load(OBJECT).map_err(failed)?;
    let programs = Programs {
        from_sandbox: program(&mut object, "from_sandbox")?,
        to_sandbox: program(&mut object, "to_sandbox")?,
    };
    let mapped = |errno| format!("the maps of the eBPF programs: {}", errno_name(errno));
    let maps = Maps {
        uplinks: Mapped::new(map(&object, "uplinks")?, MAX_UPLINKS).map_err(mapped)?,
        counters: Mapped::new(map(&object, "counters")?, MAX_UPLINKS).map_err(mapped)?,
        rules: own(map(&object, "rules")?)?,
        pins: own(map(&object, "pins")?)?,
        node: own(map(&object, "node")?)?,
        flows: own(map(&object, "flows")?)?,
    };
    let denials = object.take_map("denials").ok_or("there is no map denials")?;
    let denials = RingBuf::try_from(denials).map_err(|error| format!("the map denials: {error}"))?;
    Ok(Kernel { programs, maps, denials })
}

/// Loads what notes who is behind a socket. Not every kernel takes it.
pub fn load_noting(pins: &Path) -> Result<Noting, Failed> {
    let failed = |error: aya::EbpfError| chain(&error);
    let mut object = EbpfLoader::new().default_map_pin_directory(pins).load(ORIGINS).map_err(failed)?;
    let hooks = [
        ("socket_created", Hook::SocketCreate),
        ("socket_connects4", Hook::Connect4),
        ("socket_connects6", Hook::Connect6),
        ("socket_sends4", Hook::UdpSend4),
        ("socket_sends6", Hook::UdpSend6),
    ];
    let mut programs = Vec::with_capacity(hooks.len());
    for (name, hook) in hooks {
        let failed = |error: aya::programs::ProgramError| format!("{name}: {}", chain(&error));
        let program = object.program_mut(name).ok_or_else(|| format!("there is no program {name}"))?;
        let fd = if hook == Hook::SocketCreate {
            let program: &mut CgroupSock = program.try_into().map_err(failed)?;
            program.load().map_err(failed)?;
            own(program.fd().map_err(failed)?.as_fd())?
        } else {
            let program: &mut CgroupSockAddr = program.try_into().map_err(failed)?;
            program.load().map_err(failed)?;
            own(program.fd().map_err(failed)?.as_fd())?
        };
        programs.push((name, hook, fd));
    }
    Ok(Noting { programs, spaces: own(map(&object, "spaces")?)? })
}

impl Maps {
    /// Tells the programs what the node is.
    pub fn set_node(&self, node: &layout::Node) -> crate::sys::Result<()> {
        bpf::update(self.node.as_fd(), &Zero(0), node)
    }
}

#[derive(Clone, Copy)]
#[repr(transparent)]
struct Zero(#[allow(dead_code, reason = "the kernel reads it")] u32);

// SAFETY: an integer.
unsafe impl layout::Plain for Zero {}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

fn program(object: &mut Ebpf, name: &str) -> Result<OwnedFd, Failed> {
    let failed = |error: &dyn std::error::Error| format!("the eBPF program {name}: {}", chain(error));
    let program = object.program_mut(name).ok_or_else(|| format!("there is no program {name}"))?;
    let program: &mut SchedClassifier =
        program.try_into().map_err(|error: aya::programs::ProgramError| failed(&error))?;
    program.load().map_err(|error| failed(&error))?;
    own(program.fd().map_err(|error| failed(&error))?.as_fd())
}

fn map<'a>(object: &'a Ebpf, name: &str) -> Result<BorrowedFd<'a>, Failed> {
    match object.map(name) {
        Some(Map::Array(map) | Map::LpmTrie(map) | Map::HashMap(map) | Map::LruHashMap(map)) => Ok(map.fd().as_fd()),
        _ => Err(format!("there is no map {name}")),
    }
}

/// Another descriptor of the same, which outlives the object.
fn own(fd: BorrowedFd<'_>) -> Result<OwnedFd, Failed> {
    fd.try_clone_to_owned().map_err(|error| error.to_string())
}
