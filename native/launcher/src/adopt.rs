//! The start of a launcher on a directory where another has been: sandboxes that live are taken over, everything else is removed.

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::time::Instant;

use rustix::fs::{AtFlags, Dir, unlinkat};
use rustix::process::Pid;
use serde_json::json;

use crate::failure::errno_name;
use crate::launcher::Launcher;
use crate::node::Node;
use crate::poller::Token;
use crate::profile::Profile;
use crate::record::{self, Exit, Record};
use crate::request::Lower;
use crate::sandbox::{Ending, Phase, Sandbox};
use crate::sys::clone::{self, Ending as ProcessEnding, Process};
use crate::sys::{Errno, Result};
use daemon::log::Level;

impl Launcher {
    /// Must come before the first request.
    pub fn adopt(&mut self, now: Instant) -> Result<()> {
        let mut strays: Vec<Record> = Vec::new();
        for record in record::read_all(&self.node.data.records)? {
            if record.boot == self.node.boot && !self.sandboxes.contains_key(&record.slot) {
                self.adopt_one(record)?;
            } else {
                strays.push(record);
            }
        }
        let adopted = self.sandboxes.len();
        self.stale_groups = self.node.volume.stale_groups()?.into();
        self.remove_strays(strays, now)?;
        self.remove_stray_snapshots(now)?;
        self.remove_sockets()?;
        let slots = self.node.uids.slots();
        self.free_slots = (0..slots).filter(|slot| !self.sandboxes.contains_key(slot)).collect();
        let removing = self.sandboxes.len() - adopted;
        self.log.write(
            Level::Info,
            "started",
            &json!({
                "adopted": adopted,
                "removing": removing,
                "slots": slots,
                "cgroup": self.node.cgroups.version(),
                "quota": self.node.volume.quota == crate::volume::Quota::Btrfs,
            }),
        );
        Ok(())
    }

    fn adopt_one(&mut self, record: Record) -> Result<()> {
        let process = self.find_process(&record);
        let phase = match (&process, record.exit) {
            (Some(_), _) => Phase::Live,
            (None, Some(exit)) => Phase::Exited(exit),
            (None, None) => {
                let oom_kills = self.node.cgroups.oom_kills(&Node::slot_name(record.slot)).unwrap_or(0);
                Phase::Exited(Exit::new(ProcessEnding::Unknown, oom_kills))
            }
        };
        if let Some(process) = &process {
            self.poller.add(&process.pidfd, Token::Process(record.slot))?;
        }
        self.lowers.adopt(&record.lower);
        self.slots_by_id.insert(record.id.clone(), record.slot);
        let sandbox = Sandbox {
            id: Some(record.id),
            slot: record.slot,
            pid: record.pid,
            pid_identity: record.pid_identity,
            net_identity: record.net_identity,
            process,
            lower: record.lower,
            profile: record.profile,
            tripwires: record.tripwires,
            absent_tripwires: Vec::new(),
            is_adopted: true,
            created_at_ms: record.created_at_ms,
            phase,
        };
        self.sandboxes.insert(record.slot, sandbox);
        self.watch(record.slot);
        Ok(())
    }

    /// The very process of the record, in the very group: a number alone could be anybody's by now.
    fn find_process(&self, record: &Record) -> Option<Process> {
        let pid = Pid::from_raw(i32::try_from(record.pid).ok()?)?;
        let pidfd = clone::open_process(pid).ok()?;
        let is_same = clone::identity(&pidfd).ok()? == record.pid_identity;
        let is_ours = self.node.cgroups.processes(&Node::slot_name(record.slot)).contains(&record.pid);
        (is_same && is_ours && clone::reap(pidfd.as_fd()) == clone::Reaped::Alive).then_some(Process { pid, pidfd })
    }

    /// Slots that have a group or a writable layer and no sound record: blanks, what was being made, what was being removed, another boot's.
    fn remove_strays(&mut self, records: Vec<Record>, now: Instant) -> Result<()> {
        for record in records {
            record::remove(&self.node.data.records, &record.id)?;
        }
        let mut names = self.node.cgroups.names();
        names.extend(self.node.volume.names()?);
        let slots: HashSet<u32> = names.iter().filter_map(|name| Node::slot_of_name(name)).collect();
        for slot in slots {
            if self.sandboxes.contains_key(&slot) {
                continue;
            }
            let sandbox = Sandbox {
                id: None,
                slot,
                pid: 0,
                pid_identity: 0,
                net_identity: None,
                process: None,
                lower: Lower::default(),
                profile: Profile::default(),
                tripwires: Vec::new(),
                absent_tripwires: Vec::new(),
                is_adopted: false,
                created_at_ms: 0,
                phase: Phase::Blank,
            };
            self.sandboxes.insert(slot, sandbox);
            self.begin_ending(slot, Ending::new(now));
        }
        Ok(())
    }

    /// Sockets that no sandbox listens on.
    fn remove_sockets(&mut self) -> Result<()> {
        let wanted: HashSet<String> = self.sandboxes.values().map(Sandbox::socket_name).collect();
        for entry in Dir::read_from(&self.node.data.sockets)? {
            let entry = entry?;
            let name = entry.file_name();
            let is_wanted = name.to_str().is_ok_and(|name| wanted.contains(name));
            if is_wanted || matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            match unlinkat(&self.node.data.sockets, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => self.log.write(Level::Warn, "socket-not-removed", &json!({ "errno": errno_name(errno) })),
            }
        }
        Ok(())
    }
}
