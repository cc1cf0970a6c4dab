//! The program under test, started as its parent does it.

use std::fs::File;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

use super::network::{GATE_PORT, Network};

const PROGRAM: &str = env!("CARGO_BIN_EXE_gate");
pub const UID: u32 = 64_804;
/// Above all numbers that mean something to the gate.
const ABOVE: RawFd = 16;

pub struct Gate {
    child: Child,
    pub socket: PathBuf,
    /// Open before the first connection.
    pub files_at_first: usize,
}

impl Gate {
    pub fn begin(network: &Network, socket: &Path) -> Self {
        let control = UnixListener::bind(socket).expect("control socket");
        let listeners = network.inside("host", || {
            let any: [SocketAddr; 2] =
                [(Ipv4Addr::UNSPECIFIED, GATE_PORT).into(), (Ipv6Addr::UNSPECIFIED, GATE_PORT).into()];
            any.map(transparent)
        });
        let [v4, v6] = listeners;
        let given = [above(v4), above(v6), above(control.into())];
        // The library's own descriptors of the spawn must not be where these go.
        let _taken: Vec<File> = (0..ABOVE).map(|_| File::open("/dev/null").expect("opened")).collect();
        let numbers = given.each_ref().map(AsRawFd::as_raw_fd);
        let mut command = Command::new(PROGRAM);
        command.args(["--uid", &UID.to_string(), "--gid", &UID.to_string()]);
        // SAFETY: only dup2 is called, which is safe between fork and exec; the descriptors are open.
        unsafe {
            command.pre_exec(move || {
                for (at, fd) in numbers.iter().enumerate() {
                    if libc::dup2(*fd, at as RawFd + gate::sys::LISTENER_V4) < 0 {
                        return Err(std::io::Error::last_os_error());
                    }
                }
                Ok(())
            });
        }
        let child = network.inside("host", || command.spawn()).expect("started");
        let mut gate = Self { child, socket: socket.to_owned(), files_at_first: 0 };
        // Its first answer comes from the loop.
        let mut feeder = super::feeder::Feeder::connect(socket);
        feeder.ok("gate.info", &serde_json::json!({}));
        gate.files_at_first = gate.files();
        gate
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("descriptors").count()
    }

    /// A line of its status, such as `Seccomp`.
    pub fn status(&self, name: &str) -> String {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("status");
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).expect(name);
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // One that has ended by itself has broken the filter, or panicked.
        assert!(
            std::thread::panicking() || self.child.try_wait().expect("asked").is_none(),
            "the gate has ended by itself"
        );
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
    }
}

fn above(fd: OwnedFd) -> OwnedFd {
    rustix::io::fcntl_dupfd_cloexec(&fd, ABOVE).expect("copied")
}

/// A listener that takes what was meant for others.
fn transparent(address: SocketAddr) -> OwnedFd {
    let (family, level, option) = if address.is_ipv4() {
        (AddressFamily::INET, libc::SOL_IP, libc::IP_TRANSPARENT)
    } else {
        (AddressFamily::INET6, libc::SOL_IPV6, libc::IPV6_TRANSPARENT)
    };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("socket");
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true).expect("set");
    }
    let one: libc::c_int = 1;
    // SAFETY: the kernel reads an integer of this length.
    let set = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const one).cast(), size_of::<libc::c_int>() as u32)
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    bind(&socket, &address).expect("bound");
    listen(&socket, 1_024).expect("listening");
    socket
}
