//! What aether costs when it does nothing, and what it leaves of itself in the sandbox.

mod support;

use std::time::Duration;

use serde_json::json;
use support::{Sandbox, wait_for};

/// The bound of the design.
const MAX_PRIVATE_KIB: u64 = 300;
/// What is reached after a while.
const MAX_TIDY_KIB: u64 = 280;

fn private_kib(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("smaps_rollup");
    let of = |name: &str| -> u64 {
        let line = text.lines().find(|line| line.starts_with(name)).expect("line");
        line.split_whitespace().nth(1).expect("number").parse().expect("number")
    };
    of("Private_Clean:") + of("Private_Dirty:")
}

fn switches(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    let line = text.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).expect("line");
    line.split_whitespace().nth(1).expect("number").parse().expect("number")
}

#[test]
fn an_idle_aether_has_under_300_kib_of_its_own_and_never_wakes() {
    // Two, as on a node: the program's pages are shared by all of them.
    let sandboxes = [Sandbox::start(), Sandbox::start()];
    let pids = sandboxes.each_ref().map(Sandbox::pid);
    let mut conns = sandboxes.each_ref().map(Sandbox::connect);
    for conn in &mut conns {
        conn.ok("info", json!({}));
    }
    for pid in pids {
        println!("private KiB when fresh: {}", private_kib(pid));
        assert!(private_kib(pid) < MAX_PRIVATE_KIB, "{} KiB", private_kib(pid));
    }
    // And after work.
    for conn in &mut conns {
        for _ in 0..20 {
            assert_eq!(conn.run("echo hi").stdout(), "hi\n");
        }
    }
    for pid in pids {
        println!("private KiB after 20 commands: {}", private_kib(pid));
        assert!(private_kib(pid) < MAX_PRIVATE_KIB, "{} KiB", private_kib(pid));
    }
    // What was needed is given back after a quiet second; then there is nothing to wake for.
    let tidied = wait_for("memory is given back", || {
        let sums = pids.map(private_kib);
        sums.iter().all(|&kib| kib < MAX_TIDY_KIB).then_some(sums)
    });
    println!("private KiB when idle: {tidied:?}");
    // That it sleeps shows in nothing but time that passes: longer than the quiet second, twice, for what was still under way.
    std::thread::sleep(Duration::from_millis(1_500));
    let before = pids.map(switches);
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!(pids.map(switches), before, "it woke with nothing to do");
}

#[test]
fn as_pid_1_it_reaps_orphans_and_is_not_ended_from_inside() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    for _ in 0..50 {
        conn.run("(setsid sh -c 'sleep 0.01' &)");
    }
    wait_for("no zombies", || (conn.commands().len() == 1).then_some(()));
    for signal in [1, 2, 3, 9, 10, 15, 19] {
        conn.run(&format!("kill -{signal} 1"));
    }
    // Queued ones (SI_QUEUE) say what the sender likes, such as that they come from outside of the namespace.
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let send = format!(
            "perl -e 'my $info = pack(\"i3x4i2x104\", {signal}, 0, -1, 0, 0); exit(syscall({}, 1, {signal}, $info) != 0)'",
            libc::SYS_rt_sigqueueinfo
        );
        assert_eq!(conn.run(&send).ok()["exitCode"], 0);
    }
    assert_eq!(conn.run("echo alive").stdout(), "alive\n");
    assert_eq!(conn.ok("info", json!({}))["processes"], 1);
    // The host may end it.
    let pid = sandbox.pid();
    // SAFETY: plain call.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    wait_for("it ends", || (!std::path::Path::new(&format!("/proc/{pid}")).exists()).then_some(()));
}

#[test]
fn broken_protocol_closes_that_connection_alone() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    for garbage in [&b"GET / HTTP/1.0\r\n\r\n"[..], &[0xff; 64], &[0; 12]] {
        use std::io::{Read, Write};
        let mut socket = std::os::unix::net::UnixStream::connect(sandbox.path("aether.sock")).expect("connect");
        socket.write_all(garbage).expect("write");
        let mut hello = Vec::new();
        let _ = socket.read_to_end(&mut hello);
    }
    assert_eq!(conn.run("echo alive").stdout(), "alive\n");
}

#[test]
fn eight_connections_are_served_and_a_ninth_waits_for_one_to_go() {
    let sandbox = Sandbox::start();
    let mut conns: Vec<_> = (0..8).map(|_| sandbox.connect()).collect();
    for conn in &mut conns {
        conn.ok("info", json!({}));
    }
    let mut ninth = sandbox.connect();
    let stream = ninth.open("info", json!({}));
    // One that is answered later than it was asked: it has been round all its connections, and the ninth is none of them.
    for conn in &mut conns {
        conn.ok("info", json!({}));
    }
    assert!(!ninth.pump(std::time::Instant::now()));
    conns.pop();
    assert!(ninth.wait(stream).ok()["version"].is_string());
}
