//! Shell sessions: X07, X08, X33 and what a session promises.

mod support;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Conn, Heard, Sandbox, wait_for};

/// Runs a script in the session `s`.
fn run(conn: &mut Conn, script: &str) -> Heard {
    conn.exec(json!({ "sessionId": "s", "shell": { "script": script } }))
}

fn out(conn: &mut Conn, script: &str) -> String {
    run(conn, script).stdout()
}

/// Each test with bash, and with the shell that a sandbox without bash has.
fn with_both_shells(test: impl Fn(&mut Conn, &Sandbox, bool)) {
    for (setup, is_bash) in [("true", true), ("mount --bind /dev/null /bin/bash", false)] {
        let sandbox = Sandbox::start_after(setup);
        let mut conn = sandbox.connect();
        conn.ok("session.open", json!({ "sessionId": "s", "env": { "A": "1" }, "cwd": "/usr" }));
        let name = if is_bash { "bash" } else { "sh" };
        assert_eq!(out(&mut conn, "cat /proc/$$/comm"), format!("{name}\n"));
        test(&mut conn, &sandbox, is_bash);
    }
}

#[test]
fn directory_environment_functions_and_jobs_carry_over() {
    with_both_shells(|conn, _, _| {
        assert_eq!(
            out(conn, "pwd; echo $A; cd /tmp; B='two words'; export C=3; f() { echo \"in f: $B\"; }; false"),
            "/usr\n1\n"
        );
        assert_eq!(out(conn, "echo $? $PWD; f; env | grep ^C="), "1 /tmp\nin f: two words\nC=3\n");
        assert_eq!(out(conn, "sleep 96 & echo started"), "started\n");
        assert_eq!(out(conn, "kill $!; wait $!; echo $?"), "143\n");
        assert_eq!(out(conn, "exec >/tmp/elsewhere; echo hidden; set -- a b"), "");
        assert_eq!(out(conn, "echo shown"), "shown\n");
        let heard = run(conn, "echo o; echo e >&2; exit_code() { return 9; }; exit_code");
        assert_eq!((heard.stdout().as_str(), heard.stderr().as_str(), heard.exit_code()), ("o\n", "e\n", 9));
        assert_eq!(
            conn.exec(json!({ "sessionId": "s", "argv": ["printf", "%s|", "a b", "it's", "$(x)"] })).stdout(),
            "a b|it's|$(x)|"
        );
    });
}

#[test]
fn x07_x08_x10_heredocs_open_quotes_and_reading_stdin_neither_hang_nor_poison() {
    with_both_shells(|conn, sandbox, _| {
        let file = sandbox.path("f");
        run(conn, &format!("cat <<'EOF' > {file}\nhello $x\nEOF\n"));
        assert_eq!(std::fs::read_to_string(&file).expect("file"), "hello $x\n");
        for broken in ["echo 'x", "echo \"x", "echo $(x", "if true; then", "cat <<EOF\nabc", ")", "echo `x", "f() {"] {
            let heard = run(conn, broken);
            if broken.starts_with("cat") {
                assert!(heard.stdout().starts_with("abc"), "{broken}");
            } else {
                assert_ne!(heard.exit_code(), 0, "{broken}");
                assert!(!heard.stderr().is_empty(), "{broken}");
            }
            assert_eq!(out(conn, "echo ok"), "ok\n", "{broken}");
        }
        assert_eq!(out(conn, "cat; read x; echo done"), "done\n");
        // One-shot commands too.
        assert_eq!(conn.run("cat <<'EOF'\nhello\nEOF\n").stdout(), "hello\n");
        assert_ne!(conn.run("echo 'x").exit_code(), 0);
        assert!(conn.run("cat <<EOF\nabc").stdout().starts_with("abc"));
        // Large scripts, and ones that leave the shell in odd states.
        let large = format!("# {}\necho large", "x".repeat(300_000));
        assert_eq!(out(conn, &large), "large\n");
        assert_eq!(out(conn, "set -u; set -f; IFS=x; trap 'echo trapped' TERM; return 0"), "");
        assert_eq!(out(conn, "set +u; echo still"), "still\n");
    });
}

#[test]
fn x33_twenty_runs_at_once_wait_for_each_other_and_do_not_mix() {
    with_both_shells(|conn, _, _| {
        let streams: Vec<u32> = (0..20)
            .map(|i| {
                let script = format!("echo out{i}; sleep 0.0{}; echo err{i} >&2; echo end{i}", i % 3);
                conn.start(json!({ "sessionId": "s", "shell": { "script": script } })).0
            })
            .collect();
        // Others are not held up meanwhile.
        assert_eq!(conn.run("echo aside").stdout(), "aside\n");
        for (i, stream) in streams.into_iter().enumerate() {
            let heard = conn.wait(stream);
            assert_eq!((heard.stdout(), heard.stderr()), (format!("out{i}\nend{i}\n"), format!("err{i}\n")));
        }
    });
}

#[test]
fn background_children_that_hold_descriptors_hang_nothing_and_write_where_they_were_started() {
    with_both_shells(|conn, sandbox, _| {
        let go = sandbox.path("go");
        let script = format!("(while [ ! -e {go} ]; do sleep 0.01; done; echo late) & echo first");
        let (stream, id) = conn.start(json!({ "sessionId": "s", "shell": { "script": script } }));
        assert_eq!(conn.wait(stream).stdout(), "first\n");
        let (open, _) = conn.start(json!({ "sessionId": "s", "shell": { "script": "sleep 0.3; echo second" } }));
        std::fs::write(&go, "").expect("go");
        assert_eq!(conn.wait(open).stdout(), "second\n");
        wait_for("it has written", || {
            (conn.ok("exec.get", json!({ "execId": id }))["stdoutBytes"] == 11).then_some(())
        });
        let stream = conn.open("exec.attach", json!({ "execId": id }));
        assert_eq!(conn.wait(stream).stdout(), "first\nlate\n");
        // Commands get none of the session's own descriptors.
        assert_eq!(out(conn, "ls /proc/self/fd | wc -l"), "4\n");
        assert_eq!(
            out(conn, "sleep 95 & until [ \"$(cat /proc/$!/comm)\" = sleep ]; do :; done; ls /proc/$!/fd | wc -l"),
            "3\n"
        );
    });
}

#[test]
fn a_timeout_ends_the_run_and_what_it_started_and_keeps_the_session() {
    with_both_shells(|conn, sandbox, is_bash| {
        assert_eq!(out(conn, "X=kept; sleep 94 & echo"), "\n");
        let fifo = sandbox.path("fifo");
        let mut scripts = vec![
            "sleep 91; echo NEXT; sleep 91".to_owned(),
            "while :; do :; done".into(),
            "while :; do sleep 91; done".into(),
            "f() { sleep 91; }; g() { f; }; g".into(),
            "(trap '' TERM INT; sleep 91; sleep 91) & setsid sleep 91 & wait".into(),
            "sleep 91 | sleep 91".into(),
            "x=$(sleep 91)".into(),
        ];
        if is_bash {
            scripts.push(format!("mkfifo {fifo}; read x < {fifo}"));
        }
        for script in scripts {
            let started = Instant::now();
            let heard = conn.exec(json!({ "sessionId": "s", "shell": { "script": script }, "timeoutMs": 200 }));
            assert!(started.elapsed() < Duration::from_secs(3), "{script}");
            assert_eq!((&heard.ok()["timedOut"], &heard.ok()["signal"]), (&json!(true), &json!(9)), "{script}");
            assert!(!heard.stdout().contains("NEXT"), "{script}");
            assert_eq!(out(conn, "echo $X"), "kept\n", "{script}");
            wait_for("nothing of it is left", || (!conn.has_command("sleep 91")).then_some(()));
            assert!(conn.has_command("sleep 94"), "{script}: an earlier job was killed");
        }
        // A kill is the same.
        let (stream, id) = conn.start(json!({ "sessionId": "s", "shell": { "script": "sleep 91" } }));
        wait_for("it runs", || conn.runs("sleep 91").then_some(()));
        assert_eq!(
            conn.ok("exec.signal", json!({ "execId": id, "signal": 15, "tree": true })),
            json!({ "delivered": true })
        );
        assert_eq!(conn.wait(stream).ok()["signal"], 15);
        assert_eq!(out(conn, "echo $X"), "kept\n");
    });
}

#[test]
fn a_shell_that_cannot_be_stopped_is_killed_and_its_session_with_it() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    conn.ok("session.open", json!({ "sessionId": "s" }));
    let (stream, _) = conn
        .start(json!({ "sessionId": "s", "shell": { "script": "trap '' 41; while :; do :; done" }, "timeoutMs": 100 }));
    let (queued, queued_id) = conn.start(json!({ "sessionId": "s", "shell": { "script": "echo never" } }));
    let heard = conn.wait(stream);
    assert_eq!((&heard.ok()["timedOut"], &heard.ok()["signal"]), (&json!(true), &json!(9)));
    assert_eq!(conn.wait(queued).code(), "session_lost");
    assert_eq!(conn.code("exec.get", json!({ "execId": queued_id })), "exec_not_found");
    assert_eq!(run(&mut conn, "true").code(), "session_not_found");
    assert_eq!(conn.ok("session.list", json!({})), json!({ "sessions": [] }));
}

#[test]
fn exit_ends_the_session_and_its_code_is_that_of_the_run() {
    with_both_shells(|conn, _, _| {
        assert_eq!(out(conn, "sleep 93 & echo"), "\n");
        // It goes on until the other is queued behind it.
        let script = "until [ -e /tmp/go ]; do sleep 0.01; done; rm /tmp/go; echo bye; exit 3";
        let (stream, _) = conn.start(json!({ "sessionId": "s", "shell": { "script": script } }));
        let (queued, _) = conn.start(json!({ "sessionId": "s", "shell": { "script": "echo never" } }));
        conn.run("touch /tmp/go");
        let heard = conn.wait(stream);
        assert_eq!((heard.exit_code(), heard.stdout().as_str()), (3, "bye\n"));
        assert_eq!(conn.wait(queued).code(), "session_lost");
        assert!(!conn.has_command("sleep 93"));
        assert_eq!(conn.ok("session.list", json!({})), json!({ "sessions": [] }));
        assert_eq!(conn.code("session.close", json!({ "sessionId": "s" })), "session_not_found");
    });
}

#[test]
fn closing_a_session_ends_its_whole_tree_and_frees_what_it_held() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    let pid = sandbox.pid();
    let descriptors = || std::fs::read_dir(format!("/proc/{pid}/fd")).expect("fd").count();
    conn.run("true");
    let before = descriptors();
    for user in ["root", "41000"] {
        let mut pids = Vec::new();
        for id in ["one", "two", "three"] {
            pids.push(conn.ok("session.open", json!({ "sessionId": id, "user": user, "cwd": "/tmp" }))["pid"].clone());
            let script = "id -u; sleep 92 & (setsid sleep 92 &) ; sleep 92 & trap '' TERM";
            let heard = conn.exec(json!({ "sessionId": id, "shell": { "script": script } }));
            assert_eq!(heard.stdout().trim(), user.replace("root", "0"), "{heard:?}");
        }
        let listed = conn.ok("session.list", json!({}));
        let listed: Vec<Value> =
            listed["sessions"].as_array().expect("array").iter().map(|session| session["pid"].clone()).collect();
        assert!(pids.iter().all(|pid| listed.contains(pid)));
        let (stream, _) = conn.start(json!({ "sessionId": "one", "shell": { "script": "sleep 92" } }));
        for id in ["one", "two", "three"] {
            assert_eq!(conn.ok("session.close", json!({ "sessionId": id })), json!({}));
        }
        assert_eq!(conn.wait(stream).ok()["signal"], 9);
        // (An orphan that left session and group is a daemon, and nobody's.)
        let left = wait_for("only these are left", || {
            let commands = conn.commands();
            commands[1..].iter().all(|command| command == "sleep 92").then_some(commands.len() - 1)
        });
        assert!(left <= 3, "{:?}", conn.commands());
        conn.run("pkill -9 -x sleep; true");
    }
    wait_for("descriptors are flat", || (descriptors() == before).then_some(()));
}

#[test]
fn opening_again_is_the_same_session_and_bad_params_are_refused() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    let pid = conn.ok("session.open", json!({ "sessionId": "s" }));
    assert_eq!(conn.ok("session.open", json!({ "sessionId": "s" })), pid);
    assert_eq!(conn.code("session.open", json!({ "sessionId": "s", "cwd": "/" })), "idempotency_conflict");
    assert_eq!(conn.code("session.open", json!({ "sessionId": "t", "cwd": "/nonexistent" })), "cwd_not_found");
    assert_eq!(conn.code("session.open", json!({ "sessionId": "t", "user": "nouser" })), "user_not_found");
    assert_eq!(conn.code("session.open", json!({ "sessionId": "t", "env": { "A;B": "" } })), "invalid_argument");
    for (key, value) in [
        ("user", json!("root")),
        ("cwd", json!("/")),
        ("env", json!({ "A": "1" })),
        ("pty", json!({ "rows": 1, "cols": 1 })),
        ("stdin", json!("open")),
    ] {
        let mut params = json!({ "sessionId": "s", "shell": { "script": "true" } });
        params[key] = value;
        assert_eq!(conn.exec(params).code(), "invalid_argument", "{key}");
    }
    assert_eq!(conn.ok("exec.list", json!({})), json!({ "execs": [] }));
    assert_eq!(conn.ok("session.list", json!({}))["sessions"].as_array().map(Vec::len), Some(1));
    // A sandbox without any shell.
    let bare = Sandbox::start_after(
        "mount --bind /dev/null /bin/bash && mount -t tmpfs tmpfs /mnt && cp /bin/true /mnt/ && (mount --bind /dev/null /bin/sh; exec true)",
    );
    let mut conn = bare.connect();
    let code = conn.code("session.open", json!({ "sessionId": "s" }));
    assert!(["shell_not_found", "command_not_executable"].contains(&code.as_str()), "{code}");
}

#[test]
fn a_queued_run_can_be_cancelled_and_a_retry_joins_it() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    conn.ok("session.open", json!({ "sessionId": "s" }));
    let (first, first_id) = conn.start(json!({ "sessionId": "s", "shell": { "script": "sleep 60" } }));
    conn.until("it has begun", |conn| !conn.streams[&first].messages.is_empty());
    let (cancelled, cancelled_id) = conn.start(json!({ "sessionId": "s", "shell": { "script": "echo never" } }));
    let count = sandbox.path("count");
    let params = json!({ "execId": "joined", "fingerprint": "f", "sessionId": "s", "shell": { "script": format!("echo x >> {count}; echo joined") } });
    let (one, _) = conn.start(params.clone());
    let (two, _) = conn.start(params);
    assert_eq!(
        conn.ok("exec.signal", json!({ "execId": cancelled_id, "signal": 9, "tree": true })),
        json!({ "delivered": true })
    );
    assert_eq!(conn.wait(cancelled).code(), "cancelled");
    assert!(conn.streams[&one].messages.is_empty(), "it has not started");
    conn.ok("exec.signal", json!({ "execId": first_id, "signal": 9, "tree": true }));
    assert_eq!(conn.wait(first).ok()["signal"], 9);
    assert_eq!(conn.wait(one).stdout(), "joined\n");
    assert_eq!(conn.wait(two).stdout(), "joined\n");
    assert_eq!(std::fs::read_to_string(count).expect("count"), "x\n");
}
