//! What programs try and are denied, and what they touch, as the launcher tells it.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use common::host::{self, Census};
use common::{EVERY_WAY, Node, Setup, TestClient, wait_for};
use serde_json::{Value, json};

fn create_with(node: &Node, id: &str, tripwires: &[&str]) -> Value {
    let mut params = node.create(id);
    params["tripwires"] = json!(tripwires);
    params
}

fn create_as(node: &Node, id: &str, profile: &str) -> Value {
    let mut params = node.create(id);
    params["profile"] = json!(profile);
    params
}

/// A client that listens from here on.
fn listener(node: &Node) -> TestClient {
    let mut client = node.client();
    client.open("behaviour", &json!({}));
    // It has begun once something that was asked later is answered.
    client.ok("node.info", &json!({}));
    client
}

fn next(client: &mut TestClient) -> Value {
    client.next_event()["event"].clone()
}

/// What it tells, but for when and who.
fn shown(event: &Value) -> Value {
    json!(["id", "kind", "call", "argument", "path", "outcome"].map(|name| event[name].clone()))
}

/// The next event is this one; then none has come before.
fn expect(client: &mut TestClient, event: Value) -> Value {
    let told = next(client);
    assert_eq!(shown(&told), event, "{told}");
    told
}

/// Children of the launcher that watch.
fn observer(node: &Node) -> Option<u32> {
    let is_it = |pid: &u32| {
        let fds = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
        let is_group = |link: &std::path::Path| link.to_string_lossy().contains("[fanotify]");
        fds.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok()).any(|link| is_group(&link)).then_some(())
    };
    host::descendants(node).into_iter().find(|pid| is_it(pid).is_some())
}

/// What launcher and observer have used of the processor.
fn time_used(node: &Node) -> [Duration; 2] {
    let of = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
        let (_, rest) = stat.rsplit_once(") ").expect("a name");
        let fields: Vec<u64> = rest.split(' ').skip(11).take(2).map(|ticks| ticks.parse().expect("ticks")).collect();
        Duration::from_millis(fields.iter().sum::<u64>() * 10)
    };
    [of(node.pid()), of(observer(node).expect("an observer"))]
}

/// Begins a program that goes on; it has begun when this returns.
fn begin(node: &Node, id: &str, arguments: &[&str]) -> UnixStream {
    let mut stream = UnixStream::connect(node.data.join(format!("run/s/{id}.sock"))).expect("the sandbox's socket");
    for argument in [&["/bin/probe"], arguments].concat() {
        stream.write_all(argument.as_bytes()).and_then(|()| stream.write_all(b"\0")).expect("written");
    }
    stream.shutdown(Shutdown::Write).expect("half closed");
    stream
}

fn flood(node: &Node, id: &str, path: &str) -> UnixStream {
    let mut stream = begin(node, id, &["flood", "8", path]);
    stream.read_exact(&mut [0; 9]).expect("it floods");
    stream
}

#[test]
fn a_refused_call_is_an_event_with_its_process() {
    for setup in EVERY_WAY {
        let node = Node::start(setup);
        let mut client = listener(&node);
        for id in ["a1", "a2"] {
            client.ok("sandbox.create", &node.create(id));
        }
        let quiet = ["try", "io_uring", "audit", "line discipline of a disk"];
        let tried = ["bpf", "vsock", "netfilter", "swap extents", "type", "limits of 1", "keys"];
        let output = node.probe("a2", &[&quiet[..], &tried[..]].concat());
        let outcomes: Vec<&str> = output.lines().filter_map(|line| line.split(": ").nth(1)).collect();
        let quietly = ["ENOSYS", "EPROTONOSUPPORT", "ENOTTY"];
        let told = ["EPERM", "EAFNOSUPPORT", "EPROTONOSUPPORT", "ENOTTY", "ENOTTY", "EPERM", "EPERM"];
        assert_eq!(outcomes, [&quietly[..], &told[..]].concat(), "{output}");
        for (call, argument, outcome) in [
            ("bpf", Value::Null, "EPERM"),
            ("socket", json!("AF_VSOCK"), "EAFNOSUPPORT"),
            ("socket", json!("NETLINK_NETFILTER"), "EPROTONOSUPPORT"),
            ("ioctl", json!("XFS_IOC_SWAPEXT"), "ENOTTY"),
            ("ioctl", json!("TIOCSTI"), "ENOTTY"),
            ("prlimit64", json!("1"), "EPERM"),
            ("keyctl", json!("KEYCTL_READ"), "EPERM"),
        ] {
            let event = expect(&mut client, json!(["a2", "call", call, argument, null, outcome]));
            assert_eq!(event["count"], 1);
            let process = &event["process"];
            assert_eq!((&process["comm"], &process["uid"]), (&json!("probe"), &json!(0)), "{event}");
            assert_eq!(process["ancestors"], json!([1]), "{event}");
            assert_eq!(
                process["argv"].as_array().map(|argv| argv[..3].to_vec()),
                Some(vec![json!("/bin/probe"), json!("try"), json!("io_uring")])
            );
        }
    }
}

#[test]
fn whoever_did_it_is_named_as_the_sandbox_knows_it() {
    let node = Node::start(EVERY_WAY[0]);
    let mut client = listener(&node);
    client.ok("sandbox.create", &node.create("a1"));
    node.probe("a1", &["below", "try", "bpf", "\u{1B}[2J\n"]);
    let event = expect(&mut client, json!(["a1", "call", "bpf", null, null, "EPERM"]));
    let process = &event["process"];
    let ancestors: Vec<u64> = process["ancestors"].as_array().expect("some").iter().filter_map(Value::as_u64).collect();
    assert_eq!((ancestors.len(), ancestors.last()), (3, Some(&1)), "{event}");
    assert_eq!(process["session"], ancestors[0], "its parent leads the session");
    assert_eq!(process["uid"], 1_000);
    assert!(process["pid"].as_u64() > Some(ancestors[0]), "{event}");
    assert_eq!(process["argv"], json!(["below", "try", "bpf", "\u{1B}[2J\n"]));
}

#[test]
fn no_program_has_a_listener_of_its_own() {
    let node = Node::start(EVERY_WAY[0]);
    node.client().ok("sandbox.create", &node.create("a1"));
    assert_eq!(node.probe("a1", &["try", "listener"]), "listener: EBUSY\n");
}

#[test]
fn strict_tells_of_user_namespaces_and_of_what_is_covered() {
    let node = Node::start(EVERY_WAY[0]);
    let mut client = listener(&node);
    for (id, profile) in [("a1", "strict"), ("a2", "default"), ("a3", "strict")] {
        client.ok("sandbox.create", &create_as(&node, id, profile));
    }
    for id in ["a2", "a1"] {
        node.probe(id, &["try", "user"]);
        node.probe(id, &["cat", "/proc/kallsyms"]);
        node.probe(id, &["list", "/sys/kernel"]);
    }
    expect(&mut client, json!(["a1", "call", "unshare", "CLONE_NEWUSER", null, "EPERM"]));
    let event = expect(&mut client, json!(["a1", "open", null, null, "/proc/kallsyms", "covered"]));
    assert_eq!(event["process"]["argv"], json!(["/bin/probe", "cat", "/proc/kallsyms"]));
    expect(&mut client, json!(["a1", "open", null, null, "/sys/kernel", "covered"]));
    node.probe("a3", &["cat", "/proc/cmdline"]);
    expect(&mut client, json!(["a3", "open", null, null, "/proc/cmdline", "covered"]));
}

const FILE: &str = "/home/user/file";
const PROGRAM: &str = "/bin/setuid-probe";

#[test]
fn tripwires_are_told_of_however_they_are_named() {
    for setup in EVERY_WAY {
        let node = Node::start(setup);
        let mut client = listener(&node);
        let tripwires =
            [FILE, "/nowhere", "/home", PROGRAM, "/proc/version", "/image-device", "/../bin/../beyond", "/dev/null"];
        let made = client.ok("sandbox.create", &create_with(&node, "a1", &tripwires));
        let absent = json!(["/nowhere", "/proc/version", "/image-device", "/dev/null"]);
        assert_eq!(made["absentTripwires"], absent, "{made}");
        let again = client.ok("sandbox.create", &create_with(&node, "a1", &tripwires));
        assert_eq!(again["absentTripwires"], absent, "{again}");
        let other = client.refusal("sandbox.create", &create_with(&node, "a1", &tripwires[1..]));
        assert_eq!(other["code"], "idempotency_conflict");
        // The same image, and nobody's tripwires.
        client.ok("sandbox.create", &node.create("a2"));
        for id in ["a2", "a1"] {
            assert_eq!(node.probe(id, &["cat", FILE]), "content\n");
        }
        let seen = |path: &str| json!(["a1", "tripwire", null, null, path, "seen"]);
        let event = expect(&mut client, seen(FILE));
        assert_eq!(event["process"]["argv"], json!(["/bin/probe", "cat", FILE]));
        // Not touched by being looked at.
        assert_eq!(node.probe("a1", &["stat", FILE]), "stat: ok\n");
        node.probe("a1", &["list", "/home"]);
        expect(&mut client, seen("/home"));
        node.probe("a1", &["hard link", FILE, "/linked"]);
        node.probe("a1", &["cat", "/linked"]);
        expect(&mut client, seen(FILE));
        node.probe("a1", &["rename", FILE, "/elsewhere"]);
        node.probe("a1", &["cat", "/elsewhere"]);
        expect(&mut client, seen(FILE));
        node.probe("a1", &["cat", "/beyond"]);
        expect(&mut client, seen("/../bin/../beyond"));
        assert_eq!(node.run("a1", &[PROGRAM, "user"]), "0 0\n");
        let event = expect(&mut client, json!(["a1", "tripwire", null, "execute", PROGRAM, "seen"]));
        assert_eq!(event["process"]["ancestors"], json!([1]));
        // Written for the first time, it becomes another file below.
        client.ok("sandbox.create", &create_with(&node, "a3", &[FILE]));
        for act in ["append", "cat", "append", "cat"] {
            node.probe("a3", &[act, FILE]);
            let event = expect(&mut client, json!(["a3", "tripwire", null, null, FILE, "seen"]));
            assert_eq!(event["process"]["argv"][1], act);
        }
    }
}

#[test]
fn tripwires_that_are_no_paths_are_refused() {
    let node = Node::start(EVERY_WAY[0]);
    let mut client = node.client();
    for wrong in [json!(["etc/passwd"]), json!([""]), json!(["/a\u{0}"]), json!(vec!["/a"; 65]), json!("/a")] {
        let mut params = node.create("a1");
        params["tripwires"] = wrong.clone();
        assert_eq!(client.refusal("sandbox.create", &params)["code"], "invalid_argument", "{wrong}");
    }
}

/// Opens a file of the host that a link inside names. Where it were marked by mistake, this would be an event.
fn open_on_the_host() {
    fs::read("/etc/hosts").expect("read");
}

#[test]
fn a_launcher_that_begins_goes_on_where_the_one_before_has_ended() {
    let mut node = Node::start(Setup { blanks: 2, ..Setup::default() });
    node.client().ok("sandbox.create", &create_with(&node, "a1", &[FILE, "/planted"]));
    node.client().ok("sandbox.create", &create_as(&node, "a2", "strict"));
    node.probe("a1", &["symlink", "/../../../../../etc/hosts", "/planted"]);
    for is_crash in [true, false] {
        if is_crash {
            node.kill()
        } else {
            node.stop()
        }
        let mut waiting = begin(&node, "a1", &["try", "vsock"]);
        waiting.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
        let nothing = waiting.read(&mut [0; 64]).expect_err("it waits for a launcher").kind();
        assert_eq!(nothing, std::io::ErrorKind::WouldBlock);
        node.launch();
        let mut client = listener(&node);
        let mut output = String::new();
        waiting.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        waiting.read_to_string(&mut output).expect("an answer");
        assert_eq!(output, "vsock: EAFNOSUPPORT\n");
        // It came before anybody listened, and was kept.
        expect(&mut client, json!(["a1", "call", "socket", "AF_VSOCK", null, "EAFNOSUPPORT"]));
        open_on_the_host();
        node.probe("a1", &["cat", FILE]);
        expect(&mut client, json!(["a1", "tripwire", null, null, FILE, "seen"]));
        node.probe("a1", &["cat", "/etc/hosts"]);
        expect(&mut client, json!(["a1", "tripwire", null, null, "/planted", "seen"]));
        node.probe("a2", &["cat", "/proc/kallsyms"]);
        expect(&mut client, json!(["a2", "open", null, null, "/proc/kallsyms", "covered"]));
    }
}

#[test]
fn an_observer_that_dies_is_replaced() {
    let node = Node::start(EVERY_WAY[0]);
    let mut client = listener(&node);
    client.ok("sandbox.create", &create_with(&node, "a1", &[FILE]));
    let first = observer(&node).expect("an observer");
    let _flood = flood(&node, "a1", "");
    expect(&mut client, json!(["a1", "call", "bpf", null, null, "EPERM"]));
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(first as i32).expect("a pid"),
        rustix::process::Signal::KILL,
    )
    .expect("killed");
    wait_for("another observer", || observer(&node).is_some_and(|pid| pid != first));
    node.probe("a1", &["cat", FILE]);
    let mut event = next(&mut client);
    while event["kind"] != "tripwire" {
        event = next(&mut client);
    }
    assert_eq!(node.probe("a1", &["try", "vsock"]), "vsock: EAFNOSUPPORT\n");
    // Nobody is left waiting for the one that was killed: all processes of the flood go on.
    let flooders: Vec<u32> = host::descendants_of_groups(&node);
    let calls = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let switches = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        switches.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    let before: Vec<u64> = flooders.iter().map(calls).collect();
    wait_for("every flooder's next call", || {
        flooders.iter().zip(&before).filter(|(pid, before)| calls(pid) > **before + 2).count() >= 8
    });
}

/// Part of one core that a flood may cost the platform: a twentieth for answers, and something for the processes of a debug build.
const MOST_OF_A_CORE: f64 = 0.15;
const QUIET_ROUNDS: u32 = 20;

#[test]
fn a_flood_costs_the_platform_little_and_a_neighbour_nothing() {
    let node = Node::start(EVERY_WAY[0]);
    let mut client = listener(&node);
    client.ok("sandbox.create", &create_with(&node, "a1", &[FILE]));
    client.ok("sandbox.create", &create_with(&node, "a2", &[FILE]));
    client.ok("sandbox.create", &create_with(&node, "a3", &[FILE]));
    // Whoever is not flooding is told of at once. Returns what others did: events, and calls of the first.
    let mut round = |number: u32| {
        let id = format!("n{number}");
        client.ok("sandbox.create", &node.create(&id));
        node.probe(&id, &["try", "vsock"]);
        let (mut told, mut counted) = (0, 0);
        loop {
            let event = next(&mut client);
            if event["id"] == id.as_str() {
                break;
            }
            told += 1;
            counted += if event["id"] == "a1" { event["count"].as_u64().expect("a count") } else { 0 };
        }
        client.ok("sandbox.destroy", &json!({ "id": id }));
        (told, counted)
    };
    // What both take for a round by itself is not the flood's.
    let before = time_used(&node);
    for number in 0..QUIET_ROUNDS {
        round(number);
    }
    let quiet = time_used(&node);
    let of_a_round = [0, 1].map(|at| (quiet[at] - before[at]) / QUIET_ROUNDS);
    let floods = [flood(&node, "a1", ""), flood(&node, "a3", FILE)];
    let (start, before) = (Instant::now(), time_used(&node));
    let (mut told, mut counted, mut rounds) = (0, 0, 0);
    while start.elapsed() <= Duration::from_secs(3) {
        let (events, calls) = round(QUIET_ROUNDS + rounds);
        told += events;
        counted += calls;
        rounds += 1;
    }
    let ([launcher, observer], took) = (time_used(&node), start.elapsed());
    let launcher = (launcher - before[0]).saturating_sub(of_a_round[0] * rounds);
    let observer = (observer - before[1]).saturating_sub(of_a_round[1] * rounds);
    eprintln!(
        "{told} events, {counted} calls; launcher {launcher:?}, observer {observer:?} of {took:?}, beside {rounds} rounds of {of_a_round:?}"
    );
    for used in [launcher, observer] {
        assert!(used.as_secs_f64() < took.as_secs_f64() * MOST_OF_A_CORE, "{used:?} of {took:?}");
    }
    assert!(counted < 64 + 220 * (took.as_secs() + 1), "{counted} calls were answered in {took:?}");
    assert!(told < 2 * (32 + 9 * (took.as_secs() + 1)), "{told} events in {took:?}");
    assert_eq!(node.probe("a2", &["cat", FILE]), "content\n");
    for id in ["a1", "a3"] {
        client.ok("sandbox.destroy", &json!({ "id": id }));
    }
    drop(floods);
    let mut event = next(&mut client);
    while event["id"] != "a2" {
        event = next(&mut client);
    }
    assert_eq!(event["kind"], "tripwire");
}

#[test]
fn a_command_line_in_a_file_that_a_program_serves_is_not_waited_for() {
    let node = Node::start(EVERY_WAY[0]);
    let mut client = listener(&node);
    client.ok("sandbox.create", &create_as(&node, "a1", "builder"));
    let output = node.probe("a1", &["hide"]);
    assert_eq!(output, "unshare: ok\nmount: ok\nopen: ok\ndone\n");
    let event = expect(&mut client, json!(["a1", "call", "bpf", null, null, "EPERM"]));
    assert_eq!((&event["process"]["argv"], &event["process"]["comm"]), (&json!([]), &json!("probe")), "{event}");
    client.ok("sandbox.destroy", &json!({ "id": "a1" }));
}

#[test]
fn a_reader_of_command_lines_that_is_stuck_is_done_without() {
    let node = Node::start(EVERY_WAY[0]);
    let mut client = listener(&node);
    client.ok("sandbox.create", &node.create("a1"));
    client.ok("sandbox.create", &node.create("a2"));
    let reader = || {
        let observer = observer(&node).expect("an observer");
        let children = fs::read_to_string(format!("/proc/{observer}/task/{observer}/children")).expect("children");
        children.split_whitespace().next().and_then(|pid| pid.parse().ok()).and_then(rustix::process::Pid::from_raw)
    };
    let first = reader().expect("a reader");
    rustix::process::kill_process(first, rustix::process::Signal::STOP).expect("stopped");
    let start = Instant::now();
    node.probe("a1", &["try", "bpf"]);
    assert!(start.elapsed() > Duration::from_millis(100), "it was waited for");
    let event = expect(&mut client, json!(["a1", "call", "bpf", null, null, "EPERM"]));
    assert_eq!((&event["process"]["argv"], &event["process"]["comm"]), (&json!([]), &json!("probe")), "{event}");
    for id in ["a2", "a1"] {
        node.probe(id, &["try", "vsock"]);
        let event = next(&mut client);
        assert_eq!(event["process"]["argv"], json!(["/bin/probe", "try", "vsock"]), "another reads on: {event}");
    }
    assert!(reader().is_some_and(|pid| pid != first));
}

#[test]
fn events_that_nobody_hears_are_bounded() {
    let node = Node::start(EVERY_WAY[0]);
    node.client().ok("sandbox.create", &node.create("a1"));
    for _ in 0..40 {
        node.probe("a1", &["try", "bpf", "vsock"]);
    }
    let mut client = listener(&node);
    // Beyond the budget they are counted.
    let told = (0..32).map(|_| next(&mut client)).map(|event| event["count"].as_u64().expect("a count")).sum::<u64>();
    assert!(told >= 32, "{told}");
}

#[test]
fn nothing_is_left_of_sandboxes_that_were_watched() {
    let node = Node::start(Setup { blanks: 4, namespaces: 2, ..Setup::default() });
    let mut client = listener(&node);
    let held = |node: &Node| {
        let pid = observer(node).expect("an observer");
        let fds = fs::read_dir(format!("/proc/{pid}/fd")).expect("fds").count();
        let text = fs::read_to_string(format!("/proc/{pid}/fdinfo/{}", group_of(pid))).expect("the group");
        (fds, text.lines().filter(|line| line.starts_with("fanotify ino:")).count())
    };
    let round = |client: &mut TestClient, round: usize| {
        for n in 0..10 {
            let id = format!("r{round}n{n}");
            client.ok("sandbox.create", &create_with(&node, &id, &[FILE, PROGRAM, "/home", "/home/user/one"]));
            node.probe(&id, &["cat", FILE]);
            node.probe(&id, &["try", "bpf", "type"]);
            if n == 0 {
                drop(flood(&node, &id, ""));
            }
            client.ok("sandbox.destroy", &json!({ "id": id }));
        }
    };
    round(&mut client, 0);
    node.wait_for_blanks();
    let (before, held_before) = (Census::of(&node), held(&node));
    for n in 1..5 {
        round(&mut client, n);
    }
    node.wait_for_blanks();
    wait_for("the state of before", || Census::of(&node).is_like(&before) && held(&node) == held_before);
    assert_eq!(held(&node).1, 0, "no mark outlives its sandbox");
}

fn group_of(pid: u32) -> String {
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).expect("fds").filter_map(Result::ok);
    let is_group =
        |path: &std::path::Path| fs::read_link(path).is_ok_and(|link| link.ends_with("anon_inode:[fanotify]"));
    let found = fds.map(|fd| fd.path()).find(|path| is_group(path)).expect("a group");
    found.file_name().expect("a number").to_string_lossy().into_owned()
}

#[test]
fn a_tripwire_stays_one_when_the_kernel_forgets_its_name() {
    let node = Node::start(EVERY_WAY[0]);
    let mut client = listener(&node);
    let tripwires = [FILE, "/home/user/one", "/home", PROGRAM];
    client.ok("sandbox.create", &create_with(&node, "a1", &tripwires));
    node.probe("a1", &["append", FILE]);
    expect(&mut client, json!(["a1", "tripwire", null, null, FILE, "seen"]));
    fs::write("/proc/sys/vm/drop_caches", "2").expect("names are forgotten");
    for (act, path) in tripwires.iter().enumerate().map(|(at, path)| (if at == 2 { "list" } else { "cat" }, path)) {
        node.probe("a1", &[act, path]);
        expect(&mut client, json!(["a1", "tripwire", null, null, path, "seen"]));
    }
    client.ok("sandbox.destroy", &json!({ "id": "a1" }));
    let id = observer(&node).expect("an observer");
    let paths = |id: u32| {
        fs::read_dir(format!("/proc/{id}/fd")).expect("fds").filter_map(|fd| fs::read_link(fd.ok()?.path()).ok())
    };
    wait_for("the end of what was held", || !paths(id).any(|path| path.ends_with("one")));
}
