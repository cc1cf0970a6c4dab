//! What programs may do to each other, and what not to aether's own processes, as root with every capability.

mod support;

use serde_json::json;
use support::{Sandbox, wait_for};

/// Prints the pids of aether's processes but the first.
const WORKERS: &str = r#"for p in /proc/[0-9]*; do [ "$(cat $p/comm 2>/dev/null)" = aether ] && [ $p != /proc/1 ] && echo ${p#/proc/}; done; true"#;

#[test]
fn no_program_stops_or_ends_a_worker() {
    const SIZE: u64 = 64 << 20;
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    let path = sandbox.path("large");
    std::fs::File::create(&path).expect("create").set_len(SIZE).expect("size");
    // Nobody takes the bytes, so it waits.
    let stream = conn.open("file.read", json!({ "path": path }));
    let mut other = sandbox.connect();
    let worker = wait_for("a worker", || {
        let found = other.run(WORKERS).stdout();
        found.lines().next().map(str::to_owned)
    });
    for signal in ["STOP", "TERM", "KILL", "SEGV", "RTMIN"] {
        let sent = other.run(&format!("kill -{signal} {worker} 2>&1"));
        assert!(sent.stdout().contains("Operation not permitted"), "{signal}: {}", sent.stdout());
    }
    for file in ["mem", "fd/0", "root/", "cwd/"] {
        assert_eq!(
            other.run(&format!("head -c 1 /proc/{worker}/{file} >/dev/null 2>&1")).ok()["exitCode"],
            1,
            "{file}"
        );
    }
    // All at once: every program goes, and nothing else.
    other.run("kill -KILL -1");
    conn.discard = true;
    let heard = conn.wait(stream);
    assert_eq!(heard.ok()["sizeBytes"].as_u64().unwrap_or(SIZE), SIZE);
    assert_eq!(other.run("echo alive").stdout(), "alive\n");
}

#[test]
fn programs_signal_and_trace_each_other_whoever_started_them() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    conn.ok("session.open", json!({ "sessionId": "s" }));
    let (stream, _) = conn.start(json!({ "argv": ["sleep", "1000"], "env": { "MARK": "seen" } }));
    let mut other = sandbox.connect();
    let find = "pgrep -x sleep";
    let pid = wait_for("the program", || other.run(find).stdout().lines().next().map(str::to_owned));
    assert_eq!(other.run(&format!("tr '\\0' '\\n' < /proc/{pid}/environ | grep MARK")).stdout(), "MARK=seen\n");
    let script = format!("kill -STOP {pid} && kill -CONT {pid} && kill -TERM {pid}");
    let sent = other.exec(json!({ "sessionId": "s", "shell": { "script": script } }));
    assert_eq!(sent.exit_code(), 0);
    assert_eq!(conn.wait(stream).ok()["signal"], 15);
}

#[test]
fn a_program_that_is_stopped_before_it_runs_does_not_stop_aether() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    // Stops everything that there is, again and again.
    let storm = r#"$SIG{CONT} = "IGNORE"; $| = 1; print "begun\n"; my $end = time + 3; while (time < $end) { kill STOP => -1 }"#;
    let (stream, _) = conn.start(json!({ "argv": ["perl", "-e", storm] }));
    conn.until("the storm", |conn| conn.streams[&stream].stdout() == "begun\n");
    let mut other = sandbox.connect();
    for _ in 0..40 {
        other.start(json!({ "argv": ["true"] }));
        assert!(other.ok("info", json!({}))["processes"].as_u64() > Some(0));
    }
    assert_eq!(conn.wait(stream).exit_code(), 0);
    other.run("kill -KILL -1");
    assert_eq!(other.run("echo alive").stdout(), "alive\n");
}
