//! Whole directories as tar: F09, and hostile archives.

mod support;

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use aether::tree::header::{self, Header, Kind};
use aether::tree::pax;
use serde_json::{Value, json};
use support::{Conn, Sandbox};

fn read_tree(conn: &mut Conn, params: Value) -> (Vec<u8>, Value) {
    let stream = conn.open("tree.read", params);
    let heard = conn.wait(stream);
    (heard.bytes(0).to_vec(), heard.ok().clone())
}

fn write_tree(conn: &mut Conn, params: Value, tar: &[u8]) -> Result<Value, (String, Value)> {
    let stream = conn.open("tree.write", params);
    conn.send(stream, tar);
    conn.end(stream);
    conn.wait(stream);
    conn.streams.remove(&stream).and_then(|heard| heard.closed).expect("closed")
}

fn described(directory: &str) -> String {
    let output = Command::new("find").args([directory, "-printf", "%P %M %s %l %T@ %n %U\\n"]).output().expect("find");
    let mut lines: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    // A directory's size is its filesystem's affair.
    for line in &mut lines {
        if line.contains(" d") {
            let mut fields: Vec<&str> = line.split(' ').collect();
            let size = fields.iter().position(|field| field.starts_with('d')).expect("mode") + 1;
            fields[size] = "-";
            *line = fields.join(" ");
        }
    }
    lines.sort();
    lines.join("\n")
}

#[test]
fn f09_a_tree_comes_back_as_it_went() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    let root = sandbox.path("t");
    let inside = |name: &str| format!("{root}/{name}");
    std::fs::create_dir_all(inside("empty")).expect("dir");
    std::fs::create_dir_all(inside("a/b")).expect("dir");
    std::fs::write(inside(".dot"), "hidden").expect("write");
    std::fs::write(inside("a/exe"), "#!/bin/sh\necho ran").expect("write");
    std::fs::set_permissions(inside("a/exe"), PermissionsExt::from_mode(0o755)).expect("mode");
    std::fs::hard_link(inside("a/exe"), inside("a/b/same")).expect("link");
    symlink("../exe", inside("a/b/link")).expect("link");
    symlink("nowhere", inside("dangling")).expect("link");
    std::fs::write(inside(&"n".repeat(255)), "long").expect("write");
    std::fs::write(inside("🤣 \n'\"$x"), "odd").expect("write");
    std::fs::write(inside("big"), vec![7; 3_000_001]).expect("write");
    std::fs::create_dir_all(inside(&format!("{}/{}", "d".repeat(120), "e".repeat(120)))).expect("dir");
    std::fs::create_dir(inside("readonly")).expect("dir");
    std::fs::write(inside("readonly/file"), "r").expect("write");
    std::fs::set_permissions(inside("readonly"), PermissionsExt::from_mode(0o555)).expect("mode");
    let old = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    for name in ["a/exe", "readonly", "empty", "."] {
        std::fs::File::open(inside(name)).expect("open").set_modified(old).expect("time");
    }
    let (tar, told) = read_tree(&mut conn, json!({ "path": root }));
    // GNU tar reads it.
    std::fs::write(sandbox.path("x.tar"), &tar).expect("write");
    let listed = Command::new("tar").args(["tf", &sandbox.path("x.tar")]).output().expect("tar");
    assert!(listed.status.success());
    assert_eq!(
        String::from_utf8_lossy(&listed.stdout).lines().count() as u64,
        told["entries"].as_u64().expect("entries")
    );
    let copy = sandbox.path("copy");
    assert_eq!(
        write_tree(&mut conn, json!({ "path": copy }), &tar).expect("write"),
        json!({ "entries": told["entries"] })
    );
    assert_eq!(described(&copy), described(&root));
    let ino = |name: &str| std::fs::metadata(format!("{copy}/{name}")).expect("metadata").ino();
    assert_eq!(ino("a/exe"), ino("a/b/same"));
    assert!(std::fs::read(format!("{copy}/big")).expect("big") == vec![7; 3_000_001]);
    // What GNU tar writes is read, in each of its forms, over what is there.
    for format in ["ustar", "gnu", "pax", "v7"] {
        let archive = sandbox.path("y.tar");
        std::fs::remove_file(inside(&"n".repeat(255))).ok();
        let mut command = Command::new("tar");
        command.args([
            "--format", format, "-cf", &archive, "-C", &root, "a", ".dot", "empty", "big", "dangling", "readonly",
        ]);
        assert!(command.status().expect("tar").success(), "{format}");
        let tar = std::fs::read(&archive).expect("read");
        write_tree(&mut conn, json!({ "path": copy }), &tar).unwrap_or_else(|error| panic!("{format} {error:?}"));
        assert_eq!(std::fs::read_link(format!("{copy}/a/b/link")).expect("link"), Path::new("../exe"));
        assert_eq!(conn.exec(json!({ "argv": [format!("{copy}/a/b/same")] })).stdout(), "ran\n");
    }
    // As a user: everything is the user's, and what it may not read it may not.
    let theirs = sandbox.path("theirs");
    write_tree(&mut conn, json!({ "path": theirs, "user": "41000:41001" }), &tar).expect("write");
    let metadata = std::fs::metadata(format!("{theirs}/a/exe")).expect("metadata");
    assert_eq!((metadata.uid(), metadata.gid(), metadata.mode() & 0o7777), (41000, 41001, 0o755));
    std::fs::set_permissions(inside("big"), PermissionsExt::from_mode(0o600)).expect("mode");
    let stream = conn.open("tree.read", json!({ "path": root, "user": "41000" }));
    assert_eq!(conn.wait(stream).code(), "file_permission");
    for (path, code) in [("/nonexistent", "file_not_found"), ("/etc/passwd", "not_directory")] {
        let stream = conn.open("tree.read", json!({ "path": path }));
        assert_eq!(conn.wait(stream).code(), code);
    }
}

fn entry(name: &str, kind: Kind, link: &str, body: &[u8]) -> Vec<u8> {
    let header = Header { name: name.into(), link: link.into(), kind, mode: 0o644, size: body.len() as u64, mtime: 1 };
    let mut bytes = header::build(&header, 0, 0).0.to_vec();
    bytes.extend_from_slice(body);
    bytes.resize(bytes.len() + header::padding(body.len() as u64) as usize, 0);
    bytes
}

#[test]
fn hostile_archives_are_refused_by_name_and_touch_nothing_outside() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    let outside = sandbox.path("outside");
    std::fs::create_dir(&outside).expect("dir");
    std::fs::write(format!("{outside}/kept"), "kept").expect("write");
    let dir = sandbox.dir.to_str().expect("UTF-8").to_owned();
    let mut long = Vec::new();
    pax::append(&mut long, "path", b"../outside/pax");
    let file = |name: &str| entry(name, Kind::File, "", b"evil");
    let cases: Vec<(&str, Vec<Vec<u8>>, &str)> = vec![
        ("dot-dot", vec![file("../outside/f")], "archive_unsafe"),
        ("dot-dot inside", vec![file("a/../../outside/f")], "archive_unsafe"),
        ("absolute", vec![file(&format!("{outside}/f"))], "archive_unsafe"),
        ("pax dot-dot", vec![entry("pax", Kind::PaxNext, "", &long), file("x")], "archive_unsafe"),
        ("gnu dot-dot", vec![entry("l", Kind::LongName, "", b"../outside/g\0"), file("x")], "archive_unsafe"),
        ("symlink out", vec![entry("s", Kind::Symlink, &outside, b"")], "archive_unsafe"),
        ("symlink up", vec![entry("s", Kind::Symlink, "../outside", b"")], "archive_unsafe"),
        ("hard link out", vec![entry("h", Kind::HardLink, "../outside/kept", b"")], "archive_unsafe"),
        ("hard link absolute", vec![entry("h", Kind::HardLink, "/etc/passwd", b"")], "archive_unsafe"),
        ("device", vec![entry("dev", Kind::Device, "", b"")], "archive_unsafe"),
        ("the directory as a file", vec![file(".")], "archive_unsafe"),
        ("empty name", vec![file("")], "archive_unsafe"),
        ("unknown kind", vec![entry("s", Kind::Other(b'S'), "", b"")], "archive_invalid"),
        ("garbage", vec![vec![0x55; 2048]], "archive_invalid"),
        ("nothing", vec![], "archive_invalid"),
        ("cut", vec![file("ok")[..700].to_vec()], "archive_invalid"),
    ];
    for (what, entries, code) in cases {
        let target = sandbox.path(&format!("target {what}"));
        let mut tar = entries.concat();
        if code == "archive_unsafe" {
            tar.extend([0; 1024]);
        }
        let error = write_tree(&mut conn, json!({ "path": target }), &tar).expect_err(what);
        assert_eq!(error.0, code, "{what}");
        assert!(error.1["entry"].is_string() || error.1["offset"].is_u64(), "{what}: {error:?}");
        assert_eq!(described(&outside).lines().count(), 2, "{what}");
        assert_eq!(std::fs::read(format!("{outside}/kept")).expect("kept"), b"kept");
    }
    // Through a link: one that the archive brings, where such links are allowed, and one that was there before.
    let through = [entry("s", Kind::Symlink, &outside, b""), file("s/f"), vec![0; 1024]].concat();
    let target = sandbox.path("through");
    let error = write_tree(&mut conn, json!({ "path": target, "anySymlinks": true }), &through).expect_err("through");
    assert_eq!((error.0.as_str(), &error.1["entry"]), ("archive_unsafe", &json!("s/f")));
    assert_eq!(std::fs::read_link(format!("{target}/s")).expect("link"), Path::new(&outside));
    let there = sandbox.path("there");
    std::fs::create_dir(&there).expect("dir");
    symlink(&outside, format!("{there}/s")).expect("link");
    symlink("inner", format!("{there}/good")).expect("link");
    std::fs::create_dir(format!("{there}/inner")).expect("dir");
    let error =
        write_tree(&mut conn, json!({ "path": there }), &[file("s/f"), vec![0; 1024]].concat()).expect_err("there");
    assert_eq!(error.0, "archive_unsafe");
    assert_eq!(described(&outside).lines().count(), 2);
    // A link that stays inside is a way like any other; a file replaces a link and does not follow it.
    write_tree(&mut conn, json!({ "path": there }), &[file("good/f"), vec![0; 1024]].concat()).expect("inside");
    assert!(Path::new(&format!("{there}/inner/f")).exists());
    symlink(format!("{outside}/kept"), format!("{there}/onto")).expect("link");
    write_tree(&mut conn, json!({ "path": there }), &[file("onto"), vec![0; 1024]].concat()).expect("replace");
    assert_eq!(std::fs::read(format!("{outside}/kept")).expect("kept"), b"kept");
    assert_eq!(conn.run(&format!("ls {dir} | wc -l")).exit_code(), 0);
    // Work goes on beside a large tree, and an abandoned one ends its worker.
    let stream = conn.open("tree.write", json!({ "path": sandbox.path("abandoned") }));
    conn.send(stream, &entry("big", Kind::File, "", &vec![1; 2 << 20]));
    assert_eq!(conn.run("echo hi").stdout(), "hi\n");
    conn.reset(stream);
    support::wait_for("the worker is gone", || (conn.commands().len() == 1).then_some(()));
}
