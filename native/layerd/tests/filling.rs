//! Real mounts over data that come when they are read.

mod common;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use common::image::{files, noise};
use common::{Node, wait_for};
use serde_json::{Value, json};

const CHUNK: u64 = 262_144;

/// The error of a read.
fn errno(path: &Path) -> Option<i32> {
    std::fs::read(path).expect_err("a read that fails").raw_os_error()
}

#[test]
fn every_file_has_its_bytes() {
    let mut files = files(12, 700_000);
    files.insert("long".into(), noise(99, 12 << 20));
    files.insert("small".into(), b"hello".to_vec());
    files.insert("zeros".into(), vec![0; 1 << 20]);
    let mut node = Node::start(&files, &[]);
    let mount = node.mount();
    assert_eq!(node.stat("storedBytes"), 0, "nothing is filled before it is read");
    node.assert_same(&mount);
    assert_eq!(node.stat("errors"), 0);
    assert!(node.stat("fetches") < node.image.chunks.len() as u64, "neighbours come together");
    let data = std::fs::read(node.image.directory.join("data")).expect("data");
    assert!(data == node.image.data, "the rest comes as well");
    assert_eq!(node.stat("fetchedBytes"), node.image.chunks.iter().map(|c| u64::from(c.stored_bytes)).sum::<u64>());
}

#[test]
fn only_what_is_touched_is_filled() {
    let mut node = Node::start(&files(40, 900_000), &[]);
    let mount = node.mount();
    let read = std::fs::read(mount.join("f010")).expect("read");
    assert!(read == node.image.files["f010"]);
    let chunks = node.image.chunks_of("f010").len() as u64;
    let stored = node.stat("storedBytes");
    assert!((chunks * CHUNK..=(chunks + 2) * CHUNK).contains(&stored), "{stored} for {chunks} chunks");
    assert!(node.allocated() <= stored + (64 << 10), "{} allocated", node.allocated());
    assert!(node.stat("askedBytes") > 0 && node.stat("touchedBytes") >= chunks * CHUNK);
}

#[test]
fn a_corrupt_pack_is_an_error_that_names_layer_and_chunk() {
    let mut node = Node::start(&files(16, 500_000), &[]);
    let mount = node.mount();
    let chunk = &node.image.chunks[node.image.chunks_of("f006")[0]];
    let (digest, offset) = (chunk.digest.to_string(), chunk.offset);
    let pack = std::fs::OpenOptions::new().write(true).open(node.image.pack_of("f006")).expect("pack");
    pack.write_all_at(b"not what was here", offset + 1_000).expect("written");
    assert_eq!(errno(&mount.join("f006")), Some(libc::EIO));
    let log = node.log();
    let line = log.lines().find(|line| line.contains("chunk-not-filled")).expect("a line");
    let line: Value = serde_json::from_str(line).expect("JSON");
    assert_eq!((&line["layer"], &line["digest"]), (&node.layer()["layer"], &json!(digest)));
    assert!(node.stat("errors") > 0 && node.stat("denied") > 0);
    assert!(std::fs::read(mount.join("f012")).expect("another pack") == node.image.files["f012"]);
}

#[test]
fn frames_of_another_length_are_errors() {
    let mut node = Node::start(&files(16, 500_000), &[]);
    let mount = node.mount();
    let chunk = &node.image.chunks[node.image.chunks_of("f007")[0]];
    let offset = chunk.offset;
    let mut frame = vec![0; 4_096];
    let length = zstd_safe::compress(frame.as_mut_slice(), &[7; 100_000], 3).expect("compressed");
    let pack = std::fs::OpenOptions::new().write(true).open(node.image.pack_of("f007")).expect("pack");
    pack.write_all_at(&frame[..length], offset).expect("written");
    assert_eq!(errno(&mount.join("f007")), Some(libc::EIO));
}

#[test]
fn missing_and_short_packs_are_errors() {
    let mut node = Node::start(&files(16, 500_000), &[]);
    let mount = node.mount();
    let pack = node.image.pack_of("f006").to_owned();
    std::fs::rename(&pack, pack.with_extension("away")).expect("removed");
    assert_eq!(errno(&mount.join("f006")), Some(libc::EIO));
    std::fs::rename(pack.with_extension("away"), &pack).expect("back");
    assert!(std::fs::read(mount.join("f006")).expect("read") == node.image.files["f006"], "errors do not last");
    let short = std::fs::OpenOptions::new().write(true).open(node.image.pack_of("f012")).expect("pack");
    short.set_len(10).expect("cut");
    assert_eq!(errno(&mount.join("f012")), Some(libc::EIO));
}

#[test]
fn readers_wait_for_a_store_that_comes_back() {
    let mut node = Node::start(&files(4, 500_000), &[]);
    let mount = node.mount();
    let (packs, away) = (node.data.join("blob/packs"), node.data.join("blob/away"));
    std::fs::rename(&packs, &away).expect("unreachable");
    let path = mount.join("f000");
    let reader = std::thread::spawn(move || std::fs::read(path));
    wait_for("a reader that waits", || node.stat("waiting") > 0);
    std::fs::rename(&away, &packs).expect("back");
    assert!(reader.join().expect("joined").expect("read") == node.image.files["f000"]);
}

#[test]
fn readers_do_not_wait_for_ever() {
    let mut node = Node::start(&files(4, 500_000), &["--store-wait-ms", "50"]);
    let mount = node.mount();
    let (packs, away) = (node.data.join("blob/packs"), node.data.join("blob/away"));
    std::fs::rename(&packs, &away).expect("unreachable");
    assert_eq!(errno(&mount.join("f000")), Some(libc::EIO));
    std::fs::rename(&away, &packs).expect("back");
    assert!(std::fs::read(mount.join("f000")).expect("read") == node.image.files["f000"]);
}

#[test]
fn a_store_that_stands_still_costs_a_reader_no_more_than_its_time() {
    let mut node = Node::start(&files(4, 500_000), &["--store-wait-ms", "50"]);
    let mount = node.mount();
    let pack = node.image.pack_of("f000").to_owned();
    std::fs::remove_file(&pack).expect("removed");
    // Whoever opens it waits for somebody who writes.
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &pack, rustix::fs::FileType::Fifo, mode, 0).expect("a fifo");
    assert_eq!(errno(&mount.join("f000")), Some(libc::EIO));
    assert!(node.log().contains("read-expired"), "{}", node.log());
    assert_eq!(node.stat("waiting"), 0);
}

/// How often the threads of a process have gone to sleep.
fn sleeps(pid: u64) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads");
    let sleeps_of = |thread: std::io::Result<std::fs::DirEntry>| -> u64 {
        let status = std::fs::read_to_string(thread.expect("a thread").path().join("status")).expect("status");
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).expect("a count");
        line.trim().parse().expect("a number")
    };
    threads.map(sleeps_of).sum()
}

#[test]
fn no_thread_of_the_worker_wakes_while_nothing_happens() {
    let mut node = Node::start(&files(4, 500_000), &["--cache-bytes", &(64 << 20).to_string()]);
    let mount = node.mount();
    node.assert_same(&mount);
    let worker = node.stat("workerPid");
    wait_for("rest", || {
        let (begun, before) = (Instant::now(), sleeps(worker));
        wait_for("some time", || begun.elapsed() > Duration::from_millis(1_500));
        sleeps(worker) == before
    });
}

#[test]
fn what_was_evicted_comes_again() {
    let mut node = Node::start(&files(40, 500_000), &["--cache-bytes", &(4 << 20).to_string()]);
    for _ in 0..3 {
        let mount = node.mount();
        node.assert_same(&mount);
        wait_for("room", || node.stat("allocatedBytes") <= 4 << 20);
        assert!(node.allocated() <= (4 << 20) + (64 << 10), "{} allocated", node.allocated());
        node.assert_same(&mount);
        node.unmount(&mount);
    }
    assert!(node.stat("evictions") > 0 && node.stat("errors") == 0);
    assert!(node.stat("fetchedBytes") > 0);
}

#[test]
fn closed_layers_are_evicted_too() {
    let mut node = Node::start(&files(20, 500_000), &["--cache-bytes", &(64 << 20).to_string()]);
    let mount = node.mount();
    node.assert_same(&mount);
    node.unmount(&mount);
    node.ok("layer.close", &node.layer());
    assert!(node.allocated() > 4 << 20);
    node.stop();
    wait_for("their end", || node.processes().is_empty());
    node = restarted(node, &["--cache-bytes", &(1 << 20).to_string()]);
    wait_for("room", || node.allocated() <= (1 << 20) + (64 << 10));
    let mount = node.mount();
    node.assert_same(&mount);
}

fn restarted(mut node: Node, arguments: &[&str]) -> Node {
    node.set_arguments(arguments);
    node.launch();
    node
}

#[test]
fn opening_is_idempotent_and_closing_is_refused_while_it_is_mounted() {
    let mut node = Node::start(&files(4, 500_000), &[]);
    let first = node.ok("layer.open", &node.layer());
    assert_eq!(first["dataBytes"], node.image.data.len());
    assert_eq!(node.ok("layer.open", &node.layer()), first);
    let mount = node.mount();
    node.assert_same(&mount);
    assert_eq!(node.refusal("layer.close", &node.layer()), "layer_in_use");
    node.unmount(&mount);
    assert_eq!(node.ok("layer.close", &node.layer()), json!({}));
    assert_eq!(node.ok("layer.close", &node.layer()), json!({}));
    let trace = node.ok("layer.trace", &node.layer());
    let touched = node.image.chunks.len();
    assert_eq!((&trace["touchedChunks"], &trace["touchedBytes"]), (&json!(touched), &trace["dataBytes"]));
    let other = json!({ "layer": format!("sha256:{}", "0".repeat(64)) });
    assert_eq!(node.refusal("layer.trace", &other), "layer_not_found");
    assert_eq!(node.refusal("layer.prefetch.cancel", &node.layer()), "layer_not_found");
    assert_eq!(node.stat("layers"), 0);
    let (fetched, mount) = (node.stat("fetchedBytes"), node.mount());
    node.assert_same(&mount);
    assert_eq!(node.stat("fetchedBytes"), fetched, "what was there is there");
}

#[test]
fn layers_that_are_not_what_they_are_named_are_refused() {
    let node = Node::start(&files(4, 500_000), &[]);
    let other = json!({ "layer": format!("sha256:{}", "0".repeat(64)) });
    assert_eq!(node.refusal("layer.open", &other), "layer_not_found");
    std::fs::rename(&node.image.directory, node.data.join("layers").join("0".repeat(64))).expect("renamed");
    assert_eq!(node.refusal("layer.open", &other), "layer_corrupt");
    let chunks = node.data.join("layers").join("0".repeat(64)).join("chunks");
    std::fs::write(&chunks, "DSECCHNK").expect("cut");
    assert_eq!(node.refusal("layer.open", &other), "layer_corrupt");
    assert_eq!(node.stat("layers"), 0);
}

#[test]
fn what_is_no_file_makes_nobody_wait() {
    let mut node = Node::start(&files(4, 500_000), &[]);
    let mount = node.mount();
    let fifo = |name: &str| {
        let (path, mode) = (node.image.directory.join(name), rustix::fs::Mode::from_raw_mode(0o600));
        let _ = std::fs::rename(&path, path.with_extension("away"));
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).expect("a fifo");
    };
    fifo("trace");
    node.assert_same(&mount);
    wait_for("a word about it", || node.log().contains("trace-unsaved"));
    node.unmount(&mount);
    node.close();
    assert_eq!(node.refusal("layer.trace", &node.layer()), "internal");
    node.forget_data();
    for name in ["rootfs.erofs", "chunks"] {
        fifo(name);
        assert_eq!(node.refusal("layer.open", &node.layer()), "layer_corrupt", "{name}");
    }
}

#[test]
fn a_trace_brings_the_chunks_before_they_are_read() {
    let mut node = Node::start(&files(12, 500_000), &[]);
    let mount = node.mount();
    for name in ["f008", "f002"] {
        std::fs::read(mount.join(name)).expect("read");
    }
    let trace = node.ok("layer.trace", &node.layer())["chunks"].clone();
    let expected: Vec<usize> = ["f008", "f002"].iter().flat_map(|name| node.image.chunks_of(name)).collect();
    assert_eq!(trace, json!(expected));
    node.unmount(&mount);
    node.ok("layer.close", &node.layer());
    node.forget_data();
    let mut params = node.layer();
    assert_eq!(node.ok("layer.trace", &params)["chunks"], trace, "recorded");
    node.ok("layer.open", &params);
    assert_eq!(node.ok("layer.trace", &params)["chunks"], json!([]), "a new opening");
    params["opening"] = json!("before");
    assert_eq!(node.ok("layer.trace", &params)["chunks"], trace);
    let mut params = node.layer();
    params["recorded"] = json!(true);
    let stored = node.stat("storedBytes");
    assert_eq!(node.ok("layer.prefetch", &params)["chunks"], expected.len());
    wait_for("the chunks", || node.stat("storedBytes") == stored + expected.len() as u64 * CHUNK);
    let (mount, fetches) = (node.mount(), node.stat("fetches"));
    assert!(std::fs::read(mount.join("f008")).expect("read") == node.image.files["f008"]);
    assert_eq!(node.stat("fetches"), fetches);
    let mut params = node.layer();
    params["ranges"] = json!([[0, node.image.data.len()]]);
    node.ok("layer.prefetch", &params);
    let whole = node.image.chunks.iter().filter(|c| c.stored_bytes > 0).count() as u64;
    wait_for("everything", || node.stat("allocatedBytes") >= (whole - 1) * CHUNK);
    node.assert_same(&mount);
}

#[test]
fn what_waits_to_be_fetched_ahead_can_be_cancelled_and_holds_up_no_reader() {
    let mut node = Node::start(&files(40, 500_000), &[]);
    let mount = node.mount();
    let (packs, away) = (node.data.join("blob/packs"), node.data.join("blob/away"));
    std::fs::rename(&packs, &away).expect("unreachable");
    let mut params = node.layer();
    params["ranges"] = json!([[0, node.image.data.len()]]);
    let asked = node.ok("layer.prefetch", &params)["chunks"].as_u64().expect("a number");
    // Those that may fetch ahead are stuck with their first chunks; the others are free for readers.
    wait_for("jobs under way", || node.stat("prefetchWaiting") < asked);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| std::fs::read(mount.join("f039")).expect("read"));
        wait_for("a reader that waits", || node.stat("waiting") == 1);
        let cancelled = node.ok("layer.prefetch.cancel", &node.layer())["chunks"].as_u64().expect("a number");
        assert!(cancelled > 0 && cancelled < asked && node.stat("prefetchWaiting") == 0);
        std::fs::rename(&away, &packs).expect("back");
        assert!(reader.join().expect("joined") == node.image.files["f039"]);
    });
    wait_for("the end of what was under way", || node.stat("waiting") == 0);
    assert!(node.stat("storedBytes") < node.image.data.len() as u64, "what was cancelled did not come");
}

#[test]
fn a_trace_outlives_workers() {
    let mut node = Node::start(&files(12, 500_000), &[]);
    let mount = node.mount();
    std::fs::read(mount.join("f008")).expect("read");
    let trace = node.ok("layer.trace", &node.layer())["chunks"].clone();
    let length = 16 + 4 * trace.as_array().expect("chunks").len() as u64;
    let file = node.image.directory.join("trace");
    wait_for("the trace to be written", || std::fs::metadata(&file).is_ok_and(|found| found.len() == length));
    node.change_worker();
    assert_eq!(node.ok("layer.trace", &node.layer())["chunks"], trace);
    std::fs::read(mount.join("f002")).expect("read");
    let longer = node.ok("layer.trace", &node.layer())["chunks"].as_array().expect("chunks").clone();
    assert!(longer.starts_with(trace.as_array().expect("chunks")) && longer.len() as u64 * 4 + 16 > length);
}

#[test]
fn a_layer_that_was_laid_out_anew_is_read_by_its_new_map() {
    let mut node = Node::start(&files(40, 500_000), &[]);
    let mount = node.mount();
    assert!(std::fs::read(mount.join("f001")).expect("read") == node.image.files["f001"]);
    let trace: Vec<usize> =
        ["f030", "f007", "f022", "f013"].iter().flat_map(|name| node.image.chunks_of(name)).collect();
    let map = node.image.relayout(&node.data, &trace);
    // A reader meets a pack that is gone, and the map is taken.
    assert!(std::fs::read(mount.join("f038")).expect("read") == node.image.files["f038"], "{}", node.log());
    assert!(std::fs::read(node.image.directory.join("chunks")).expect("map") == map);
    let (fetches, mut params) = (node.stat("fetches"), node.layer());
    params["trace"] = json!(trace);
    assert_eq!(node.ok("layer.prefetch", &params)["chunks"], trace.len());
    let is_there = |name: &str| {
        let filled = std::fs::read(node.image.directory.join("filled")).expect("filled");
        node.image.chunks_of(name).iter().all(|chunk| filled[4_096 + chunk / 8] & (1 << (chunk % 8)) != 0)
    };
    wait_for("the chunks", || ["f030", "f007", "f022", "f013"].into_iter().all(is_there));
    assert_eq!(node.stat("fetches") - fetches, 1, "{} chunks are one read", trace.len());
    node.assert_same(&mount);
    assert_eq!((node.stat("errors"), node.stat("denied")), (0, 0), "{}", node.log());
    // The next worker reads the map that was taken.
    node.change_worker();
    node.chill(&mount);
    let mount = node.mount();
    node.assert_same(&mount);
}

#[test]
fn a_map_of_another_layer_is_not_taken() {
    let mut node = Node::start(&files(8, 500_000), &[]);
    let mount = node.mount();
    let own = std::fs::read(node.image.directory.join("chunks")).expect("map");
    let mut map = node.image.relayout(&node.data, &[]);
    let last = map.len() - 48;
    map[last] ^= 1;
    let stored = node.data.join("blob/layers").join(&node.image.hex).join("chunks");
    for wrong in [map.as_slice(), b"DSECCHNK"] {
        std::fs::write(&stored, wrong).expect("written");
        assert_eq!(errno(&mount.join("f000")), Some(libc::EIO));
    }
    assert!(node.log().contains("chunk-map-not-taken"));
    assert!(std::fs::read(node.image.directory.join("chunks")).expect("map") == own);
    map[last] ^= 1;
    std::fs::write(&stored, &map).expect("written");
    wait_for("the right one to be taken", || std::fs::read(mount.join("f000")).is_ok());
    node.assert_same(&mount);
}

#[test]
fn after_a_reboot_only_what_has_the_right_digest_is_believed() {
    let mut node = Node::start(&files(8, 500_000), &[]);
    let mount = node.mount();
    node.assert_same(&mount);
    node.unmount(&mount);
    node.ok("layer.close", &node.layer());
    node.stop();
    wait_for("their end", || node.processes().is_empty());
    // Another boot, which has lost what was written last.
    let filled = std::fs::OpenOptions::new().write(true).open(node.image.directory.join("filled")).expect("filled");
    filled.write_all_at(b"00000000-0000-0000-0000-000000000000", 32).expect("written");
    let data = std::fs::OpenOptions::new().write(true).open(node.image.directory.join("data")).expect("data");
    data.write_all_at(&[0; 4_096], node.image.chunks_of("f004")[0] as u64 * CHUNK).expect("lost");
    drop((filled, data));
    node.launch();
    let mount = node.mount();
    node.assert_same(&mount);
    let lost = node.image.chunks_of("f004")[0] as u64;
    let lost_bytes = CHUNK.min(node.image.data.len() as u64 - lost * CHUNK);
    assert_eq!((node.stat("fetches"), node.stat("storedBytes")), (1, lost_bytes), "what was lost was fetched");
    let holes = node.image.chunks.iter().filter(|chunk| chunk.stored_bytes == 0).count();
    assert_eq!(holes, 0);
    assert_eq!(node.stat("verifiedBytes"), node.image.data.len() as u64 - lost_bytes, "and the rest was believed");
}
