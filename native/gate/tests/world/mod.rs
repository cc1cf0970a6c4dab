//! A sandbox, a host with the gate, a router with a narrow link, and the internet: each a network namespace of its own, joined by veths, with the rule of nft that
//! brings the sandbox's TCP to the gate. All of it is gone at the end.

#![allow(dead_code, reason = "each test program uses its own part")]

pub mod feeder;
pub mod gate;
pub mod network;
pub mod upstream;

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use self::feeder::Feeder;
use self::gate::Gate;
use self::network::{Network, SANDBOX_V4, SANDBOX_V6};

const PATIENCE: Duration = Duration::from_secs(30);

/// Tests of one program run one after another: they measure, and they count what there is.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

pub struct World {
    pub gate: Gate,
    pub network: Network,
    pub feeder: Feeder,
    pub directory: Directory,
    generation: u64,
    _turn: MutexGuard<'static, ()>,
}

/// A directory that is gone with its owner.
pub struct Directory(PathBuf);

impl Directory {
    fn begin() -> Self {
        let path = PathBuf::from(format!("/tmp/dsec-gate-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("directory");
        Self(path)
    }
}

impl std::ops::Deref for Directory {
    type Target = PathBuf;

    fn deref(&self) -> &PathBuf {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Waits for a condition.
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "{what} did not come in {PATIENCE:?}");
        std::thread::yield_now();
    }
}

impl World {
    /// `None`, with the reason printed, where this cannot be tried.
    pub fn begin() -> Option<Self> {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lack) = lack() {
            assert!(std::env::var_os("DSEC_REQUIRE").is_none(), "{lack}");
            println!("skipped: {lack}");
            return None;
        }
        let directory = Directory::begin();
        let network = Network::begin();
        let gate = Gate::begin(&network, &directory.join("gate.sock"));
        let feeder = Feeder::connect(&gate.socket);
        Some(Self { network, gate, feeder, directory, generation: 0, _turn: turn })
    }

    /// Puts these in force: names (all TCP ports of the pair), and pins of names and addresses for a minute.
    pub fn allow(&mut self, names: &[(&str, u16, u16)], pins: &[(&str, &str)]) -> Value {
        let names =
            names.iter().map(|(name, low, high)| json!({ "pattern": name, "ports": [["tcp", low, high, true]] }));
        self.set(&names.collect::<Vec<_>>(), pins)
    }

    pub fn set(&mut self, names: &[Value], pins: &[(&str, &str)]) -> Value {
        self.generation += 1;
        let pins = pins.iter().map(|(name, address)| json!({ "name": name, "address": address, "ttlMs": 60_000 }));
        let params = json!({
            "id": "a1",
            "address4": SANDBOX_V4,
            "address6": SANDBOX_V6,
            "generation": self.generation,
            "names": names,
            "pins": pins.collect::<Vec<_>>(),
        });
        self.feeder.ok("policy.set", &params)
    }

    pub fn generation(&self) -> u64 {
        self.generation
    }

    pub fn counts(&mut self) -> Value {
        self.feeder.ok("flows", &json!({ "id": "a1" }))
    }

    /// Waits until the sandbox has so many connections.
    pub fn wait_open(&mut self, count: u64) {
        let feeder = &mut self.feeder;
        wait_for("the connections", || feeder.ok("flows", &json!({ "id": "a1" }))["open"].as_u64() == Some(count));
    }

    /// Connects from the sandbox.
    pub fn dial(&self, to: &str) -> TcpStream {
        let to: SocketAddr = to.parse().expect(to);
        let stream = self.network.inside("sandbox", || TcpStream::connect_timeout(&to, PATIENCE)).expect("connected");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        stream
    }

    /// Connects from this address.
    pub fn dial_from(&self, from: &str, to: &str) -> std::io::Result<TcpStream> {
        let (from, to): (SocketAddr, SocketAddr) = (format!("{from}:0").parse().expect(from), to.parse().expect(to));
        let kind = rustix::net::SocketType::STREAM;
        let stream = self.network.inside("sandbox", || {
            let socket = rustix::net::socket(rustix::net::AddressFamily::INET, kind, None)?;
            rustix::net::bind(&socket, &from)?;
            rustix::net::connect(&socket, &to)?;
            Ok::<_, std::io::Error>(TcpStream::from(socket))
        })?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(stream)
    }

    /// Connects from the sandbox, and says whether that was reset before anything was said.
    pub fn is_refused(&self, to: &str) -> bool {
        let address: SocketAddr = to.parse().expect(to);
        match self.network.inside("sandbox", || TcpStream::connect_timeout(&address, PATIENCE)) {
            Ok(mut stream) => {
                stream.set_read_timeout(Some(PATIENCE)).expect("set");
                is_reset(&mut stream)
            }
            // It may come as early as that.
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }

    /// Runs a program in the sandbox.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&*self.directory);
        self.network.inside("sandbox", || command.output()).expect(program)
    }

    pub fn path(&self, name: &str) -> String {
        self.directory.join(name).to_str().expect("UTF-8").to_owned()
    }

    /// A certificate for the names of the tests, and its key.
    pub fn certificate(&self) -> (String, String) {
        let (certificate, key) = (self.path("cert.pem"), self.path("key.pem"));
        if std::path::Path::new(&certificate).exists() {
            return (certificate, key);
        }
        let names = "subjectAltName=DNS:a.test,DNS:*.a.test,DNS:b.test,DNS:big.test";
        let output = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"])
            .args(["-subj", "/CN=a.test", "-addext", names, "-out", &certificate, "-keyout", &key])
            .output()
            .expect("openssl");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (certificate, key)
    }

    /// Nothing is held any more once the sandbox's ends are closed.
    pub fn end(mut self) {
        self.wait_open(0);
        let counts = self.counts();
        assert_eq!((counts["undecided"].as_u64(), counts["heldBytes"].as_u64()), (Some(0), Some(0)), "{counts}");
        let info = self.feeder.ok("gate.info", &json!({}));
        assert_eq!((info["open"].as_u64(), info["heldBytes"].as_u64()), (Some(0), Some(0)), "{info}");
        assert_eq!(self.gate.files(), self.gate.files_at_first, "files of connections that are over");
        let names = self.network.names();
        let directory = self.directory.to_path_buf();
        drop(self);
        assert!(
            names.iter().all(|name| !std::path::Path::new("/run/netns").join(name).exists()),
            "namespaces are left"
        );
        assert!(!directory.exists(), "files are left");
    }
}

/// Why it cannot be tried here.
fn lack() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root, for network namespaces".to_owned());
    }
    let has = |program: &str| Command::new(program).arg("--version").output().is_ok();
    ["nft", "openssl", "curl"]
        .iter()
        .find(|program| !has(program))
        .map(|program| format!("needs the program {program}"))
}

/// Whether the other end has reset the connection, and not merely closed it.
pub fn is_reset(stream: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
            true
        }
    }
}
