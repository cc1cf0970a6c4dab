//! Terminals: the cases of section B.

mod support;

use serde_json::{Value, json};
use support::{Conn, Sandbox, wait_for};

fn client_id(conn: &Conn, stream: u32) -> Value {
    conn.streams[&stream].messages[0]["started"]["clientId"].clone()
}

#[test]
fn t01_the_size_is_there_before_the_program() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    for user in ["root", "41000"] {
        let heard = conn.exec(
            json!({ "argv": ["sh", "-c", "stty size; tty; test -w $(tty) && echo own"], "pty": { "rows": 40, "cols": 120 }, "user": user }),
        );
        assert_eq!(heard.stdout(), "40 120\r\n/dev/pts/0\r\nown\r\n", "{user}");
        assert_eq!((heard.exit_code(), &heard.ok()["pty"]), (0, &json!(true)));
    }
    for pty in [json!({ "rows": 0, "cols": 0 }), json!({ "rows": 70_000, "cols": 1 })] {
        assert_eq!(conn.exec(json!({ "argv": ["true"], "pty": pty })).code(), "invalid_argument");
    }
}

#[test]
fn t02_a_resize_reaches_the_program_with_a_signal() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    let script = "trap 'stty size' WINCH; echo ready; while :; do sleep .05; done";
    let (stream, id) = conn.start(json!({ "argv": ["sh", "-c", script], "pty": { "rows": 24, "cols": 80 } }));
    conn.until("ready", |conn| conn.streams[&stream].stdout().contains("ready"));
    assert_eq!(conn.ok("exec.resize", json!({ "execId": id, "rows": 50, "cols": 200 })), json!({}));
    conn.until("new size", |conn| conn.streams[&stream].stdout().contains("50 200\r\n"));
    assert_eq!(conn.code("exec.resize", json!({ "execId": id, "rows": 0, "cols": 1 })), "invalid_argument");
    conn.ok("exec.signal", json!({ "execId": id, "signal": 9, "tree": true }));
    assert_eq!(conn.wait(stream).ok()["signal"], 9);
    let (stream, id) = conn.start(json!({ "argv": ["sleep", "1"] }));
    assert_eq!(conn.code("exec.resize", json!({ "execId": id, "rows": 5, "cols": 5 })), "invalid_argument");
    conn.wait(stream);
}

#[test]
fn t04_the_environment_is_there_and_has_a_terminal_type_and_utf8() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    let pty = json!({ "rows": 24, "cols": 80 });
    let heard =
        conn.exec(json!({ "shell": { "script": "echo $FOO $LANG $TERM ☕" }, "env": { "FOO": "1" }, "pty": pty }));
    assert_eq!(heard.stdout(), "1 C.UTF-8 xterm-256color ☕\r\n");
    let env = json!({ "TERM": "vt100", "LANG": "de_DE.UTF-8" });
    let heard = conn.exec(json!({ "shell": { "script": "echo $LANG $TERM" }, "env": env, "pty": pty }));
    assert_eq!(heard.stdout(), "de_DE.UTF-8 vt100\r\n");
}

#[test]
fn t06_of_two_clients_the_smaller_size_counts_and_the_other_comes_back() {
    let sandbox = Sandbox::start();
    let mut a = sandbox.connect();
    let mut b = sandbox.connect();
    let script = "echo ready; while read line; do stty size; done";
    let (stream, id) = a.start(json!({ "argv": ["sh", "-c", script], "pty": { "rows": 50, "cols": 200 } }));
    a.until("ready", |a| a.streams[&stream].stdout().contains("ready"));
    let other = b.open("exec.attach", json!({ "execId": id }));
    b.until("attached", |b| !b.streams[&other].messages.is_empty());
    let mine = client_id(&b, other);
    b.ok("exec.resize", json!({ "execId": id, "rows": 60, "cols": 40, "clientId": mine }));
    b.send(other, b"\n");
    a.until("the smaller of each", |a| a.streams[&stream].stdout().ends_with("50 40\r\n"));
    b.until("both see it", |b| b.streams[&other].stdout().ends_with("50 40\r\n"));
    b.reset(other);
    assert_eq!(
        b.code("exec.resize", json!({ "execId": id, "rows": 1, "cols": 1, "clientId": mine })),
        "invalid_argument"
    );
    a.send(stream, b"\n");
    a.until("restored", |a| a.streams[&stream].stdout().ends_with("50 200\r\n"));
    // The first leaves too: what it had stays for whoever attaches next.
    a.reset(stream);
    let third = b.open("exec.attach", json!({ "execId": id }));
    b.send(third, b"\n");
    b.until("as it was", |b| b.streams[&third].stdout().matches("50 200\r\n").count() == 2);
    b.ok("exec.signal", json!({ "execId": id, "signal": 9, "tree": true }));
}

#[test]
fn t07_the_end_of_a_terminal_is_no_error_and_its_code_is_told() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    let pty = json!({ "rows": 24, "cols": 80 });
    // The last bytes before the end are all there, however often.
    for _ in 0..50 {
        let heard = conn.exec(json!({ "shell": { "script": "seq 2000; exit 3" }, "pty": pty }));
        assert_eq!(heard.exit_code(), 3);
        assert!(heard.stdout().ends_with("\r\n2000\r\n") && heard.stdout().lines().count() == 2_000);
    }
    // What is in the foreground of the terminal meets SIGHUP when its leader goes.
    let hup = sandbox.path("hup");
    let inner = format!("trap 'echo hup > {hup}; exit' HUP; echo up; while :; do sleep 0.05; done");
    let (stream, id) = conn.start(json!({ "argv": ["sh", "-c", "sh -c \"$1\"; true", "sh", inner], "pty": pty }));
    conn.until("it runs", |conn| conn.streams[&stream].stdout().contains("up"));
    conn.ok("exec.signal", json!({ "execId": id, "signal": 9, "tree": false }));
    assert_eq!(conn.wait(stream).ok()["signal"], 9);
    wait_for("SIGHUP", || std::fs::read_to_string(&hup).ok().filter(|text| text == "hup\n"));
    // Who disconnects ends nothing; a kill ends all.
    let (stream, id) = conn.start(json!({ "argv": ["bash", "-c", "sleep 97 & sleep 97"], "pty": pty }));
    wait_for("both run", || {
        (conn.commands().iter().filter(|command| *command == "sleep 97").count() == 2).then_some(())
    });
    conn.reset(stream);
    assert_eq!(conn.ok("exec.get", json!({ "execId": id }))["state"], "running");
    conn.ok("exec.signal", json!({ "execId": id, "signal": 9, "tree": true }));
    assert!(!conn.has_command("sleep 97"));
    assert_eq!(conn.ok("exec.get", json!({ "execId": id }))["signal"], 9);
    // Typed input, its echo, control characters, and the end of input by exec.stdin.
    let (stream, id) = conn.start(json!({ "argv": ["cat"], "pty": pty }));
    conn.send(stream, b"typed\n");
    conn.until("echo and line", |conn| conn.streams[&stream].stdout() == "typed\r\ntyped\r\n");
    let input = conn.open("exec.stdin", json!({ "execId": id }));
    conn.end(input);
    assert_eq!(conn.wait(stream).exit_code(), 0);
    let (stream, _) = conn.start(json!({ "argv": ["sleep", "50"], "pty": pty }));
    conn.until("started", |conn| !conn.streams[&stream].messages.is_empty());
    conn.send(stream, &[3]);
    assert_eq!(conn.wait(stream).ok()["signal"], 2);
}
