//! What a sandbox looks like from inside, to root: nothing of the host, and no way to it. On both ways of making it.

mod common;

use common::{EVERY_WAY, Node};
use serde_json::json;

/// Runs a test in one sandbox of each kind.
fn in_each_kind(test: impl Fn(&Node)) {
    for setup in EVERY_WAY {
        let node = Node::start(setup);
        node.client().ok("sandbox.create", &node.create("a1"));
        test(&node);
    }
}

/// Lines that are not as every line must be.
fn odd_lines(output: &str, is_expected: impl Fn(&str) -> bool) -> Vec<&str> {
    output.lines().filter(|line| !is_expected(line)).collect()
}

#[test]
fn what_would_reach_the_host_is_refused() {
    in_each_kind(|node| {
        let output = node.probe("a1", &["refused"]);
        assert!(output.lines().count() > 25, "{output}");
        let is_refusal = |line: &str| {
            ["EPERM", "EACCES", "EINVAL", "ENOSYS", "EBUSY", "EAFNOSUPPORT", "EPROTONOSUPPORT"]
                .iter()
                .any(|name| line.ends_with(name))
        };
        assert_eq!(odd_lines(&output, is_refusal), Vec::<&str>::new());
        for line in ["image device: EACCES", "hypervisor socket: EAFNOSUPPORT", "packet filters: EPROTONOSUPPORT"] {
            assert!(output.contains(line), "{output}");
        }
    });
}

#[test]
fn what_programs_need_works() {
    in_each_kind(|node| {
        let output = node.probe("a1", &["allowed"]);
        assert_eq!(
            odd_lines(&output, |line| line.ends_with(": ok") || line == "not root's: EACCES"),
            Vec::<&str>::new()
        );
    });
}

#[test]
fn setuid_programs_of_the_image_work() {
    in_each_kind(|node| assert_eq!(node.probe("a1", &["setuid"]), "1000 0\n"));
}

#[test]
fn root_is_an_own_range_of_users() {
    for setup in EVERY_WAY {
        let node = Node::start(setup);
        let mut client = node.client();
        let mut bases = Vec::new();
        for id in ["a1", "a2"] {
            client.ok("sandbox.create", &node.create(id));
            let map = node.probe(id, &["cat", "/proc/self/uid_map"]);
            let fields: Vec<u64> = map.split_whitespace().map(|field| field.parse().expect("a number")).collect();
            assert_eq!((fields[0], fields[2], fields.len()), (0, 65_536, 3), "{map}");
            assert_eq!(map, node.probe(id, &["cat", "/proc/self/gid_map"]));
            bases.push(fields[1]);
        }
        assert!(bases[0].abs_diff(bases[1]) >= 65_536, "{bases:?}");
        assert!(bases.iter().all(|base| *base >= 0x4000_0000));
    }
}

#[test]
fn owners_of_the_image_are_shown_and_those_beyond_are_nobody() {
    in_each_kind(|node| {
        let shown = node.probe("a1", &["show", "/bin/probe", "/home/user", "/beyond", "/bin/setuid-probe"]);
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[0], "/bin/probe 100755 0 0 0:0");
        assert_eq!(lines[1], "/home/user 40755 1000 1000 0:0");
        assert_eq!(lines[2], "/beyond 100644 65534 65534 0:0");
        assert_eq!(lines[3], "/bin/setuid-probe 104755 0 0 0:0");
    });
}

#[test]
fn links_of_an_image_lead_no_mount_and_no_file_elsewhere() {
    in_each_kind(|node| {
        let shown = node
            .probe("a1", &["show", "/proc", "/sys", "/dev", "/tmp", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf"]);
        let modes: Vec<&str> = shown.lines().filter_map(|line| line.split(' ').nth(1)).collect();
        assert_eq!(modes, ["40555", "40555", "40755", "41777", "100644", "100644", "100644"], "{shown}");
        assert!(
            shown.lines().filter(|line| line.starts_with("/etc")).all(|line| line.ends_with(" 0 0 0:0")),
            "{shown}"
        );
        assert_eq!(node.probe("a1", &["cat", "/etc/hosts"]).lines().last(), Some("127.0.1.1\tbox"));
        assert!(node.probe("a1", &["cat", "/bin/probe"]).len() > 10_000, "the target of the link is as it was");
    });
}

#[test]
fn only_own_mounts_are_seen_and_no_path_of_the_host() {
    in_each_kind(|node| {
        let mounts = node.probe("a1", &["cat", "/proc/self/mountinfo"]);
        let points: Vec<&str> = mounts.lines().filter_map(|line| line.split(' ').nth(4)).collect();
        let expected = |point: &&str| {
            ["/", "/proc", "/sys", "/dev", "/dev/pts", "/dev/shm"].contains(point)
                || point.starts_with("/sys/fs/cgroup")
        };
        assert!(points.iter().all(expected), "{mounts}");
        assert!(points.len() <= 11, "{mounts}");
        assert!(!mounts.contains(&*node.data.to_string_lossy()) && !mounts.contains("/tmp"), "{mounts}");
        assert_eq!(node.probe("a1", &["link", "/proc/self/root"]), "/\n");
        let outside = node.probe("a1", &["list", "/proc/self/root/.."]);
        assert!(outside.contains("image-device"), "above the root is the root: {outside}");
    });
}

#[test]
fn sandboxes_nest_and_nothing_lies_bare_below_their_roots() {
    in_each_kind(|node| {
        let output = node.probe("a1", &["nested"]);
        let (names, outcomes): (Vec<&str>, Vec<&str>) = output.lines().partition(|line| !line.contains(": "));
        assert!(outcomes.iter().all(|line| line.ends_with(": ok")), "{output}");
        // Its own tmpfs, and not the empty root that a process has before it has its own.
        let mut names = names;
        names.sort_unstable();
        assert_eq!(names, ["jail", "old"], "{output}");
    });
}

#[test]
fn above_the_root_is_nothing_even_without_a_root() {
    in_each_kind(|node| {
        let output = node.probe("a1", &["climb"]);
        assert!(output.contains("image-device") && !output.lines().any(|name| name == "new"), "{output}");
    });
}

#[test]
fn only_own_processes_are_seen_and_the_first_is_closed() {
    in_each_kind(|node| {
        let processes: Vec<String> = node
            .probe("a1", &["list", "/proc"])
            .lines()
            .filter(|name| name.parse::<u32>().is_ok())
            .map(str::to_owned)
            .collect();
        assert_eq!(processes.len(), 2, "{processes:?}");
        let status = node.probe("a1", &["cat", "/proc/1/status"]);
        assert!(status.contains("Seccomp:\t2\n"), "{status}");
        let bounds = status.lines().find_map(|line| line.strip_prefix("CapBnd:\t")).expect("bounds");
        assert_eq!(u64::from_str_radix(bounds, 16).expect("a number") & 1 << 24, 0, "without CAP_SYS_RESOURCE");
        assert_eq!(node.probe("a1", &["session"]), "1 1\n");
    });
}

#[test]
fn no_descriptor_of_the_host_comes_along() {
    in_each_kind(|node| {
        // Its socket, the counter of kills for memory, which can only be read, its own score, which only rises for who is not privileged on the host, and
        // the listener of its filter, whose requests the filter refuses: all closed to programs by aether.
        assert_eq!(node.run("a1", &["!fds"]), "0\n1\n2\n3\n4\n5\n6\n");
        for number in ["0", "1", "2"] {
            let target = node.run("a1", &["/bin/probe", "link", &format!("/proc/self/fd/{number}")]);
            assert!(target == "/dev/null\n" || target.starts_with("socket:"), "{target}");
        }
    });
}

#[test]
fn of_proc_and_sys_only_own_settings_can_be_opened_for_writing() {
    in_each_kind(|node| {
        let proc = node.probe("a1", &["writable", "/proc"]);
        // Both check who writes, not who opens.
        let is_harmless = |line: &str| line == "/proc/sys/kernel/ns_last_pid" || line.starts_with("/proc/pressure/");
        assert_eq!(odd_lines(&proc, is_harmless), Vec::<&str>::new());
        assert_eq!(node.probe("a1", &["writable", "/sys"]), "");
    });
}

#[test]
fn programs_see_their_limits_in_the_groups() {
    in_each_kind(|node| {
        let limit = ["/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max"]
            .map(|path| node.probe("a1", &["cat", path]));
        assert!(limit.iter().any(|limit| limit.trim() == ((64u64 << 20) + (4 << 20)).to_string()), "{limit:?}");
        for line in node.probe("a1", &["cat", "/proc/self/cgroup"]).lines() {
            assert!(line.ends_with(":/") || !line.contains("dsec-"), "{line}");
        }
    });
}

#[test]
fn what_is_counted_for_a_user_is_counted_for_each_sandbox_alone() {
    for setup in EVERY_WAY {
        let node = Node::start(setup);
        let mut client = node.client();
        for id in ["a1", "a2"] {
            client.ok("sandbox.create", &node.create(id));
        }
        let first = node.probe("a1", &["inotify"]);
        assert!(first.starts_with("instances ") && first != "instances 0\n", "{first}");
        assert_eq!(node.probe("a1", &["inotify"]), "instances 0\n", "they are all held");
        assert_eq!(node.probe("a2", &["inotify"]), first);
    }
}

#[test]
fn the_network_is_a_loopback_of_its_own() {
    in_each_kind(|node| {
        let devices = node.probe("a1", &["cat", "/proc/net/dev"]);
        assert_eq!(devices.lines().count(), 3, "{devices}");
        assert!(devices.contains("lo:"));
        assert_eq!(node.probe("a1", &["list", "/sys/class/net"]), "lo\n");
        assert_eq!(node.probe("a1", &["cat", "/proc/net/route"]).lines().count(), 1);
    });
}

#[test]
fn files_of_the_host_side_belong_to_nobody_else() {
    let node = Node::start(EVERY_WAY[0]);
    node.client().ok("sandbox.create", &node.create("a1"));
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    for (path, mode) in [
        ("volume/u", 0o700),
        ("volume/r", 0o700),
        ("run/s/a1.sock", 0o600),
        ("run/launcher.sock", 0o600),
        ("bin/aether", 0o711),
    ] {
        let found = std::fs::metadata(node.data.join(path)).expect(path);
        assert_eq!((found.uid(), found.permissions().mode() & 0o7777), (0, mode), "{path}");
    }
    node.client().ok("sandbox.destroy", &json!({ "id": "a1" }));
}
