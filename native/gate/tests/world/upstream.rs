//! Servers in the far network.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::{World, wait_for};

/// All that came in, one entry a connection.
pub type Seen = Arc<Mutex<Vec<Vec<u8>>>>;

/// A server that remembers what it was sent.
pub struct Upstream {
    listener: OwnedFd,
    loop_: Option<JoinHandle<()>>,
    pub seen: Seen,
}

/// What one connection is told: its number, and a place for what it says.
pub struct Visit {
    pub stream: TcpStream,
    pub seen: Seen,
    pub number: usize,
}

impl Visit {
    /// Reads what is there and remembers it; false at the end.
    pub fn read(&mut self) -> bool {
        let mut buffer = [0; 1 << 16];
        let count = self.stream.read(&mut buffer).unwrap_or_default();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen[self.number].extend_from_slice(&buffer[..count]);
        count > 0
    }
}

impl Upstream {
    pub fn begin(world: &World, at: &str, serve: impl Fn(Visit) + Send + Sync + 'static) -> Self {
        Self::begin_in("far", world, at, serve)
    }

    /// In the network of one of them.
    pub fn begin_in(role: &str, world: &World, at: &str, serve: impl Fn(Visit) + Send + Sync + 'static) -> Self {
        let address: SocketAddr = at.parse().expect(at);
        let listener = world.network.inside(role, || TcpListener::bind(address)).expect("bound");
        let handle = listener.as_fd().try_clone_to_owned().expect("copied");
        let seen = Seen::default();
        let (serve, all) = (Arc::new(serve), seen.clone());
        let loop_ = std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let number = {
                    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                    all.push(Vec::new());
                    all.len() - 1
                };
                let (serve, seen) = (serve.clone(), all.clone());
                std::thread::spawn(move || serve(Visit { stream, seen, number }));
            }
        });
        Self { listener: handle, loop_: Some(loop_), seen }
    }

    pub fn connections(&self) -> usize {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// All bytes of all connections.
    pub fn bytes(&self) -> Vec<u8> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).concat()
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let Some(handle) = self.loop_.take() {
            handle.join().expect("the server's loop");
        }
    }
}

/// Says nothing, and remembers.
pub fn silent(mut visit: Visit) {
    while visit.read() {}
}

/// Reads to the end, and then answers with how much it was.
pub fn count_then_answer(mut visit: Visit) {
    while visit.read() {}
    let count = visit.seen.lock().unwrap_or_else(PoisonError::into_inner)[visit.number].len();
    let _ = write!(visit.stream, "{count} bytes");
}

/// Sends back what comes.
pub fn echo(visit: Visit) {
    let (mut from, mut to) = (visit.stream.try_clone().expect("copied"), visit.stream);
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}

/// HTTP: answers each request with the length of its body; `/ws` switches to an echo.
pub fn http(visit: Visit) {
    let mut writer = visit.stream.try_clone().expect("copied");
    let mut reader = BufReader::new(visit.stream);
    loop {
        let (mut head, mut length) = (String::new(), 0_u64);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or_default() == 0 {
                return;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().expect("a length");
            }
            if line == "\r\n" {
                break;
            }
            head.push_str(&line);
        }
        visit.seen.lock().unwrap_or_else(PoisonError::into_inner)[visit.number].extend_from_slice(head.as_bytes());
        if head.starts_with("GET /ws") {
            let _ = writer
                .write_all(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
            let _ = std::io::copy(&mut reader, &mut writer);
            return;
        }
        if head.to_ascii_lowercase().contains("expect: 100-continue") {
            let _ = writer.write_all(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        let got = std::io::copy(&mut (&mut reader).take(length), &mut std::io::sink()).unwrap_or_default();
        let body = format!("{got} bytes");
        if write!(writer, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).is_err() {
            return;
        }
    }
}

/// `openssl s_server`, which serves the files of the world's directory.
pub struct TlsServer(Child);

impl TlsServer {
    pub fn begin(world: &World, at: &str, more: &[&str]) -> Self {
        let (certificate, key) = world.certificate();
        let mut command = Command::new("openssl");
        command.args(["s_server", "-quiet", "-WWW", "-accept", at, "-cert", &certificate, "-key", &key]).args(more);
        command.current_dir(&*world.directory).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = world.network.inside("far", || command.spawn()).expect("openssl");
        let address: SocketAddr = at.parse().expect(at);
        wait_for("the server", || world.network.inside("far", || TcpStream::connect(address).is_ok()));
        Self(child)
    }
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
