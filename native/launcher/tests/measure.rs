//! Figures: what a create and a destroy cost on each way, next to the floor of the same minute. Not part of the tests:
//! `cargo test --release -p dsec-launcher --test measure -- --ignored --nocapture`, with `DSEC_AETHER` for another program than the stand-in.

mod common;

use std::process::Command;
use std::time::{Duration, Instant};

use common::{Node, Setup, TestClient, programs};
use serde_json::{Value, json};

/// Floor and creates take turns, so that both meet the same load of a shared machine.
const ROUNDS: usize = 20;
const SINGLES: usize = 10;
const BURST: usize = 500;
/// As a client does something with what it has made.
const GAP: Duration = Duration::from_millis(3);

fn floor(count: usize) -> Value {
    let program = programs::compiled_from("../../packages/bench/floor/floor.c", "floor");
    let output = Command::new(program).args(["sandbox", &count.to_string()]).output().expect("floor");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn timed(times: &mut Vec<f64>, work: impl FnOnce()) {
    let start = Instant::now();
    work();
    times.push(start.elapsed().as_secs_f64() * 1e3);
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2] * 1e3).round() / 1e3
}

/// One after another.
fn singles(node: &Node, client: &mut TestClient) -> Value {
    let (mut creates, mut destroys, mut floors) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        floors.push(floor(SINGLES)["p50_ms"].as_f64().expect("a number"));
        for n in 0..SINGLES {
            let id = format!("s{round}n{n}");
            timed(&mut creates, || drop(client.ok("sandbox.create", &node.create(&id))));
            std::thread::sleep(GAP);
            timed(&mut destroys, || drop(client.ok("sandbox.destroy", &json!({ "id": id }))));
            std::thread::sleep(GAP);
        }
    }
    let (create, floor) = (median(creates), median(floors));
    json!({
        "floor_p50_ms": floor, "create_p50_ms": create, "create_over_floor": (create / floor * 100.0).round() / 100.0,
        "destroy_p50_ms": median(destroys),
    })
}

/// All at once.
fn burst(node: &Node, client: &mut TestClient) -> Value {
    let rate = |start: Instant| (BURST as f64 / start.elapsed().as_secs_f64()).round();
    let before = available_kib();
    let start = Instant::now();
    let streams: Vec<u32> = (0..BURST).map(|n| client.open("sandbox.create", &node.create(&format!("b{n}")))).collect();
    for stream in streams {
        client.wait(stream).expect("created");
    }
    let creates = rate(start);
    // What the kernel frees a grace period later is not to count; nothing tells when that is over.
    std::thread::sleep(Duration::from_millis(500));
    let each = (before - available_kib()) / BURST as i64;
    let start = Instant::now();
    let streams: Vec<u32> =
        (0..BURST).map(|n| client.open("sandbox.destroy", &json!({ "id": format!("b{n}") }))).collect();
    for stream in streams {
        client.wait(stream).expect("destroyed");
    }
    json!({ "creates_per_second": creates, "destroys_per_second": rate(start), "kib_each": each })
}

fn available_kib() -> i64 {
    let text = std::fs::read_to_string("/proc/meminfo").expect("meminfo");
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
#[ignore = "prints figures"]
fn figures() {
    for (name, setup) in [
        ("direct", Setup { max_sandboxes: 1_000, ..Setup::default() }),
        ("direct, namespaces ahead", Setup { namespaces: 32, max_sandboxes: 1_000, ..Setup::default() }),
        ("furnished", Setup { blanks: 700, max_sandboxes: 1_000, is_furnished: true, ..Setup::default() }),
    ] {
        let node = Node::start(setup);
        let mut client = node.client();
        let singles = singles(&node, &mut client);
        node.wait_for_blanks();
        let before = floor(BURST / 2);
        let burst = burst(&node, &mut client);
        let after = floor(BURST / 2);
        let floors = [&before, &after].map(|floor| json!([floor["per_second"], floor["kib_each"]]));
        println!("{}", json!({ "way": name, "singles": singles, "burst": burst, "floor_rate_kib": floors }));
    }
}
