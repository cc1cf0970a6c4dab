//! What clients send to a command's standard input.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use serde_json::json;

use crate::connection::StreamKey;
use crate::errors::Failure;
use crate::event_loop::{Aether, Source};
use crate::slab::Key;
use crate::sys::{fd, poll};

/// The end-of-file character of a terminal, ^D.
const END_OF_INPUT: &[u8] = &[4];

#[derive(Debug)]
enum Piece {
    Bytes {
        from: StreamKey,
        bytes: Vec<u8>,
        at: usize,
    },
    /// All that the stream at `from` had to say came before.
    Finished {
        from: StreamKey,
        bytes: u64,
    },
}

/// The write end and what waits for it. How much waits is bounded by the windows of the streams it comes from.
#[derive(Debug, Default)]
pub struct Stdin {
    pub sink: Option<OwnedFd>,
    waiting: VecDeque<Piece>,
    close_when_empty: bool,
    is_watched: bool,
    /// It was closed before all that had come was written.
    has_lost: bool,
}

impl Stdin {
    pub fn new(sink: Option<OwnedFd>) -> Self {
        Self { sink, ..Self::default() }
    }

    pub fn is_open(&self) -> bool {
        self.sink.is_some() && !self.close_when_empty
    }
}

impl Aether {
    /// Bytes for the command at `key` from the stream `from`, which gets its credit back once they are written. What comes after the input
    /// was closed is dropped.
    pub fn write_stdin(&mut self, key: Key, from: StreamKey, bytes: Vec<u8>) {
        let Some(exec) = self.execs.get_mut(key) else {
            self.give_back(from, bytes.len());
            return;
        };
        if !exec.stdin.is_open() {
            exec.stdin.has_lost = true;
            self.give_back(from, bytes.len());
            return;
        }
        exec.stdin.waiting.push_back(Piece::Bytes { from, bytes, at: 0 });
        if !exec.stdin.is_watched {
            self.flush_stdin(key);
        }
    }

    /// The client at `from` sends no more: its command sees the end of its input.
    pub fn end_stdin(&mut self, key: Key, from: StreamKey, answer: Option<u64>) {
        if let Some(exec) = self.execs.get_mut(key).filter(|exec| exec.stdin.is_open()) {
            if !exec.pty {
                exec.stdin.close_when_empty = true;
            } else if answer.is_some() {
                exec.stdin.waiting.push_back(Piece::Bytes { from, bytes: END_OF_INPUT.to_vec(), at: 0 });
            }
        }
        match answer {
            Some(bytes) => self.finish_stdin(key, from, bytes),
            None => self.flush_stdin(key),
        }
    }

    /// The client at `from` is answered when the command has been given all that came from it. A command that ends after that, and before the
    /// client has said that this was all, has been given all.
    pub fn finish_stdin(&mut self, key: Key, from: StreamKey, bytes: u64) {
        match self.execs.get_mut(key).map(|exec| &mut exec.stdin) {
            Some(stdin) if stdin.sink.is_some() => stdin.waiting.push_back(Piece::Finished { from, bytes }),
            Some(stdin) if !stdin.has_lost => self.finish(from, Ok(json!({ "bytes": bytes }))),
            _ => self.refuse_stdin(from),
        }
        self.flush_stdin(key);
    }

    /// Writes until the pipe is full.
    pub fn flush_stdin(&mut self, key: Key) {
        let Some(exec) = self.execs.get_mut(key) else { return };
        let stdin = &mut exec.stdin;
        let Some(sink) = &stdin.sink else { return };
        let mut given_back: Vec<(StreamKey, usize)> = Vec::new();
        let mut finished: Vec<(StreamKey, u64)> = Vec::new();
        let mut is_broken = false;
        let mut is_full = false;
        while let Some(piece) = stdin.waiting.front_mut() {
            match piece {
                Piece::Finished { from, bytes } => finished.push((*from, *bytes)),
                Piece::Bytes { from, bytes, at } => match fd::write(sink, &bytes[*at..]) {
                    Ok(n) => {
                        given_back.push((*from, n));
                        *at += n;
                        if *at < bytes.len() {
                            continue;
                        }
                    }
                    Err(libc::EAGAIN) => {
                        is_full = true;
                        break;
                    }
                    Err(_) => {
                        is_broken = true;
                        break;
                    }
                },
            }
            stdin.waiting.pop_front();
        }
        if is_full != stdin.is_watched {
            if is_full {
                stdin.is_watched = self.poll.add(sink, poll::WRITE, Source::Stdin(key).token()).is_ok();
            } else {
                stdin.is_watched = false;
                self.poll.remove(sink);
            }
        }
        let is_done = stdin.waiting.is_empty() && stdin.close_when_empty;
        for (from, n) in given_back {
            self.give_back(from, n);
        }
        for (from, bytes) in finished {
            self.finish(from, Ok(json!({ "bytes": bytes })));
        }
        if is_broken || is_done {
            self.close_stdin(key);
        }
    }

    /// Nothing more goes to the command; who still waits to write is told.
    pub fn close_stdin(&mut self, key: Key) {
        let Some(exec) = self.execs.get_mut(key) else { return };
        let stdin = std::mem::take(&mut exec.stdin);
        if let (Some(sink), true) = (&stdin.sink, stdin.is_watched) {
            self.poll.remove(sink);
        }
        exec.stdin.has_lost = stdin.has_lost || stdin.waiting.iter().any(|piece| matches!(piece, Piece::Bytes { .. }));
        for piece in stdin.waiting {
            match piece {
                Piece::Bytes { from, bytes, at } => self.give_back(from, bytes.len() - at),
                Piece::Finished { from, .. } => self.refuse_stdin(from),
            }
        }
    }

    fn refuse_stdin(&mut self, from: StreamKey) {
        self.finish(from, Err(Failure::new("stdin_closed", "The stdin of the command is closed.")));
    }

    fn give_back(&mut self, to: StreamKey, n: usize) {
        if let Some(connection) = self.connections.get_mut(to.connection) {
            connection.server.consumed(to.stream, n);
            connection.is_dirty = true;
        }
    }
}
