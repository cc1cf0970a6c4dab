//! A launcher with a data directory of its own, a small image, and a client; everything is taken back at the end.

#![allow(dead_code, reason = "each test program uses its own part")]

pub mod host;
pub mod programs;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wire::client::{Client, Event};

const LAUNCHER: &str = env!("CARGO_BIN_EXE_launcher");
const PATIENCE: Duration = Duration::from_secs(60);
const VOLUME_BYTES: u64 = 2 << 30;

/// Tests of one program run one after another: they count what there is on the host.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Waits for a condition.
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "{what} did not come in {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[derive(Clone, Copy)]
pub struct Setup {
    pub blanks: u32,
    pub namespaces: u32,
    pub max_sandboxes: u32,
    /// btrfs in a loop file, or a plain directory.
    pub is_btrfs: bool,
    /// Wait until blanks stand on the image.
    pub is_furnished: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self { blanks: 0, namespaces: 0, max_sandboxes: 600, is_btrfs: true, is_furnished: false }
    }
}

/// Direct creates, creates from bare blanks, and creates from blanks that have been furnished for them.
pub const EVERY_WAY: [Setup; 3] = [
    Setup { blanks: 0, namespaces: 2, max_sandboxes: 600, is_btrfs: true, is_furnished: false },
    Setup { blanks: 4, namespaces: 0, max_sandboxes: 600, is_btrfs: true, is_furnished: false },
    Setup { blanks: 8, namespaces: 0, max_sandboxes: 600, is_btrfs: true, is_furnished: true },
];

pub struct Node {
    pub data: PathBuf,
    pub setup: Setup,
    pub layer: String,
    launcher: Option<Child>,
    _turn: MutexGuard<'static, ()>,
}

impl Node {
    pub fn start(setup: Setup) -> Self {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        // Sockets have short paths.
        let data = PathBuf::from(format!("/tmp/dsec-launcher-{}", std::process::id()));
        remove_all(&data);
        std::fs::create_dir_all(&data).expect("data directory");
        if setup.is_btrfs {
            run(&["prepare", "--data", path(&data), "--size", &VOLUME_BYTES.to_string()]);
        }
        let layer = programs::install_layer(&data);
        let mut node = Self { data, setup, layer, launcher: None, _turn: turn };
        node.launch();
        node
    }

    pub fn launch(&mut self) {
        let aether = programs::aether();
        let mut command = Command::new(LAUNCHER);
        command.args([
            "serve",
            "--data",
            path(&self.data),
            "--aether",
            path(&aether),
            "--edge-uid",
            "0",
            "--edge-gid",
            "0",
        ]);
        for (name, value) in [
            ("--pool-blanks", self.setup.blanks),
            ("--pool-namespaces", self.setup.namespaces),
            ("--max-sandboxes", self.setup.max_sandboxes),
        ] {
            command.args([name, &value.to_string()]);
        }
        self.launcher = Some(command.stdin(Stdio::piped()).spawn().expect("launcher"));
        // A process that a launcher before was making holds its socket until it is gone too.
        wait_for("the launcher", || TestClient::greeted(&self.socket()));
        if self.setup.is_furnished {
            self.client().ok("sandbox.create", &self.create("foreseen"));
            self.client().ok("sandbox.destroy", &json!({ "id": "foreseen" }));
        }
        self.wait_for_blanks();
    }

    pub fn wait_for_blanks(&self) {
        let mut client = self.client();
        let wanted = u64::from(self.setup.blanks);
        wait_for("the blanks", || client.ok("node.info", &json!({}))["blanks"].as_u64() == Some(wanted));
        if self.setup.is_furnished {
            wait_for("furnished blanks", || host::furnished(self) >= self.setup.blanks as usize * 3 / 4);
        }
    }

    pub fn socket(&self) -> PathBuf {
        self.data.join("run/launcher.sock")
    }

    pub fn pid(&self) -> u32 {
        self.launcher.as_ref().expect("a launcher").id()
    }

    /// As a crash would.
    pub fn kill(&mut self) {
        let mut launcher = self.launcher.take().expect("a launcher");
        launcher.kill().expect("killed");
        launcher.wait().expect("waited for");
    }

    /// As its supervisor does.
    pub fn stop(&mut self) {
        let mut launcher = self.launcher.take().expect("a launcher");
        drop(launcher.stdin.take());
        assert!(launcher.wait().expect("waited for").success());
    }

    pub fn client(&self) -> TestClient {
        TestClient::connect(&self.socket())
    }

    pub fn create(&self, id: &str) -> Value {
        json!({
            "id": id, "layers": [self.layer], "hostname": "box",
            "memoryBytes": 64u64 << 20, "cpuMillis": 1000, "pids": 32, "diskBytes": 64u64 << 20,
        })
    }

    /// Runs a program inside and returns its output.
    pub fn run(&self, id: &str, arguments: &[&str]) -> String {
        let mut stream = UnixStream::connect(self.data.join(format!("run/s/{id}.sock"))).expect("the sandbox's socket");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        for argument in arguments {
            stream.write_all(argument.as_bytes()).and_then(|()| stream.write_all(b"\0")).expect("written");
        }
        stream.shutdown(Shutdown::Write).expect("half closed");
        let mut output = Vec::new();
        stream.read_to_end(&mut output).expect("output");
        String::from_utf8_lossy(&output).into_owned()
    }

    pub fn probe(&self, id: &str, arguments: &[&str]) -> String {
        self.run(id, &[&["/bin/probe"], arguments].concat())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut launcher) = self.launcher.take() {
            drop(launcher.stdin.take());
            let _ = launcher.wait();
        }
        remove_all(&self.data);
    }
}

fn remove_all(data: &Path) {
    if data.exists() {
        run(&["teardown", "--data", path(data)]);
        let _ = std::fs::remove_dir_all(data);
    }
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// Runs the launcher's other commands.
pub fn run(arguments: &[&str]) -> Value {
    let output = Command::new(LAUNCHER).args(arguments).output().expect("launcher");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// A blocking client of the wire protocol.
pub struct TestClient {
    socket: UnixStream,
    client: Client,
    pub events: Vec<Value>,
    closed: Vec<(u32, Result<Value, Value>)>,
}

impl TestClient {
    pub fn connect(path: &Path) -> Self {
        let socket = UnixStream::connect(path).expect("connected");
        socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
        Self { socket, client: Client::new("edge"), events: Vec::new(), closed: Vec::new() }
    }

    /// Whether somebody answers there.
    fn greeted(path: &Path) -> bool {
        let Ok(mut socket) = UnixStream::connect(path) else { return false };
        let hello = Client::new("edge").output().to_vec();
        socket.write_all(&hello).and_then(|()| socket.read(&mut [0; 64])).is_ok_and(|length| length > 0)
    }

    pub fn open(&mut self, method: &str, params: &Value) -> u32 {
        let stream = self.client.open(method, params).expect("opened");
        self.flush();
        stream
    }

    pub fn wait(&mut self, stream: u32) -> Result<Value, Value> {
        loop {
            if let Some(at) = self.closed.iter().position(|(closed, _)| *closed == stream) {
                return self.closed.swap_remove(at).1;
            }
            self.turn();
        }
    }

    pub fn call(&mut self, method: &str, params: &Value) -> Result<Value, Value> {
        let stream = self.open(method, params);
        self.wait(stream)
    }

    pub fn ok(&mut self, method: &str, params: &Value) -> Value {
        self.call(method, params).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// The code of an error that must come.
    pub fn refusal(&mut self, method: &str, params: &Value) -> Value {
        self.call(method, params).expect_err(method)
    }

    pub fn next_event(&mut self) -> Value {
        while self.events.is_empty() {
            self.turn();
        }
        self.events.remove(0)
    }

    fn turn(&mut self) {
        let mut buffer = vec![0; 1 << 16];
        let length = self.socket.read(&mut buffer).expect("an answer in time");
        assert!(length > 0, "the launcher closed the connection");
        self.client.receive(&buffer[..length]).expect("sound frames");
        while let Some(event) = self.client.next_event() {
            match event {
                Event::Closed { stream, result } => {
                    let result = result.map(|ok| serde_json::from_str(ok.get()).expect("JSON")).map_err(
                        |error| json!({ "code": error.code, "message": error.message, "details": error.details }),
                    );
                    self.closed.push((stream, result));
                }
                Event::Message { stream, value, size } => {
                    self.events.push(serde_json::from_str(value.get()).expect("JSON"));
                    self.client.consumed(stream, size);
                }
                _ => {}
            }
        }
        self.flush();
    }

    fn flush(&mut self) {
        while !self.client.output().is_empty() {
            let length = self.socket.write(self.client.output()).expect("written");
            self.client.advance_output(length);
        }
    }
}
