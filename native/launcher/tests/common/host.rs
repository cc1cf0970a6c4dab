//! What there is on the host: to see that nothing is left.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::Node;

/// Counts of everything that a sandbox is made of.
#[derive(Debug, PartialEq, Eq)]
pub struct Census {
    processes: usize,
    network_namespaces: usize,
    user_namespaces: usize,
    mounts: usize,
    groups: usize,
    hierarchies: usize,
    uppers: usize,
    quota_groups: usize,
    sockets: usize,
    records: usize,
    launcher_fds: usize,
}

fn entries(path: impl AsRef<Path>) -> Vec<String> {
    let Ok(directory) = fs::read_dir(path) else { return Vec::new() };
    directory.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

impl Census {
    pub fn of(node: &Node) -> Self {
        let tree = descendants(node);
        let link = |pid: &u32, kind: &str| fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok();
        let distinct = |kind: &str| {
            let mut all: Vec<_> = tree.iter().filter_map(|pid| link(pid, kind)).collect();
            all.sort();
            all.dedup();
            all.len()
        };
        Self {
            processes: tree.len(),
            network_namespaces: distinct("net"),
            user_namespaces: distinct("user"),
            mounts: fs::read_to_string("/proc/self/mountinfo")
                .map_or(0, |text| text.matches(&*node.data.to_string_lossy()).count()),
            hierarchies: groups_of(node).len(),
            groups: groups_of(node)
                .iter()
                .map(|path| entries(path).iter().filter(|name| name.starts_with('s')).count())
                .sum(),
            uppers: entries(node.data.join("volume/u")).len(),
            quota_groups: quota_groups(node),
            sockets: entries(node.data.join("run/s")).len(),
            records: entries(node.data.join("run/launcher")).len(),
            launcher_fds: entries(format!("/proc/{}/fd", node.pid())).len(),
        }
    }

    pub fn quota_groups(&self) -> usize {
        self.quota_groups
    }
}

/// The launcher's group in each hierarchy.
pub fn groups_of(node: &Node) -> Vec<std::path::PathBuf> {
    let name = launcher::data_dir::group_name_of(&node.data);
    let mut roots = vec![Path::new("/sys/fs/cgroup").to_owned()];
    roots.extend(entries("/sys/fs/cgroup").iter().map(|name| Path::new("/sys/fs/cgroup").join(name)));
    roots.iter().map(|root| root.join(&name)).filter(|path| path.is_dir()).collect()
}

fn quota_groups(node: &Node) -> usize {
    let volume = fs::File::open(node.data.join("volume")).expect("volume");
    let Ok(uuid) = launcher::sys::btrfs::filesystem_uuid(&volume) else { return 0 };
    entries(format!("/sys/fs/btrfs/{uuid}/qgroups")).iter().filter(|name| name.starts_with("0_")).count()
}

/// Processes below the launcher, and those in its groups.
pub fn descendants(node: &Node) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for pid in entries("/proc").iter().filter_map(|name| name.parse::<u32>().ok()) {
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        children.entry(parent.unwrap_or(0)).or_default().push(pid);
    }
    let mut found = Vec::new();
    let mut open = vec![node.pid()];
    while let Some(pid) = open.pop() {
        for child in children.get(&pid).into_iter().flatten() {
            found.push(*child);
            open.push(*child);
        }
    }
    found.extend(descendants_of_groups(node));
    found.sort_unstable();
    found.dedup();
    found
}

impl Census {
    /// The same but for what goes in the background.
    pub fn is_like(&self, other: &Self) -> bool {
        let without = |census: &Self| {
            (census.processes, census.mounts, census.groups, census.uppers, census.sockets, census.records)
        };
        without(self) == without(other)
    }
}

impl Census {
    /// Groups of one hierarchy, writable layers, sockets, records.
    pub fn sandboxes(&self) -> (usize, usize, usize, usize) {
        (self.groups / self.hierarchies, self.uppers, self.sockets, self.records)
    }
}

/// Processes in the groups of all sandboxes.
pub fn descendants_of_groups(node: &Node) -> Vec<u32> {
    let mut found = Vec::new();
    for group in groups_of(node) {
        for slot in entries(&group) {
            let text = fs::read_to_string(group.join(slot).join("cgroup.procs")).unwrap_or_default();
            found.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Whether a process runs; one that only waits for its parent to notice does not.
pub fn is_running(pid: &serde_json::Value) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// First processes in groups whose root is a sandbox's.
pub fn furnished(node: &Node) -> usize {
    let has_root = |pid: &&u32| {
        let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
        mounts.lines().any(|line| line.split(' ').nth(4) == Some("/") && line.contains(" - overlay "))
    };
    descendants_of_groups(node).iter().filter(has_root).count()
}
