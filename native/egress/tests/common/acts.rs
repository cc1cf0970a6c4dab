//! Programs in a sandbox that has processes of its own: this test program again, told by its environment what to do.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use egress::sys::process::enter_network;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::{Sandbox, ping};

const ACT: &str = "DSEC_TEST_ACT";
const SHORT: Duration = Duration::from_millis(200);
pub const FLOOD: Duration = Duration::from_secs(1);

/// A program that has done what it was told, and lives on until it is dropped.
pub struct Act {
    process: Child,
    output: BufReader<std::process::ChildStdout>,
    /// What its sandbox calls it.
    pub pid: u64,
    /// The port that it has asked from.
    pub port: u16,
}

impl Act {
    /// `what` is the kind of socket, address and port; `child` before it has a child do it.
    pub fn begin(sandbox: &Sandbox, what: &str) -> Self {
        let network = std::fs::File::open(sandbox.namespace.path()).expect("a namespace");
        let people = std::fs::File::open(format!("/proc/{}/ns/pid", sandbox.pid)).expect("a pid namespace");
        // What a thread that has entered a pid namespace starts is in it.
        let mut process = std::thread::scope(|scope| {
            let started = scope.spawn(|| {
                enter_network(network.as_fd()).expect("entered");
                move_into_link_name_space(people.as_fd(), Some(LinkNameSpaceType::ProcessID)).expect("entered");
                again(what)
            });
            started.join().expect("done")
        });
        let output = BufReader::new(process.stdout.take().expect("an output"));
        let mut act = Self { process, output, pid: 0, port: 0 };
        let mut line = String::new();
        while act.output.read_line(&mut line).expect("read") > 0 {
            if let Some(told) = line.split("ACTED ").nth(1) {
                let mut numbers = told.split_whitespace().map(|number| number.parse::<u64>().expect("a number"));
                act.pid = numbers.next().expect("a pid");
                act.port = numbers.next().and_then(|port| u16::try_from(port).ok()).expect("a port");
                return act;
            }
            line.clear();
        }
        panic!("{what} was not done");
    }

    /// Has it send once more.
    pub fn again(&mut self) {
        self.process.stdin.as_mut().expect("an input").write_all(b"again\n").expect("written");
    }

    pub fn end(self) {}
}

impl Drop for Act {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

fn again(what: &str) -> Child {
    let program = std::env::current_exe().expect("a program");
    let mut command = Command::new(program);
    command.args(["--exact", "acts", "--nocapture"]).env(ACT, what);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started")
}

/// What the test of this name does: nothing, unless it was told to.
pub fn act() {
    let Ok(what) = std::env::var(ACT) else { return };
    if let Some(rest) = what.strip_prefix("child ") {
        let mut child = again(rest);
        let mut lines = BufReader::new(child.stdout.take().expect("an output")).lines();
        while let Some(Ok(line)) = lines.next() {
            if line.contains("ACTED") {
                println!("{line}");
                break;
            }
        }
        wait_for_end_of_input();
        drop(child.stdin.take());
        let _ = child.wait();
        return;
    }
    let words: Vec<&str> = what.split_whitespace().collect();
    let [kind, address, port] = words[..] else { panic!("{what}") };
    let to = SocketAddr::new(address.parse().expect("an address"), port.parse().expect("a port"));
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let mut kept: Option<UdpSocket> = None;
    let port = match kind {
        "tcp" => match TcpStream::connect_timeout(&to, SHORT) {
            Ok(stream) => stream.local_addr().expect("an address").port(),
            Err(_) => 0,
        },
        "udp" | "udp-connected" => {
            let socket = UdpSocket::bind(any).expect("bound");
            if kind == "udp" {
                let _ = socket.send_to(b"question", to);
            } else {
                socket.connect(to).expect("connected");
                let _ = socket.send(b"question");
            }
            let port = socket.local_addr().expect("an address").port();
            kept = Some(socket);
            port
        }
        // From a socket of its own each time.
        "flood" => {
            let until = Instant::now() + FLOOD;
            while Instant::now() < until {
                let _ = UdpSocket::bind(any).expect("bound").send_to(b"question", to);
            }
            0
        }
        "ping" => {
            let _ = ping::answers(to.ip()).expect("a raw socket");
            0
        }
        other => panic!("{other}"),
    };
    println!("ACTED {} {port}", std::process::id());
    for _ in std::io::stdin().lines() {
        if let Some(socket) = &kept {
            // The first only takes the error of the one before.
            let _ = (socket.send(b"again"), socket.send(b"again"));
        }
    }
}

fn wait_for_end_of_input() {
    let _ = std::io::stdin().read(&mut [0; 16]);
}
