//! Moves bytes from socket to socket without looking at them: splice(2) through a pipe.
//!
//! One pipe serves all connections: it is empty before and after each move, so that an idle connection has none, and nothing of one can get into another.

use std::os::fd::{AsFd, OwnedFd};

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

use crate::bounds::PIPE_BYTES;
use crate::{Errno, Result};

pub struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

/// What came of a move.
#[derive(Debug, PartialEq, Eq)]
pub enum Moved {
    /// There was nothing to be read.
    Nothing,
    /// The source has ended.
    End,
    /// So many bytes have left the source; `left` are the last of them, which the other end did not take.
    Bytes { count: usize, left: Vec<u8> },
}

impl Pipe {
    pub fn new() -> Result<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // A smaller one, where this is refused, moves less at once.
        let _ = fcntl_setpipe_size(&write, PIPE_BYTES);
        Ok(Self { read, write })
    }

    /// Moves at most so many bytes.
    pub fn transfer(&mut self, from: impl AsFd, to: impl AsFd, most: usize) -> Result<Moved> {
        let count = loop {
            match splice(&from, None, &self.write, None, most, SpliceFlags::NONBLOCK | SpliceFlags::MOVE) {
                Ok(0) => return Ok(Moved::End),
                Ok(count) => break count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(Moved::Nothing),
                Err(error) => return Err(error),
            }
        };
        let outcome = self.empty(to, count);
        if outcome.is_err() {
            // What is still in it was for a connection that is over.
            *self = Self::new()?;
        }
        outcome.map(|left| Moved::Bytes { count, left })
    }

    /// Gets so many bytes out of the pipe, to the socket as far as it takes them.
    fn empty(&self, to: impl AsFd, count: usize) -> Result<Vec<u8>> {
        let mut left = count;
        while left > 0 {
            match splice(&self.read, None, &to, None, left, SpliceFlags::NONBLOCK | SpliceFlags::MOVE) {
                Ok(0) | Err(Errno::AGAIN) => break,
                Ok(gone) => left -= gone,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        let mut rest = vec![0; left];
        let mut at = 0;
        while at < left {
            match rustix::io::read(&self.read, &mut rest[at..]) {
                Ok(0) => return Err(Errno::IO),
                Ok(count) => at += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(rest)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::bounds::SPLICE_BYTES;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bound");
        let one = TcpStream::connect(listener.local_addr().expect("address")).expect("connected");
        let (other, _) = listener.accept().expect("accepted");
        other.set_nonblocking(true).expect("set");
        (one, other)
    }

    fn moved(pipe: &mut Pipe, from: &TcpStream, to: &TcpStream, most: usize) -> Result<Moved> {
        loop {
            match pipe.transfer(from, to, most) {
                Ok(Moved::Nothing) => std::thread::yield_now(),
                other => return other,
            }
        }
    }

    #[test]
    fn bytes_go_through_and_ends_are_seen() {
        let (mut pipe, (mut client, from), (to, mut server)) = (Pipe::new().expect("pipe"), pair(), pair());
        client.write_all(b"hello, world").expect("written");
        assert_eq!(moved(&mut pipe, &from, &to, 5), Ok(Moved::Bytes { count: 5, left: Vec::new() }));
        assert_eq!(moved(&mut pipe, &from, &to, 99), Ok(Moved::Bytes { count: 7, left: Vec::new() }));
        assert_eq!(pipe.transfer(&from, &to, 99), Ok(Moved::Nothing));
        drop(client);
        assert_eq!(moved(&mut pipe, &from, &to, 99), Ok(Moved::End));
        drop(to);
        let mut got = String::new();
        server.set_nonblocking(false).expect("set");
        server.read_to_string(&mut got).expect("read");
        assert_eq!(got, "hello, world");
    }

    #[test]
    fn what_one_connection_leaves_is_not_seen_by_another() {
        let mut pipe = Pipe::new().expect("pipe");
        let ((mut client, from), (to, server)) = (pair(), pair());
        to.set_nonblocking(true).expect("set");
        // Nobody reads: after some megabytes the socket takes no more.
        let (left, sent) = {
            let mut sent = 0;
            client.set_nonblocking(true).expect("set");
            loop {
                sent += client.write(&[b'a'; 4_096]).unwrap_or_default();
                if let Moved::Bytes { left, .. } = pipe.transfer(&from, &to, SPLICE_BYTES).expect("moved")
                    && !left.is_empty()
                {
                    break (left, sent);
                }
            }
        };
        assert!(left.len() <= SPLICE_BYTES && left.len() < sent && left.iter().all(|byte| *byte == b'a'));
        // A broken one leaves its bytes nowhere either.
        to.shutdown(std::net::Shutdown::Write).expect("shut");
        let _ = client.write(&[b'a'; 4_096]);
        assert!(matches!(moved(&mut pipe, &from, &to, SPLICE_BYTES), Err(Errno::PIPE)));
        drop(server);
        let ((mut other, from), (to, mut server)) = (pair(), pair());
        other.write_all(b"b").expect("written");
        assert_eq!(moved(&mut pipe, &from, &to, 99), Ok(Moved::Bytes { count: 1, left: Vec::new() }));
        server.set_nonblocking(false).expect("set");
        let mut got = [0; 1];
        server.read_exact(&mut got).expect("read");
        assert_eq!(got, *b"b");
    }
}
