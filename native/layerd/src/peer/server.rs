//! Answers other nodes. What is given is what is filled, of layers that are open; nothing is fetched for others.

use std::io::{ErrorKind, Result};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::json;

use super::{Question, Timed, tls, write_chunk};
use crate::family::shared::Counter;
use crate::loader::Loader;
use daemon::log::Level;

/// Connections of other nodes at once, each with a thread.
const MAX_CONNECTIONS: usize = 64;
/// From the first byte to the end of the handshake, and of each answer.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// Between two questions.
const IDLE_WAIT: Duration = Duration::from_secs(60);
/// Between two tries to listen: nothing tells when an address or descriptors come free.
const LISTEN_PAUSE: Duration = Duration::from_secs(1);

/// Serves for ever.
pub fn serve(loader: &Arc<Loader>, address: SocketAddr, tls: &Arc<ServerConfig>) -> ! {
    let connections = Arc::new(AtomicUsize::new(0));
    loop {
        let failed = match TcpListener::bind(address) {
            Ok(listener) => loop {
                match listener.accept() {
                    Ok((socket, from)) => begin(loader, &connections, tls, socket, from),
                    // The other side has gone already.
                    Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
                    Err(error) => break error,
                }
            },
            Err(error) => error,
        };
        let fields = json!({ "address": address.to_string(), "message": failed.to_string() });
        loader.log.write(Level::Error, "peers-not-served", &fields);
        std::thread::sleep(LISTEN_PAUSE);
    }
}

fn begin(
    loader: &Arc<Loader>,
    connections: &Arc<AtomicUsize>,
    tls: &Arc<ServerConfig>,
    socket: TcpStream,
    from: SocketAddr,
) {
    /// Counts a connection for as long as it lives.
    struct Place(Arc<AtomicUsize>);
    impl Drop for Place {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
    let place = Place(connections.clone());
    if connections.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
        return;
    }
    let (loader, tls) = (loader.clone(), tls.clone());
    let _ = std::thread::Builder::new().name("peer".to_owned()).spawn(move || {
        let _place = place;
        if let Err(error) = talk(&loader, tls, socket) {
            let fields = json!({ "from": from.to_string(), "message": error.to_string() });
            loader.log.write(Level::Warn, "peer-lost", &fields);
        }
    });
}

fn talk(loader: &Loader, tls: Arc<ServerConfig>, socket: TcpStream) -> Result<()> {
    socket.set_nodelay(true)?;
    let mut connection = ServerConnection::new(tls).map_err(std::io::Error::other)?;
    let mut socket = Timed::new(socket, Instant::now() + ANSWER_WAIT);
    while connection.is_handshaking() {
        connection.complete_io(&mut socket)?;
    }
    let certificate = connection.peer_certificates().and_then(<[_]>::first);
    if !certificate.is_some_and(tls::is_layerd) {
        return Err(ErrorKind::PermissionDenied.into());
    }
    let mut stream = StreamOwned::new(connection, socket);
    loop {
        stream.sock.deadline = Instant::now() + IDLE_WAIT;
        let question = match Question::read(&mut stream) {
            Ok(Some(question)) => question,
            Ok(None) => return Ok(()),
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::TimedOut | ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset
                ) =>
            {
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        stream.sock.deadline = Instant::now() + ANSWER_WAIT;
        answer(loader, &question, &mut stream)?;
    }
}

fn answer(loader: &Loader, question: &Question, to: &mut impl std::io::Write) -> Result<()> {
    let layer = loader.layer(&question.layer);
    for chunk in &question.chunks {
        let bytes = layer.as_ref().and_then(|layer| layer.read_chunk(*chunk));
        if let Some(bytes) = &bytes {
            loader.shared.count(Counter::GivenBytes, bytes.len() as u64);
        }
        write_chunk(to, bytes.as_deref())?;
    }
    to.flush()
}
