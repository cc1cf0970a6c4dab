//! `cargo bench -p dsec-aether`: what a command costs through aether over what it costs by posix_spawn, and bytes per second through
//! stdout. Prints one JSON object.

#[path = "../tests/support/mod.rs"]
mod support;

use std::ffi::CString;
use std::time::Instant;

use serde_json::json;
use support::Sandbox;

const RUNS: usize = 1_000;
const ROUNDS: usize = 5;
const BYTES: u64 = 1 << 30;
const PROGRAM: &str = "/bin/true";

fn percentile(samples: &mut [f64], p: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[((samples.len() - 1) as f64 * p) as usize]
}

fn millis(started: Instant) -> f64 {
    started.elapsed().as_secs_f64() * 1e3
}

/// posix_spawn and waitpid of the same program, in this process.
fn spawn_once() {
    let program = CString::new(PROGRAM).expect("no NUL");
    let mut pid = 0;
    let mut status = 0;
    // SAFETY: the vectors end with null pointers.
    unsafe {
        let argv = [program.as_ptr().cast_mut(), std::ptr::null_mut()];
        let envp = [std::ptr::null_mut()];
        let spawned = libc::posix_spawn(
            &mut pid,
            program.as_ptr(),
            std::ptr::null(),
            std::ptr::null(),
            argv.as_ptr(),
            envp.as_ptr(),
        );
        assert_eq!(spawned, 0);
        libc::waitpid(pid, &mut status, 0);
    }
    assert_eq!(status, 0);
}

fn main() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    conn.ok("session.open", json!({ "sessionId": "s" }));
    let (mut floor, mut exec, mut session, mut call) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    // In turns, so that the drift of the machine meets all alike.
    for _ in 0..ROUNDS {
        for _ in 0..RUNS / ROUNDS {
            let started = Instant::now();
            spawn_once();
            floor.push(millis(started));
        }
        for _ in 0..RUNS / ROUNDS {
            let started = Instant::now();
            assert_eq!(conn.exec(json!({ "argv": [PROGRAM] })).exit_code(), 0);
            exec.push(millis(started));
        }
        for _ in 0..RUNS / ROUNDS {
            let started = Instant::now();
            assert_eq!(conn.exec(json!({ "sessionId": "s", "shell": { "script": ":" } })).exit_code(), 0);
            session.push(millis(started));
        }
        for _ in 0..RUNS / ROUNDS {
            let started = Instant::now();
            conn.ok("session.list", json!({}));
            call.push(millis(started));
        }
    }
    conn.discard = true;
    let started = Instant::now();
    let (stream, _) = conn.start(json!({ "argv": ["head", "-c", BYTES.to_string(), "/dev/zero"] }));
    conn.wait_up_to(stream, std::time::Duration::from_secs(120));
    let bytes_per_second = BYTES as f64 / started.elapsed().as_secs_f64();
    let floor_p50 = percentile(&mut floor, 0.5);
    let exec_p50 = percentile(&mut exec, 0.5);
    println!(
        "{}",
        json!({
            "bench": "aether",
            "n": RUNS,
            "posix_spawn_p50_ms": floor_p50,
            "exec_p50_ms": exec_p50,
            "exec_p95_ms": percentile(&mut exec, 0.95),
            "over_posix_spawn_ms": exec_p50 - floor_p50,
            "call_p50_ms": percentile(&mut call, 0.5),
            "session_run_p50_ms": percentile(&mut session, 0.5),
            "stdout_bytes_per_second": bytes_per_second,
        })
    );
}
