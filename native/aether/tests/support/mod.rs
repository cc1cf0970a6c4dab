//! The real program as PID 1 of fresh pid and mount namespaces, and a blocking client of it.
#![allow(dead_code)] // Each test program uses a part of it.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wire::client::{Client, Event};

/// How long anything may take.
pub const PATIENCE: Duration = Duration::from_secs(20);

static NUMBER: AtomicU32 = AtomicU32::new(0);

pub fn unique(prefix: &str) -> String {
    format!("{prefix}-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// Waits until `is_so` says something, without guessing how long that takes.
pub fn wait_for<T>(what: &str, mut is_so: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = is_so() {
            return value;
        }
        assert!(Instant::now() < end, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A sandbox: aether and a directory of its own. Everything ends with it.
pub struct Sandbox {
    child: Child,
    /// The same path inside and outside, world-writable as /tmp is.
    pub dir: PathBuf,
    socket: PathBuf,
}

const SETUP: &str = "mount -t proc proc /proc && mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts /dev/pts";

impl Sandbox {
    pub fn start() -> Self {
        Self::start_after("true")
    }

    /// `setup` is shell that runs in the new namespaces before aether.
    pub fn start_after(setup: &str) -> Self {
        Self::start_with(setup, None)
    }

    /// `oom` is the file that the launcher passes as descriptor 4.
    pub fn start_with(setup: &str, oom: Option<&std::fs::File>) -> Self {
        let dir = std::env::temp_dir().join(unique("aether"));
        std::fs::create_dir(&dir).expect("own directory");
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).expect("mode");
        let socket = dir.join("aether.sock");
        let listener = UnixListener::bind(&socket).expect("listener");
        let (number, oom) = (listener.as_raw_fd(), oom.map(AsRawFd::as_raw_fd));
        let script = format!("{SETUP} && {setup} && exec {} 5<>/proc/self/oom_score_adj", env!("CARGO_BIN_EXE_aether"));
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount", "--kill-child", "--propagation", "private", "sh", "-c", &script]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
        // SAFETY: dup2 and fcntl are async-signal-safe.
        unsafe {
            command.pre_exec(move || {
                // First out of each other's way.
                let listener = libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 100);
                let oom = oom.map(|oom| libc::fcntl(oom, libc::F_DUPFD_CLOEXEC, 100));
                libc::dup2(listener, 3);
                if let Some(oom) = oom {
                    libc::dup2(oom, 4);
                }
                Ok(())
            });
        }
        let child = command.spawn().expect("unshare");
        Self { child, dir, socket }
    }

    /// aether's pid as seen from here.
    pub fn pid(&self) -> i32 {
        let unshare = self.child.id();
        wait_for("aether runs", || {
            let children = std::fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children")).ok()?;
            let pid: i32 = children.split_whitespace().next()?.parse().ok()?;
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
            (name.trim() == "aether").then_some(pid)
        })
    }

    pub fn connect(&self) -> Conn {
        Conn::new(&self.socket)
    }

    pub fn path(&self, name: &str) -> String {
        self.dir.join(name).to_str().expect("UTF-8").to_owned()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // aether first: it has changed ids, and that undoes `--kill-child`.
        let unshare = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children")).unwrap_or_default();
        for pid in children.split_whitespace().filter_map(|pid| pid.parse().ok()) {
            // SAFETY: plain call; the process was not waited for by its parent, which is still there.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// What came of a stream.
#[derive(Debug, Default)]
pub struct Heard {
    pub data: BTreeMap<u8, Vec<u8>>,
    pub messages: Vec<Value>,
    pub ended: bool,
    pub closed: Option<Result<Value, (String, Value)>>,
    /// Received and not granted: set aside while `hold` is on.
    held: usize,
}

impl Heard {
    pub fn bytes(&self, channel: u8) -> &[u8] {
        self.data.get(&channel).map_or(&[], Vec::as_slice)
    }

    pub fn text(&self, channel: u8) -> String {
        String::from_utf8_lossy(self.bytes(channel)).into_owned()
    }

    pub fn stdout(&self) -> String {
        self.text(1)
    }

    pub fn stderr(&self) -> String {
        self.text(2)
    }

    pub fn ok(&self) -> &Value {
        match &self.closed {
            Some(Ok(value)) => value,
            other => panic!("expected a result, got {other:?}; messages {:?}", self.messages),
        }
    }

    pub fn code(&self) -> &str {
        match &self.closed {
            Some(Err((code, _))) => code,
            other => panic!("expected an error, got {other:?}"),
        }
    }

    pub fn exit_code(&self) -> i64 {
        self.ok()["exitCode"].as_i64().unwrap_or_else(|| panic!("no exit code in {:?}", self.closed))
    }
}

pub struct Conn {
    socket: UnixStream,
    client: Client,
    pub streams: BTreeMap<u32, Heard>,
    /// Bytes are kept and no credit is given back.
    pub hold: bool,
    /// Bytes are counted and thrown away.
    pub discard: bool,
    pub discarded: u64,
}

impl Conn {
    fn new(path: &Path) -> Self {
        let socket = wait_for("the socket accepts", || UnixStream::connect(path).ok());
        let mut conn = Self {
            socket,
            client: Client::new("edge"),
            streams: BTreeMap::new(),
            hold: false,
            discard: false,
            discarded: 0,
        };
        conn.flush();
        conn
    }

    pub fn flush(&mut self) {
        while !self.client.output().is_empty() {
            let n = self.socket.write(self.client.output()).expect("write");
            self.client.advance_output(n);
        }
    }

    pub fn open(&mut self, method: &str, params: Value) -> u32 {
        let stream = self.client.open(method, &params).expect("params fit");
        self.streams.insert(stream, Heard::default());
        self.flush();
        stream
    }

    /// Reads once, at most until `deadline`; false when nothing came.
    pub fn pump(&mut self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        self.socket.set_read_timeout(Some(left)).expect("timeout");
        let mut buffer = vec![0; 256 << 10];
        match self.socket.read(&mut buffer) {
            Ok(0) => panic!("aether closed the connection"),
            Ok(n) => self.client.receive(&buffer[..n]).expect("protocol"),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return false,
            Err(error) => panic!("read: {error}"),
        }
        while let Some(event) = self.client.next_event() {
            self.take(event);
        }
        self.flush();
        true
    }

    fn take(&mut self, event: Event) {
        let (hold, discard) = (self.hold, self.discard);
        match event {
            Event::Data { stream, channel, bytes } => {
                let heard = self.streams.entry(stream).or_default();
                let n = bytes.len();
                if discard {
                    self.discarded += n as u64;
                } else {
                    heard.data.entry(channel).or_default().extend(bytes);
                }
                if hold {
                    heard.held += n;
                } else {
                    self.client.consumed(stream, n);
                }
            }
            Event::Message { stream, value, size } => {
                let heard = self.streams.entry(stream).or_default();
                heard.messages.push(serde_json::from_str(value.get()).expect("JSON"));
                if hold {
                    heard.held += size;
                } else {
                    self.client.consumed(stream, size);
                }
            }
            Event::End { stream } => self.streams.entry(stream).or_default().ended = true,
            Event::Closed { stream, result } => {
                let result = match result {
                    Ok(value) => Ok(serde_json::from_str(value.get()).expect("JSON")),
                    Err(error) => Err((error.code, Value::Object(error.details))),
                };
                self.streams.entry(stream).or_default().closed = Some(result);
            }
            Event::Writable { .. } => {}
        }
    }

    /// Gives back all that was held.
    pub fn release(&mut self) {
        self.hold = false;
        for (&stream, heard) in &mut self.streams {
            self.client.consumed(stream, std::mem::take(&mut heard.held));
        }
        self.flush();
    }

    pub fn until(&mut self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is_so(self) {
            assert!(Instant::now() < end, "timed out: {what}");
            self.pump(end);
        }
    }

    pub fn wait(&mut self, stream: u32) -> &Heard {
        self.wait_up_to(stream, PATIENCE)
    }

    pub fn wait_up_to(&mut self, stream: u32, patience: Duration) -> &Heard {
        let end = Instant::now() + patience;
        while self.streams[&stream].closed.is_none() {
            assert!(Instant::now() < end, "stream {stream} is not closed; {:?}", self.streams[&stream].messages);
            self.pump(end);
        }
        &self.streams[&stream]
    }

    pub fn call(&mut self, method: &str, params: Value) -> Result<Value, (String, Value)> {
        let stream = self.open(method, params);
        self.wait(stream);
        self.streams.remove(&stream).and_then(|heard| heard.closed).expect("closed")
    }

    /// The result, or a panic that shows the error.
    pub fn ok(&mut self, method: &str, params: Value) -> Value {
        self.call(method, params.clone()).unwrap_or_else(|error| panic!("{method} {params}: {error:?}"))
    }

    pub fn code(&mut self, method: &str, params: Value) -> String {
        match self.call(method, params.clone()) {
            Err((code, _)) => code,
            Ok(value) => panic!("{method} {params} gave {value}"),
        }
    }

    /// Sends bytes as the credit allows.
    pub fn send(&mut self, stream: u32, mut bytes: &[u8]) {
        let end = Instant::now() + PATIENCE;
        while !bytes.is_empty() {
            if self.streams[&stream].closed.is_some() {
                return;
            }
            let sent = self.client.send_data(stream, 0, bytes);
            bytes = &bytes[sent..];
            self.flush();
            if sent == 0 {
                assert!(Instant::now() < end, "no credit");
                self.pump(end);
            }
        }
    }

    pub fn end(&mut self, stream: u32) {
        self.client.send_end(stream);
        self.flush();
    }

    pub fn reset(&mut self, stream: u32) {
        self.client.reset(stream);
        self.flush();
    }

    /// Opens `exec.start` with a fresh id and these params besides.
    pub fn start(&mut self, params: Value) -> (u32, String) {
        let id = unique("exec");
        let mut all = json!({ "execId": id, "stdin": "none", "env": {} });
        for (key, value) in params.as_object().expect("object") {
            all[key] = value.clone();
        }
        let id = all["execId"].as_str().expect("id").to_owned();
        (self.open("exec.start", all), id)
    }

    pub fn exec(&mut self, params: Value) -> Heard {
        let (stream, _) = self.start(params);
        self.wait(stream);
        self.streams.remove(&stream).expect("stream")
    }

    pub fn run(&mut self, script: &str) -> Heard {
        self.exec(json!({ "shell": { "script": script } }))
    }

    pub fn write_file(&mut self, params: Value, bytes: &[u8]) -> Result<Value, (String, Value)> {
        let stream = self.open("file.write", params);
        self.send(stream, bytes);
        self.end(stream);
        self.wait(stream);
        self.streams.remove(&stream).and_then(|heard| heard.closed).expect("closed")
    }

    pub fn read_file(&mut self, params: Value) -> Heard {
        let stream = self.open("file.read", params);
        self.wait(stream);
        self.streams.remove(&stream).expect("stream")
    }

    /// Command lines of all processes in the sandbox.
    pub fn commands(&mut self) -> Vec<String> {
        let listed = self.ok("processes", json!({}));
        let processes = listed["processes"].as_array().expect("array");
        processes.iter().map(|process| process["command"].as_str().expect("string").to_owned()).collect()
    }

    /// A process with exactly this command line is there.
    pub fn runs(&mut self, command: &str) -> bool {
        self.commands().iter().any(|other| other == command)
    }

    pub fn has_command(&mut self, part: &str) -> bool {
        self.commands().iter().any(|command| command.contains(part))
    }
}
