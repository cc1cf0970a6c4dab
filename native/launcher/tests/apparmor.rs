//! What AppArmor adds, where the kernel has it. That everything else is as without it is for the other programs here, run on both kinds of kernel.

mod common;

use std::path::Path;

use common::{EVERY_WAY, Node, Setup};
use serde_json::{Value, json};

const LOADED: &str = "/sys/kernel/security/apparmor/profiles";

/// Says why not, and is a failure where AppArmor is required.
fn has_apparmor() -> bool {
    let has = std::fs::read("/proc/self/attr/apparmor/current").is_ok();
    if !has {
        let required = std::env::var("DSEC_REQUIRE").unwrap_or_default();
        assert!(!required.split(',').any(|word| word == "apparmor"), "this kernel has no AppArmor");
        println!("skipped: this kernel has no AppArmor");
    }
    has
}

fn in_profile(profile: &str, test: impl Fn(&Node, &Value)) {
    let node = Node::start(Setup { blanks: 2, ..Setup::default() });
    let mut params = node.create("a1");
    params["profile"] = profile.into();
    let created = node.client().ok("sandbox.create", &params);
    test(&node, &created);
    node.client().ok("sandbox.destroy", &json!({ "id": "a1" }));
}

fn label_of(pid: &Value) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/attr/apparmor/current")).expect("a label").trim_end().to_owned()
}

/// The label without its version, which must be there.
fn unversioned(label: &str) -> String {
    let label = label.strip_suffix(" (enforce)").unwrap_or_else(|| panic!("{label}"));
    let parts = label.split("//&").map(|part| {
        let (name, version) = part.rsplit_once('-').expect("a version");
        assert_eq!(version.len(), 16, "{label}");
        name
    });
    parts.collect::<Vec<_>>().join(" and ")
}

#[test]
fn programs_are_confined_apart_from_the_first_process_in_every_profile() {
    if !has_apparmor() {
        return;
    }
    for (profile, first, programs) in [
        ("strict", "dsec-aether-strict", "dsec-aether-strict and dsec-strict"),
        ("default", "dsec-aether-default", "dsec-default"),
        ("builder", "dsec-aether-builder", "dsec-builder"),
    ] {
        in_profile(profile, |node, created| {
            assert_eq!(unversioned(&label_of(&created["pid"])), first);
            let label = node.probe("a1", &["cat", "/proc/self/attr/apparmor/current"]);
            assert_eq!(unversioned(label.trim_end()), programs);
            // No file's permissions say so: everybody may open this one.
            let setting = node.probe("a1", &["append", "/proc/sys/kernel/ns_last_pid"]);
            assert_eq!(setting, "append: EACCES\n");
            // Nor is it the permissions that keep the first process from being asked whether it is there.
            assert_eq!(node.probe("a1", &["signal", "1", "0"]), "signal: EACCES\n");
            assert_eq!(node.probe("a1", &["peers"]), "signal: ok\ntrace: ok\nread: ok\nend: ok\n");
            assert_eq!(
                node.probe("a1", &["append", "/proc/self/attr/apparmor/current"]),
                "append: EINVAL\n",
                "no program asks its way out"
            );
        });
    }
}

#[test]
fn blanks_of_every_kind_are_confined() {
    if !has_apparmor() {
        return;
    }
    for setup in EVERY_WAY {
        let node = Node::start(setup);
        let created = node.client().ok("sandbox.create", &node.create("a1"));
        assert_eq!(unversioned(&label_of(&created["pid"])), "dsec-aether-default");
        assert!(node.probe("a1", &["cat", "/proc/self/attr/apparmor/current"]).starts_with("dsec-default-"));
    }
}

fn loaded() -> Vec<String> {
    let text = std::fs::read_to_string(LOADED).expect("securityfs");
    text.lines().filter(|line| line.starts_with("dsec-")).map(str::to_owned).collect()
}

#[test]
fn profiles_are_loaded_once_and_go_with_the_last_server() {
    if !has_apparmor() {
        return;
    }
    let mut node = Node::start(Setup::default());
    let first = loaded();
    assert_eq!(first.len(), 6, "{first:?}");
    node.kill();
    node.launch();
    assert_eq!(loaded(), first, "a launcher that comes anew finds them");
    let is_alone = std::fs::read_dir("/run/dsec/uid-ranges").expect("claims").count() == 2;
    drop(node);
    let left = loaded();
    assert!(Path::new(LOADED).exists() && (left.is_empty() || !is_alone), "{left:?}");
}
