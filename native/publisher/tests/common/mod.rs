//! A publisher with a data directory of its own, things to hand over, and a client; everything is taken back at the end.

#![allow(dead_code, reason = "each test program uses its own part")]

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use layer_form::chunk_map::CHUNK_BYTES;
use layer_form::digest::Digest;
use layer_form::{layer_name, set_name};
use serde_json::{Value, json};
use wire::client::{Client, Event};

const PUBLISHER: &str = env!("CARGO_BIN_EXE_publisher");
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for a condition.
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "{what} did not come in {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Bytes from a seed that no block of zeros is in.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

pub struct Node {
    pub data: PathBuf,
    arguments: Vec<String>,
    daemon: Option<Child>,
}

impl Node {
    pub fn start(arguments: &[&str]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let data = PathBuf::from(format!("/tmp/dsec-publisher-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&data).expect("data directory");
        // Others are to find the socket.
        std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o755)).expect("open");
        let arguments = arguments.iter().map(|text| (*text).to_owned()).collect();
        let mut node = Self { data, arguments, daemon: None };
        node.launch();
        node
    }

    pub fn launch(&mut self) {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.data.join("log")).expect("log");
        let mut command = Command::new(PUBLISHER);
        command.arg("serve").arg("--data").arg(&self.data).args(&self.arguments).stdin(Stdio::piped()).stderr(log);
        self.daemon = Some(command.spawn().expect("publisher"));
        wait_for("the publisher", || UnixStream::connect(self.socket()).is_ok());
    }

    pub fn socket(&self) -> PathBuf {
        self.data.join("run/publisher.sock")
    }

    /// As a crash would.
    pub fn kill(&mut self) {
        let mut daemon = self.daemon.take().expect("a daemon");
        daemon.kill().expect("killed");
        daemon.wait().expect("waited for");
    }

    /// Closes standard input and waits.
    pub fn stop(&mut self) {
        let mut daemon = self.daemon.take().expect("a daemon");
        drop(daemon.stdin.take());
        assert!(daemon.wait().expect("waited for").success(), "{}", self.log());
    }

    pub fn call(&self, method: &str, params: &Value) -> Result<Value, Value> {
        call(&self.socket(), method, params).expect("an answer")
    }

    pub fn ok(&self, method: &str, params: &Value) {
        let answer = self.call(method, params).unwrap_or_else(|error| panic!("{method}: {error}\n{}", self.log()));
        assert_eq!(answer, json!({}));
    }

    pub fn code(&self, method: &str, params: &Value) -> Value {
        self.call(method, params).expect_err(method)["code"].clone()
    }

    pub fn layer(&self, hex: &str) -> PathBuf {
        self.data.join("layers").join(hex)
    }

    pub fn set(&self, hex: &str) -> PathBuf {
        self.data.join("sets").join(hex)
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.data.join("log")).unwrap_or_default()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
        if self.daemon.is_some() {
            self.kill();
        }
        let _ = std::fs::remove_dir_all(&self.data);
    }
}

/// Files that are handed over.
pub struct Handed {
    pub hex: String,
    pub directory: PathBuf,
    pub files: Vec<(&'static str, Vec<u8>)>,
}

impl Handed {
    /// Writes them, in the place of what was there.
    pub fn write(&self) {
        let _ = std::fs::remove_dir_all(&self.directory);
        std::fs::create_dir_all(&self.directory).expect("directory");
        for (name, bytes) in &self.files {
            std::fs::write(self.directory.join(name), bytes).expect("file");
        }
    }

    pub fn file(&self, name: &str) -> &[u8] {
        &self.files.iter().find(|(known, _)| *known == name).expect("a file").1
    }

    pub fn assert_published(&self, at: &Path) {
        for (name, bytes) in &self.files {
            assert!(std::fs::read(at.join(name)).expect(name) == *bytes, "{name} differs");
        }
    }

    pub fn packed(&self) -> Value {
        json!({ "layer": format!("sha256:{}", self.hex), "form": "packed" })
    }

    pub fn fetched(&self) -> Value {
        json!({ "layer": format!("sha256:{}", self.hex), "form": "fetched" })
    }

    pub fn set(&self) -> Value {
        json!({ "set": format!("sha256:{}", self.hex) })
    }
}

pub fn chunks_digest(data: &[u8]) -> Digest {
    let digests: Vec<u8> = data
        .chunks(CHUNK_BYTES as usize)
        .flat_map(|chunk| if chunk.iter().all(|byte| *byte == 0) { [0; 32] } else { Digest::of(chunk).0 })
        .collect();
    Digest::of(&digests)
}

fn layer_record(metadata: &[u8], data_bytes: u64, chunks: &Digest) -> (String, Vec<u8>) {
    let digest = layer_name(&Digest::of(metadata), chunks);
    let record = json!({
        "version": 2,
        "digest": digest.to_string(),
        "sizeBytes": metadata.len() as u64 + data_bytes,
        "metadata": { "digest": Digest::of(metadata).to_string(), "sizeBytes": metadata.len() },
        "data": { "digest": chunks.to_string(), "sizeBytes": data_bytes },
        "createdAtMs": 1,
        "architecture": "amd64",
        "source": { "kind": "changes", "name": "test" },
        "config": { "env": {}, "user": "", "workdir": "", "entrypoint": [], "cmd": [], "labels": {} },
    });
    (digest.hex(), record.to_string().into_bytes())
}

/// What the packer hands over.
pub fn packed(node: &Node, metadata: &[u8], data: &[u8]) -> Handed {
    let (hex, record) = layer_record(metadata, data.len() as u64, &chunks_digest(data));
    let mut files = vec![("layer.json", record), ("rootfs.erofs", metadata.to_vec())];
    if !data.is_empty() {
        files.push(("data", data.to_vec()));
    }
    let handed = Handed { directory: node.data.join("state/packer/layers").join(&hex), hex, files };
    handed.write();
    handed
}

/// What the edge hands over of a layer with these data: a map of chunks that lie in one pack as they are.
pub fn fetched(node: &Node, metadata: &[u8], data: &[u8]) -> Handed {
    let mut map = b"DSECCHNK".to_vec();
    map.extend(1_u32.to_le_bytes());
    map.extend((CHUNK_BYTES as u32).to_le_bytes());
    map.extend((data.len() as u64).to_le_bytes());
    map.extend((data.len().div_ceil(CHUNK_BYTES as usize) as u32).to_le_bytes());
    map.extend(1_u32.to_le_bytes());
    map.extend([7; 32]);
    for (n, chunk) in data.chunks(CHUNK_BYTES as usize).enumerate() {
        map.extend(Digest::of(chunk).0);
        map.extend(0_u32.to_le_bytes());
        map.extend((n as u64 * CHUNK_BYTES).to_le_bytes());
        map.extend((chunk.len() as u32).to_le_bytes());
    }
    let (hex, record) = layer_record(metadata, data.len() as u64, &chunks_digest(data));
    let files = vec![("layer.json", record), ("rootfs.erofs", metadata.to_vec()), ("chunks", map)];
    let handed = Handed { directory: node.data.join("state/edge/layers").join(&hex), hex, files };
    handed.write();
    handed
}

/// What the edge hands over of a set of these layers.
pub fn set(node: &Node, layers: &[Digest], image: &[u8]) -> Handed {
    let digest = set_name(layers);
    let record = json!({
        "version": 1,
        "digest": digest.to_string(),
        "layers": layers.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "metadata": { "digest": Digest::of(image).to_string(), "sizeBytes": image.len() },
    });
    let files = vec![("set.json", record.to_string().into_bytes()), ("rootfs.erofs", image.to_vec())];
    let handed = Handed { directory: node.data.join("state/edge/sets").join(digest.hex()), hex: digest.hex(), files };
    handed.write();
    handed
}

pub fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).expect("listed");
    let mut names: Vec<_> =
        entries.map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// One call on a connection of its own. Nothing when the connection ends first.
pub fn call(socket: &Path, method: &str, params: &Value) -> Option<Result<Value, Value>> {
    let mut socket = UnixStream::connect(socket).ok()?;
    socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
    let mut client = Client::new("test");
    let stream = client.open(method, params)?;
    let mut buffer = vec![0; 1 << 16];
    loop {
        while !client.output().is_empty() {
            let length = socket.write(client.output()).ok()?;
            client.advance_output(length);
        }
        let length = socket.read(&mut buffer).ok().filter(|length| *length > 0)?;
        client.receive(&buffer[..length]).expect("sound frames");
        while let Some(event) = client.next_event() {
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
