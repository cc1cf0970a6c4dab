//! Asks other nodes.

use std::io::{Error, ErrorKind, Result};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustls::{ClientConfig, ClientConnection, StreamOwned};

use super::{Question, Timed, read_chunk, tls};
use crate::digest::Digest;

/// Nodes that are asked for the same chunks, one after another.
const MAX_ASKED: usize = 2;
/// A node that did not answer, or wrongly, is left alone for so long.
const REST: Duration = Duration::from_secs(10);
/// Connections to one node that are kept.
const MAX_KEPT: usize = 8;
/// Chunks beside each other are asked of the same node.
const REGION_CHUNKS: u32 = 64;

type Connection = StreamOwned<ClientConnection, Timed>;

struct Peer {
    address: SocketAddr,
    kept: Mutex<Vec<Connection>>,
    rests_until: Mutex<Option<Instant>>,
}

pub struct Peers {
    peers: Vec<Peer>,
    tls: Arc<ClientConfig>,
    wait: Duration,
}

/// A chunk that a node gave, unchecked.
pub struct Given {
    pub chunk: u32,
    pub bytes: Vec<u8>,
    /// Which node.
    pub peer: usize,
}

impl Peers {
    pub fn new(addresses: &[SocketAddr], tls: Arc<ClientConfig>, wait: Duration) -> Self {
        let peer = |address: &SocketAddr| Peer {
            address: *address,
            kept: Mutex::new(Vec::new()),
            rests_until: Mutex::new(None),
        };
        Self { peers: addresses.iter().map(peer).collect(), tls, wait }
    }

    pub fn address(&self, peer: usize) -> SocketAddr {
        self.peers[peer].address
    }

    /// Asks for chunks, each with its length; takes no longer than the bound, and returns what there was.
    pub fn ask(&self, layer: &Digest, chunks: &[(u32, u32)], deadline: Instant) -> Vec<Given> {
        let deadline = deadline.min(Instant::now() + self.wait);
        let mut given = Vec::new();
        let mut missing = chunks.to_vec();
        let awake =
            self.order(layer, chunks.first().map_or(0, |(chunk, _)| *chunk)).into_iter().filter(|n| self.is_awake(*n));
        for peer in awake.take(MAX_ASKED) {
            match self.ask_one(&self.peers[peer], layer, &missing, deadline) {
                Ok(answer) => {
                    let there = missing.iter().zip(answer);
                    given.extend(
                        there.filter_map(|((chunk, _), bytes)| Some(Given { chunk: *chunk, bytes: bytes?, peer })),
                    );
                }
                Err(_) => self.rest(peer),
            }
            missing.retain(|(chunk, _)| !given.iter().any(|one| one.chunk == *chunk));
            if missing.is_empty() || Instant::now() >= deadline {
                break;
            }
        }
        given
    }

    /// The order in which nodes are asked about a region: the same on every node, and another for other regions, so that none is asked about all.
    fn order(&self, layer: &Digest, chunk: u32) -> Vec<usize> {
        let region = (chunk / REGION_CHUNKS).to_le_bytes();
        let weight = |n: &usize| {
            let text = [layer.0.as_slice(), &region, self.peers[*n].address.to_string().as_bytes()].concat();
            Digest::of(&text)
        };
        let mut order: Vec<usize> = (0..self.peers.len()).collect();
        order.sort_by_cached_key(weight);
        order
    }

    fn is_awake(&self, peer: usize) -> bool {
        let mut until = self.peers[peer].rests_until.lock().unwrap_or_else(PoisonError::into_inner);
        if until.is_some_and(|until| until <= Instant::now()) {
            *until = None;
        }
        until.is_none()
    }

    /// Leaves a node alone for a while.
    pub fn rest(&self, peer: usize) {
        let mut until = self.peers[peer].rests_until.lock().unwrap_or_else(PoisonError::into_inner);
        *until = Some(Instant::now() + REST);
    }

    fn ask_one(
        &self,
        peer: &Peer,
        layer: &Digest,
        chunks: &[(u32, u32)],
        deadline: Instant,
    ) -> Result<Vec<Option<Vec<u8>>>> {
        let kept = peer.kept.lock().unwrap_or_else(PoisonError::into_inner).pop();
        // One that was kept may have been closed by the other side.
        if let Some(connection) = kept
            && let Ok(answer) = exchange(peer, connection, layer, chunks, deadline)
        {
            return Ok(answer);
        }
        exchange(peer, self.connect(peer, deadline)?, layer, chunks, deadline)
    }

    fn connect(&self, peer: &Peer, deadline: Instant) -> Result<Connection> {
        let rest = deadline.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        let socket = TcpStream::connect_timeout(&peer.address, rest)?;
        socket.set_nodelay(true)?;
        let name = tls::name().ok_or(ErrorKind::InvalidInput)?;
        let connection = ClientConnection::new(self.tls.clone(), name).map_err(Error::other)?;
        Ok(StreamOwned::new(connection, Timed::new(socket, deadline)))
    }
}

fn exchange(
    peer: &Peer,
    mut connection: Connection,
    layer: &Digest,
    chunks: &[(u32, u32)],
    deadline: Instant,
) -> Result<Vec<Option<Vec<u8>>>> {
    connection.sock.deadline = deadline;
    let question = Question { layer: *layer, chunks: chunks.iter().map(|(chunk, _)| *chunk).collect() };
    question.write(&mut connection)?;
    let answer =
        chunks.iter().map(|(_, plain_bytes)| read_chunk(&mut connection, *plain_bytes)).collect::<Result<_>>()?;
    let mut kept = peer.kept.lock().unwrap_or_else(PoisonError::into_inner);
    if kept.len() < MAX_KEPT {
        kept.push(connection);
    }
    Ok(answer)
}
