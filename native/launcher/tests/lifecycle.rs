//! Sandboxes are made, listed, measured and removed as `docs/wire.md` has it, on both ways of making them.

mod common;

use common::host::Census;
use common::{EVERY_WAY, Node, Setup, programs, wait_for};
use serde_json::json;

#[test]
fn a_sandbox_lives_from_create_to_destroy() {
    for setup in EVERY_WAY {
        let node = Node::start(setup);
        let mut client = node.client();
        let created = client.ok("sandbox.create", &node.create("a1"));
        assert_eq!(created["id"], "a1");
        assert_eq!(created["socket"], json!(node.data.join("run/s/a1.sock")));
        assert_eq!(node.probe("a1", &["hostname"]), "box\n");
        assert_eq!(node.probe("a1", &["cat", "/etc/hostname"]), "box\n");
        assert_eq!(node.probe("a1", &["cat", "/home/user/file"]), "content\n");

        let listed = client.ok("sandbox.list", &json!({}));
        assert_eq!(listed["sandboxes"][0]["id"], "a1");
        assert_eq!(listed["sandboxes"][0]["pid"], created["pid"]);
        assert_eq!(listed["sandboxes"][0]["state"], "live");
        let info = client.ok("node.info", &json!({}));
        assert_eq!((info["live"].as_u64(), info["quota"].as_str()), (Some(1), Some("btrfs")));

        assert_eq!(client.ok("sandbox.destroy", &json!({ "id": "a1" })), json!({}));
        assert_eq!(client.ok("sandbox.list", &json!({})), json!({ "sandboxes": [] }));
        assert!(!node.data.join("run/s/a1.sock").exists());
    }
}

#[test]
fn a_record_names_the_network_of_its_sandbox() {
    use std::os::unix::fs::MetadataExt;
    for setup in EVERY_WAY {
        let node = Node::start(setup);
        let created = node.client().ok("sandbox.create", &node.create("a1"));
        let record = std::fs::read(node.data.join("run/launcher/a1.json")).expect("a record");
        let record: serde_json::Value = serde_json::from_slice(&record).expect("JSON");
        let shown = std::fs::metadata(format!("/proc/{}/ns/net", created["pid"])).expect("a process");
        assert_eq!(record["netIdentity"], shown.ino());
    }
}

#[test]
fn a_create_that_is_repeated_answers_the_same_sandbox_and_another_one_is_refused() {
    let node = Node::start(Setup::default());
    let mut client = node.client();
    let first = client.ok("sandbox.create", &node.create("a1"));
    assert_eq!(client.ok("sandbox.create", &node.create("a1")), first);
    let mut other = node.create("a1");
    other["layers"] = json!([programs::install_marker_layer(&node.data, 7)]);
    assert_eq!(client.refusal("sandbox.create", &other)["code"], "idempotency_conflict");
}

#[test]
fn unknown_sandboxes_are_destroyed_already() {
    let node = Node::start(Setup::default());
    let mut client = node.client();
    assert_eq!(client.ok("sandbox.destroy", &json!({ "id": "nobody" })), json!({}));
    assert_eq!(client.refusal("sandbox.usage", &json!({ "id": "nobody" }))["code"], "sandbox_not_found");
}

#[test]
fn requests_outside_the_rules_are_refused_and_leave_nothing() {
    let node = Node::start(Setup::default());
    let before = Census::of(&node);
    let mut client = node.client();
    for (field, value) in [
        ("id", json!("../a")),
        ("layers", json!(["/etc"])),
        ("layers", json!([])),
        ("hostname", json!("a/b")),
        ("memoryBytes", json!(0)),
        ("cpuMillis", json!(-1)),
        ("pids", json!(u64::MAX)),
        ("diskBytes", json!("1")),
        ("path", json!("/etc")),
    ] {
        let mut params = node.create("a1");
        params[field] = value;
        assert_eq!(client.refusal("sandbox.create", &params)["code"], "invalid_argument", "{field}");
    }
    assert_eq!(client.refusal("sandbox.explode", &json!({}))["code"], "unknown_method");
    drop(client);
    wait_for("the connection's end", || Census::of(&node) == before);
}

#[test]
fn a_layer_that_is_missing_or_no_filesystem_is_named() {
    for setup in EVERY_WAY {
        let node = Node::start(setup);
        let mut client = node.client();
        let missing = format!("sha256:{}", "e".repeat(64));
        let garbage = node.data.join("garbage");
        std::fs::write(&garbage, vec![7; 1 << 16]).expect("written");
        for layer in [missing, programs::install(&node.data, &garbage, 9)] {
            let mut params = node.create("a1");
            params["layers"] = json!([layer]);
            let error = client.refusal("sandbox.create", &params);
            assert_eq!((&error["code"], &error["details"]["layer"]), (&json!("environment_broken"), &json!(layer)));
        }
        assert_eq!(client.ok("sandbox.list", &json!({})), json!({ "sandboxes": [] }));
        client.ok("sandbox.create", &node.create("a1"));
    }
}

/// Asks for a sandbox that stands on a set.
fn create_on(node: &Node, id: &str, set: &programs::Set) -> serde_json::Value {
    let mut params = node.create(id);
    params["layers"] = json!(set.layers);
    params["set"] = json!(set.digest);
    params
}

#[test]
fn several_layers_are_one_set() {
    for setup in EVERY_WAY {
        let node = Node::start(setup);
        let mut client = node.client();
        let set = programs::install_set(&node.data, 20, &[3, 2]);
        client.ok("sandbox.create", &create_on(&node, "a1", &set));
        assert_eq!(node.probe("a1", &["cat", "/marker"]), "3\n");
        assert!(!node.probe("a1", &["show", "/only-2", "/only-3"]).contains("ENOENT"));
        let devices =
            node.probe("a1", &["device", "/", "/bin/probe", "/only-2", "/only-3", "/etc/hosts", "/home/user/file"]);
        let mut devices: Vec<&str> = devices.lines().collect();
        assert_eq!(devices.len(), 6);
        devices.dedup();
        assert_eq!(devices.len(), 1, "all on one device: {devices:?}");
    }
}

#[test]
fn a_sandbox_on_many_layers_has_the_mounts_of_one_on_a_single_layer() {
    for setup in EVERY_WAY {
        let node = Node::start(setup);
        let mut client = node.client();
        let markers: Vec<u64> = (100..119).collect();
        let set = programs::install_set(&node.data, 20, &markers);
        let mut mounts_of = |params: &serde_json::Value| {
            let pid = client.ok("sandbox.create", params)["pid"].clone();
            let table = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).expect("its mounts");
            let root = table.lines().find(|line| line.contains(" / / ")).expect("its root").to_owned();
            (table.lines().count(), root.matches("lowerdir").count())
        };
        let one = mounts_of(&node.create("a1"));
        assert_eq!(one.1, 1, "one lower");
        assert_eq!(mounts_of(&create_on(&node, "a2", &set)), one);
    }
}

#[test]
fn a_set_that_is_missing_or_does_not_fit_its_layers_is_named() {
    for setup in EVERY_WAY {
        let node = Node::start(setup);
        let mut client = node.client();
        let set = programs::install_set(&node.data, 20, &[3]);
        let image = node.data.join("sets").join(&set.digest["sha256:".len()..]).join("rootfs.erofs");
        let mut refused = |set: &programs::Set, named: &str| {
            let error = client.refusal("sandbox.create", &create_on(&node, "a1", set));
            assert_eq!(error["code"], "environment_broken", "{error}");
            error["details"][named].clone()
        };
        let of = |digest: &str, layers: &[String]| programs::Set { digest: digest.to_owned(), layers: layers.to_vec() };
        let missing = format!("sha256:{}", "e".repeat(64));
        assert_eq!(refused(&of(&missing, &set.layers), "set"), missing);
        assert_eq!(refused(&of(&set.digest, &set.layers[..1]), "set"), set.digest, "without its device");
        assert_eq!(refused(&of(&set.digest, &[set.layers[1].clone(), missing.clone()]), "layer"), missing);
        let kept = std::fs::read(&image).expect("read");
        std::fs::write(&image, vec![7; 1 << 16]).expect("written");
        assert_eq!(refused(&set, "set"), set.digest, "garbage");
        // The edge, which makes sets, has no other file mounted by a name.
        let elsewhere = node.data.join("elsewhere");
        std::fs::write(&elsewhere, kept).expect("written");
        std::fs::remove_file(&image).expect("removed");
        std::os::unix::fs::symlink(&elsewhere, &image).expect("linked");
        assert_eq!(refused(&set, "set"), set.digest, "a link");
        let directory = image.parent().expect("a directory");
        std::fs::remove_dir_all(directory).expect("removed");
        std::fs::create_dir(node.data.join("other")).expect("made");
        std::fs::rename(&elsewhere, node.data.join("other/rootfs.erofs")).expect("moved");
        std::os::unix::fs::symlink("../other", directory).expect("linked");
        assert_eq!(refused(&set, "set"), set.digest, "a link on the way");
        client.ok("sandbox.create", &node.create("a1"));
    }
}

#[test]
fn a_layer_whose_data_are_gone_is_named() {
    let node = Node::start(Setup::default());
    let mut client = node.client();
    let set = programs::install_set(&node.data, 20, &[]);
    let hex = &set.digest["sha256:".len()..];
    let mut params = node.create("a1");
    // The image of a set of one layer is that of the layer.
    let image = |directory: &str| node.data.join(directory).join(hex).join("rootfs.erofs");
    std::fs::copy(image("sets"), image("layers")).expect("copied");
    params["layers"] = json!(set.layers);
    client.ok("sandbox.create", &params);
    assert!(node.probe("a1", &["cat", "/home/user/file"]).contains("content"));
    client.ok("sandbox.destroy", &json!({ "id": "a1" }));
    client.ok("layer.forget", &json!({ "digest": set.layers[0] }));
    std::fs::remove_file(node.data.join("layers").join(hex).join("data")).expect("removed");
    let error = client.refusal("sandbox.create", &params);
    assert_eq!((&error["code"], &error["details"]["layer"]), (&json!("environment_broken"), &json!(set.layers[0])));
}

#[test]
fn a_set_and_its_layers_are_forgotten_only_when_nobody_stands_on_them() {
    for setup in EVERY_WAY {
        let node = Node::start(setup);
        let mut client = node.client();
        let set = programs::install_set(&node.data, 20, &[3]);
        client.ok("sandbox.create", &create_on(&node, "a1", &set));
        let forget = json!({ "set": set.digest });
        let refusal = client.refusal("set.forget", &forget);
        assert_eq!((&refusal["code"], &refusal["details"]["set"]), (&json!("layer_in_use"), &json!(set.digest)));
        for layer in &set.layers {
            assert_eq!(client.refusal("layer.forget", &json!({ "digest": layer }))["code"], "layer_in_use");
        }
        client.ok("sandbox.destroy", &json!({ "id": "a1" }));
        assert_eq!(client.ok("set.forget", &forget), json!({}), "blanks do not hold it");
        for layer in &set.layers {
            assert_eq!(client.ok("layer.forget", &json!({ "digest": layer })), json!({}));
        }
    }
}

#[test]
fn a_layer_is_forgotten_only_when_nobody_stands_on_it() {
    let node = Node::start(Setup::default());
    let mut client = node.client();
    client.ok("sandbox.create", &node.create("a1"));
    let forget = json!({ "digest": node.layer });
    assert_eq!(client.refusal("layer.forget", &forget)["code"], "layer_in_use");
    client.ok("sandbox.destroy", &json!({ "id": "a1" }));
    assert_eq!(client.ok("layer.forget", &forget), json!({}));
    assert_eq!(client.ok("layer.forget", &json!({ "digest": format!("sha256:{}", "f".repeat(64)) })), json!({}));
}

#[test]
fn the_end_of_a_first_process_is_an_event_and_is_kept() {
    for setup in EVERY_WAY {
        let node = Node::start(setup);
        let mut client = node.client();
        client.open("events", &json!({}));
        client.ok("sandbox.create", &node.create("a1"));
        client.ok("sandbox.create", &node.create("a2"));
        node.run("a1", &["!exit", "3"]);
        assert_eq!(client.next_event(), json!({ "exited": { "id": "a1", "exitCode": 3, "oomKills": 0 } }));
        node.run("a2", &["!fault"]);
        assert_eq!(client.next_event(), json!({ "exited": { "id": "a2", "signal": 11, "oomKills": 0 } }));
        let listed = client.ok("sandbox.list", &json!({}));
        assert_eq!(listed["sandboxes"][0]["state"], "exited");
        assert_eq!(listed["sandboxes"][0]["exit"], json!({ "exitCode": 3, "oomKills": 0 }));
        client.ok("sandbox.usage", &json!({ "id": "a1" }));
        client.ok("sandbox.destroy", &json!({ "id": "a1" }));
        client.ok("sandbox.destroy", &json!({ "id": "a2" }));
    }
}

#[test]
fn limits_hold() {
    for setup in EVERY_WAY {
        let node = Node::start(setup);
        let mut client = node.client();
        client.ok("sandbox.create", &node.create("a1"));
        assert_eq!(node.probe("a1", &["cpus"]), "1\n");
        let forks = node.probe("a1", &["forks"]);
        let forks: u64 = forks.trim().strip_prefix("forks ").and_then(|number| number.parse().ok()).expect("a number");
        assert!((32..=48).contains(&forks), "{forks} processes for 32");
        wait_for("the forks' end", || client.ok("sandbox.usage", &json!({ "id": "a1" }))["pids"] == 1);

        let filled = node.probe("a1", &["fill", "/big"]);
        let wrote: u64 =
            filled.lines().next().and_then(|line| line.strip_prefix("wrote ")?.parse().ok()).expect("a number");
        assert!((60 << 20..=64 << 20).contains(&wrote), "{wrote} bytes for 64 MiB");
        assert!(filled.contains("then: EDQUOT") || filled.contains("then: ENOSPC"), "{filled}");
        let used = client.ok("sandbox.usage", &json!({ "id": "a1" }))["diskBytes"].as_u64().expect("a number");
        assert!((60 << 20..=65 << 20).contains(&used), "{used}");

        assert_eq!(node.probe("a1", &["eat"]), "killed by 9\n");
        let usage = client.ok("sandbox.usage", &json!({ "id": "a1" }));
        assert_eq!(usage["oomKills"], 1);
        assert!(usage["memoryPeakBytes"].as_u64() <= Some(70 << 20));
        assert!(usage["cpuUsec"].as_u64() > Some(0));
        assert_eq!(node.probe("a1", &["hostname"]), "box\n", "the sandbox outlives its hog");
    }
}

#[test]
fn a_full_node_says_so() {
    let node = Node::start(Setup { max_sandboxes: 2, ..Setup::default() });
    let mut client = node.client();
    client.ok("sandbox.create", &node.create("a1"));
    client.ok("sandbox.create", &node.create("a2"));
    let error = client.refusal("sandbox.create", &node.create("a3"));
    assert_eq!(error["code"], "no_capacity");
    assert_eq!(error["details"], json!({ "resource": "slots", "limit": 2, "current": 2, "requested": 1 }));
    client.ok("sandbox.destroy", &json!({ "id": "a1" }));
    client.ok("sandbox.create", &node.create("a3"));
}

#[test]
fn a_directory_without_quotas_works_too() {
    let node = Node::start(Setup { is_btrfs: false, ..Setup::default() });
    let mut client = node.client();
    assert_eq!(client.ok("node.info", &json!({}))["quota"], "none");
    client.ok("sandbox.create", &node.create("a1"));
    assert!(node.probe("a1", &["allowed"]).starts_with("port 80: ok"));
    assert_eq!(client.ok("sandbox.usage", &json!({ "id": "a1" }))["diskBytes"], 0);
    client.ok("sandbox.destroy", &json!({ "id": "a1" }));
    assert_eq!(std::fs::read_dir(node.data.join("volume/u")).expect("uppers").count(), 0);
}

#[test]
fn a_destroy_overtakes_a_create() {
    let node = Node::start(Setup::default());
    let mut client = node.client();
    let before = Census::of(&node);
    let creates: Vec<u32> = (0..20).map(|n| client.open("sandbox.create", &node.create(&format!("a{n}")))).collect();
    let destroys: Vec<u32> =
        (0..20).map(|n| client.open("sandbox.destroy", &json!({ "id": format!("a{n}") }))).collect();
    for create in creates {
        if let Err(error) = client.wait(create) {
            assert_eq!(error["code"], "cancelled");
        }
    }
    for destroy in destroys {
        assert_eq!(client.wait(destroy), Ok(json!({})));
    }
    assert_eq!(client.ok("sandbox.list", &json!({})), json!({ "sandboxes": [] }));
    drop(client);
    wait_for("the remains' end", || Census::of(&node).is_like(&before));
}
