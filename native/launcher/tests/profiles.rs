//! What each profile allows and refuses, to root inside.

mod common;

use common::{Node, Setup};
use serde_json::{Value, json};

fn create(node: &Node, id: &str, profile: &str) -> Value {
    let mut params = node.create(id);
    params["profile"] = profile.into();
    params
}

/// Runs a test in a sandbox of the profile. There are blanks, which serve the default one only.
fn in_profile(profile: &str, test: impl Fn(&Node)) {
    let node = Node::start(Setup { blanks: 2, ..Setup::default() });
    node.client().ok("sandbox.create", &create(&node, "a1", profile));
    test(&node);
    node.client().ok("sandbox.destroy", &json!({ "id": "a1" }));
}

fn bounds(node: &Node) -> u64 {
    let status = node.probe("a1", &["cat", "/proc/self/status"]);
    let bounds = status.lines().find_map(|line| line.strip_prefix("CapBnd:\t")).expect("bounds");
    u64::from_str_radix(bounds, 16).expect("a number")
}

#[test]
fn strict_has_no_sandboxes_inside_no_setuid_and_few_capabilities() {
    in_profile("strict", |node| {
        assert_eq!(node.probe("a1", &["users"]), "clone3: ENOSYS\nclone: EPERM\nfork: ok\nunshare: EPERM\n");
        assert_eq!(node.probe("a1", &["setuid"]), "1000 1000\n");
        assert_eq!(bounds(node), 0x8004_05FB);
        assert!(node.probe("a1", &["cat", "/proc/1/status"]).contains("NoNewPrivs:\t1\n"));
    });
}

#[test]
fn strict_shows_nothing_of_the_host_that_others_see() {
    in_profile("strict", |node| {
        for file in ["cmdline", "kallsyms", "keys", "modules", "interrupts", "timer_list", "kcore", "sysrq-trigger"] {
            let shown = node.probe("a1", &["cat", &format!("/proc/{file}")]);
            assert!(shown.is_empty() || shown == format!("/proc/{file}: ENOENT\n"), "{shown}");
        }
        for directory in ["/sys/firmware", "/sys/kernel", "/sys/module", "/proc/bus", "/proc/irq"] {
            let shown = node.probe("a1", &["list", directory]);
            assert!(shown.is_empty() || shown == format!("{directory}: ENOENT\n"), "{shown}");
        }
        assert!(node.probe("a1", &["cat", "/proc/meminfo"]).contains("MemTotal"));
        assert!(node.probe("a1", &["cat", "/proc/cpuinfo"]).contains("processor"));
        assert_eq!(
            node.probe("a1", &["writable", "/proc"]).lines().find(|line| *line != "/proc/sys/kernel/ns_last_pid"),
            None
        );
    });
}

#[test]
fn default_and_builder_nest_and_differ_by_what_programs_serve() {
    for (profile, fuse) in [("default", "/dev/fuse: ENOENT\n"), ("builder", "/dev/fuse 20666 0 0 10:229\n")] {
        in_profile(profile, |node| {
            assert_eq!(node.probe("a1", &["users"]), "clone3: ok\nclone: ok\nfork: ok\nunshare: ok\n");
            assert_eq!(node.probe("a1", &["setuid"]), "1000 0\n");
            assert_eq!(bounds(node) & (1 << 24 | 1 << 23), 0, "without CAP_SYS_RESOURCE and CAP_SYS_NICE");
            assert_eq!(node.probe("a1", &["show", "/dev/fuse"]), fuse);
        });
    }
}

#[test]
fn what_may_not_be_asked_of_a_descriptor_is_unknown_in_every_profile() {
    for profile in ["strict", "default", "builder"] {
        in_profile(profile, |node| {
            let output = node.probe("a1", &["requests"]);
            let (may, others): (Vec<&str>, Vec<&str>) = output.lines().partition(|line| line.starts_with("may "));
            assert!(may.iter().all(|line| line.ends_with(": ok")), "{output}");
            assert!(others.iter().all(|line| line.ends_with(": ENOTTY")), "{output}");
            assert_eq!((may.len(), others.len()), (7, 17));
        });
    }
}

#[test]
fn the_profile_is_kept_and_is_a_part_of_what_was_asked_for() {
    let mut node = Node::start(Setup { blanks: 2, ..Setup::default() });
    node.client().ok("sandbox.create", &create(&node, "a1", "strict"));
    node.kill();
    node.launch();
    let mut client = node.client();
    client.ok("sandbox.create", &create(&node, "a1", "strict"));
    let other = client.refusal("sandbox.create", &node.create("a1"));
    assert_eq!(other["code"], "idempotency_conflict");
    let unknown = client.refusal("sandbox.create", &create(&node, "a2", "lax"));
    assert_eq!((&unknown["code"], &unknown["details"]["field"]), (&json!("invalid_argument"), &json!("profile")));
    client.ok("sandbox.destroy", &json!({ "id": "a1" }));
}
