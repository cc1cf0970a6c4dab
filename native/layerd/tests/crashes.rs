//! Whatever is killed, readers get the right bytes or an error, and never zeros.

mod common;

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use common::image::files;
use common::{Node, kill, wait_for};
use daemon::socket;
use rustix::fs::{Mode, OFlags};
use rustix::net::{SendFlags, SocketFlags, SocketType};
use serde_json::json;

const READERS: usize = 50;

/// Reads a file in pieces; an error must be EIO, and what comes must be right. Returns whether all of it came.
fn read(mount: &Path, name: &str, expected: &[u8]) -> bool {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::open(mount.join(name)).expect("metadata are always there");
    let mut buffer = vec![0; 65_536];
    let mut is_whole = true;
    for at in (0..expected.len()).step_by(buffer.len()) {
        let length = buffer.len().min(expected.len() - at);
        match file.read_exact_at(&mut buffer[..length], at as u64) {
            Ok(()) => assert!(buffer[..length] == expected[at..at + length], "{name} has other bytes at {at}"),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::EIO), "{name}: {error}");
                is_whole = false;
            }
        }
    }
    is_whole
}

/// Reads every file at once and kills in the meantime; returns how many files came whole.
fn storm(node: &Node, mount: &Path, mut kill: impl FnMut()) -> usize {
    let (whole, left) = (AtomicUsize::new(0), AtomicUsize::new(READERS));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (name, bytes) in &node.image.files {
            let (whole, left, is_over) = (&whole, &left, &is_over);
            scope.spawn(move || {
                let is_whole = read(mount, name, bytes);
                whole.fetch_add(is_whole.into(), Ordering::Relaxed);
                is_over.store(left.fetch_sub(1, Ordering::Relaxed) == 1, Ordering::Relaxed);
            });
        }
        while !is_over.load(Ordering::Relaxed) {
            kill();
        }
    });
    whole.load(Ordering::Relaxed)
}

fn node() -> Node {
    Node::start(&files(READERS, 400_000), &[])
}

/// Waits until all roles are taken by processes that live.
fn whole_family(node: &Node) -> [u64; 3] {
    let mut found = [0; 3];
    wait_for("the family", || {
        let stats = node.ok("stats", &json!({}));
        found = ["holderPid", "standbyPid", "workerPid"].map(|role| stats[role].as_u64().expect("a pid"));
        let processes = node.processes();
        let is_alive = |pid: &u64| processes.contains(&(*pid as i32));
        found[0] != found[1] && found.iter().all(is_alive) && processes.len() == 3
    });
    found
}

#[test]
fn readers_survive_the_end_of_any_process() {
    let mut node = node();
    for (round, roles) in [vec![2], vec![0], vec![2, 0], vec![0, 2], vec![1], vec![0, 1], vec![2, 1]].iter().enumerate()
    {
        let mount = node.mount();
        let mut kills = 0;
        let whole = storm(&node, &mount, || {
            let pids = whole_family(&node);
            roles.iter().for_each(|role| kill(pids[*role] as i32));
            kills += 1;
        });
        assert!(kills > 0 && whole > 0, "round {round}: {kills} kills, {whole} files");
        reap(&mut node);
        whole_family(&node);
        // Errors do not last: what failed comes when it is asked for again.
        for (name, bytes) in &node.image.files {
            wait_for(name, || read(&mount, name, bytes));
        }
        node.chill(&mount);
    }
}

/// The first process is a child of the test.
fn reap(node: &mut Node) {
    if let Some(daemon) = &mut node.daemon {
        let _ = daemon.try_wait().expect("waited for");
    }
}

#[test]
fn a_worker_answers_what_the_one_before_has_left() {
    let mut node = node();
    let mount = node.mount();
    let (packs, away) = (node.data.join("blob/packs"), node.data.join("blob/away"));
    std::fs::rename(&packs, &away).expect("unreachable");
    std::thread::scope(|scope| {
        let readers: Vec<_> =
            node.image.files.iter().map(|(name, bytes)| scope.spawn(|| read(&mount, name, bytes))).collect();
        wait_for("readers that wait", || node.stat("waiting") == READERS as u64);
        let worker = node.kill("workerPid");
        wait_for("another worker", || node.stat("workerPid") != worker);
        assert_eq!((node.stat("recovered"), node.stat("waiting")), (READERS as u64, READERS as u64));
        std::fs::rename(&away, &packs).expect("back");
        assert!(readers.into_iter().all(|reader| reader.join().expect("joined")), "none has failed");
    });
    assert_eq!(node.stat("denied"), 0);
}

/// What the launcher does: takes copies of what a layerd holds, and gives them to the next one.
struct Keeper {
    run: OwnedFd,
    listener: OwnedFd,
    held: Vec<OwnedFd>,
}

impl Keeper {
    fn copy(node: &Node) -> Self {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let run = rustix::fs::open(node.data.join("run"), flags, Mode::empty()).expect("run");
        let kind = SocketType::SEQPACKET;
        let listener = socket::listen_at(run.as_fd(), "launcher.keep", kind, (0, 0), 4).expect("launcher.keep");
        let asked = socket::connect_at(run.as_fd(), "layerd.keep", kind).expect("layerd.keep");
        rustix::net::send(&asked, b"copy 1", SendFlags::NOSIGNAL).expect("asked");
        let (_, held) = socket::receive_with_fds(&asked, &mut [0; 16]).expect("copies");
        assert_eq!(held.len(), 4);
        Self { run, listener, held }
    }

    fn give(&self) {
        let mut poll = [rustix::event::PollFd::new(&self.listener, rustix::event::PollFlags::IN)];
        let patience = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut poll, Some(&patience)), Ok(1), "nobody asks");
        let asking = rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC).expect("accepted");
        let held: Vec<_> = self.held.iter().map(AsFd::as_fd).collect();
        socket::send_with_fds(&asking, b"group 1", &held).expect("given");
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = rustix::fs::unlinkat(&self.run, "launcher.keep", rustix::fs::AtFlags::empty());
    }
}

#[test]
fn readers_outlive_the_end_of_all_processes_while_somebody_else_holds_the_group() {
    let mut node = node();
    let mount = node.mount();
    let keeper = Keeper::copy(&node);
    let (packs, away) = (node.data.join("blob/packs"), node.data.join("blob/away"));
    std::fs::rename(&packs, &away).expect("unreachable");
    let mut first = node.daemon.take().expect("a daemon");
    let next = std::thread::scope(|scope| {
        let readers: Vec<_> =
            node.image.files.iter().map(|(name, bytes)| scope.spawn(|| read(&mount, name, bytes))).collect();
        wait_for("readers that wait", || node.stat("waiting") == READERS as u64);
        // Whoever is killed first is started again by those that live.
        wait_for("the end of all", || {
            let pids = node.processes();
            pids.iter().copied().for_each(kill);
            pids.is_empty()
        });
        first.wait().expect("waited for");
        std::fs::rename(&away, &packs).expect("back");
        let next = node.command().spawn().expect("layerd");
        keeper.give();
        assert!(readers.into_iter().all(|reader| reader.join().expect("joined")), "none has failed");
        assert_eq!(node.stat("recovered"), READERS as u64);
        next
    });
    node.daemon = Some(next);
}

#[test]
fn a_new_layerd_takes_the_place_of_one_that_lives() {
    let mut node = node();
    let mut mount = node.mount();
    for _ in 0..3 {
        let mut daemons = Vec::new();
        let whole = storm(&node, &mount, || {
            daemons.push(node.command().spawn().expect("layerd"));
            let pid = u64::from(daemons[daemons.len() - 1].id());
            wait_for("the new one", || node.stat("holderPid") == pid);
        });
        assert_eq!(whole, READERS, "nobody fails");
        let mut first = node.daemon.replace(daemons.pop().expect("one at least")).expect("a daemon");
        assert!(first.wait().expect("waited for").success());
        for mut daemon in daemons {
            assert!(daemon.wait().expect("waited for").success());
        }
        whole_family(&node);
        node.chill(&mount);
        mount = node.mount();
    }
}

#[test]
fn mounts_outlive_the_end_of_standard_input() {
    let mut node = node();
    let mount = node.mount();
    node.stop();
    assert!(node.image.files.iter().all(|(name, bytes)| read(&mount, name, bytes)), "filled without it");
    node.launch();
    assert_eq!(node.stat("layers"), 1);
    node.unmount(&mount);
    node.close();
    node.stop();
    wait_for("their end", || node.processes().is_empty());
}

#[test]
fn a_family_that_nobody_needs_ends() {
    let mut node = node();
    let mount = node.mount();
    node.kill("holderPid");
    reap(&mut node);
    whole_family(&node);
    node.unmount(&mount);
    node.close();
    wait_for("their end", || {
        reap(&mut node);
        node.processes().is_empty()
    });
}

#[test]
fn nothing_is_left_of_layers_that_were_closed() {
    let mut node = node();
    let mut before = None;
    for _ in 0..5 {
        let mount = node.mount();
        assert_eq!(storm(&node, &mount, std::thread::yield_now), READERS);
        assert_eq!(node.stat("waiting"), 0);
        node.chill(&mount);
        let worker = node.stat("workerPid");
        let held = || std::fs::read_dir(format!("/proc/{worker}/fd")).expect("descriptors").count();
        // The connection that has just asked is closed when the worker next looks.
        let most = *before.get_or_insert_with(held);
        wait_for("the descriptors of before", || held() <= most);
        assert_eq!(node.processes().len(), 3);
        let marks = std::fs::read_to_string(format!("/proc/{worker}/fdinfo/3")).expect("the group");
        assert!(!marks.contains("fanotify ino:"), "{marks}");
    }
    node.stop();
    wait_for("their end", || node.processes().is_empty());
}
