//! Limits and usage in the unified hierarchy.

use std::os::fd::AsFd;

use super::files::{open_for_write, read, read_key, read_number, write, write_file};
use super::{CPU_PERIOD_US, Hierarchy, Set, Usage};
use crate::sys::Result;

const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];
/// Where the kernel has it: every sandbox then has the same weight for the disk (by BFQ or io.cost), and what it has written is written back, and held up
/// when that is too much, on its own account: the kernel does that only where memory and io are both there.
const FURTHER: &str = "io";
const WEIGHT_PER_CORE: u64 = 100;
const MAX_WEIGHT: u64 = 10_000;

/// Enables for children what is not enabled yet.
pub fn enable_controllers(group: impl AsFd) -> Result<()> {
    let enabled = read(&group, ".", "cgroup.subtree_control")?;
    let further = offered(&group).into_iter().find(|name| name == FURTHER);
    let missing: Vec<String> = CONTROLLERS
        .into_iter()
        .chain(further.as_deref())
        .filter(|name| !enabled.split_whitespace().any(|on| on == *name))
        .map(|name| format!("+{name}"))
        .collect();
    if missing.is_empty() {
        Ok(())
    } else {
        write_file(open_for_write(&group, ".", "cgroup.subtree_control")?, &missing.join(" "))
    }
}

pub fn set_limits(hierarchy: &Hierarchy, name: &str, set: &Set) -> Result<()> {
    let group = &hierarchy.parent;
    write(group, name, "memory.max", &set.memory_bytes.to_string())?;
    write(group, name, "pids.max", &set.pids.to_string())?;
    let weight = (set.cpu_millis * WEIGHT_PER_CORE / 1_000).clamp(1, MAX_WEIGHT);
    // New groups have that of one core.
    if weight != WEIGHT_PER_CORE {
        write(group, name, "cpu.weight", &weight.to_string())?;
    }
    if let Some(quota) = set.quota_us {
        write(group, name, "cpu.max", &format!("{quota} {CPU_PERIOD_US}"))?;
    }
    Ok(())
}

pub fn usage(hierarchy: &Hierarchy, name: &str) -> Result<Usage> {
    let group = &hierarchy.parent;
    let memory_bytes = read_number(group, name, "memory.current")?;
    Ok(Usage {
        memory_bytes,
        // Absent before Linux 5.19.
        memory_peak_bytes: read_number(group, name, "memory.peak").unwrap_or(memory_bytes),
        cpu_usec: Some(read_key(group, name, "cpu.stat", "usage_usec")?),
        pids: read_number(group, name, "pids.current")?,
        oom_kills: oom_kills(hierarchy, name)?,
    })
}

pub fn oom_kills(hierarchy: &Hierarchy, name: &str) -> Result<u64> {
    read_key(&hierarchy.parent, name, "memory.events", "oom_kill")
}

pub fn freeze(hierarchy: &Hierarchy, name: &str) -> Result<()> {
    write(&hierarchy.parent, name, "cgroup.freeze", "1")
}

pub fn is_frozen(hierarchy: &Hierarchy, name: &str) -> Result<bool> {
    Ok(read_key(&hierarchy.parent, name, "cgroup.events", "frozen")? == 1)
}

/// Controllers that a group may enable.
pub fn offered(group: impl AsFd) -> Vec<String> {
    read(group, ".", "cgroup.controllers").unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

/// Whether the kernel weighs I/O by a model of a disk's cost; in the root group.
pub fn costs_io(root: impl AsFd) -> bool {
    read(root, ".", "io.cost.qos").is_ok_and(|text| text.contains("enable=1"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::Cgroups;
    use crate::request::Limits;

    /// A directory with the files of a group, as the kernel shows them.
    struct Fake(std::path::PathBuf);

    impl Fake {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("cgroup-v2-{name}-{}", std::process::id()));
            std::fs::create_dir_all(path.join("s1")).expect("made");
            for (file, text) in [
                ("memory.max", "max\n"),
                ("pids.max", "max\n"),
                ("cpu.weight", "100\n"),
                ("cpu.max", "max 100000\n"),
                ("memory.current", "4096\n"),
                ("memory.peak", "8192\n"),
                ("cpu.stat", "usage_usec 77\nuser_usec 50\n"),
                ("pids.current", "3\n"),
                ("memory.events", "low 0\noom 2\noom_kill 1\noom_group_kill 0\n"),
                ("cgroup.freeze", "0\n"),
                ("cgroup.events", "populated 1\nfrozen 1\n"),
                ("cgroup.subtree_control", "memory\n"),
                ("cgroup.controllers", "cpuset cpu io memory pids\n"),
            ] {
                std::fs::write(path.join("s1").join(file), text).expect("written");
            }
            Self(path)
        }

        fn groups(&self) -> Cgroups {
            let open = || std::fs::File::open(&self.0).expect("opened").into();
            let hierarchy = Hierarchy { controllers: Vec::new(), root: open(), parent: open() };
            Cgroups { group: "dsec".into(), is_v2: true, hierarchies: vec![hierarchy], node_cpus: 4 }
        }

        fn read(&self, file: &str) -> String {
            std::fs::read_to_string(self.0.join("s1").join(file)).expect("read")
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn limits_are_written_in_the_form_of_version_2() {
        let fake = Fake::new("limits");
        let limits = Limits { memory_bytes: 1 << 30, cpu_millis: 1_500, pids: 100, disk_bytes: 0 };
        fake.groups().set_limits("s1", &limits).expect("set");
        assert!(fake.read("memory.max").starts_with(&((1u64 << 30) + (4 << 20)).to_string()));
        assert!(fake.read("pids.max").starts_with("116"));
        assert!(fake.read("cpu.weight").starts_with("150"));
        assert!(fake.read("cpu.max").starts_with("150000 100000"));
    }

    #[test]
    fn all_cores_need_no_quota() {
        let fake = Fake::new("quota");
        let limits = Limits { memory_bytes: 1 << 30, cpu_millis: 4_000, pids: 100, disk_bytes: 0 };
        fake.groups().set_limits("s1", &limits).expect("set");
        assert_eq!(fake.read("cpu.max"), "max 100000\n");
    }

    #[test]
    fn usage_is_read_in_the_form_of_version_2() {
        let usage = Fake::new("usage").groups().usage("s1").expect("usage");
        let expected =
            Usage { memory_bytes: 4_096, memory_peak_bytes: 8_192, cpu_usec: Some(77), pids: 3, oom_kills: 1 };
        assert_eq!(usage, expected);
    }

    #[test]
    fn a_group_is_frozen_and_let_go_in_the_form_of_version_2() {
        let fake = Fake::new("freeze");
        let groups = fake.groups();
        groups.freeze("s1").expect("frozen");
        assert!(fake.read("cgroup.freeze").starts_with('1'));
        assert!(groups.is_frozen("s1").expect("known"));
        groups.let_run("s1");
        assert!(fake.read("cgroup.freeze").starts_with('0'));
    }

    #[test]
    fn only_missing_controllers_are_enabled() {
        let fake = Fake::new("enable");
        let group = std::fs::File::open(fake.0.join("s1")).expect("opened");
        enable_controllers(&group).expect("enabled");
        assert_eq!(fake.read("cgroup.subtree_control"), "+pids +cpu +io");
        assert_eq!(offered(&group), ["cpuset", "cpu", "io", "memory", "pids"]);
    }
}
