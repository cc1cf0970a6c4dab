//! Limits and usage in the v1 hierarchies.

use super::files::{read, read_key, read_number, write};
use super::{Hierarchy, Set, Usage};
use crate::sys::{Errno, Result};

const SHARES_PER_CORE: u64 = 1_024;
const MIN_SHARES: u64 = 2;
const MAX_SHARES: u64 = 262_144;

fn with<'a>(hierarchies: &'a [Hierarchy], controller: &str) -> Result<&'a Hierarchy> {
    hierarchies.iter().find(|hierarchy| hierarchy.has(controller)).ok_or(Errno::NODEV)
}

pub fn set_limits(hierarchies: &[Hierarchy], name: &str, set: &Set) -> Result<()> {
    write(&with(hierarchies, "memory")?.parent, name, "memory.limit_in_bytes", &set.memory_bytes.to_string())?;
    write(&with(hierarchies, "pids")?.parent, name, "pids.max", &set.pids.to_string())?;
    let cpu = with(hierarchies, "cpu")?;
    let shares = (set.cpu_millis * SHARES_PER_CORE / 1_000).clamp(MIN_SHARES, MAX_SHARES);
    // New groups have those of one core.
    if shares != SHARES_PER_CORE {
        write(&cpu.parent, name, "cpu.shares", &shares.to_string())?;
    }
    if let Some(quota) = set.quota_us {
        write(&cpu.parent, name, "cpu.cfs_quota_us", &quota.to_string())?;
    }
    Ok(())
}

pub fn usage(hierarchies: &[Hierarchy], name: &str) -> Result<Usage> {
    let memory = &with(hierarchies, "memory")?.parent;
    let cpu = with(hierarchies, "cpu")?;
    let cpu_nanoseconds = cpu.has("cpuacct").then(|| read_number(&cpu.parent, name, "cpuacct.usage")).transpose()?;
    Ok(Usage {
        memory_bytes: read_number(memory, name, "memory.usage_in_bytes")?,
        memory_peak_bytes: read_number(memory, name, "memory.max_usage_in_bytes")?,
        cpu_usec: cpu_nanoseconds.map(|nanoseconds| nanoseconds / 1_000),
        pids: read_number(&with(hierarchies, "pids")?.parent, name, "pids.current")?,
        oom_kills: oom_kills(hierarchies, name)?,
    })
}

pub fn oom_kills(hierarchies: &[Hierarchy], name: &str) -> Result<u64> {
    read_key(&with(hierarchies, "memory")?.parent, name, "memory.oom_control", "oom_kill")
}

pub fn freeze(hierarchies: &[Hierarchy], name: &str) -> Result<()> {
    write(&with(hierarchies, "freezer")?.parent, name, "freezer.state", "FROZEN")
}

pub fn is_frozen(hierarchies: &[Hierarchy], name: &str) -> Result<bool> {
    let state = read(&with(hierarchies, "freezer")?.parent, name, "freezer.state")?;
    Ok(state.trim() == "FROZEN")
}

pub fn thaw(hierarchies: &[Hierarchy], name: &str) {
    // A group that is gone has nobody to thaw.
    if let Ok(freezer) = with(hierarchies, "freezer") {
        let _ = write(&freezer.parent, name, "freezer.state", "THAWED");
    }
}
