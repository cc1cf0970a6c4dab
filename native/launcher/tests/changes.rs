//! The changes of a sandbox are read as they were at one moment, whatever is in them, and nothing of the reading is left.

mod common;

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use archive::header::{self, BLOCK, Kind};
use archive::pax;
use common::host::{self, Census};
use common::{Node, Setup, TestClient, wait_for};
use rustix::fs::{XattrFlags, lsetxattr};
use serde_json::{Value, json};

/// Where the sandbox writes: the only one of its node.
fn upper(node: &Node) -> PathBuf {
    let uppers = node.data.join("volume/u");
    let names: Vec<PathBuf> = fs::read_dir(uppers).expect("uppers").map(|entry| entry.expect("entry").path()).collect();
    names.into_iter().find(|path| path.join("upper/proc").is_dir()).expect("a writable layer").join("upper")
}

struct Entry {
    name: String,
    kind: Kind,
    link: String,
    size: u64,
    extended: String,
    body: Vec<u8>,
}

fn entries(archive: &[u8]) -> Vec<Entry> {
    let (mut found, mut at, mut extended) = (Vec::new(), 0, Vec::new());
    loop {
        let block: [u8; BLOCK] = archive[at..at + BLOCK].try_into().expect("a block");
        at += BLOCK;
        let Some(header) = header::parse(&block).expect("a sound header") else { return found };
        let body = archive[at..at + header.size as usize].to_vec();
        at += (header.size + header::padding(header.size)) as usize;
        if header.kind == Kind::PaxNext {
            extended = body;
            continue;
        }
        let mut records = pax::Records::default();
        pax::parse(&extended, &mut records).expect("sound records");
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        found.push(Entry {
            name: text(records.path.unwrap_or(header.name)),
            kind: header.kind,
            link: text(records.link.unwrap_or(header.link)),
            size: header.size,
            extended: text(std::mem::take(&mut extended)),
            body,
        });
    }
}

fn entry<'a>(found: &'a [Entry], name: &str) -> &'a Entry {
    found.iter().find(|entry| entry.name == name).unwrap_or_else(|| panic!("no {name}"))
}

/// Reads the changes to their end.
fn read(client: &mut TestClient) -> (Result<Value, Value>, Vec<u8>) {
    let stream = client.open("sandbox.changes", &json!({ "id": "a1" }));
    let ready = client.next_event();
    let mut socket = UnixStream::connect(ready["socket"].as_str().expect("a path")).expect("connected");
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes).expect("the archive");
    (client.wait(stream), bytes)
}

fn started(is_btrfs: bool) -> (Node, TestClient) {
    let node = Node::start(Setup { is_btrfs, ..Setup::default() });
    let mut client = node.client();
    client.ok("sandbox.create", &node.create("a1"));
    (node, client)
}

fn make(program: &str, arguments: &[&str]) {
    assert!(Command::new(program).args(arguments).status().expect(program).success());
}

fn slot_files(node: &Node, name: &str) -> Vec<PathBuf> {
    let slots = host::groups_of(node).into_iter().flat_map(|group| fs::read_dir(group).expect("group"));
    slots.map(|slot| slot.expect("slot").path().join(name)).filter(|path| path.exists()).collect()
}

fn is_frozen(node: &Node) -> bool {
    let has = |name: &str, text: &str| {
        slot_files(node, name).iter().any(|path| fs::read_to_string(path).unwrap_or_default().contains(text))
    };
    has("freezer.state", "FROZEN") || has("cgroup.events", "frozen 1")
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

#[test]
fn every_kind_of_file_is_in_the_archive_with_owners_and_marks() {
    let (node, mut client) = started(true);
    let (upper, before) = (upper(&node), Census::of(&node));
    let root = fs::metadata(&upper).map(|found| std::os::unix::fs::MetadataExt::uid(&found)).expect("upper");
    let at = |name: &str| upper.join(name);
    fs::write(at("file"), "content").expect("file");
    std::os::unix::fs::chown(at("file"), Some(root + 1_000), Some(0)).expect("chown");
    fs::hard_link(at("file"), at("zz-again")).expect("link");
    symlink("/etc/shadow", at("soft")).expect("symlink");
    let sparse = fs::File::create(at("sparse")).expect("sparse");
    sparse.set_len(100 << 20).expect("long");
    sparse.write_all_at(b"data", 50 << 20).expect("written");
    sparse.sync_all().expect("synced");
    make("mkfifo", &[path(&at("pipe"))]);
    make("mknod", &[path(&at("gone")), "c", "0", "0"]);
    UnixListener::bind(at("socket")).expect("socket");
    fs::create_dir(at("hiding")).expect("directory");
    lsetxattr(at("hiding"), "trusted.overlay.opaque", b"y", XattrFlags::empty()).expect("opaque");
    lsetxattr(at("file"), "user.a", b"b", XattrFlags::empty()).expect("attribute");
    fs::write(at("name\nof \u{e9}"), "").expect("file");
    fs::set_permissions(at("hiding"), fs::Permissions::from_mode(0o1777)).expect("mode");

    let (outcome, archive) = read(&mut client);
    let found = entries(&archive);
    let outcome = outcome.expect("whole");
    assert_eq!(outcome["bytes"], json!(archive.len()));
    assert_eq!(outcome["entries"], json!(found.len()));
    let names = ["file", "zz-again"].map(|name| entry(&found, name));
    let (first, second) = if names[0].kind == Kind::File { (names[0], names[1]) } else { (names[1], names[0]) };
    assert_eq!((first.kind, &*first.body), (Kind::File, &b"content"[..]));
    assert_eq!((second.kind, &second.link), (Kind::HardLink, &first.name));
    assert!(first.extended.contains("SCHILY.xattr.user.a=b"), "{}", first.extended);
    assert_eq!((entry(&found, "soft").kind, &*entry(&found, "soft").link), (Kind::Symlink, "/etc/shadow"));
    let sparse = entry(&found, "sparse");
    assert!(sparse.size < 1 << 20 && sparse.extended.contains("GNU.sparse.realsize=104857600"), "{}", sparse.extended);
    assert_eq!(entry(&found, "pipe").kind, Kind::Fifo);
    assert_eq!(entry(&found, "gone").kind, Kind::Device);
    assert!(entry(&found, "socket").extended.contains("dsec.socket"));
    assert!(entry(&found, "hiding/").extended.contains("trusted.overlay.opaque=y"));
    assert_eq!(entry(&found, "name\nof \u{e9}").kind, Kind::File);
    assert_eq!(node.probe("a1", &["hostname"]), "box\n", "it goes on");
    drop(client);
    let mut client = node.client();
    client.ok("node.info", &json!({}));
    wait_for("nothing of the reading", || {
        let now = Census::of(&node);
        // The kernel frees a snapshot in the background, and its quota group with it.
        now == before || now.quota_groups() > before.quota_groups()
    });
    assert!(fs::read_dir(node.data.join("volume/u")).expect("uppers").count() == 1, "no snapshot");
}

#[test]
fn what_no_archive_takes_is_refused_by_name() {
    let (node, mut client) = started(true);
    let upper = upper(&node);
    make("mknod", &[path(&upper.join("disk")), "b", "8", "0"]);
    let refused = read(&mut client).0.expect_err("refused");
    assert_eq!((&refused["code"], &refused["details"]["path"]), (&json!("archive_unsafe"), &json!("disk")));
    fs::remove_file(upper.join("disk")).expect("removed");
    fs::write(upper.join("elsewhere"), "").expect("file");
    lsetxattr(upper.join("elsewhere"), "trusted.overlay.metacopy", b"", XattrFlags::empty()).expect("attribute");
    let refused = read(&mut client).0.expect_err("refused");
    assert_eq!((&refused["code"], &refused["details"]["path"]), (&json!("archive_unsafe"), &json!("elsewhere")));
    fs::remove_file(upper.join("elsewhere")).expect("removed");
    assert!(read(&mut client).0.is_ok());
    assert_eq!(client.refusal("sandbox.changes", &json!({ "id": "nobody" }))["code"], "sandbox_not_found");
}

#[test]
fn without_snapshots_the_sandbox_stands_still_until_all_is_read() {
    let (node, mut client) = started(false);
    fs::write(upper(&node).join("big"), vec![7; 8 << 20]).expect("file");
    let stream = client.open("sandbox.changes", &json!({ "id": "a1" }));
    let ready = client.next_event();
    assert!(is_frozen(&node));
    let mut socket = UnixStream::connect(ready["socket"].as_str().expect("a path")).expect("connected");
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes).expect("the archive");
    client.wait(stream).expect("whole");
    assert!(!is_frozen(&node));
    assert_eq!(entry(&entries(&bytes), "big").size, 8 << 20);
    assert_eq!(node.probe("a1", &["hostname"]), "box\n");
}

#[test]
fn a_reader_that_goes_away_leaves_nothing() {
    let (mut node, mut client) = started(true);
    fs::write(upper(&node).join("big"), vec![7; 32 << 20]).expect("file");
    let snapshots = |node: &Node| {
        let names = fs::read_dir(node.data.join("volume/u")).expect("uppers").filter_map(|entry| entry.ok());
        names.filter(|entry| entry.file_name().to_string_lossy().starts_with("changes-")).count()
    };
    // Without a reader, and with one that stops in the middle.
    for is_read in [false, true] {
        client.open("sandbox.changes", &json!({ "id": "a1" }));
        let ready = client.next_event();
        let socket = UnixStream::connect(ready["socket"].as_str().expect("a path")).expect("connected");
        if is_read {
            (&socket).read_exact(&mut [0; 4096]).expect("a part");
        }
        assert_eq!(snapshots(&node), 1);
        drop(client);
        wait_for("the end of the reading", || snapshots(&node) == 0);
        client = node.client();
    }
    // One that closes its socket alone hears why.
    let stream = client.open("sandbox.changes", &json!({ "id": "a1" }));
    let ready = client.next_event();
    drop(UnixStream::connect(ready["socket"].as_str().expect("a path")).expect("connected"));
    assert_eq!(client.wait(stream).expect_err("refused")["code"], "cancelled");
    // Four at once; the launcher that is killed takes all of them with it.
    for _ in 0..4 {
        client.open("sandbox.changes", &json!({ "id": "a1" }));
        client.next_event();
    }
    assert_eq!(client.refusal("sandbox.changes", &json!({ "id": "a1" }))["code"], "too_many_requests");
    assert_eq!(snapshots(&node), 4);
    drop(client);
    node.kill();
    node.launch();
    wait_for("no snapshot", || snapshots(&node) == 0);
    assert_eq!(node.probe("a1", &["hostname"]), "box\n");
}

#[test]
fn a_sandbox_goes_on_whoever_dies_while_it_stands_still() {
    let (mut node, mut client) = started(false);
    let hold = |client: &mut TestClient| {
        client.open("sandbox.changes", &json!({ "id": "a1" }));
        client.next_event();
        assert!(is_frozen(&node));
    };
    hold(&mut client);
    drop(client);
    wait_for("the sandbox to go on without its reader", || !is_frozen(&node));
    hold(&mut node.client());
    node.stop();
    assert!(!is_frozen(&node), "a launcher that ends lets it go on");
    // With snapshots it stands still for an instant, in which launcher and process may be killed together.
    drop(node);
    let (mut node, client) = started(true);
    drop(client);
    node.kill();
    for (name, word) in [("freezer.state", "FROZEN"), ("cgroup.freeze", "1")] {
        slot_files(&node, name).iter().for_each(|path| fs::write(path, word).expect("frozen"));
    }
    wait_for("the sandbox to stand still", || is_frozen(&node));
    node.launch();
    assert!(!is_frozen(&node));
    assert_eq!(node.probe("a1", &["hostname"]), "box\n");
}

#[test]
fn one_reading_does_not_let_the_sandbox_go_on_under_another() {
    let (node, mut client) = started(false);
    // More than a socket takes: no reading is over before its bytes are asked for.
    fs::write(upper(&node).join("big"), vec![7; 8 << 20]).expect("file");
    let streams = [(); 2].map(|()| client.open("sandbox.changes", &json!({ "id": "a1" })));
    for stream in streams {
        let ready = client.next_event();
        let mut socket = UnixStream::connect(ready["socket"].as_str().expect("a path")).expect("connected");
        assert!(is_frozen(&node));
        socket.read_to_end(&mut Vec::new()).expect("the archive");
        client.wait(stream).expect("whole");
    }
    assert!(!is_frozen(&node));
}

#[test]
fn the_end_of_a_sandbox_ends_who_holds_it_still() {
    let (node, mut client) = started(false);
    let stream = client.open("sandbox.changes", &json!({ "id": "a1" }));
    client.next_event();
    node.client().ok("sandbox.destroy", &json!({ "id": "a1" }));
    assert_eq!(client.wait(stream).expect_err("refused")["code"], "sandbox_not_ready");
}
