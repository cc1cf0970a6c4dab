//! A host of its own for an egressd: a network namespace, with another one for the world and one for each sandbox. Everything is taken back at the end, and
//! looked for.

#![allow(dead_code, reason = "each test program uses its own part")]

pub mod acts;
pub mod attached;
pub mod client;
pub mod gate;
pub mod model;
pub mod packet;
pub mod ping;
pub mod servers;

use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use client::TestClient;
use egress::sys::process::enter_network;
use serde_json::{Value, json};

const EGRESSD: &str = env!("CARGO_BIN_EXE_egressd");
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Addresses of the world, which the host reaches.
pub const WORLD4: &str = "198.51.100.2";
pub const FAR4: &str = "203.0.113.7";
pub const OTHER4: &str = "203.0.113.8";
pub const PRIVATE4: &str = "10.1.2.3";
pub const METADATA4: &str = "169.254.169.254";
pub const FAR6: &str = "2001:db8:2::7";
pub const PRIVATE6: &str = "fd12:3456::7";
pub const METADATA6: &str = "fd00:ec2::254";
/// Addresses of the host itself.
pub const HOST4: &str = "198.51.100.1";
pub const HOST6: &str = "2001:db8:1::1";

/// Waits for a condition.
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "{what} did not come in {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub fn run(program: &str, arguments: &[&str]) -> String {
    let done = Command::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{program} {}: {said}", arguments.join(" "));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// A network namespace with a name.
pub struct Namespace {
    pub name: String,
    is_ours: bool,
}

impl Namespace {
    fn new(name: String) -> Self {
        run("ip", &["netns", "add", &name]);
        run("ip", &["-n", &name, "link", "set", "lo", "up"]);
        Self { name, is_ours: true }
    }

    pub fn path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.name)
    }

    pub fn ip(&self, arguments: &str) -> String {
        let all: Vec<&str> = ["-n", &self.name].into_iter().chain(arguments.split_whitespace()).collect();
        run("ip", &all)
    }

    /// Does something in it. Sockets that are made there stay there.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let file = std::fs::File::open(self.path()).expect("a namespace");
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                enter_network(file.as_fd()).expect("entered");
                work()
            });
            thread.join().expect("done")
        })
    }

    /// A command in it.
    pub fn command(&self, program: &str) -> Command {
        use std::os::unix::process::CommandExt;
        let file = std::fs::File::open(self.path()).expect("a namespace");
        let mut command = Command::new(program);
        // SAFETY: one system call between fork and exec.
        unsafe {
            command.pre_exec(move || enter_network(file.as_fd()).map_err(std::io::Error::from));
        }
        command
    }

    /// Whether something answers there.
    pub fn connect(&self, address: &str, port: u16) -> std::io::Result<TcpStream> {
        let address = SocketAddr::new(address.parse().expect("an address"), port);
        self.within(|| {
            let stream = TcpStream::connect_timeout(&address, Duration::from_millis(1_500))?;
            stream.set_read_timeout(Some(Duration::from_millis(1_500)))?;
            stream.set_nodelay(true)?;
            Ok(stream)
        })
    }

    pub fn reaches(&self, address: &str, port: u16) -> bool {
        self.connect(address, port).is_ok()
    }

    /// A UDP socket that talks to one address.
    pub fn udp(&self, address: &str, port: u16) -> UdpSocket {
        let to: IpAddr = address.parse().expect("an address");
        self.within(|| {
            let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let socket = UdpSocket::bind(any).expect("bound");
            socket.set_read_timeout(Some(Duration::from_millis(300))).expect("timeout");
            socket.connect(SocketAddr::new(to, port)).expect("connected");
            socket
        })
    }

    /// Whether a UDP server there answers, asked a few times: neighbours may have to be found first.
    pub fn reaches_udp(&self, address: &str, port: u16) -> bool {
        let socket = self.udp(address, port);
        (0..3).any(|_| echoes(&socket))
    }

    pub fn pings(&self, address: &str) -> bool {
        let to: IpAddr = address.parse().expect("an address");
        self.within(|| ping::answers(to).expect("a raw socket"))
    }
}

pub fn echoes(socket: &UdpSocket) -> bool {
    let mut buffer = [0; 64];
    socket.send(b"hello").is_ok() && socket.recv(&mut buffer).is_ok_and(|length| &buffer[..length] == b"hello")
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if self.is_ours {
            let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
        }
    }
}

/// A process in a network of its own, with a record as the launcher writes it.
pub struct Sandbox {
    pub id: String,
    pub namespace: Namespace,
    /// The process of its record.
    pub pid: u32,
    process: Child,
    record: PathBuf,
}

impl Sandbox {
    /// Ends it, as a destroy does.
    pub fn destroy(self) {}
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_file(&self.record);
    }
}

pub struct Host {
    pub namespace: Namespace,
    pub world: Namespace,
    pub data: PathBuf,
    arguments: Vec<String>,
    daemon: Option<Child>,
    prefix: String,
    sandboxes: AtomicU32,
    is_finished: bool,
}

/// Must be said by every test first: what is missing is told.
pub fn is_possible() -> bool {
    let missing = if rustix::process::getuid().is_root() { missing_program() } else { Some("root".to_owned()) };
    let Some(missing) = missing else { return true };
    let required = std::env::var("DSEC_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|name| name == "root" || name == "egress"), "{missing} is missing");
    eprintln!("skipped: {missing} is missing");
    false
}

fn missing_program() -> Option<String> {
    let is_there = |program: &&str| {
        ["/usr/sbin", "/usr/bin", "/sbin", "/bin"]
            .iter()
            .any(|directory| PathBuf::from(directory).join(program).exists())
    };
    ["ip", "nft", "sleep"].iter().find(|program| !is_there(program)).map(|program| (*program).to_owned())
}

impl Host {
    pub fn start(arguments: &[&str]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let prefix = format!("dsect{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let data = PathBuf::from(format!("/tmp/{prefix}"));
        std::fs::create_dir_all(data.join("run/launcher")).expect("data directory");
        let namespace = Namespace::new(format!("{prefix}-h"));
        let world = Namespace::new(format!("{prefix}-w"));
        namespace.ip(&format!("link add up0 type veth peer name down0 netns {}", world.name));
        for (of, device, four, six) in [(&namespace, "up0", HOST4, HOST6), (&world, "down0", WORLD4, "2001:db8:1::2")] {
            of.ip(&format!("addr add {four}/24 dev {device}"));
            of.ip(&format!("addr add {six}/64 dev {device} nodad"));
            of.ip(&format!("link set {device} up"));
        }
        for address in [FAR4, OTHER4, PRIVATE4, METADATA4, FAR6, PRIVATE6, METADATA6] {
            let (bits, via) = if address.contains(':') { (128, "2001:db8:1::2") } else { (32, WORLD4) };
            let scope = if bits == 128 { "nodad" } else { "" };
            world.ip(&format!("addr add {address}/{bits} dev lo {scope}"));
            namespace.ip(&format!("route add {address}/{bits} via {via}"));
        }
        let arguments = arguments.iter().map(|text| (*text).to_owned()).collect();
        let sandboxes = AtomicU32::new(0);
        let mut host = Self { namespace, world, data, arguments, daemon: None, prefix, sandboxes, is_finished: false };
        host.launch();
        host
    }

    /// Another server on the same host.
    pub fn beside(&self, arguments: &[&str]) -> Self {
        let data = PathBuf::from(format!("{}-b", self.data.display()));
        std::fs::create_dir_all(data.join("run/launcher")).expect("data directory");
        let mut other = Self {
            namespace: Namespace { name: self.namespace.name.clone(), is_ours: false },
            world: Namespace { name: self.world.name.clone(), is_ours: false },
            data,
            arguments: arguments.iter().map(|text| (*text).to_owned()).collect(),
            daemon: None,
            prefix: format!("{}b", self.prefix),
            sandboxes: AtomicU32::new(0),
            is_finished: false,
        };
        other.launch();
        other
    }

    /// Takes back what a server beside another has.
    pub fn finish_beside(mut self) {
        self.stop();
        assert!(self.command("clear").status().expect("egressd clear").success(), "{}", self.log());
        let nft = self.namespace.command("nft").args(["list", "tables"]).output().expect("nft");
        assert_eq!(String::from_utf8_lossy(&nft.stdout).lines().count(), 1, "the other's table alone");
        self.is_finished = true;
    }

    pub fn command(&self, name: &str) -> Command {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.data.join("log")).expect("log");
        let mut command = self.namespace.command(EGRESSD);
        command.arg(name).arg("--data").arg(&self.data).stdin(Stdio::piped()).stderr(log);
        command
    }

    pub fn launch(&mut self) {
        let mut command = self.command("serve");
        self.daemon = Some(command.args(&self.arguments).spawn().expect("egressd"));
        drop(self.client());
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
        let status = daemon.wait().expect("waited for");
        assert!(status.success(), "{status}: {}", self.log());
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.data.join("log")).unwrap_or_default()
    }

    pub fn client(&self) -> TestClient {
        let mut client = None;
        wait_for("egressd", || {
            client = TestClient::connect(&self.data.join("run/egressd.sock"));
            client.is_some()
        });
        client.expect("connected")
    }

    pub fn ok(&self, method: &str, params: &Value) -> Value {
        self.client().call(method, params).unwrap_or_else(|error| panic!("{method}: {error}\n{}", self.log()))
    }

    pub fn refusal(&self, method: &str, params: &Value) -> Value {
        self.client().call(method, params).expect_err(method)
    }

    /// A sandbox that has no uplink yet.
    pub fn sandbox(&self) -> Sandbox {
        let number = self.sandboxes.fetch_add(1, Ordering::Relaxed);
        let namespace = Namespace::new(format!("{}-s{number}", self.prefix));
        let process = namespace.command("sleep").arg("1000").spawn().expect("a process");
        let pid = process.id();
        self.recorded(number, namespace, process, pid)
    }

    /// One whose processes have numbers of their own.
    pub fn inhabited(&self) -> Sandbox {
        let number = self.sandboxes.fetch_add(1, Ordering::Relaxed);
        let namespace = Namespace::new(format!("{}-s{number}", self.prefix));
        let arguments = ["--pid", "--fork", "--kill-child", "sleep", "1000"];
        let process = namespace.command("unshare").args(arguments).spawn().expect("a process");
        let children = format!("/proc/{0}/task/{0}/children", process.id());
        let mut pid = None;
        wait_for("the first process", || {
            pid = std::fs::read_to_string(&children).ok().and_then(|pids| pids.trim().parse().ok());
            pid.is_some()
        });
        let sandbox = self.recorded(number, namespace, process, pid.expect("a pid"));
        self.ok("uplink.open", &json!({ "id": sandbox.id }));
        sandbox
    }

    fn recorded(&self, number: u32, namespace: Namespace, process: Child, pid: u32) -> Sandbox {
        let id = format!("s{number}");
        let record = self.data.join(format!("run/launcher/{id}.json"));
        let new = self.data.join("run/next.tmp");
        std::fs::write(&new, record_of(&id, pid, &namespace).to_string()).expect("record");
        std::fs::rename(&new, &record).expect("record");
        Sandbox { id, namespace, pid, process, record }
    }

    /// A sandbox with an uplink, closed.
    pub fn uplinked(&self) -> Sandbox {
        let sandbox = self.sandbox();
        self.ok("uplink.open", &json!({ "id": sandbox.id }));
        sandbox
    }

    /// A sandbox with a policy of these rules.
    pub fn allowed(&self, rules: Value) -> Sandbox {
        let sandbox = self.uplinked();
        self.set(&sandbox, rules, json!({}));
        sandbox
    }

    /// Sets a policy; `more` replaces members of an empty one.
    pub fn set(&self, sandbox: &Sandbox, rules: Value, more: Value) -> Value {
        self.ok("policy.set", &policy(&sandbox.id, rules, more))
    }

    pub fn denied(&self, sandbox: &Sandbox, reason: &str) -> u64 {
        let counters = self.ok("counters", &json!({ "id": sandbox.id }));
        counters["denied"][reason].as_u64().expect(reason)
    }

    /// Devices of the host that are uplinks.
    pub fn devices(&self) -> Vec<String> {
        let listed = self.namespace.ip("-o link");
        let names = listed.lines().filter_map(|line| line.split(": ").nth(1));
        names
            .filter(|name| name.starts_with("dsec"))
            .map(|name| name.split('@').next().unwrap_or(name).to_owned())
            .collect()
    }

    /// Takes everything back, and looks for what is left.
    pub fn finish(mut self) {
        if self.daemon.is_some() {
            self.stop();
        }
        let status = self.command("clear").status().expect("egressd clear");
        assert!(status.success(), "{}", self.log());
        assert_eq!(self.devices(), Vec::<String>::new());
        let nft = self.namespace.command("nft").args(["list", "ruleset"]).output().expect("nft");
        assert_eq!(String::from_utf8_lossy(&nft.stdout).trim(), "", "the packet filter");
        for family in ["-4", "-6"] {
            assert!(!self.namespace.ip(&format!("{family} rule")).contains("fwmark"), "rules");
            let routes = self.namespace.ip(&format!("{family} route show table all"));
            assert!(!routes.contains("dsec") && !routes.contains("198.18.") && !routes.contains("fd64:"), "{routes}");
        }
        assert!(!self.namespace.ip("addr show lo").contains("198.18."), "addresses");
        let mounts = std::fs::read_to_string("/proc/self/mounts").expect("mounts");
        assert!(!mounts.contains(&*self.data.to_string_lossy()), "a mount is left");
        self.is_finished = true;
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
        if let Some(daemon) = &mut self.daemon {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        if !self.is_finished {
            let _ = self.command("clear").status();
        }
        let _ = std::fs::remove_dir_all(&self.data);
    }
}

/// As a launcher of this boot would write it.
pub fn record_of(id: &str, pid: u32, namespace: &Namespace) -> Value {
    use std::os::unix::fs::MetadataExt;
    let process = rustix::process::Pid::from_raw(pid.cast_signed()).expect("a pid");
    let process = launcher::sys::clone::open_process(process).expect("a process");
    json!({
        "version": 1,
        "id": id,
        "boot": std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("boot id").trim(),
        "slot": 0,
        "pid": pid,
        "pidIdentity": launcher::sys::clone::identity(&process).expect("an identity"),
        "netIdentity": std::fs::metadata(namespace.path()).expect("a namespace").ino(),
        "layers": [],
        "createdAtMs": 1,
    })
}

/// Params of `policy.set`: nothing is allowed but what the rules say, unless `more` says more.
pub fn policy(id: &str, rules: Value, more: Value) -> Value {
    let mut params = json!({
        "id": id,
        "flags": { "resolver": false, "services": false, "names": false, "public": false },
        "rules": rules,
        "pins": [],
        "names": [],
    });
    if let Value::Object(more) = more {
        for (name, value) in more {
            match (&mut params[&name], value) {
                (Value::Object(present), Value::Object(new)) => present.extend(new),
                (present, new) => *present = new,
            }
        }
    }
    params
}

pub fn flags(set: &[&str]) -> Value {
    let flags: serde_json::Map<String, Value> = set.iter().map(|flag| ((*flag).to_owned(), json!(true))).collect();
    json!({ "flags": flags })
}
impl Host {
    /// What the daemon has used of processors.
    pub fn cpu(&self) -> Duration {
        let daemon = self.daemon.as_ref().expect("a daemon");
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", daemon.id())).expect("stat");
        let numbers = stat.rsplit(')').next().expect("numbers").split_whitespace().skip(11).take(2);
        let ticks: u64 = numbers.map(|number| number.parse::<u64>().expect("a number")).sum();
        Duration::from_secs(ticks) / rustix::param::clock_ticks_per_second() as u32
    }
}
