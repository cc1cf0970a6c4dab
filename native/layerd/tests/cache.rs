//! The bounded cache: what is taken out of data files comes again, and nobody reads what is not there.

mod common;

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use common::image::{Image, files, noise};
use common::{Node, Volume, wait_for};
use serde_json::json;

const MIB: u64 = 1 << 20;
const CHUNK: u64 = 262_144;

/// Reads a file whose pages the kernel has forgotten.
fn read_cold(path: &Path) -> std::io::Result<Vec<u8>> {
    let file = std::fs::File::open(path)?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    let mut bytes = vec![0; file.metadata()?.len() as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

fn assert_same(node: &Node, mount: &Path) {
    for (name, bytes) in &node.image.files {
        let read = read_cold(&mount.join(name)).unwrap_or_else(|error| panic!("{name}: {error}\n{}", node.log()));
        assert!(read == *bytes, "{name} differs");
    }
}

/// Files that do not compress, each with chunks of its own.
fn large(count: usize) -> BTreeMap<String, Vec<u8>> {
    (0..count).map(|n| (format!("f{n:03}"), noise(n as u64 + 1, 2 * CHUNK as usize))).collect()
}

/// Takes the space of the volume but for so many bytes.
fn fill(node: &Node, leave: u64) -> PathBuf {
    let ballast = node.data.join("layers/ballast");
    let file = std::fs::File::create(&ballast).expect("ballast");
    let mut length = 0;
    for step in [4 * MIB, MIB, 64 << 10] {
        while node.stat("freeBytes") >= leave + step {
            if rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), length, step).is_err() {
                break;
            }
            length += step;
            rustix::fs::fsync(&file).expect("synced");
        }
    }
    ballast
}

#[test]
fn a_volume_keeps_its_free_space() {
    let marks = ["--free-low-bytes", &(24 * MIB).to_string(), "--free-high-bytes", &(32 * MIB).to_string()];
    let mut node = Node::start_on(Some(Volume { kind: "ext4", bytes: 64 * MIB }), &large(100), &marks);
    let mount = node.mount();
    assert_same(&node, &mount);
    wait_for("free space", || node.stat("freeBytes") >= 24 * MIB);
    assert_same(&node, &mount);
    assert!(node.stat("evictions") > 0 && node.stat("errors") == 0 && node.stat("denied") == 0);
    assert_eq!((node.stat("freeLowBytes"), node.stat("freeHighBytes")), (24 * MIB, 32 * MIB));
}

#[test]
fn a_full_volume_makes_room_for_what_is_read() {
    for kind in ["ext4", "btrfs"] {
        let mut node = Node::start_on(Some(Volume { kind, bytes: 120 * MIB }), &large(50), &[]);
        let mount = node.mount();
        let (ballast, worker) = (fill(&node, 16 * MIB), node.stat("workerPid"));
        for _ in 0..2 {
            assert_same(&node, &mount);
        }
        assert!(node.stat("evictions") > 0, "{kind}");
        assert_eq!((node.stat("errors"), node.stat("denied"), node.stat("workerPid")), (0, 0, worker), "{kind}");
        std::fs::remove_file(&ballast).expect("removed");
    }
}

#[test]
fn a_volume_without_room_is_an_error_that_passes() {
    for kind in ["ext4", "btrfs"] {
        let mut node = Node::start_on(Some(Volume { kind, bytes: 120 * MIB }), &large(8), &[]);
        let mount = node.mount();
        let ballast = fill(&node, 0);
        // What the file system still finds for itself.
        let crumbs = node.data.join("layers/crumbs");
        let mut crumb = std::fs::File::create(&crumbs).expect("crumbs");
        while std::io::Write::write_all(&mut crumb, &[1; 4_096]).and_then(|()| crumb.sync_data()).is_ok() {}
        let worker = node.stat("workerPid");
        let failed = read_cold(&mount.join("f003")).expect_err("no room").raw_os_error();
        assert_eq!(failed, Some(libc::EIO), "{kind}");
        assert_eq!(node.ok("stats", &json!({}))["isFull"], true, "{kind}");
        std::fs::remove_file(&ballast).and_then(|()| std::fs::remove_file(&crumbs)).expect("removed");
        wait_for("room", || read_cold(&mount.join("f003")).is_ok_and(|bytes| bytes == node.image.files["f003"]));
        let stats = node.ok("stats", &json!({}));
        assert_eq!((&stats["isFull"], &stats["workerPid"]), (&json!(false), &json!(worker)), "{kind}");
    }
}

fn second() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("now").as_secs()
}

#[test]
fn what_was_read_longest_ago_goes_first() {
    let mut node = Node::start(&large(24), &["--cache-bytes", &(8 * MIB).to_string()]);
    let mount = node.mount();
    let chunk_of = |name: &str| node.image.chunks_of(name);
    for round in 0..24 {
        let begun = second();
        for name in ["f000", &format!("f{round:03}")] {
            assert!(read_cold(&mount.join(name)).expect("read") == node.image.files[name]);
        }
        // Times of use are whole seconds.
        if round % 6 == 5 {
            wait_for("the next second", || second() > begun + 2);
        }
    }
    wait_for("evictions", || node.stat("allocatedBytes") <= 8 * MIB);
    let data = std::fs::read(node.image.directory.join("filled")).expect("filled");
    let is_there = |chunk: usize| data[4_096 + chunk / 8] & (1 << (chunk % 8)) != 0;
    assert!(chunk_of("f000").iter().all(|chunk| is_there(*chunk)), "read all the time");
    assert!(chunk_of("f001").iter().all(|chunk| !is_there(*chunk)), "read once, and long ago");
    assert!(chunk_of("f023").iter().all(|chunk| is_there(*chunk)), "read last");
}

#[test]
fn the_order_of_use_outlives_workers_and_closings() {
    let mut node = Node::start(&large(12), &["--cache-bytes", &(64 * MIB).to_string()]);
    let mount = node.mount();
    assert_same(&node, &mount);
    let begun = second();
    wait_for("the next second", || second() > begun + 1);
    assert!(read_cold(&mount.join("f000")).is_ok());
    let uses = 4_096 + 16 * node.image.chunks.len().div_ceil(64);
    let used_at = |name: &str| {
        let filled = std::fs::read(node.image.directory.join("filled")).expect("filled");
        let at = uses + 4 * node.image.chunks_of(name)[0];
        u32::from_le_bytes(filled[at..at + 4].try_into().expect("a word"))
    };
    wait_for("the use to be written", || used_at("f000") > used_at("f011"));
    node.kill("workerPid");
    node.unmount(&mount);
    node.close();
    node.stop();
    wait_for("their end", || node.processes().is_empty());
    node.set_arguments(&["--cache-bytes", &(2 * MIB).to_string()]);
    node.launch();
    wait_for("evictions", || node.stat("allocatedBytes") <= 2 * MIB);
    let mount = node.mount();
    let fetches = node.stat("fetches");
    assert!(read_cold(&mount.join("f000")).expect("read") == node.image.files["f000"]);
    assert_eq!(node.stat("fetches"), fetches, "what was used last was kept, of a closed layer too");
    assert_same(&node, &mount);
}

#[test]
fn layers_that_were_built_here_are_left_alone() {
    let mut node = Node::prepare(&large(8), &["--cache-bytes", &(2 * MIB).to_string()]);
    let built = node.data.join("layers").join("a".repeat(64));
    std::fs::create_dir_all(&built).expect("layer");
    let data = noise(7, 16 * MIB as usize);
    std::fs::write(built.join("data"), &data).expect("data");
    node.launch();
    let mount = node.mount();
    assert!(read_cold(&mount.join("f000")).expect("read") == node.image.files["f000"]);
    assert!(node.stat("allocatedBytes") <= MIB, "what is no cache does not count");
    assert_same(&node, &mount);
    wait_for("room", || node.stat("allocatedBytes") <= 2 * MIB);
    assert!(std::fs::read(built.join("data")).expect("data") == data);
}

#[test]
fn a_full_volume_makes_room_for_a_layer_that_is_opened() {
    let mut node = Node::start_on(Some(Volume { kind: "ext4", bytes: 64 * MIB }), &large(16), &[]);
    let mount = node.mount();
    assert_same(&node, &mount);
    node.unmount(&mount);
    node.close();
    let other = Image::build(&node.data, &large(3));
    let layer = json!({ "layer": format!("sha256:{}", other.hex) });
    fill(&node, 0);
    let crumbs = node.data.join("layers/crumbs");
    let mut crumb = std::fs::File::create(&crumbs).expect("crumbs");
    while std::io::Write::write_all(&mut crumb, &[1; 4_096]).and_then(|()| crumb.sync_data()).is_ok() {}
    assert!(std::fs::write(other.directory.join("probe"), [1; 4_096]).is_err(), "there is no room");
    assert_eq!(node.ok("layer.open", &layer)["dataBytes"], other.data.len());
    assert!(node.stat("evictions") > 0);
    // Where nothing can be taken away, it is an error that says so.
    std::fs::remove_file(node.image.directory.join("filled")).expect("removed");
    while std::io::Write::write_all(&mut crumb, &[1; 4_096]).and_then(|()| crumb.sync_data()).is_ok() {}
    assert_eq!(node.refusal("layer.open", &node.layer()), "disk_full");
}

#[test]
fn a_layer_that_was_removed_does_not_count_any_more() {
    let mut node = Node::start(&large(12), &["--cache-bytes", &(8 * MIB).to_string()]);
    let mount = node.mount();
    assert_same(&node, &mount);
    node.unmount(&mount);
    node.close();
    std::fs::remove_dir_all(&node.image.directory).expect("removed");
    let others = (0..12).map(|n| (format!("g{n:03}"), noise(n + 100, 2 * CHUNK as usize))).collect();
    node.image = Image::build(&node.data, &others);
    let mount = node.mount();
    assert_same(&node, &mount);
    wait_for("its bytes to be forgotten", || node.stat("allocatedBytes") <= 7 * MIB);
    assert_eq!(node.stat("evictions"), 0, "both together were too much, this one alone is not");
}

/// A control group whose processes can be made to stand still, wherever they are.
struct Freezer(PathBuf);

impl Freezer {
    fn new() -> Option<Self> {
        let root = Path::new("/sys/fs/cgroup/freezer");
        let path = root.join(format!("dsec-layerd-{}", std::process::id()));
        if !root.is_dir() || std::fs::create_dir(&path).is_err() {
            assert!(std::env::var("DSEC_REQUIRE").is_err(), "no freezer of cgroup v1");
            eprintln!("skipped: no freezer of cgroup v1");
            return None;
        }
        Some(Self(path))
    }

    fn add(&self, child: &Child) {
        std::fs::write(self.0.join("cgroup.procs"), child.id().to_string()).expect("added");
    }

    fn set(&self, state: &str) {
        std::fs::write(self.0.join("freezer.state"), state).expect("set");
        wait_for(state, || std::fs::read_to_string(self.0.join("freezer.state")).is_ok_and(|now| now.trim() == state));
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let _ = std::fs::write(self.0.join("freezer.state"), "THAWED");
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// A process that copies a file.
fn copy(from: &Path, to: &Path) -> Child {
    Command::new("dd")
        .arg(format!("if={}", from.display()))
        .arg(format!("of={}", to.display()))
        .args(["bs=64k", "status=none"])
        .spawn()
        .expect("dd")
}

#[test]
fn nothing_is_taken_from_a_reader_that_stands_still() {
    let Some(freezer) = Freezer::new() else { return };
    let mut node = Node::start(&large(40), &["--cache-bytes", &(2 * MIB).to_string()]);
    let mount = node.mount();
    let (packs, away) = (node.data.join("blob/packs"), node.data.join("blob/away"));
    std::fs::rename(&packs, &away).expect("unreachable");
    let copied = node.data.join("copied");
    let mut reader = copy(&mount.join("f000"), &copied);
    wait_for("a reader that waits", || node.stat("waiting") == 1);
    freezer.add(&reader);
    // It stands still between the question and the answer.
    freezer.set("FROZEN");
    std::fs::rename(&away, &packs).expect("back");
    wait_for("the answer", || node.stat("waiting") == 0 && node.stat("storedBytes") > 0);
    for _ in 0..3 {
        for (name, bytes) in node.image.files.iter().filter(|(name, _)| *name != "f000") {
            assert!(read_cold(&mount.join(name)).expect("read") == *bytes, "{name}");
        }
        wait_for("room", || node.stat("allocatedBytes") <= 2 * MIB);
    }
    assert!(node.stat("evictions") > 100);
    freezer.set("THAWED");
    assert!(reader.wait().expect("waited for").success(), "{}", node.log());
    assert!(std::fs::read(&copied).expect("copied") == node.image.files["f000"]);
    // And once it has gone on, nothing keeps what it read.
    wait_for("its chunks to be evicted", || {
        for name in ["f010", "f020", "f030", "f035", "f037"] {
            assert!(read_cold(&mount.join(name)).is_ok());
        }
        let filled = std::fs::read(node.image.directory.join("filled")).expect("filled");
        node.image.chunks_of("f000").iter().all(|chunk| filled[4_096 + chunk / 8] & (1 << (chunk % 8)) == 0)
    });
}

#[test]
fn a_stopped_reader_goes_on_with_the_right_bytes() {
    let mut node = Node::start(&large(40), &["--cache-bytes", &(2 * MIB).to_string()]);
    let mount = node.mount();
    let copied = node.data.join("copied");
    let mut reader = copy(&mount.join("f000"), &copied);
    let pid = rustix::process::Pid::from_child(&reader);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("stopped");
    for (name, bytes) in node.image.files.iter().filter(|(name, _)| *name != "f000") {
        assert!(read_cold(&mount.join(name)).expect("read") == *bytes, "{name}");
    }
    wait_for("room", || node.stat("allocatedBytes") <= 2 * MIB);
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).expect("continued");
    assert!(reader.wait().expect("waited for").success());
    assert!(std::fs::read(&copied).expect("copied") == node.image.files["f000"]);
}

/// Ends readers when the test does, in whatever way.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn readers_survive_kills_in_the_middle_of_evictions() {
    let mut node = Node::start(&files(24, 600_000), &["--cache-bytes", &MIB.to_string()]);
    let mount = node.mount();
    let is_over = AtomicBool::new(false);
    let (mut kills, mut evictions) = (0, 0);
    std::thread::scope(|scope| {
        let _over = Over(&is_over);
        for n in 0..4 {
            let (node, mount, is_over) = (&node, &mount, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    for (name, bytes) in node.image.files.iter().skip(n) {
                        match read_cold(&mount.join(name)) {
                            Ok(read) => assert!(read == *bytes, "{name} differs"),
                            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EIO), "{name}: {error}"),
                        }
                    }
                }
            });
        }
        while kills < 12 {
            let worker = node.stat("workerPid");
            let before = node.stat("evictions");
            wait_for("evictions", || node.stat("evictions") > before + 5);
            common::kill(worker as i32);
            wait_for("another worker", || node.stat("workerPid") != worker);
            kills += 1;
            evictions = node.stat("evictions");
        }
    });
    assert!(evictions > 60, "{evictions}");
    for (name, bytes) in &node.image.files {
        wait_for(name, || read_cold(&mount.join(name)).is_ok_and(|read| read == *bytes));
    }
}
