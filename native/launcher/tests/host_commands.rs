//! `doctor`, `prepare` and `teardown`.

mod common;

use common::{Node, Setup, run};
use serde_json::{Value, json};

#[test]
fn the_doctor_finds_this_host_fit_and_leaves_nothing() {
    let entries = || std::fs::read_dir("/var/tmp").expect("/var/tmp").count();
    let before = entries();
    let found = run(&["doctor"]);
    let checks = found["checks"].as_array().expect("checks");
    assert!(checks.len() >= 14);
    for check in checks {
        let is_whole = check["name"].is_string() && check["detail"].is_string() && check["ok"].is_boolean();
        assert!(is_whole, "{check}");
        assert!(check["ok"] == json!(true) || check["required"] == json!(false), "{check}");
    }
    assert_eq!(entries(), before);
}

#[test]
fn a_volume_is_prepared_once_and_again_after_its_unmount() {
    let directory = std::path::PathBuf::from(format!("/tmp/dsec-launcher-prepare-{}", std::process::id()));
    let data = directory.to_str().expect("a path");
    let prepare = || run(&["prepare", "--data", data, "--size", "1073741824"]);
    assert_eq!(prepare()["wasMounted"], json!(false));
    std::fs::write(directory.join("volume/kept"), "content").expect("written");
    assert_eq!(prepare()["wasMounted"], json!(true));
    // As a reboot leaves it.
    rustix::mount::unmount(directory.join("volume"), rustix::mount::UnmountFlags::empty()).expect("unmounted");
    assert_eq!(prepare()["wasMounted"], json!(false));
    assert_eq!(std::fs::read_to_string(directory.join("volume/kept")).expect("kept"), "content");
    run(&["teardown", "--data", data]);
    run(&["teardown", "--data", data]);
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    assert!(!mounts.contains(data));
    std::fs::remove_dir_all(&directory).expect("removed");
}

#[test]
fn teardown_ends_everything_but_not_beside_a_launcher() {
    let mut node = Node::start(Setup { blanks: 3, ..Setup::default() });
    let pids: Vec<Value> =
        (0..3).map(|n| node.client().ok("sandbox.create", &node.create(&format!("a{n}")))["pid"].clone()).collect();
    let data = node.data.to_str().expect("a path").to_owned();
    let teardown =
        || std::process::Command::new(env!("CARGO_BIN_EXE_launcher")).args(["teardown", "--data", &data]).output();
    let refused = teardown().expect("launcher");
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("another launcher runs"));
    node.stop();
    assert!(teardown().expect("launcher").status.success());
    assert!(!pids.iter().any(common::host::is_running));
    for left in ["run/s", "run/launcher.sock", "volume/u/s0"] {
        assert!(!node.data.join(left).exists(), "{left}");
    }
    assert!(common::host::groups_of(&node).is_empty());
}
