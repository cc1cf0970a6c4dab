//! Stands in for the gate at egressd's end of it: takes connections as they come, and answers what it is fed with `{}`.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use egress::sys::transparent;
use serde_json::{Value, json};
use wire::server::{Event, Limits, Server};

use super::Host;

const PORT: u16 = 7_299;
const MARK: u32 = 0x6473_0005;

#[derive(Default)]
struct Shared {
    is_over: AtomicBool,
    refuses: AtomicBool,
    refuses_connections: AtomicBool,
    calls: Mutex<Vec<(String, Value)>>,
}

pub struct Gate {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Gate {
    /// Before the egressd that is to find it.
    pub fn start(host: &Host) -> Self {
        std::fs::create_dir_all(host.data.join("run/egress")).expect("directory");
        let path = host.data.join("run/egress/gate.sock");
        let _ = std::fs::remove_file(&path);
        let control = UnixListener::bind(path).expect("bound");
        control.set_nonblocking(true).expect("set");
        let listeners: Vec<TcpListener> = ["198.18.0.1", "fd64:7365:6300::1"]
            .iter()
            .map(|address| {
                let address = std::net::SocketAddr::new(address.parse().expect("an address"), PORT);
                host.namespace.within(|| transparent::listener(address, MARK)).expect("listening").into()
            })
            .collect();
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        let thread = std::thread::spawn(move || serve(&theirs, &control, &listeners));
        Self { shared, thread: Some(thread) }
    }

    pub fn refuse_policies(&self, refuses: bool) {
        self.shared.refuses.store(refuses, Ordering::Relaxed);
    }

    /// Connections are reset from now on, and told as connections of the sandbox `s0`.
    pub fn refuse_connections(&self) {
        self.shared.refuses_connections.store(true, Ordering::Relaxed);
    }

    /// What it was asked since.
    pub fn take(&self) -> Vec<(String, Value)> {
        std::mem::take(&mut self.shared.calls.lock().expect("calls"))
    }
}

struct Feeder {
    stream: UnixStream,
    server: Server,
    events: Option<u32>,
}

fn serve(shared: &Shared, control: &UnixListener, listeners: &[TcpListener]) {
    let mut feeders: Vec<Feeder> = Vec::new();
    let mut flows = Vec::new();
    let mut buffer = [0; 65_536];
    while !shared.is_over.load(Ordering::Relaxed) {
        if let Ok((stream, _)) = control.accept() {
            stream.set_nonblocking(true).expect("set");
            feeders.push(Feeder { stream, server: Server::new("gate", Limits::default()), events: None });
        }
        feeders.retain_mut(|feeder| answer(shared, feeder, &mut buffer));
        for listener in listeners {
            if let Ok((mut stream, peer)) = listener.accept() {
                stream.set_nonblocking(true).expect("set");
                let wanted = stream.local_addr().expect("an address");
                if shared.refuses_connections.load(Ordering::Relaxed) {
                    let refused = json!({
                        "id": "s0", "reason": "name_not_allowed", "name": "b.example", "missed": 0,
                        "address": wanted.ip().to_string(), "port": wanted.port(), "from": peer.port(),
                    });
                    for Feeder { server, events, .. } in &mut feeders {
                        let stream = events.expect("a stream of events");
                        server.send_message(stream, &json!({ "refused": refused })).expect("told");
                    }
                    continue;
                }
                let _ = stream.write_all(format!("{} {wanted}\n", peer.ip()).as_bytes());
                flows.push(stream);
            }
        }
        flows.retain_mut(|stream| match stream.read(&mut buffer) {
            Ok(0) => false,
            Ok(length) => stream.write_all(&buffer[..length]).is_ok(),
            Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
        });
        std::thread::sleep(Duration::from_micros(300));
    }
}

/// Whether the connection lives.
fn answer(shared: &Shared, Feeder { stream, server, events }: &mut Feeder, buffer: &mut [u8]) -> bool {
    match stream.read(buffer) {
        Ok(0) => return false,
        Ok(length) => server.receive(&buffer[..length]).expect("sound frames"),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
        Err(_) => return false,
    }
    while let Some(event) = server.next_event() {
        if let Event::Open { stream, method, params } = event {
            if method == "events" {
                *events = Some(stream);
                continue;
            }
            let refuses = method == "policy.set" && shared.refuses.load(Ordering::Relaxed);
            let params = serde_json::from_str(params.get()).expect("JSON");
            shared.calls.lock().expect("calls").push((method, params));
            if refuses {
                server.close_err(stream, "invalid_argument", "refused", &json!({}));
            } else {
                server.close_ok(stream, &json!({}));
            }
        }
    }
    while !server.output().is_empty() {
        match stream.write(server.output()) {
            Ok(length) => server.advance_output(length),
            Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
        }
    }
    true
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
