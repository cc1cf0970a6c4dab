//! Chunks from other nodes: each layerd gives what it has filled to those that have the cluster's certificates, and asks them before it asks the store.
//!
//! Over TLS 1.3 with certificates on both sides. A question is `DSECPEER`, the number of chunks (4 bytes), the digest of the layer (32), and the number of each
//! chunk (4); the answer is, for each of them in this order, a length (4; 0: not here) and that many plain bytes. A connection carries one after another.
//! Whoever asks checks digests: a node that is wrong costs time and nothing else.

pub mod client;
pub mod server;
pub mod tls;

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::digest::Digest;
use crate::loader::plan::MAX_JOB_CHUNKS;

const MAGIC: &[u8; 8] = b"DSECPEER";

/// A socket each of whose calls ends by a deadline.
pub struct Timed {
    socket: TcpStream,
    pub deadline: Instant,
}

impl Timed {
    pub fn new(socket: TcpStream, deadline: Instant) -> Self {
        Self { socket, deadline }
    }

    fn rest(&self) -> Result<Option<Duration>> {
        let rest = self.deadline.saturating_duration_since(Instant::now());
        if rest.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(Some(rest)) }
    }
}

/// A socket's own timeout is told as if it could not be waited for.
fn timed_out(error: Error) -> Error {
    if error.kind() == ErrorKind::WouldBlock { ErrorKind::TimedOut.into() } else { error }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        self.socket.set_read_timeout(self.rest()?)?;
        self.socket.read(buffer).map_err(timed_out)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.socket.set_write_timeout(self.rest()?)?;
        self.socket.write(bytes).map_err(timed_out)
    }

    fn flush(&mut self) -> Result<()> {
        self.socket.flush()
    }
}

/// Chunks of one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    pub layer: Digest,
    pub chunks: Vec<u32>,
}

impl Question {
    pub fn write(&self, to: &mut impl Write) -> Result<()> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend((self.chunks.len() as u32).to_le_bytes());
        bytes.extend(self.layer.0);
        self.chunks.iter().for_each(|chunk| bytes.extend(chunk.to_le_bytes()));
        to.write_all(&bytes)?;
        to.flush()
    }

    /// Reads what a foreign node sends; nothing at the end of the connection.
    pub fn read(from: &mut impl Read) -> Result<Option<Self>> {
        let mut head = [0; 44];
        let first = from.read(&mut head)?;
        if first == 0 {
            return Ok(None);
        }
        from.read_exact(&mut head[first..])?;
        let count = word(&head[8..]) as usize;
        if !head.starts_with(MAGIC) || !(1..=MAX_JOB_CHUNKS).contains(&count) {
            return Err(ErrorKind::InvalidData.into());
        }
        let mut layer = [0; 32];
        layer.copy_from_slice(&head[12..]);
        let mut numbers = vec![0; 4 * count];
        from.read_exact(&mut numbers)?;
        Ok(Some(Self { layer: Digest(layer), chunks: numbers.chunks_exact(4).map(word).collect() }))
    }
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Writes one chunk of an answer; nothing is "not here".
pub fn write_chunk(to: &mut impl Write, chunk: Option<&[u8]>) -> Result<()> {
    let bytes = chunk.unwrap_or_default();
    to.write_all(&(bytes.len() as u32).to_le_bytes())?;
    to.write_all(bytes)
}

/// Reads one chunk of an answer, which must have its length.
pub fn read_chunk(from: &mut impl Read, plain_bytes: u32) -> Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    match u32::from_le_bytes(length) {
        0 => Ok(None),
        length if length == plain_bytes => {
            let mut bytes = vec![0; length as usize];
            from.read_exact(&mut bytes)?;
            Ok(Some(bytes))
        }
        _ => Err(ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_and_answers_are_read_as_they_were_written() {
        let question = Question { layer: Digest([7; 32]), chunks: vec![0, 9, u32::MAX] };
        let mut bytes = Vec::new();
        question.write(&mut bytes).expect("written");
        assert_eq!(Question::read(&mut bytes.as_slice()).expect("read"), Some(question));
        assert_eq!(Question::read(&mut [].as_slice()).expect("read"), None);
        let mut answer = Vec::new();
        write_chunk(&mut answer, Some(b"abc")).and_then(|()| write_chunk(&mut answer, None)).expect("written");
        let mut rest = answer.as_slice();
        assert_eq!(read_chunk(&mut rest, 3).expect("read"), Some(b"abc".to_vec()));
        assert_eq!(read_chunk(&mut rest, 3).expect("read"), None);
        assert!(read_chunk(&mut answer.as_slice(), 4).is_err() && read_chunk(&mut rest, 1).is_err());
    }

    #[test]
    fn what_is_no_question_is_refused() {
        let question = Question { layer: Digest([7; 32]), chunks: vec![1, 2] };
        let mut good = Vec::new();
        question.write(&mut good).expect("written");
        for length in 1..good.len() {
            assert!(Question::read(&mut &good[..length]).is_err(), "{length}");
        }
        for (at, byte) in [(0, 0), (8, 0), (8, 17), (11, 255)] {
            let mut wrong = good.clone();
            wrong[at] = byte;
            assert!(Question::read(&mut wrong.as_slice()).is_err(), "{at}");
        }
    }
}
