//! Which cgroup version this host uses, from /proc/self/mountinfo.

use std::os::fd::OwnedFd;

use crate::data_dir::open_host_directory;
use crate::sys::Errno;

/// Controllers whose v1 hierarchies are used.
const NEEDED: [&str; 4] = ["memory", "pids", "cpu", "freezer"];
/// All that v1 may have; the other words of a mount are options.
const KNOWN: [&str; 12] = [
    "memory",
    "pids",
    "cpu",
    "freezer",
    "cpuacct",
    "cpuset",
    "blkio",
    "devices",
    "net_cls",
    "net_prio",
    "perf_event",
    "hugetlb",
];

/// Opened roots of the hierarchies in use.
pub enum Found {
    V1(Vec<(Vec<String>, OwnedFd)>),
    V2(OwnedFd),
}

impl Found {
    pub fn into_hierarchies(self) -> Vec<(Vec<String>, OwnedFd)> {
        match self {
            Self::V1(hierarchies) => hierarchies,
            Self::V2(root) => vec![(Vec::new(), root)],
        }
    }
}

#[derive(Debug, PartialEq)]
enum Layout {
    V1(Vec<(Vec<String>, String)>),
    V2(String),
}

/// v1 when its memory controller is mounted (also beside an empty v2), else v2. The error says what is missing.
pub fn detect() -> Result<Found, String> {
    let mountinfo =
        std::fs::read_to_string("/proc/self/mountinfo").map_err(|error| format!("/proc/self/mountinfo: {error}"))?;
    let open = |path: &str| {
        open_host_directory(path).map_err(|errno: Errno| format!("{path}: {}", crate::failure::errno_name(errno)))
    };
    Ok(match layout(&mountinfo)? {
        Layout::V2(path) => Found::V2(open(&path)?),
        Layout::V1(hierarchies) => Found::V1(
            hierarchies
                .into_iter()
                .map(|(controllers, path)| Ok((controllers, open(&path)?)))
                .collect::<Result<_, String>>()?,
        ),
    })
}

fn layout(mountinfo: &str) -> Result<Layout, String> {
    let mut v1: Vec<(Vec<String>, String)> = Vec::new();
    let mut v2 = None;
    for line in mountinfo.lines() {
        let Some((front, back)) = line.split_once(" - ") else { continue };
        let (Some(mount_point), Some(kind)) = (front.split(' ').nth(4), back.split(' ').next()) else { continue };
        let options = back.split(' ').nth(2).unwrap_or_default();
        match kind {
            "cgroup" => {
                let controllers: Vec<String> =
                    options.split(',').filter(|word| KNOWN.contains(word)).map(str::to_owned).collect();
                if !v1.iter().any(|(known, _)| *known == controllers) {
                    v1.push((controllers, mount_point.to_owned()));
                }
            }
            "cgroup2" if v2.is_none() => v2 = Some(mount_point.to_owned()),
            _ => {}
        }
    }
    v1.retain(|(controllers, _)| controllers.iter().any(|controller| NEEDED.contains(&controller.as_str())));
    let has = |controller: &str| v1.iter().any(|(controllers, _)| controllers.iter().any(|own| own == controller));
    if !has("memory") {
        return v2.map(Layout::V2).ok_or_else(|| "no cgroup hierarchy is mounted".to_owned());
    }
    match NEEDED.iter().find(|controller| !has(controller)) {
        Some(missing) => Err(format!("the cgroup v1 controller {missing} is not mounted")),
        None => {
            // Usage is read from the first, and limits are written to where they belong: memory first.
            v1.sort_by_key(|(controllers, _)| {
                NEEDED.iter().position(|needed| controllers.iter().any(|own| own == needed))
            });
            Ok(Layout::V1(v1))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(kind: &str, path: &str, options: &str) -> String {
        format!("30 20 0:27 / {path} rw,relatime shared:5 - {kind} {kind} {options}\n")
    }

    #[test]
    fn pure_v2_is_found() {
        assert_eq!(
            layout(&line("cgroup2", "/sys/fs/cgroup", "rw,nsdelegate")),
            Ok(Layout::V2("/sys/fs/cgroup".into()))
        );
    }

    #[test]
    fn v1_beside_an_empty_v2_is_v1_with_comounted_controllers_together() {
        let text = [
            line("cgroup2", "/c/unified", "rw"),
            line("cgroup", "/c/cpu,cpuacct", "rw,cpu,cpuacct"),
            line("cgroup", "/c/freezer", "rw,freezer"),
            line("cgroup", "/c/pids", "rw,pids"),
            line("cgroup", "/c/memory", "rw,memory"),
            line("cgroup", "/c/devices", "rw,devices"),
            line("cgroup", "/c/systemd", "rw,xattr,name=systemd"),
        ]
        .concat();
        let Ok(Layout::V1(found)) = layout(&text) else { panic!("not v1") };
        let controllers: Vec<String> = found.iter().map(|(controllers, _)| controllers.join(",")).collect();
        assert_eq!(controllers, ["memory", "pids", "cpu,cpuacct", "freezer"]);
    }

    #[test]
    fn a_missing_controller_is_named() {
        let text = [
            line("cgroup", "/c/memory", "rw,memory"),
            line("cgroup", "/c/pids", "rw,pids"),
            line("cgroup", "/c/cpu", "rw,cpu"),
        ]
        .concat();
        assert_eq!(layout(&text), Err("the cgroup v1 controller freezer is not mounted".to_owned()));
        assert!(layout("").is_err());
    }
}
