//! A launcher that takes over from one that was killed finds every sandbox again and nothing else.

mod common;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use common::host::{self, Census};
use common::{EVERY_WAY, Node, Setup, wait_for};
use serde_json::{Value, json};

fn kill_first_process(pid: &Value) {
    let pid =
        i32::try_from(pid.as_i64().expect("a number")).ok().and_then(rustix::process::Pid::from_raw).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
}

#[test]
fn sandboxes_outlive_the_launcher_and_are_adopted() {
    for setup in EVERY_WAY.into_iter().filter(|setup| !setup.is_furnished) {
        let mut node = Node::start(setup);
        let created: Vec<Value> =
            (0..5).map(|n| node.client().ok("sandbox.create", &node.create(&format!("a{n}")))).collect();
        // A command that runs across the change.
        let mut running = UnixStream::connect(node.data.join("run/s/a0.sock")).expect("connected");
        running.write_all(b"/bin/probe\0late\0").expect("written");
        running.shutdown(Shutdown::Write).expect("half closed");
        node.kill();
        node.launch();
        let mut client = node.client();
        let listed = client.ok("sandbox.list", &json!({}));
        let listed = listed["sandboxes"].as_array().expect("a list");
        assert_eq!(listed.len(), 5);
        for (sandbox, created) in listed.iter().zip(&created) {
            assert_eq!(
                (&sandbox["id"], &sandbox["pid"], &sandbox["state"]),
                (&created["id"], &created["pid"], &json!("live"))
            );
        }
        let mut output = String::new();
        running.read_to_string(&mut output).expect("output");
        assert_eq!(output, "late\n");
        assert_eq!(node.probe("a1", &["hostname"]), "box\n");
        assert_eq!(client.refusal("layer.forget", &json!({ "digest": node.layer }))["code"], "layer_in_use");
        // New ones get other users than those that live.
        client.ok("sandbox.create", &node.create("b"));
        let maps: Vec<String> =
            ["a0", "a4", "b"].iter().map(|id| node.probe(id, &["cat", "/proc/self/uid_map"])).collect();
        assert!(maps[0] != maps[2] && maps[1] != maps[2], "{maps:?}");
        for id in ["a0", "a1", "a2", "a3", "a4", "b"] {
            client.ok("sandbox.destroy", &json!({ "id": id }));
        }
        client.ok("layer.forget", &json!({ "digest": node.layer }));
    }
}

#[test]
fn how_an_adopted_sandbox_ended_is_known() {
    let mut node = Node::start(Setup::default());
    node.client().ok("sandbox.create", &node.create("a1"));
    node.kill();
    node.launch();
    let mut client = node.client();
    client.open("events", &json!({}));
    client.ok("node.info", &json!({}));
    node.run("a1", &["!exit", "5"]);
    assert_eq!(client.next_event(), json!({ "exited": { "id": "a1", "exitCode": 5, "oomKills": 0 } }));
}

#[test]
fn what_ended_while_no_launcher_ran_is_listed_as_ended() {
    let mut node = Node::start(Setup::default());
    let created = node.client().ok("sandbox.create", &node.create("a1"));
    node.client().ok("sandbox.create", &node.create("a2"));
    node.run("a2", &["!exit", "4"]);
    wait_for("the exit", || node.client().ok("sandbox.list", &json!({}))["sandboxes"][1]["state"] == "exited");
    node.kill();
    kill_first_process(&created["pid"]);
    wait_for("the end", || host::descendants_of_groups(&node).is_empty());
    node.launch();
    let mut client = node.client();
    let listed = client.ok("sandbox.list", &json!({}));
    assert_eq!(listed["sandboxes"][0]["exit"], json!({ "oomKills": 0 }));
    assert_eq!(listed["sandboxes"][1]["exit"], json!({ "exitCode": 4, "oomKills": 0 }), "what was seen is kept");
    client.ok("sandbox.destroy", &json!({ "id": "a1" }));
    client.ok("sandbox.destroy", &json!({ "id": "a2" }));
}

#[test]
fn blanks_and_whatever_was_half_made_are_removed() {
    let mut node = Node::start(EVERY_WAY[1]);
    let mut client = node.client();
    client.ok("sandbox.create", &node.create("kept"));
    // Killed in the middle of making many.
    for n in 0..50 {
        client.open("sandbox.create", &node.create(&format!("a{n}")));
    }
    node.kill();
    node.setup.blanks = 0;
    node.launch();
    let mut client = node.client();
    let listed = client.ok("sandbox.list", &json!({}));
    for sandbox in listed["sandboxes"].as_array().expect("a list") {
        if sandbox["id"] != "kept" {
            client.ok("sandbox.destroy", &json!({ "id": sandbox["id"] }));
        }
    }
    drop(client);
    wait_for("one sandbox alone", || Census::of(&node).sandboxes() == (1, 1, 1, 1));
    assert_eq!(node.probe("kept", &["hostname"]), "box\n");
}

#[test]
fn records_that_do_not_match_are_not_believed() {
    let mut node = Node::start(Setup::default());
    node.client().ok("sandbox.create", &node.create("a1"));
    node.kill();
    let file = node.data.join("run/launcher/a1.json");
    let record: Value = serde_json::from_slice(&std::fs::read(&file).expect("a record")).expect("JSON");
    let write =
        |name: &str, record: &Value| std::fs::write(file.with_file_name(name), record.to_string()).expect("written");
    // Another process of the host under a recorded number; a record for a slot that is taken; another boot; nonsense.
    let mut stolen = record.clone();
    stolen["id"] = json!("b1");
    stolen["slot"] = json!(200);
    stolen["pid"] = json!(std::process::id());
    write("b1.json", &stolen);
    let mut twice = record.clone();
    twice["id"] = json!("b2");
    write("b2.json", &twice);
    let mut old = record.clone();
    old["id"] = json!("b3");
    old["slot"] = json!(201);
    old["boot"] = json!("another");
    write("b3.json", &old);
    write("b4.json", &json!({ "id": "b4" }));
    write("../r/b5.json", &json!([]));
    node.launch();
    let mut client = node.client();
    let listed = client.ok("sandbox.list", &json!({}));
    let states: Vec<(&str, &str)> = listed["sandboxes"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|sandbox| (sandbox["id"].as_str().expect("text"), sandbox["state"].as_str().expect("text")))
        .collect();
    let live: Vec<&str> = states.iter().filter(|(_, state)| *state == "live").map(|(id, _)| *id).collect();
    assert_eq!(live.len(), 1, "{states:?}");
    assert!(!states.iter().any(|(id, _)| ["b3", "b4", "b5"].contains(id)), "{states:?}");
    for (id, _) in states {
        client.ok("sandbox.destroy", &json!({ "id": id }));
    }
    assert!(std::path::Path::new("/proc/self").exists(), "this process was not taken for a sandbox");
}

#[test]
fn only_one_launcher_serves_a_directory() {
    let node = Node::start(Setup::default());
    let second = std::process::Command::new(env!("CARGO_BIN_EXE_launcher"))
        .args(["serve", "--edge-uid", "0", "--edge-gid", "0", "--aether"])
        .arg(common::programs::compiled("aether"))
        .arg("--data")
        .arg(&node.data)
        .stdin(std::process::Stdio::null())
        .output()
        .expect("launcher");
    assert!(!second.status.success());
    assert!(String::from_utf8_lossy(&second.stderr).contains("another launcher runs"));
    node.client().ok("node.info", &json!({}));
}
