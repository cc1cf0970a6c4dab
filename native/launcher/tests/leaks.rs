//! Nothing is left of sandboxes that are gone, however many, however made, and whatever was done in them.

mod common;

use common::host::{self, Census};
use common::{Node, Setup, wait_for};
use serde_json::json;

const ROUNDS: usize = 10;
const AT_ONCE: usize = 100;

fn many(setup: Setup) {
    let node = Node::start(setup);
    let mut client = node.client();
    // What comes with the first one stays: the mount of the layer, dentries, the allocator's memory.
    client.ok("sandbox.create", &node.create("first"));
    client.ok("sandbox.destroy", &json!({ "id": "first" }));
    settle(&node);
    let before = Census::of(&node);
    for round in 0..ROUNDS {
        let id = |n: usize| format!("r{round}n{n}");
        let creates: Vec<u32> = (0..AT_ONCE).map(|n| client.open("sandbox.create", &node.create(&id(n)))).collect();
        for create in creates {
            client.wait(create).expect("created");
        }
        node.run(&id(0), &["!exit", "1"]);
        node.probe(&id(1), &["fill", "/file"]);
        node.probe(&id(2), &["forks"]);
        let destroys: Vec<u32> =
            (0..AT_ONCE).map(|n| client.open("sandbox.destroy", &json!({ "id": id(n) }))).collect();
        for destroy in destroys {
            assert_eq!(client.wait(destroy), Ok(json!({})));
        }
    }
    settle(&node);
    wait_for("the state of before", || Census::of(&node) == before);
}

/// Blanks are as many as they should be, and quota groups as many as subvolumes and the volume itself.
fn settle(node: &Node) {
    node.wait_for_blanks();
    settle_groups(node);
}

fn settle_groups(node: &Node) {
    wait_for("the quota groups' end", || {
        // The kernel frees what was deleted with its next commit, which by itself comes every half minute.
        let synced =
            std::process::Command::new("btrfs").args(["filesystem", "sync"]).arg(node.data.join("volume")).output();
        assert!(synced.expect("btrfs").status.success());
        // Between two commits of the volume: what it has freed is told by nothing.
        std::thread::sleep(std::time::Duration::from_millis(100));
        Census::of(node).quota_groups() == 1 + node.setup.blanks as usize
    });
}

#[test]
fn a_thousand_direct_creates_leave_nothing() {
    many(Setup { namespaces: 4, ..Setup::default() });
}

#[test]
fn a_thousand_creates_from_blanks_leave_nothing() {
    many(Setup { blanks: 64, ..Setup::default() });
}

#[test]
fn blanks_for_layers_that_are_asked_for_no_more_leave_nothing() {
    let node = Node::start(Setup { blanks: 8, is_furnished: true, ..Setup::default() });
    settle(&node);
    let mut client = node.client();
    let before = Census::of(&node);
    assert_eq!(client.ok("layer.forget", &json!({ "digest": node.layer })), json!({}), "blanks do not hold a layer");
    wait_for("bare blanks again", || host::furnished(&node) == 0);
    settle_groups(&node);
    wait_for("the state of before", || Census::of(&node).is_like(&before));
}

#[test]
fn failed_creates_leave_nothing() {
    let node = Node::start(Setup::default());
    let mut client = node.client();
    client.ok("sandbox.create", &node.create("first"));
    client.ok("sandbox.destroy", &json!({ "id": "first" }));
    settle(&node);
    let before = Census::of(&node);
    // A whole file where the launcher makes a directory for the writable layer: every create fails half-way.
    let blocked: Vec<_> = (0..600).map(|slot| node.data.join(format!("volume/u/s{slot}"))).collect();
    for path in &blocked {
        std::fs::create_dir(path).expect("made");
        std::fs::write(path.join("upper"), "").expect("made");
    }
    for n in 0..20 {
        let error = client.refusal("sandbox.create", &node.create(&format!("a{n}")));
        assert_eq!(
            (&error["code"], &error["details"]["stage"]),
            (&json!("create_failed"), &json!("volume")),
            "{error}"
        );
    }
    for path in &blocked {
        let _ = std::fs::remove_dir_all(path);
    }
    wait_for("the state of before", || Census::of(&node) == before);
}
