//! Commands: the cases of section A.

mod support;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Sandbox, unique, wait_for};

#[test]
fn x01_a_background_child_that_holds_the_pipes_holds_nothing_up_and_never_meets_sigpipe() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    for script in ["sleep 20 & echo STARTED", "(sleep 20 >/dev/null) & echo STARTED", "(sleep 20 >&2) & echo STARTED"] {
        let started = Instant::now();
        let heard = conn.run(script);
        assert!(started.elapsed() < Duration::from_secs(2), "{script}");
        assert_eq!((heard.exit_code(), heard.stdout().as_str()), (0, "STARTED\n"), "{script}");
    }
    wait_for("all three live", || {
        (conn.commands().iter().filter(|command| *command == "sleep 20").count() == 3).then_some(())
    });
    // It prints long after the command has ended, more than a pipe holds, and lives to tell.
    let done = sandbox.path("done");
    let (stream, id) = conn.start(json!({ "shell": { "script":
        format!("(while [ ! -e {done}.go ]; do sleep 0.01; done; head -c 300000 /dev/zero; echo alive > {done}) & echo now") } }));
    assert_eq!(conn.wait(stream).stdout(), "now\n");
    std::fs::write(format!("{done}.go"), "").expect("go");
    wait_for("the child has printed", || std::fs::read_to_string(&done).ok().filter(|text| text == "alive\n"));
    let status = wait_for("all is counted", || {
        let status = conn.ok("exec.get", json!({ "execId": id }));
        (status["stdoutBytes"] == 300_004).then_some(status)
    });
    assert_eq!((&status["state"], &status["exitCode"]), (&json!("exited"), &json!(0)));
    // Who attaches now gets that too.
    let stream = conn.open("exec.attach", json!({ "execId": id }));
    assert_eq!(conn.wait(stream).bytes(1).len(), 300_004);
}

#[test]
fn x02_a_daemon_outlives_the_command_and_the_connection_that_started_it() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    assert_eq!(conn.run("setsid nohup sleep 222 >/dev/null 2>&1 </dev/null &").exit_code(), 0);
    let (_, id) = conn.start(json!({ "shell": { "script": "sleep 333" } }));
    wait_for("it runs", || conn.runs("sleep 333").then_some(()));
    drop(conn);
    let mut conn = sandbox.connect();
    wait_for("both live", || (conn.runs("sleep 222") && conn.runs("sleep 333")).then_some(()));
    assert_eq!(conn.ok("exec.get", json!({ "execId": id }))["state"], "running");
}

#[test]
fn x04_x05_a_timeout_ends_the_whole_tree_and_says_so() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    for script in [
        "sleep 301 & sleep 302",
        "trap '' TERM INT HUP; sleep 301 & sleep 302",
        "setsid sleep 303 & sleep 302",
        "(sleep 301 & exec sleep 304) & (trap '' TERM; sleep 302; sleep 302)",
        "python3 -c 'import os,time\nfor i in range(30):\n  os.fork() if i % 5 == 0 else 0\ntime.sleep(305)'",
    ] {
        let started = Instant::now();
        let heard = conn.exec(json!({ "shell": { "script": script }, "timeoutMs": 300 }));
        assert!(started.elapsed() < Duration::from_secs(5), "{script}");
        assert_eq!((&heard.ok()["timedOut"], &heard.ok()["signal"]), (&json!(true), &json!(9)), "{script}");
        assert!(heard.ok()["durationMs"].as_u64().expect("number") >= 300);
        // The end is told when all of it is gone, so there is nothing to wait for.
        assert!(!conn.has_command("30"), "{script}: {:?}", conn.commands());
    }
    let heard = conn.exec(json!({ "shell": { "script": "exit 4" }, "timeoutMs": 10_000 }));
    assert_eq!((heard.exit_code(), &heard.ok()["timedOut"]), (4, &json!(false)));
}

#[test]
fn x10_stdin_is_at_its_end_unless_it_was_asked_for() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    assert_eq!(conn.run("cat; wc -c; read x; echo done").stdout(), "0\ndone\n");
    let (stream, id) = conn.start(json!({ "argv": ["sleep", "5"] }));
    conn.until("started", |conn| !conn.streams[&stream].messages.is_empty());
    assert_eq!(conn.code("exec.stdin", json!({ "execId": id })), "stdin_closed");
}

#[test]
fn x11_stdin_takes_any_bytes_and_its_end_from_either_stream() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    let (stream, _) = conn.start(json!({ "argv": ["wc", "-c"], "stdin": "open" }));
    conn.send(stream, &[0, 1, 2, 255]);
    conn.end(stream);
    assert_eq!(conn.wait(stream).stdout(), "4\n");

    // Who is only attached gives no input, and its end is not that of the command's.
    let (stream, id) = conn.start(json!({ "argv": ["cat"], "stdin": "open" }));
    let attached = conn.open("exec.attach", json!({ "execId": id }));
    conn.send(attached, b"no");
    conn.end(attached);
    conn.send(stream, b"yes");
    conn.end(stream);
    assert_eq!((conn.wait(stream).stdout(), conn.wait(attached).stdout()), ("yes".into(), "yes".into()));

    let (stream, id) = conn.start(json!({ "argv": ["sha256sum"], "stdin": "open" }));
    let bytes: Vec<u8> = (0..3_000_000u32).map(|i| (i * 7 % 251) as u8).collect();
    let first = conn.open("exec.stdin", json!({ "execId": id }));
    conn.send(first, &bytes[..1_000_000]);
    // A reset leaves it open for the next.
    conn.ok("exec.get", json!({ "execId": id }));
    conn.reset(first);
    let second = conn.open("exec.stdin", json!({ "execId": id }));
    conn.send(second, &bytes[1_000_000..]);
    conn.end(second);
    assert_eq!(conn.wait(second).ok(), &json!({ "bytes": 2_000_000 }));
    let expected = sandbox.path("bytes");
    std::fs::write(&expected, &bytes).expect("write");
    let heard = conn.wait(stream).stdout();
    assert_eq!(heard.split(' ').next(), conn.run(&format!("sha256sum < {expected}")).stdout().split(' ').next());

    // Who does not read its stdin holds nobody else up, and its writer is told at the end.
    let (stream, id) = conn.start(json!({ "shell": { "script": "exec sleep 0.3" }, "stdin": "open" }));
    let writer = conn.open("exec.stdin", json!({ "execId": id }));
    conn.send(writer, &vec![0; 200_000]);
    conn.end(writer);
    assert_eq!(conn.run("echo hi").stdout(), "hi\n");
    assert_eq!(conn.wait(stream).exit_code(), 0);
    assert_eq!(conn.wait(writer).code(), "stdin_closed");

    // Who was read to the last byte is told so, also when the command ends before its writer has said that this was all.
    let (stream, id) = conn.start(json!({ "shell": { "script": "read line; echo $line" }, "stdin": "open" }));
    let writer = conn.open("exec.stdin", json!({ "execId": id, "keepOpen": true }));
    conn.send(writer, b"last\n");
    assert_eq!(conn.wait(stream).stdout(), "last\n");
    conn.end(writer);
    assert_eq!(conn.wait(writer).ok(), &json!({ "bytes": 5 }));

    // Who writes after the end is told that nobody reads.
    let (stream, id) = conn.start(json!({ "shell": { "script": "read line" }, "stdin": "open" }));
    let late = conn.open("exec.stdin", json!({ "execId": id }));
    conn.send(stream, b"go\n");
    assert_eq!(conn.wait(stream).exit_code(), 0);
    conn.send(late, b"more");
    conn.end(late);
    assert_eq!(conn.wait(late).code(), "stdin_closed");
}

#[test]
fn x13_a_large_script_runs_and_what_is_too_large_for_the_kernel_is_said_at_once() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    for size in [99_000, 110_000, 130_000, 200_000, 3_000_000] {
        let script = format!("# {}\necho $0; echo ok; cat; ls /proc/self/fd", "x".repeat(size));
        for login in [false, true] {
            let heard = conn.exec(json!({ "shell": { "script": script, "login": login } }));
            assert!(
                heard.stdout().contains("\nok\n0\n1\n2\n3\n") || heard.stdout().contains("\nok\n0\n1\n2\n3"),
                "{size} {heard:?}"
            );
            assert_eq!(heard.exit_code(), 0);
        }
    }
    let argument = "a".repeat(64 << 10);
    let mut argv = vec!["printf".to_owned(), "%s".into()];
    argv.extend(std::iter::repeat_n(argument, 16));
    assert_eq!(conn.exec(json!({ "argv": argv })).bytes(1).len(), 1 << 20);
    let started = Instant::now();
    assert_eq!(conn.exec(json!({ "argv": ["true", "a".repeat(200_000)] })).code(), "argv_too_long");
    assert_eq!(conn.exec(json!({ "argv": ["true"], "env": { "A": "a".repeat(200_000) } })).code(), "argv_too_long");
    assert!(started.elapsed() < Duration::from_secs(1));
}

#[test]
fn x14_x15_the_environment_arrives_whole_and_byte_exact_and_bad_keys_run_nothing() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    let mut env = serde_json::Map::new();
    for i in 0..40 {
        env.insert(format!("V{i}"), "v".repeat(5_000).into());
    }
    env.insert("BIG".into(), "b".repeat(100_000).into());
    let odd = "a\nb'\"$(id)`x`=\u{fc}\u{1f923}\\\t";
    env.insert("ODD".into(), odd.into());
    env.insert("dotted.key-x".into(), "".into());
    let heard = conn.exec(json!({ "argv": ["env", "-0"], "env": env }));
    let got: Vec<&[u8]> = heard.bytes(1).split(|&byte| byte == 0).filter(|entry| !entry.is_empty()).collect();
    for (key, value) in &env {
        let entry = format!("{key}={}", value.as_str().expect("string"));
        assert!(got.contains(&entry.as_bytes()), "{key}");
    }
    for default in ["PATH=", "HOME=/root", "USER=root", "LOGNAME=root", "SHELL="] {
        assert!(got.iter().any(|entry| entry.starts_with(default.as_bytes())), "{default}");
    }
    assert_eq!(got.len(), env.len() + 5);
    let pwn = sandbox.path("pwn");
    for key in [format!("A;touch {pwn}"), format!("$(touch {pwn})"), "A=B".into(), "".into(), "1".into(), "A B".into()]
    {
        let heard = conn.exec(json!({ "shell": { "script": "true" }, "env": { key.clone(): "1" } }));
        assert_eq!(heard.code(), "invalid_argument", "{key}");
    }
    assert_eq!(conn.exec(json!({ "argv": ["true"], "env": { "A": "a\0b" } })).code(), "invalid_argument");
    assert!(!std::path::Path::new(&pwn).exists());
    assert_eq!(conn.ok("exec.list", json!({}))["execs"].as_array().map(Vec::len), Some(1));
}

#[test]
fn x17_output_is_bytes() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    let heard = conn.run(r"printf '\377\376\000ok'; printf '\377' >&2");
    assert_eq!((heard.bytes(1), heard.bytes(2)), (&b"\xff\xfe\0ok"[..], &b"\xff"[..]));
    let heard = conn.run("head -c 1M /dev/urandom | tee /dev/stderr");
    assert_eq!(heard.bytes(1).len(), 1 << 20);
    assert!(heard.bytes(1) == heard.bytes(2));
}

fn private_kib(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("smaps_rollup");
    let of = |name: &str| -> u64 {
        let line = text.lines().find(|line| line.starts_with(name)).expect("line");
        line.split_whitespace().nth(1).expect("number").parse().expect("number")
    };
    of("Private_Clean:") + of("Private_Dirty:")
}

#[test]
fn x18_unbounded_output_leaves_memory_flat_and_others_served() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    let pid = sandbox.pid();
    // (a) read by a client that throws it away.
    conn.discard = true;
    let (stream, _) = conn.start(json!({ "shell": { "script": "yes | head -c 500M" } }));
    let mut other = sandbox.connect();
    assert_eq!(other.run("echo hi").stdout(), "hi\n");
    conn.wait(stream);
    assert_eq!(conn.discarded, 500 << 20);
    assert!(private_kib(pid) < 6 << 10, "{} KiB", private_kib(pid));
    // (b) a client that stops reading holds the command back for a while; then it goes on without it.
    let mut slow = sandbox.connect();
    slow.hold = true;
    let (stream, id) = slow.start(json!({ "shell": { "script": "yes | head -c 100M" } }));
    slow.until("some came", |slow| !slow.streams[&stream].bytes(1).is_empty());
    for _ in 0..20 {
        assert_eq!(other.run("echo hi").stdout(), "hi\n");
    }
    assert_eq!(other.ok("exec.get", json!({ "execId": id }))["state"], "running");
    assert!(private_kib(pid) < 8 << 10, "{} KiB", private_kib(pid));
    let status = wait_for("it went on after SLOW_READER_MS", || {
        let status = other.ok("exec.get", json!({ "execId": id }));
        (status["state"] == "exited").then_some(status)
    });
    assert_eq!(status["stdoutBytes"], 100u64 << 20);
    assert_eq!(status["stdoutDropped"], (100u64 << 20) - (1 << 20));
    // Then it gets what is kept, and the gap is named.
    slow.release();
    let heard = slow.wait(stream);
    let gap = heard.messages.iter().find_map(|message| message.get("gap")).expect("gap");
    let missed = gap["to"].as_u64().expect("to") - gap["from"].as_u64().expect("from");
    assert_eq!(heard.bytes(1).len() as u64 + missed, 100 << 20);
    assert!(heard.bytes(1).iter().step_by(2).all(|&byte| byte == b'y'));
    // (c) nobody attached: nothing holds it back.
    let (stream, id) = other.start(json!({ "shell": { "script": "head -c 50M /dev/zero; echo end" } }));
    other.reset(stream);
    wait_for("it ends", || (other.ok("exec.get", json!({ "execId": id }))["state"] == "exited").then_some(()));
    let stream = other.open("exec.attach", json!({ "execId": id, "stdoutFrom": (50 << 20) - 2 }));
    assert_eq!(other.wait(stream).bytes(1), b"\0\0end\n");
}

#[test]
fn x20_x23_a_lost_connection_loses_nothing_and_output_is_followed_again_from_any_offset() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    let go = sandbox.path("go");
    let script =
        format!("echo first; head -c 8000 /dev/zero; while [ ! -e {go} ]; do sleep 0.01; done; echo later; exit 7");
    let (stream, id) = conn.start(json!({ "shell": { "script": script } }));
    conn.until("the burst came", |conn| conn.streams[&stream].bytes(1).len() == 8_006);
    drop(conn);
    let mut conn = sandbox.connect();
    let all = conn.open("exec.attach", json!({ "execId": id }));
    let rest = conn.open("exec.attach", json!({ "execId": id, "stdoutFrom": 8_006 }));
    let now = conn.open("exec.attach", json!({ "execId": id, "follow": false }));
    assert_eq!(conn.wait(now).ok()["state"], "running");
    assert_eq!(conn.streams[&now].bytes(1).len(), 8_006);
    std::fs::write(&go, "").expect("go");
    let heard = conn.wait(all);
    assert_eq!((heard.exit_code(), heard.bytes(1).len()), (7, 8_012));
    assert_eq!(conn.wait(rest).stdout(), "later\n");
    // Also when it has ended.
    let again = conn.open("exec.attach", json!({ "execId": id, "stdoutFrom": 8_006 }));
    let heard = conn.wait(again);
    assert_eq!((heard.exit_code(), heard.stdout().as_str()), (7, "later\n"));
    assert_eq!(conn.code("exec.attach", json!({ "execId": "nope" })), "exec_not_found");
}

#[test]
fn x25_x38_start_failures_are_told_apart_name_the_culprit_and_leave_no_record() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    let path = |name: &str| sandbox.path(name);
    std::fs::write(path("plain"), "text").expect("write");
    std::fs::write(path("script"), "echo from a script: $1").expect("write");
    std::fs::write(path("lost"), "#!/no/such/interpreter\n").expect("write");
    for name in ["script", "lost"] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(path(name), mode).expect("mode");
    }
    let detail = |heard: &support::Heard, key: &str| match &heard.closed {
        Some(Err((_, details))) => details[key].as_str().map(str::to_owned),
        _ => None,
    };
    for (argv, code, program) in [
        (vec!["nope".to_owned()], "command_not_found", "nope".to_owned()),
        (vec!["/no/such".into()], "command_not_found", "/no/such".into()),
        (vec!["/etc/passwd".into()], "command_not_executable", "/etc/passwd".into()),
        (vec![path("plain")], "command_not_executable", path("plain")),
        (vec!["/etc".into()], "command_not_executable", "/etc".into()),
        (vec![path("lost")], "command_not_found", path("lost")),
        (vec!["".into()], "command_not_found", "".into()),
    ] {
        let heard = conn.exec(json!({ "argv": argv }));
        assert_eq!(heard.code(), code, "{argv:?}");
        assert_eq!(detail(&heard, "program"), Some(program));
    }
    for cwd in ["/nonexistent", "/etc/passwd"] {
        let heard = conn.exec(json!({ "argv": ["true"], "cwd": cwd }));
        assert_eq!((heard.code(), detail(&heard, "cwd").as_deref()), ("cwd_not_found", Some(cwd)));
    }
    let heard = conn.exec(json!({ "argv": ["true"], "cwd": "/root", "user": "1000:1000" }));
    assert_eq!(heard.code(), "cwd_not_found");
    for (params, code) in [
        (json!({ "argv": [] }), "invalid_argument"),
        (json!({ "argv": ["true"], "shell": { "script": "true" } }), "invalid_argument"),
        (json!({}), "invalid_argument"),
        (json!({ "argv": ["true"], "colour": 1 }), "invalid_argument"),
        (json!({ "argv": ["a\0b"] }), "invalid_argument"),
        (json!({ "argv": ["true"], "timeoutMs": 0 }), "invalid_argument"),
        (json!({ "argv": ["true"], "outputLimitBytes": 1u64 << 40 }), "invalid_argument"),
        (json!({ "argv": ["true"], "execId": "a b" }), "invalid_argument"),
        (json!({ "argv": ["true"], "sessionId": "nope" }), "session_not_found"),
    ] {
        assert_eq!(conn.exec(params.clone()).code(), code, "{params}");
    }
    assert_eq!(conn.code("nope", json!({})), "unknown_method");
    assert_eq!(conn.ok("exec.list", json!({})), json!({ "execs": [] }));
    // A file without `#!` is run by the shell, as execvp does; a shell's own 127 is an exit code.
    assert_eq!(conn.exec(json!({ "argv": [path("script"), "x"] })).stdout(), "from a script: x\n");
    assert_eq!(conn.run("nope").exit_code(), 127);
    let dir = sandbox.dir.to_str().expect("UTF-8");
    let heard = conn.exec(json!({ "argv": ["script", "y"], "env": { "PATH": format!("/no:{dir}") } }));
    assert_eq!(heard.stdout(), "from a script: y\n");
    assert_eq!(conn.exec(json!({ "argv": ["./script", "z"], "cwd": dir })).stdout(), "from a script: z\n");
}

#[test]
fn x26_users_by_name_number_and_group() {
    let sandbox = Sandbox::start_after(
        "mount -t tmpfs tmpfs /mnt && cp -a /etc /mnt/etc && mount --bind /mnt/etc /etc && \
         echo 'tester:x:2000:2001::/home/tester:/bin/bash' >> /etc/passwd && echo 'extra:x:2002:tester' >> /etc/group && echo 'own:x:2001:' >> /etc/group",
    );
    let mut conn = sandbox.connect();
    let mut id = |user: &str| {
        conn.exec(json!({ "shell": { "script": "echo $(id -u) $(id -g) $(id -G) $HOME $USER $(pwd)" }, "user": user }))
            .stdout()
    };
    assert_eq!(id("tester"), "2000 2001 2001 2002 /home/tester tester /\n");
    assert_eq!(id("2000"), "2000 2001 2001 2002 /home/tester tester /\n");
    assert_eq!(id("tester:extra"), "2000 2002 2002 /home/tester tester /\n");
    assert_eq!(id("12345"), "12345 12345 12345 / 12345 /\n");
    assert_eq!(id("41000:41001"), "41000 41001 41001 / 41000 /\n");
    assert_eq!(id("root"), "0 0 0 /root root /root\n");
    let heard = conn.exec(json!({ "argv": ["pwd"], "user": "tester", "cwd": "/usr" }));
    assert_eq!(heard.stdout(), "/usr\n");
    for user in ["nouser", "root:nogroup9", "", "-1", "4294967295", "99999999999999"] {
        assert_eq!(conn.exec(json!({ "argv": ["true"], "user": user })).code(), "user_not_found", "{user}");
    }
    // The user can open its own streams by name, and no descriptor of aether's is there.
    let heard = conn.exec(json!({ "shell": { "script": "echo a > /dev/stdout; echo b > /dev/stderr; umask; ls /proc/self/fd | wc -l; grep Sig[BI] /proc/self/status" }, "user": "tester" }));
    assert_eq!(
        (heard.stdout().as_str(), heard.stderr().as_str()),
        ("a\n0022\n4\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n", "b\n")
    );
    // A change of /etc/passwd counts at once.
    assert_eq!(conn.run("echo 'late:x:3000:3000::/:' >> /etc/passwd").exit_code(), 0);
    assert_eq!(conn.exec(json!({ "argv": ["id", "-u"], "user": "late" })).stdout(), "3000\n");
}

#[test]
fn x27_an_interactive_shell_without_a_terminal_does_not_stop() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    let heard = conn.run("bash -ic 'echo hi'");
    assert_eq!((heard.stdout().as_str(), heard.exit_code()), ("hi\n", 0));
    let heard = conn.exec(json!({ "argv": ["bash", "-ic", "echo hi"], "pty": { "rows": 24, "cols": 80 } }));
    assert!(heard.stdout().contains("hi\r\n"), "{heard:?}");
    assert_eq!(heard.exit_code(), 0);
}

#[test]
fn x29_a_fork_bomb_ends_by_its_timeout_and_others_are_served() {
    // So low that the bomb meets it well within its time, however busy the machine is.
    let cgroup = PidsCgroup::new(80);
    let sandbox = Sandbox::start_after(&cgroup.join());
    let mut conn = sandbox.connect();
    let (bomb, _) = conn.start(json!({ "shell": { "script": ":(){ :|:& };:; sleep 60" }, "timeoutMs": 6_000 }));
    // While it explodes, a start works or says why not.
    let mut refused = 0;
    while conn.streams[&bomb].closed.is_none() {
        let heard = conn.exec(json!({ "argv": ["true"] }));
        match &heard.closed {
            Some(Err((code, _))) if code == "pids_exhausted" => refused += 1,
            _ => assert_eq!(heard.exit_code(), 0),
        }
    }
    assert!(refused > 0, "the limit was never met");
    assert_eq!(conn.wait(bomb).ok()["timedOut"], true);
    assert_eq!(conn.run("echo alive").stdout(), "alive\n");
    wait_for("nothing is left", || (conn.commands().len() == 1).then_some(()));
}

/// A cgroup with a limit of processes, v1 or v2.
struct PidsCgroup(std::path::PathBuf);

impl PidsCgroup {
    fn new(limit: u32) -> Self {
        let v1 = std::path::Path::new("/sys/fs/cgroup/pids");
        let root = if v1.is_dir() { v1 } else { std::path::Path::new("/sys/fs/cgroup") };
        let path = root.join(unique("aether-test"));
        std::fs::create_dir(&path).expect("cgroup");
        std::fs::write(path.join("pids.max"), limit.to_string()).expect("pids.max");
        Self(path)
    }

    fn join(&self) -> String {
        format!("echo 0 > {}/cgroup.procs", self.0.display())
    }
}

impl Drop for PidsCgroup {
    fn drop(&mut self) {
        let end = Instant::now() + Duration::from_secs(5);
        // It is busy until its last process is gone, which version 1 tells by no event.
        while std::fs::remove_dir(&self.0).is_err() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn x30_who_is_killed_for_memory_is_told_so_and_the_rest_lives() {
    let v1 = std::path::Path::new("/sys/fs/cgroup/memory");
    let is_v1 = v1.is_dir();
    let root = if is_v1 { v1 } else { std::path::Path::new("/sys/fs/cgroup") };
    let cgroup = PidsCgroup(root.join(unique("aether-test")));
    std::fs::create_dir(&cgroup.0).expect("cgroup");
    let limit = if is_v1 { "memory.limit_in_bytes" } else { "memory.max" };
    std::fs::write(cgroup.0.join(limit), (100u64 << 20).to_string()).expect("limit");
    let events =
        std::fs::File::open(cgroup.0.join(if is_v1 { "memory.oom_control" } else { "memory.events" })).expect("events");
    let sandbox = Sandbox::start_with(&cgroup.join(), Some(&events));
    let mut conn = sandbox.connect();
    let (other, _) = conn.start(json!({ "argv": ["sleep", "1"] }));
    let hog = "head -c 300m /dev/zero | tail -c 200m >/dev/null";
    let direct =
        conn.exec(json!({ "argv": ["python3", "-c", "x = bytearray(300 << 20)\nimport time\ntime.sleep(9)"] }));
    assert_eq!((&direct.ok()["signal"], &direct.ok()["oomKilled"]), (&json!(9), &json!(true)));
    let below = conn.run(&format!("{hog}; exit ${{PIPESTATUS[1]}}"));
    assert_eq!((below.exit_code(), &below.ok()["oomKilled"]), (137, &json!(true)));
    assert_eq!(conn.run("kill -9 $$").ok()["oomKilled"], false);
    assert_eq!(conn.wait(other).exit_code(), 0);
    // Also what a program forks in its first instant.
    let marks = conn.run("cat /proc/self/oom_score_adj & wait; cat /proc/self/oom_score_adj");
    assert_eq!(marks.stdout(), "500\n500\n");
    assert_eq!(std::fs::read_to_string(format!("/proc/{}/oom_score_adj", sandbox.pid())).expect("own").trim(), "0");
}

#[test]
fn x33_twenty_commands_at_once_neither_mix_nor_wait_for_each_other() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    let (long, _) = conn.start(json!({ "shell": { "script": "sleep 3; echo long" } }));
    let started = Instant::now();
    let all: Vec<_> = (0..20)
        .map(|i| conn.start(json!({ "shell": { "script": format!("echo {i}; echo {i} >&2; head -c 100000 /dev/zero | tr '\\0' '{}'; echo {i}", (b'a' + i) as char) } })).0)
        .collect();
    for (i, stream) in all.into_iter().enumerate() {
        let heard = conn.wait(stream);
        let body = String::from_utf8(vec![b'a' + i as u8; 100_000]).expect("ASCII");
        assert!(heard.stdout() == format!("{i}\n{body}{i}\n") && heard.stderr() == format!("{i}\n"));
    }
    assert!(started.elapsed() < Duration::from_secs(3));
    assert_eq!(conn.wait(long).stdout(), "long\n");
}

#[test]
fn x34_the_same_id_runs_once() {
    let sandbox = Sandbox::start();
    let counter = sandbox.path("count");
    let id = unique("idem");
    let params = |fingerprint: &str| json!({ "execId": id, "fingerprint": fingerprint, "shell": { "script": format!("echo x >> {counter}; sleep 0.2; echo out") } });
    let mut conn = sandbox.connect();
    conn.start(params("f"));
    drop(conn);
    let mut conn = sandbox.connect();
    assert_eq!(conn.exec(params("f")).stdout(), "out\n");
    assert_eq!(conn.exec(params("f")).stdout(), "out\n");
    assert_eq!(conn.exec(params("g")).code(), "idempotency_conflict");
    assert_eq!(std::fs::read_to_string(&counter).expect("count"), "x\n");
}

#[test]
fn x35_a_kill_ends_the_children_too_and_a_second_is_no_error() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    let (stream, id) = conn.start(json!({ "argv": ["bash", "-c", "sleep 99 & sleep 99"] }));
    wait_for("both run", || {
        (conn.commands().iter().filter(|command| *command == "sleep 99").count() == 2).then_some(())
    });
    let kill = json!({ "execId": id, "signal": 9, "tree": true });
    assert_eq!(conn.ok("exec.signal", kill.clone()), json!({ "delivered": true }));
    assert!(!conn.has_command("sleep 99"));
    assert_eq!(conn.wait(stream).ok()["signal"], 9);
    assert_eq!(conn.ok("exec.signal", kill), json!({ "delivered": false }));
    // Other signals, to the first process or to all.
    let (stream, id) = conn.start(json!({ "shell": { "script": "trap 'echo got; exit 5' USR1; sleep 99 & wait" } }));
    wait_for("it runs", || conn.runs("sleep 99").then_some(()));
    assert_eq!(
        conn.ok("exec.signal", json!({ "execId": id, "signal": 10, "tree": false })),
        json!({ "delivered": true })
    );
    let heard = conn.wait(stream);
    assert_eq!((heard.exit_code(), heard.stdout().as_str()), (5, "got\n"));
    let (stream, id) = conn.start(json!({ "shell": { "script": "sleep 98 & sleep 98; wait; echo $?" } }));
    wait_for("it runs", || {
        (conn.commands().iter().filter(|command| *command == "sleep 98").count() == 2).then_some(())
    });
    conn.ok("exec.signal", json!({ "execId": id, "signal": 15, "tree": true }));
    assert_eq!(conn.wait(stream).ok()["signal"], 15);
    assert_eq!(conn.code("exec.signal", json!({ "execId": id, "signal": 0, "tree": false })), "invalid_argument");
    assert_eq!(conn.code("exec.signal", json!({ "execId": "nope", "signal": 9, "tree": false })), "exec_not_found");
}

#[test]
fn x36_a_thousand_disconnects_in_the_middle_leave_nothing_open() {
    let sandbox = Sandbox::start();
    let pid = sandbox.pid();
    let descriptors = || std::fs::read_dir(format!("/proc/{pid}/fd")).expect("fd").count();
    drop(sandbox.connect());
    let mut watcher = sandbox.connect();
    watcher.run("true");
    let before = descriptors();
    for i in 0..1_000u32 {
        let mut conn = sandbox.connect();
        let (stream, _) = conn.start(json!({ "shell": { "script": "yes 2>&1 | head -c 200000" }, "timeoutMs": 5_000 }));
        for _ in 0..i % 4 {
            conn.pump(Instant::now() + Duration::from_millis(1));
        }
        let _ = stream;
    }
    wait_for("all have ended", || {
        let execs = watcher.ok("exec.list", json!({}));
        let is_running = |exec: &Value| exec["state"] == "running";
        (!execs["execs"].as_array().expect("array").iter().any(is_running)).then_some(())
    });
    wait_for("descriptors are flat", || (descriptors() == before).then_some(()));
    assert_eq!(watcher.run("echo alive").stdout(), "alive\n");
    // Only so many are kept, and so much: 256 records, 32 MiB.
    let kept = watcher.ok("exec.list", json!({}))["execs"].as_array().map_or(0, Vec::len);
    assert!((100..=256).contains(&kept), "{kept}");
    for _ in 0..300 {
        watcher.run("true");
    }
    assert_eq!(watcher.ok("exec.list", json!({}))["execs"].as_array().map(Vec::len), Some(256));
}
