//! The launcher and layerd, played here: who holds what keeps unfilled data from being read.

mod common;

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use common::{Node, Setup, programs};
use daemon::socket;
use rustix::fs::{Mode, OFlags};
use rustix::net::{RecvFlags, SocketFlags, SocketType, accept_with};
use serde_json::json;

const KIND: SocketType = SocketType::SEQPACKET;
const BACKLOG: i32 = 4;

/// What layerd has of it: a group, and three more descriptors.
struct Layerd {
    run: OwnedFd,
    held: Vec<OwnedFd>,
}

impl Layerd {
    fn new(node: &Node) -> Self {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let run = rustix::fs::open(node.data.join("run"), flags, Mode::empty()).expect("run");
        let flags = libc::FAN_CLASS_PRE_CONTENT | libc::FAN_CLOEXEC;
        // SAFETY: no memory is passed, and the descriptor is new.
        let group = unsafe { OwnedFd::from_raw_fd(libc::fanotify_init(flags, libc::O_RDWR as u32)) };
        assert!(group.as_raw_fd() >= 0, "a group");
        let null = || std::fs::File::open("/dev/null").expect("null").into();
        Self { run, held: vec![group, null(), null(), null()] }
    }

    /// As one that begins and finds no other.
    fn ask(&self) -> (Vec<u8>, usize) {
        let socket = socket::connect_at(self.run.as_fd(), "launcher.keep", KIND).expect("launcher.keep");
        let mut answer = [0; 16];
        let (length, fds) = socket::receive_with_fds(&socket, &mut answer).expect("an answer");
        (answer[..length].to_vec(), fds.len())
    }

    fn listen(&self) -> OwnedFd {
        socket::listen_at(self.run.as_fd(), "layerd.keep", KIND, (0, 0), BACKLOG).expect("layerd.keep")
    }

    /// Answers the launcher when it asks for copies.
    fn hand_out(&self, listener: &OwnedFd) {
        let mut poll = [rustix::event::PollFd::new(listener, rustix::event::PollFlags::IN)];
        let patience = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut poll, Some(&patience)), Ok(1), "the launcher does not ask");
        let socket = accept_with(listener, SocketFlags::CLOEXEC).expect("accepted");
        let mut question = [0; 16];
        let (_, length) = rustix::net::recv(&socket, &mut question, RecvFlags::empty()).expect("a question");
        assert_eq!(&question[..length], b"copy 1");
        let held: Vec<_> = self.held.iter().map(AsFd::as_fd).collect();
        socket::send_with_fds(&socket, b"group 1", &held).expect("sent");
    }

    fn is_marked(&self) -> bool {
        let path = format!("/proc/self/fdinfo/{}", self.held[0].as_raw_fd());
        std::fs::read_to_string(path).expect("fdinfo").contains("fanotify ino:")
    }
}

/// A layer whose data are to be filled; its image has no second device, so that a mount of it fails at last.
fn on_demand(node: &Node) -> serde_json::Value {
    let layer = programs::install_marker_layer(&node.data, 7);
    let directory = node.data.join("layers").join(&layer["sha256:".len()..]);
    std::fs::write(directory.join("chunks"), "map").expect("map");
    std::fs::write(directory.join("data"), vec![0; 4096]).expect("data");
    let mut create = node.create("cold");
    create["layers"] = json!([layer]);
    create
}

#[test]
fn data_are_mounted_only_while_somebody_asks_before_they_are_read() {
    let mut node = Node::start(Setup::default());
    let create = on_demand(&node);
    let refusal = node.client().refusal("sandbox.create", &create);
    assert_eq!((&refusal["code"], &refusal["details"]["layer"]), (&json!("unavailable"), &create["layers"][0]));

    let layerd = Layerd::new(&node);
    assert_eq!(layerd.ask(), (b"nothing".to_vec(), 0), "nothing is held yet");
    let listener = layerd.listen();
    // Who has asked will hold something soon.
    layerd.hand_out(&listener);
    common::wait_for("the copies", || layerd.ask() == (b"group 1".to_vec(), 4));
    assert!(!layerd.is_marked());
    let refusal = node.client().refusal("sandbox.create", &create);
    assert_eq!(refusal["code"], "environment_broken", "{refusal}");
    assert!(layerd.is_marked(), "before it is mounted");

    // Another launcher takes what there is when it begins.
    node.kill();
    std::thread::scope(|scope| {
        scope.spawn(|| layerd.hand_out(&listener));
        node.launch();
    });
    assert_eq!(layerd.ask(), (b"group 1".to_vec(), 4));
    // Layers that are whole need nobody.
    drop((listener, layerd));
    node.client().ok("sandbox.create", &node.create("whole"));
    node.client().ok("sandbox.destroy", &json!({ "id": "whole" }));
}

#[test]
fn a_link_in_a_layer_chooses_no_file_whose_reads_wait() {
    let node = Node::start(Setup::default());
    let create = on_demand(&node);
    let layer = create["layers"][0].as_str().expect("a digest");
    let data = node.data.join("layers").join(&layer["sha256:".len()..]).join("data");
    std::fs::rename(&data, node.data.join("elsewhere")).expect("moved");
    std::os::unix::fs::symlink("../../elsewhere", data).expect("link");
    let layerd = Layerd::new(&node);
    let listener = layerd.listen();
    layerd.ask();
    layerd.hand_out(&listener);
    common::wait_for("the copies", || layerd.ask() == (b"group 1".to_vec(), 4));
    node.client().refusal("sandbox.create", &create);
    assert!(!layerd.is_marked());
}

#[test]
fn what_is_held_is_given_to_no_other_user() {
    let node = Node::start(Setup::default());
    let layerd = Layerd::new(&node);
    let socket = socket::connect_at(layerd.run.as_fd(), "launcher.keep", KIND).expect("connected");
    let (length, fds) = socket::receive_with_fds(&socket, &mut [0; 16]).expect("an answer");
    assert_eq!((length, fds.len()), (b"nothing".len(), 0));
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let stat = std::fs::metadata(node.data.join("run/launcher.keep")).expect("the socket");
    assert_eq!((stat.uid(), stat.permissions().mode() & 0o777), (0, 0o600));
}

#[test]
fn a_layerd_that_does_nothing_any_more_does_not_stop_the_launcher() {
    let node = Node::start(Setup::default());
    let create = on_demand(&node);
    let layerd = Layerd::new(&node);
    let _listener = layerd.listen();
    let connect = || socket::connect_at(layerd.run.as_fd(), "layerd.keep", KIND).expect("room in the backlog");
    let _full: Vec<OwnedFd> = (0..=BACKLOG).map(|_| connect()).collect();
    assert_eq!(layerd.ask(), (b"nothing".to_vec(), 0));
    assert_eq!(node.client().refusal("sandbox.create", &create)["code"], "unavailable");
    node.client().ok("sandbox.create", &node.create("whole"));
}
