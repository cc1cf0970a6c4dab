//! Servers that answer with what they were sent.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::Namespace;

pub struct Echo {
    is_over: Arc<AtomicBool>,
    /// Bytes that have come.
    pub bytes: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    /// On a port of any address.
    pub fn tcp(namespace: &Namespace, port: u16) -> Self {
        Self::tcp_of(namespace.within(|| TcpListener::bind(("::", port)).expect("listening")))
    }

    pub fn tcp_of(listener: TcpListener) -> Self {
        listener.set_nonblocking(true).expect("set");
        Self::start(move |is_over, bytes| {
            let mut streams = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                if let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true).expect("set");
                    streams.push(stream);
                }
                let mut buffer = [0; 4_096];
                streams.retain_mut(|stream| match stream.read(&mut buffer) {
                    Ok(0) => false,
                    Ok(length) => {
                        bytes.fetch_add(length as u64, Ordering::Relaxed);
                        stream.write_all(&buffer[..length]).is_ok()
                    }
                    Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
                });
                std::thread::sleep(Duration::from_micros(200));
            }
        })
    }

    /// On one address.
    pub fn udp(namespace: &Namespace, address: &str, port: u16) -> Self {
        let address = SocketAddr::new(address.parse().expect("an address"), port);
        let socket = namespace.within(|| UdpSocket::bind(address).expect("bound"));
        socket.set_read_timeout(Some(Duration::from_millis(20))).expect("set");
        Self::start(move |is_over, bytes| {
            let mut buffer = [0; 65_536];
            while !is_over.load(Ordering::Relaxed) {
                if let Ok((length, from)) = socket.recv_from(&mut buffer) {
                    bytes.fetch_add(length as u64, Ordering::Relaxed);
                    let _ = socket.send_to(&buffer[..length], from);
                }
            }
        })
    }

    fn start(work: impl FnOnce(&AtomicBool, &AtomicU64) + Send + 'static) -> Self {
        let (is_over, bytes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (theirs, counted) = (is_over.clone(), bytes.clone());
        Self { is_over, bytes, thread: Some(std::thread::spawn(move || work(&theirs, &counted))) }
    }

    pub fn received(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
