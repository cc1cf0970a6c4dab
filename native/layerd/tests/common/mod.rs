//! A layerd with a data directory and a blob store of its own, an image, mounts, and a client; everything is taken back at the end.

#![allow(dead_code, reason = "each test program uses its own part")]

pub mod image;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::{Value, json};
use wire::client::{Client, Event};

use image::Image;

const LAYERD: &str = env!("CARGO_BIN_EXE_layerd");
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for a condition.
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "{what} did not come in {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub struct Node {
    pub data: PathBuf,
    pub image: Image,
    arguments: Vec<String>,
    pub daemon: Option<Child>,
    mounts: u32,
    volume: bool,
    /// Instead of the directory beside the layers.
    pub blob: Option<String>,
    pub variables: Vec<(&'static str, String)>,
}

/// A small file system for the layers.
#[derive(Clone, Copy)]
pub struct Volume {
    pub kind: &'static str,
    pub bytes: u64,
}

impl Node {
    /// Makes an image of these files, with options for layerd.
    pub fn start(files: &BTreeMap<String, Vec<u8>>, arguments: &[&str]) -> Self {
        Self::start_on(None, files, arguments)
    }

    /// Makes the image only.
    pub fn prepare(files: &BTreeMap<String, Vec<u8>>, arguments: &[&str]) -> Self {
        Self::prepare_on(None, files, arguments)
    }

    /// The same, with the layers on a volume of their own.
    pub fn start_on(volume: Option<Volume>, files: &BTreeMap<String, Vec<u8>>, arguments: &[&str]) -> Self {
        let mut node = Self::prepare_on(volume, files, arguments);
        node.launch();
        node
    }

    fn prepare_on(volume: Option<Volume>, files: &BTreeMap<String, Vec<u8>>, arguments: &[&str]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let data = PathBuf::from(format!("/tmp/dsec-layerd-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&data).expect("data directory");
        if let Some(volume) = volume {
            volume.mount(&data);
        }
        let image = Image::build(&data, files);
        let arguments = arguments.iter().map(|text| (*text).to_owned()).collect();
        let volume = volume.is_some();
        Self { data, image, arguments, daemon: None, mounts: 0, volume, blob: None, variables: Vec::new() }
    }

    pub fn command(&self) -> Command {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.data.join("log")).expect("log");
        let mut command = Command::new(LAYERD);
        command.arg("serve").arg("--data").arg(&self.data);
        let beside = || format!("file://{}", self.data.join("blob").display());
        command.arg("--blob").arg(self.blob.clone().unwrap_or_else(beside));
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.args(&self.arguments).stdin(Stdio::piped()).stderr(log);
        command
    }

    pub fn launch(&mut self) {
        self.daemon = Some(self.command().spawn().expect("layerd"));
        drop(self.client());
    }

    pub fn client(&self) -> TestClient {
        let mut client = None;
        wait_for("layerd", || {
            client = TestClient::connect(&self.data.join("run/layerd.sock"));
            client.is_some()
        });
        client.expect("connected")
    }

    /// One call that may be asked again when the worker is killed.
    pub fn call(&self, method: &str, params: &Value) -> Result<Value, Value> {
        let mut answer = None;
        wait_for("an answer", || {
            answer = TestClient::connect(&self.data.join("run/layerd.sock")).and_then(|mut c| c.call(method, params));
            answer.is_some()
        });
        answer.expect("answered")
    }

    pub fn ok(&self, method: &str, params: &Value) -> Value {
        self.call(method, params).unwrap_or_else(|error| panic!("{method}: {error}\n{}", self.log()))
    }

    /// Closes the layer after its last mount: the kernel lets go of the files a moment after the mount is gone.
    pub fn close(&self) {
        wait_for("the layer to be closed", || match self.call("layer.close", &self.layer()) {
            Ok(_) => true,
            Err(error) if error["code"] == "layer_in_use" => false,
            Err(error) => panic!("layer.close: {error}\n{}", self.log()),
        });
    }

    pub fn refusal(&self, method: &str, params: &Value) -> Value {
        self.call(method, params).expect_err(method)["code"].clone()
    }

    pub fn layer(&self) -> Value {
        json!({ "layer": format!("sha256:{}", self.image.hex) })
    }

    pub fn stat(&self, name: &str) -> u64 {
        self.ok("stats", &json!({}))[name].as_u64().expect(name)
    }

    /// Opens the layer and mounts it.
    pub fn mount(&mut self) -> PathBuf {
        self.ok("layer.open", &self.layer());
        self.mounts += 1;
        let target = self.data.join(format!("mnt{}", self.mounts));
        std::fs::create_dir_all(&target).expect("mount point");
        let source = self.image.directory.join("rootfs.erofs");
        let options = format!("device={}", self.image.directory.join("data").display());
        let options = std::ffi::CString::new(options).expect("plain");
        mount(&source, &target, "erofs", MountFlags::RDONLY, Some(options.as_c_str())).expect("mounted");
        target
    }

    pub fn unmount(&self, target: &Path) {
        unmount(target, UnmountFlags::empty()).expect("unmounted");
    }

    /// Bytes that the data file has on the disk.
    pub fn allocated(&self) -> u64 {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(self.image.directory.join("data")).expect("data").blocks() * 512
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.data.join("log")).unwrap_or_default()
    }

    /// Processes that were started for this data directory.
    pub fn processes(&self) -> Vec<i32> {
        let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let wanted = self.data.to_string_lossy().into_owned();
        let is_ours = |pid: &i32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).any(|argument| argument == wanted.as_bytes())
        };
        pids.filter(is_ours).collect()
    }

    pub fn set_arguments(&mut self, arguments: &[&str]) {
        self.arguments = arguments.iter().map(|text| (*text).to_owned()).collect();
    }

    /// Makes a closed layer cold again.
    pub fn forget_data(&self) {
        for name in ["data", "filled"] {
            std::fs::remove_file(self.image.directory.join(name)).expect("removed");
        }
    }

    /// As a crash would.
    pub fn kill(&self, role: &str) -> u64 {
        let pid = self.stat(role);
        kill(pid as i32);
        pid
    }

    /// The same to the worker; waits for the next one.
    pub fn change_worker(&self) {
        let worker = self.kill("workerPid");
        wait_for("another worker", || self.stat("workerPid") != worker);
    }

    /// Unmounts, and makes the layer cold.
    pub fn chill(&self, mount: &Path) {
        self.unmount(mount);
        self.close();
        self.forget_data();
    }

    /// Reads every file.
    pub fn assert_same(&self, mount: &Path) {
        for (name, bytes) in &self.image.files {
            let read =
                std::fs::read(mount.join(name)).unwrap_or_else(|error| panic!("{name}: {error}\n{}", self.log()));
            assert!(read == *bytes, "{name} differs");
        }
    }

    /// Closes standard input and waits.
    pub fn stop(&mut self) {
        let mut daemon = self.daemon.take().expect("a daemon");
        drop(daemon.stdin.take());
        let status = daemon.wait().expect("waited for");
        assert!(status.success(), "{status}: {}", self.log());
    }
}

pub fn kill(pid: i32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
        for n in 1..=self.mounts {
            let _ = unmount(self.data.join(format!("mnt{n}")), UnmountFlags::DETACH);
        }
        while let pids @ [_, ..] = self.processes().as_slice() {
            pids.iter().copied().for_each(kill);
            if let Some(daemon) = &mut self.daemon {
                let _ = daemon.wait();
            }
        }
        if self.volume {
            let _ = unmount(self.data.join("layers"), UnmountFlags::DETACH);
        }
        let _ = std::fs::remove_dir_all(&self.data);
    }
}

impl Volume {
    fn mount(self, data: &Path) {
        let (file, target) = (data.join("volume"), data.join("layers"));
        std::fs::create_dir_all(&target).expect("layers");
        std::fs::File::create(&file).and_then(|made| made.set_len(self.bytes)).expect("a file");
        let run = |program: &str, arguments: &[&std::ffi::OsStr]| {
            let done = Command::new(program).args(arguments).output().expect(program);
            assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
        };
        let quiet = if self.kind == "btrfs" { ["-q", "-f"].as_slice() } else { ["-q", "-m0"].as_slice() };
        let mut arguments: Vec<&std::ffi::OsStr> = quiet.iter().map(AsRef::as_ref).collect();
        arguments.push(file.as_ref());
        run(&format!("mkfs.{}", self.kind), &arguments);
        run("mount", &["-o".as_ref(), "loop".as_ref(), file.as_ref(), target.as_ref()]);
    }
}

/// A blocking client of the wire protocol.
pub struct TestClient {
    socket: UnixStream,
    client: Client,
}

impl TestClient {
    /// Nothing when nobody answers.
    pub fn connect(path: &Path) -> Option<Self> {
        let socket = UnixStream::connect(path).ok()?;
        socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
        let mut client = Self { socket, client: Client::new("edge") };
        client.call("stats", &json!({}))?.ok()?;
        Some(client)
    }

    /// Nothing when the connection ends first.
    pub fn call(&mut self, method: &str, params: &Value) -> Option<Result<Value, Value>> {
        let stream = self.client.open(method, params)?;
        let mut buffer = vec![0; 1 << 16];
        loop {
            while !self.client.output().is_empty() {
                let length = self.socket.write(self.client.output()).ok()?;
                self.client.advance_output(length);
            }
            let length = self.socket.read(&mut buffer).ok().filter(|length| *length > 0)?;
            self.client.receive(&buffer[..length]).expect("sound frames");
            while let Some(event) = self.client.next_event() {
                if let Event::Closed { stream: closed, result } = event
                    && closed == stream
                {
                    let result = result.map(|ok| serde_json::from_str(ok.get()).expect("JSON"));
                    return Some(result.map_err(
                        |error| json!({ "code": error.code, "message": error.message, "details": error.details }),
                    ));
                }
            }
        }
    }
}
