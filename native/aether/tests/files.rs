//! Files: the cases of section C that are aether's.

mod support;

use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use support::{Conn, Sandbox, wait_for};

fn mode_of(path: &str) -> u32 {
    std::fs::metadata(path).expect("metadata").mode() & 0o7777
}

fn owner_of(path: &str) -> (u32, u32) {
    let metadata = std::fs::symlink_metadata(path).expect("metadata");
    (metadata.uid(), metadata.gid())
}

/// Names of a listing, all messages together.
fn names(conn: &mut Conn, params: Value) -> BTreeSet<String> {
    let stream = conn.open("file.list", params);
    let heard = conn.wait(stream);
    let count = heard.ok()["count"].as_u64().expect("count");
    let entries: Vec<&Value> =
        heard.messages.iter().flat_map(|message| message["entries"].as_array().expect("array")).collect();
    assert_eq!(entries.len() as u64, count);
    entries.into_iter().map(|entry| entry["name"].as_str().expect("name").to_owned()).collect()
}

fn write(conn: &mut Conn, path: &str, bytes: &[u8]) -> Value {
    conn.write_file(json!({ "path": path }), bytes).expect("write")
}

#[test]
fn a_killed_worker_is_no_fault_of_the_platform() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    let (pid, path) = (sandbox.pid(), sandbox.path("large"));
    std::fs::File::create(&path).expect("create").set_len(1 << 30).expect("size");
    // Nobody takes the bytes, so it waits.
    let stream = conn.open("file.read", json!({ "path": path }));
    let worker: i32 = wait_for("a worker", || {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads");
        let children = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("children")).ok());
        children.collect::<String>().split_whitespace().next().and_then(|child| child.parse().ok())
    });
    // SAFETY: plain call.
    assert_eq!(unsafe { libc::kill(worker, libc::SIGKILL) }, 0);
    conn.discard = true;
    assert_eq!(conn.wait(stream).code(), "file_error");
}

#[test]
fn f01_large_files_stream_both_ways_with_flat_memory() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    let (pid, path) = (sandbox.pid(), sandbox.path("large"));
    let rss = || -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
        let line = text.lines().find(|line| line.starts_with("VmRSS")).expect("VmRSS");
        line.split_whitespace().nth(1).expect("number").parse().expect("number")
    };
    let chunk: Vec<u8> = (0..1u32 << 20).map(|i| (i * 31 % 253) as u8).collect();
    let stream = conn.open("file.write", json!({ "path": path }));
    for i in 0..500 {
        conn.send(stream, &chunk);
        if i % 100 == 50 {
            assert!(rss() < 10 << 10, "{} KiB", rss());
            // Others are served meanwhile, and nobody sees a part of it.
            assert_eq!(conn.run("echo hi").stdout(), "hi\n");
            assert!(!Path::new(&path).exists());
        }
    }
    conn.end(stream);
    assert_eq!(conn.wait_up_to(stream, Duration::from_secs(60)).ok()["sizeBytes"], 500u64 << 20);
    conn.discard = true;
    let stream = conn.open("file.read", json!({ "path": path }));
    let heard = conn.wait_up_to(stream, Duration::from_secs(60));
    assert_eq!(heard.ok(), &json!({ "bytes": 500u64 << 20 }));
    assert_eq!(heard.messages[0]["entry"]["sizeBytes"], 500u64 << 20);
    assert_eq!(conn.discarded, 500 << 20);
    assert!(rss() < 10 << 10, "{} KiB", rss());
    conn.discard = false;
    // Contents, by the parts.
    for (offset, length) in [(0, 1u64 << 20), (77 << 20, 2 << 20), ((500 << 20) - 5, 100), (600 << 20, 5)] {
        let heard = conn.read_file(json!({ "path": path, "offset": offset, "length": length }));
        let expected: Vec<u8> =
            (offset..(offset + length).min(500 << 20)).map(|i| chunk[i as usize % chunk.len()]).collect();
        assert!(heard.bytes(0) == expected, "{offset}");
    }
}

#[test]
fn f01_a_full_disk_is_said_and_leaves_nothing() {
    let sandbox = Sandbox::start_after("mount -t tmpfs -o size=8m tmpfs /mnt");
    let mut conn = sandbox.connect();
    for size in [9 << 20, 20 << 20] {
        let error = conn.write_file(json!({ "path": "/mnt/big" }), &vec![1; size]).expect_err("full");
        assert_eq!(error.0, "disk_full");
        wait_for("nothing is left", || names(&mut conn, json!({ "path": "/mnt" })).is_empty().then_some(()));
    }
    // A write that is abandoned leaves nothing either.
    for size in [1000, 6 << 20] {
        let stream = conn.open("file.write", json!({ "path": "/mnt/part" }));
        conn.send(stream, &vec![1; size]);
        conn.reset(stream);
        wait_for("nothing is left", || names(&mut conn, json!({ "path": "/mnt" })).is_empty().then_some(()));
    }
    assert_eq!(conn.write_file(json!({ "path": "/mnt/ok" }), b"x").expect("write")["sizeBytes"], 1);
}

#[test]
fn f03_odd_names_are_written_listed_read_and_removed() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    let long = "n".repeat(255);
    let combining = "e\u{301}".repeat(20);
    let odd = ["🤣.txt", "a b.txt", "a\nb", "-rf", "q'\"$x", "\u{7}\\t", "*?[", &long, &combining, "..."];
    for name in odd {
        let path = sandbox.path(&format!("odd/{name}"));
        assert_eq!(write(&mut conn, &path, name.as_bytes())["name"], *name);
        assert_eq!(conn.read_file(json!({ "path": path })).bytes(0), name.as_bytes());
        assert_eq!(conn.ok("file.stat", json!({ "path": path }))["path"], path);
    }
    let listed = names(&mut conn, json!({ "path": sandbox.path("odd") }));
    assert_eq!(listed, odd.iter().map(|name| (*name).to_owned()).collect());
    for name in odd {
        conn.ok("file.remove", json!({ "path": sandbox.path(&format!("odd/{name}")) }));
    }
    assert!(names(&mut conn, json!({ "path": sandbox.path("odd") })).is_empty());
    // Not UTF-8: shown with U+FFFD and exactly.
    conn.run(&format!("touch {}/\"$(printf 'x\\377y')\"", sandbox.path("odd")));
    let stream = conn.open("file.list", json!({ "path": sandbox.path("odd") }));
    let entry = &conn.wait(stream).messages[0]["entries"][0];
    assert_eq!((&entry["name"], &entry["nameBase64"]), (&json!("x\u{fffd}y"), &json!("eP95")));
    for bad in ["", "a\0b"] {
        assert_eq!(conn.code("file.stat", json!({ "path": bad })), "invalid_argument");
    }
    let too_long = sandbox.path(&"n".repeat(256));
    assert_eq!(conn.write_file(json!({ "path": too_long }), b"").expect_err("too long").0, "file_error");
}

#[test]
fn f04_links_lead_where_the_sandbox_says_and_nowhere_else() {
    let sandbox = Sandbox::start_after("mount -t tmpfs tmpfs /mnt && mkdir -p /mnt/outside");
    let mut conn = sandbox.connect();
    let path = |name: &str| sandbox.path(name);
    symlink("/etc/passwd", path("x")).expect("link");
    symlink("/mnt/outside", path("d")).expect("link");
    symlink("/mnt/no/where", path("z")).expect("link");
    symlink("z2", path("z1")).expect("link");
    symlink("sub/../target", path("z2")).expect("link");
    std::fs::create_dir(path("sub")).expect("dir");
    symlink("loop", path("loop")).expect("link");
    assert_eq!(conn.read_file(json!({ "path": path("x") })).bytes(0), std::fs::read("/etc/passwd").expect("passwd"));
    write(&mut conn, &path("d/new/f"), b"through a link");
    assert_eq!(conn.run("cat /mnt/outside/new/f").stdout(), "through a link");
    // A link to nothing yet is written through, not replaced.
    write(&mut conn, &path("z"), b"made");
    assert_eq!(conn.run(&format!("cat /mnt/no/where; test -L {}", path("z"))).stdout(), "made");
    write(&mut conn, &path("z1"), b"two links");
    assert_eq!(std::fs::read(path("target")).expect("target"), b"two links");
    let error = conn.write_file(json!({ "path": path("loop") }), b"").expect_err("loop");
    assert_eq!((error.0.as_str(), &error.1["errno"]), ("file_error", &json!("ELOOP")));
    let entry = conn.ok("file.stat", json!({ "path": path("x"), "followLinks": false }));
    assert_eq!((&entry["kind"], &entry["target"]), (&json!("symlink"), &json!("/etc/passwd")));
    assert_eq!(conn.ok("file.stat", json!({ "path": path("x") }))["kind"], "file");
    // Removing a tree removes links and not what they lead to.
    symlink("/mnt/outside", path("sub/out")).expect("link");
    conn.ok("file.remove", json!({ "path": path("sub"), "recursive": true }));
    assert_eq!(conn.run("cat /mnt/outside/new/f").stdout(), "through a link");
    // /proc's links are not followed in aether's hands, and its own files are nobody's.
    assert_eq!(conn.read_file(json!({ "path": "/proc/self/fd/3" })).code(), "file_error");
    assert_eq!(conn.read_file(json!({ "path": "/proc/self/root/etc/passwd" })).code(), "file_error");
    assert_eq!(conn.read_file(json!({ "path": "/proc/1/environ", "user": "41000" })).code(), "file_permission");
    assert_eq!(conn.read_file(json!({ "path": "/proc/1/mem", "user": "41000" })).code(), "file_permission");
    let heard = conn.read_file(json!({ "path": "/proc/self/status", "user": "41000" }));
    assert!(heard.text(0).contains("Uid:\t41000\t41000\t41000\t41000"));
    assert_eq!(
        conn.write_file(json!({ "path": "/proc/self/comm", "append": true }), b"x").expect_err("proc").0,
        "file_permission"
    );
}

#[test]
fn f06_owner_and_mode_are_those_asked_for_also_of_made_parents() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    let path = |name: &str| sandbox.path(name);
    let entry = conn
        .write_file(json!({ "path": path("a/b/c.txt"), "user": "41000:41001", "mode": 0o640 }), b"x")
        .expect("write");
    assert_eq!(
        (&entry["uid"], &entry["gid"], &entry["mode"], &entry["kind"]),
        (&json!(41000), &json!(41001), &json!(0o640), &json!("file"))
    );
    for made in ["a", "a/b"] {
        assert_eq!((owner_of(&path(made)), mode_of(&path(made))), ((41000, 41001), 0o755));
    }
    assert_eq!(conn.exec(json!({ "argv": ["rm", "-rf", path("a")], "user": "41000:41001" })).exit_code(), 0);
    assert_eq!(mode_of(&path("")), 0o777);
    conn.write_file(json!({ "path": path("plain"), "user": "41000" }), b"").expect("write");
    assert_eq!((owner_of(&path("plain")), mode_of(&path("plain"))), ((41000, 41000), 0o644));
    let error = conn.write_file(json!({ "path": path("no/parent"), "createParents": false }), b"").expect_err("parent");
    assert_eq!(error.0, "file_not_found");
    assert_eq!(
        conn.write_file(json!({ "path": path("m"), "mode": 0o10000 }), b"").expect_err("mode").0,
        "invalid_argument"
    );

    let entry =
        conn.ok("file.mkdir", json!({ "path": path("d/e/f"), "parents": true, "user": "41000", "mode": 0o700 }));
    assert_eq!((&entry["uid"], &entry["mode"]), (&json!(41000), &json!(0o700)));
    assert_eq!(mode_of(&path("d/e")), 0o755);
    conn.ok("file.mkdir", json!({ "path": path("d/e/f"), "parents": true }));
    assert_eq!(conn.code("file.mkdir", json!({ "path": path("d/e/f") })), "file_exists");
    assert_eq!(conn.code("file.mkdir", json!({ "path": path("q/r") })), "file_not_found");
    conn.ok("file.chmod", json!({ "path": path("plain"), "mode": 0o4711 }));
    assert_eq!(mode_of(&path("plain")), 0o4711);
    assert_eq!(conn.ok("file.chown", json!({ "path": path("plain"), "owner": "7:8" }))["uid"], 7);
    assert_eq!(owner_of(&path("plain")), (7, 8));
    assert_eq!(
        conn.code("file.chown", json!({ "path": path("plain"), "owner": "1:1", "user": "41000" })),
        "file_permission"
    );
    assert_eq!(
        conn.ok("file.symlink", json!({ "path": path("ln"), "target": "plain", "user": "41000" }))["target"],
        "plain"
    );
    assert_eq!(owner_of(&path("ln")), (41000, 41000));
}

#[test]
fn f08_each_refusal_has_its_code() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    let path = |name: &str| sandbox.path(name);
    std::fs::create_dir(path("dir")).expect("dir");
    std::fs::create_dir(path("dir/full")).expect("dir");
    std::fs::write(path("secret"), "s").expect("write");
    std::fs::set_permissions(path("secret"), PermissionsExt::from_mode(0o600)).expect("mode");
    conn.run(&format!("mkfifo {0}/fifo; mknod {0}/null c 1 3", sandbox.path("")));
    let user = "41000";
    for (file, code) in [
        ("missing", "file_not_found"),
        ("dir", "is_directory"),
        ("secret", "file_permission"),
        ("fifo", "not_regular_file"),
        ("secret/x", "not_directory"),
    ] {
        assert_eq!(conn.read_file(json!({ "path": path(file), "user": user })).code(), code, "{file}");
    }
    for (file, code) in [
        ("dir", "is_directory"),
        ("secret", "file_permission"),
        ("dir/new", "file_permission"),
        ("fifo", "not_regular_file"),
        ("null", "not_regular_file"),
        ("secret/x", "not_directory"),
        ("dir/", "is_directory"),
    ] {
        let error = conn.write_file(json!({ "path": path(file), "user": user }), b"x").expect_err(file);
        assert_eq!(error.0, code, "{file}");
    }
    assert_eq!(std::fs::read(path("secret")).expect("read"), b"s");
    for (method, params, code) in [
        ("file.list", json!({ "path": path("missing") }), "file_not_found"),
        ("file.list", json!({ "path": path("secret") }), "not_directory"),
        ("file.list", json!({ "path": path("dir"), "depth": 0 }), "invalid_argument"),
        ("file.list", json!({ "path": path("dir"), "depth": 65 }), "invalid_argument"),
        ("file.remove", json!({ "path": path("missing") }), "file_not_found"),
        ("file.remove", json!({ "path": path("dir") }), "directory_not_empty"),
        ("file.remove", json!({ "path": path("dir/full"), "user": user }), "file_permission"),
        ("file.remove", json!({ "path": path("dir"), "user": user, "recursive": true }), "file_permission"),
        ("file.remove", json!({ "path": "/" }), "invalid_argument"),
        ("file.move", json!({ "from": path("missing"), "to": path("m2") }), "file_not_found"),
        ("file.move", json!({ "from": path("secret"), "to": path("dir") }), "file_exists"),
        ("file.move", json!({ "from": path("secret"), "to": path("no/m") }), "file_not_found"),
        ("file.stat", json!({ "path": path("missing"), "user": user }), "file_not_found"),
        ("file.stat", json!({ "path": path("dir"), "user": "nouser" }), "user_not_found"),
        ("file.chmod", json!({ "path": path("secret"), "mode": 0o777, "user": user }), "file_permission"),
        ("file.symlink", json!({ "path": path("dir"), "target": "x" }), "file_exists"),
    ] {
        assert_eq!(conn.code(method, params.clone()), code, "{method} {params}");
    }
    conn.ok("file.move", json!({ "from": path("secret"), "to": path("moved") }));
    std::fs::write(path("other"), "o").expect("write");
    assert_eq!(conn.code("file.move", json!({ "from": path("other"), "to": path("moved") })), "file_exists");
    assert_eq!(
        conn.ok("file.move", json!({ "from": path("other"), "to": path("moved"), "overwrite": true }))["name"],
        "moved"
    );
    assert_eq!(std::fs::read(path("moved")).expect("read"), b"o");
}

#[test]
fn f11_overwriting_keeps_owner_and_mode_and_readers_see_old_or_new() {
    let sandbox = Sandbox::start_after(
        "mount -t tmpfs tmpfs /mnt && echo old > /mnt/source && touch /mnt/mounted && mount --bind /mnt/source /mnt/mounted",
    );
    let mut conn = sandbox.connect();
    let path = sandbox.path("f");
    conn.write_file(json!({ "path": path, "user": "41000", "mode": 0o600 }), b"old").expect("write");
    write(&mut conn, &path, b"new");
    assert_eq!((owner_of(&path), mode_of(&path)), ((41000, 41000), 0o600));
    assert_eq!(conn.read_file(json!({ "path": path, "user": "41000" })).bytes(0), b"new");
    // A mode is that of a new file.
    conn.write_file(json!({ "path": path, "mode": 0o644 }), b"new").expect("write");
    assert_eq!((owner_of(&path), mode_of(&path)), ((41000, 41000), 0o600));
    // Whoever has the old one open still reads the old one, and never a part.
    let stream = conn.open("file.write", json!({ "path": path }));
    conn.send(stream, &vec![b'x'; 300_000]);
    assert_eq!(std::fs::read(&path).expect("read"), b"new");
    conn.end(stream);
    conn.wait(stream);
    assert_eq!(std::fs::read(&path).expect("read").len(), 300_000);
    // Where a rename is not possible it is written in place: something mounted on it, or a file of somebody else in a directory of
    // yet another.
    write(&mut conn, "/mnt/mounted", b"in place");
    assert_eq!(conn.run("cat /mnt/source").stdout(), "in place");
    std::fs::write(sandbox.path("shared"), "s").expect("write");
    std::fs::set_permissions(sandbox.path("shared"), PermissionsExt::from_mode(0o666)).expect("mode");
    conn.write_file(json!({ "path": sandbox.path("shared"), "user": "41000" }), b"theirs").expect("write");
    assert_eq!((owner_of(&sandbox.path("shared")), mode_of(&sandbox.path("shared"))), ((0, 0), 0o666));
    assert_eq!(std::fs::read(sandbox.path("shared")).expect("read"), b"theirs");
    // Appending.
    conn.write_file(json!({ "path": path, "append": true }), b"y").expect("append");
    assert_eq!(std::fs::read(&path).expect("read").len(), 300_001);
    conn.write_file(json!({ "path": sandbox.path("fresh"), "append": true, "mode": 0o600 }), b"y").expect("append");
    assert_eq!(mode_of(&sandbox.path("fresh")), 0o600);
    let left = names(&mut conn, json!({ "path": sandbox.path("") }));
    assert!(!left.iter().any(|name| name.starts_with(".dsec")), "{left:?}");
}

#[test]
fn f12_a_recursive_watch_tells_everything_or_that_it_missed_something_and_leaves_nothing() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    let pid = sandbox.pid();
    let watches = || -> usize {
        let fds = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).expect("fdinfo");
        fds.filter_map(|fd| std::fs::read_to_string(fd.ok()?.path()).ok())
            .map(|text| text.matches("inotify wd").count())
            .sum()
    };
    let root = sandbox.path("w");
    std::fs::create_dir_all(format!("{root}/there/deep")).expect("dirs");
    symlink(".", format!("{root}/self")).expect("link");
    symlink("/no/where", format!("{root}/broken")).expect("link");
    let stream = conn.open("file.watch", json!({ "path": root, "recursive": true }));
    conn.until("ready", |conn| conn.streams[&stream].messages.contains(&json!({ "ready": true })));
    assert_eq!(watches(), 3);
    let seen = |conn: &Conn| -> (BTreeSet<(String, String)>, bool) {
        let messages = &conn.streams[&stream].messages;
        let events = messages.iter().filter_map(|message| message["events"].as_array()).flatten();
        let text = |event: &Value, key: &str| event[key].as_str().unwrap_or_default().to_owned();
        (
            events.map(|event| (text(event, "kind"), text(event, "path"))).collect(),
            messages.iter().any(|message| message["overflow"] == true),
        )
    };
    let until_seen = |conn: &mut Conn, kind: &str, path: String| {
        conn.until(&format!("{kind} {path}"), |conn| seen(conn).0.contains(&(kind.into(), path.clone())));
    };
    std::fs::write(format!("{root}/there/deep/f"), "x").expect("write");
    until_seen(&mut conn, "create", format!("{root}/there/deep/f"));
    until_seen(&mut conn, "modify", format!("{root}/there/deep/f"));
    std::fs::set_permissions(format!("{root}/there/deep/f"), PermissionsExt::from_mode(0o600)).expect("mode");
    until_seen(&mut conn, "attrib", format!("{root}/there/deep/f"));
    std::fs::rename(format!("{root}/there"), format!("{root}/moved")).expect("rename");
    until_seen(&mut conn, "move", format!("{root}/there"));
    std::fs::remove_file(format!("{root}/moved/deep/f")).expect("remove");
    until_seen(&mut conn, "remove", format!("{root}/moved/deep/f"));
    // A file of the files API appears once, by its own name.
    write(&mut conn, &format!("{root}/written"), b"x");
    until_seen(&mut conn, "create", format!("{root}/written"));
    assert!(!seen(&conn).0.iter().any(|(_, path)| path.contains("/.dsec-")));
    // 10,000 files in new directories.
    for i in 0..100 {
        std::fs::create_dir(format!("{root}/new{i}")).expect("dir");
        for j in 0..100 {
            std::fs::write(format!("{root}/new{i}/{j}"), "").expect("write");
        }
    }
    conn.until("all, or an overflow", |conn| {
        let (events, overflow) = seen(conn);
        overflow || events.iter().filter(|(kind, path)| kind == "create" && path.contains("/new")).count() == 10_100
    });
    // Moved out of the tree, and no longer watched.
    std::fs::rename(format!("{root}/moved"), sandbox.path("out")).expect("rename");
    until_seen(&mut conn, "remove", format!("{root}/moved"));
    conn.reset(stream);
    wait_for("no watches", || (watches() == 0).then_some(()));
    // Again, and not recursive, and of one file.
    let again = conn.open("file.watch", json!({ "path": root }));
    let single = conn.open("file.watch", json!({ "path": format!("{root}/written") }));
    conn.until("ready", |conn| !conn.streams[&again].messages.is_empty() && !conn.streams[&single].messages.is_empty());
    assert_eq!(watches(), 2);
    std::fs::write(format!("{root}/new0/inside"), "").expect("write");
    std::fs::write(format!("{root}/written"), "more").expect("write");
    conn.until("both tell", |conn| conn.streams[&again].messages.len() > 1 && conn.streams[&single].messages.len() > 1);
    assert!(!format!("{:?}", conn.streams[&again].messages).contains("inside"));
    assert_eq!(conn.code("file.watch", json!({ "path": sandbox.path("none") })), "file_not_found");
    conn.reset(again);
    conn.reset(single);
    // So many, and no more.
    let open: Vec<u32> = (0..40).map(|_| conn.open("file.watch", json!({ "path": root }))).collect();
    let refused = conn.call("file.watch", json!({ "path": root })).expect_err("too many");
    assert_eq!(refused.0, "too_many_requests");
    for stream in open {
        conn.reset(stream);
    }
    wait_for("no watches", || (watches() == 0).then_some(()));
}

#[test]
fn f15_of_many_writers_at_once_one_wins_whole() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    let path = sandbox.path("contended");
    let streams: Vec<u32> = (0..50).map(|_| conn.open("file.write", json!({ "path": path }))).collect();
    for part in 0..16 {
        for (i, &stream) in streams.iter().enumerate() {
            let _ = part;
            conn.send(stream, &vec![i as u8; 65_536]);
        }
    }
    for &stream in &streams {
        conn.end(stream);
    }
    for &stream in &streams {
        assert_eq!(conn.wait(stream).ok()["sizeBytes"], 1 << 20);
    }
    let bytes = std::fs::read(&path).expect("read");
    assert!(bytes.len() == 1 << 20 && bytes.iter().all(|&byte| byte == bytes[0]));
}

#[test]
fn listings_go_deep_are_cut_at_the_limit_and_do_not_follow_links() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    let root = sandbox.path("l");
    std::fs::create_dir_all(format!("{root}/a/b/c")).expect("dirs");
    symlink("..", format!("{root}/a/up")).expect("link");
    std::fs::create_dir(format!("{root}/closed")).expect("dir");
    std::fs::write(format!("{root}/closed/x"), "").expect("write");
    std::fs::set_permissions(format!("{root}/closed"), PermissionsExt::from_mode(0o700)).expect("mode");
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(names(&mut conn, json!({ "path": root })), set(&["a", "closed"]));
    assert_eq!(names(&mut conn, json!({ "path": root, "depth": 2 })), set(&["a", "closed", "b", "up", "x"]));
    assert_eq!(
        names(&mut conn, json!({ "path": root, "depth": 64, "user": "41000" })),
        set(&["a", "closed", "b", "up", "c"])
    );
    for i in 0..5_000 {
        std::fs::write(format!("{root}/a/{}{i}", "é".repeat(60)), "").expect("write");
    }
    let stream = conn.open("file.list", json!({ "path": format!("{root}/a") }));
    assert_eq!(conn.run("echo meanwhile").stdout(), "meanwhile\n");
    assert_eq!(conn.wait(stream).ok(), &json!({ "count": 5_002, "truncated": false }));
    let stream = conn.open("file.list", json!({ "path": format!("{root}/a"), "limit": 7 }));
    assert_eq!(conn.wait(stream).ok(), &json!({ "count": 7, "truncated": true }));
    // A tree deeper than any path, removed.
    let script =
        "import os\nfor i in range(3000):\n  os.mkdir('d'); os.mkdir('e'); open('g', 'w').close(); os.chdir('d')";
    assert_eq!(conn.exec(json!({ "argv": ["python3", "-c", script], "cwd": root })).exit_code(), 0);
    conn.ok("file.remove", json!({ "path": root, "recursive": true }));
    assert!(!Path::new(&root).exists());
}
