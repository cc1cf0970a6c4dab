//! Sending what a command writes to those who are attached to it.

use serde_json::json;
use wire::SendError;

use super::record::Exec;
use super::ring::Found;
use crate::clock::{self, NANOS_PER_MS};
use crate::connection::StreamKey;
use crate::event_loop::{Aether, Deadline};
use crate::slab::Key;
use crate::streams::After;

/// A reader that takes nothing for so long no longer holds the command back.
pub const SLOW_READER_NANOS: u64 = 10_000 * NANOS_PER_MS;

/// How long the news that a command has started waits for what it writes or for its end: most commands are short, and then one
/// piece says it all. Who talks to a command, by its stdin or a terminal, is told at once.
pub const ANNOUNCE_NANOS: u64 = 2 * NANOS_PER_MS;

/// Wire channels of the two outputs.
const CHANNELS: [u8; 2] = [1, 2];
/// Sent of one output before the other has its turn.
const PIECE: usize = wire::MAX_DATA;

/// One attached client.
#[derive(Debug)]
pub struct Reader {
    pub at: StreamKey,
    /// Offset of the next byte, of each output.
    cursors: [u64; 2],
    /// Where to stop; `None` follows to the end of the command.
    until: Option<[u64; 2]>,
    is_announced: bool,
    /// Until when the announcement may wait.
    announce_by: Option<u64>,
    /// The command waits for this reader when a ring is full.
    holds: bool,
    /// When it last took something, or had nothing to take.
    last_progress: u64,
    /// Size of its terminal.
    pub size: Option<(u16, u16)>,
    pub client_id: Option<String>,
}

impl Reader {
    pub fn new(at: StreamKey, cursors: [u64; 2], until: Option<[u64; 2]>) -> Self {
        Self {
            at,
            cursors,
            until,
            is_announced: false,
            announce_by: None,
            holds: true,
            last_progress: clock::now(),
            size: None,
            client_id: None,
        }
    }

    /// Its announcement may wait until `when`.
    pub fn announce_by(&mut self, when: u64) {
        self.announce_by = Some(when);
    }

    /// It gets what is there now and no more, unless the command has just ended and is not all read yet.
    pub fn stop_at_present(&mut self, exec: &Exec) {
        let is_behind = |output: &super::record::Output| output.end.is_some_and(|end| output.ring.total() < end);
        if !exec.outputs.iter().any(is_behind) {
            self.until = Some([exec.outputs[0].ring.total(), exec.outputs[1].ring.total()]);
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Pumped {
    /// Everything that is there was sent.
    Caught,
    /// The client must take something first.
    Blocked,
}

impl Exec {
    /// Bytes that output `which` may still write before a reader that holds the command back would miss some.
    pub fn room(&self, which: usize) -> usize {
        let cursors = self.readers.iter().filter(|reader| reader.holds).map(|reader| reader.cursors[which]);
        cursors.min().map_or(usize::MAX, |cursor| self.outputs[which].ring.room_beyond(cursor))
    }

    /// When the slowest of those who hold the command back loses that right; `None` when nobody lags.
    pub fn slow_reader_deadline(&self) -> Option<u64> {
        let lags = |reader: &&Reader| {
            reader.holds && (0..2).any(|which| reader.cursors[which] < self.outputs[which].ring.total())
        };
        self.readers.iter().filter(lags).map(|reader| reader.last_progress + SLOW_READER_NANOS).min()
    }

    /// Readers that lag since before `now - SLOW_READER_NANOS` hold nothing back any more.
    pub fn release_slow_readers(&mut self, now: u64) {
        for reader in &mut self.readers {
            if reader.last_progress + SLOW_READER_NANOS <= now {
                reader.holds = false;
            }
        }
    }
}

impl Aether {
    /// Sends to the client at `at` what it has not had. The stream of a reader that has all it will get is closed.
    pub fn pump_reader(&mut self, key: Key, at: StreamKey) -> After {
        let Some(exec) = self.execs.get_mut(key) else { return After::Done };
        let Some(index) = exec.readers.iter().position(|reader| reader.at == at) else { return After::Done };
        let Some(connection) = self.connections.get_mut(at.connection) else { return After::Done };
        connection.is_dirty = true;
        let reader = &mut exec.readers[index];
        if let Some(when) = reader.announce_by {
            let is_silent = exec.ending.is_none() && exec.outputs.iter().all(|output| output.ring.total() == 0);
            if is_silent && when > clock::now() {
                return After::Keep;
            }
            reader.announce_by = None;
            self.deadlines.remove(&(when, Deadline::Announce(key)));
        }
        let pumped = pump(exec, index, &mut connection.server, at.stream);
        let after = if pumped == Pumped::Caught && is_complete(exec, index) {
            connection.server.close_ok(at.stream, &exec.status());
            exec.readers.swap_remove(index);
            After::Done
        } else {
            After::Keep
        };
        self.resume_outputs(key);
        after
    }

    /// A command that started has been silent for so long that its clients are told without anything else.
    pub fn on_announce(&mut self, key: Key) {
        self.pump_readers(key);
    }

    /// After new output: every attached client gets it.
    pub fn pump_readers(&mut self, key: Key) {
        let Some(exec) = self.execs.get(key) else { return };
        let mut keys: [Option<StreamKey>; 4] = [None; 4];
        // Nearly always one or two: no allocation then.
        if exec.readers.len() <= keys.len() {
            for (slot, reader) in keys.iter_mut().zip(&exec.readers) {
                *slot = Some(reader.at);
            }
            for at in keys.into_iter().flatten() {
                self.pump_reader_stream(key, at);
            }
        } else {
            let all: Vec<StreamKey> = exec.readers.iter().map(|reader| reader.at).collect();
            for at in all {
                self.pump_reader_stream(key, at);
            }
        }
    }

    fn pump_reader_stream(&mut self, key: Key, at: StreamKey) {
        if self.pump_reader(key, at) == After::Done {
            self.drop_stream(at);
        }
    }
}

fn pump(exec: &mut Exec, index: usize, server: &mut wire::server::Server, stream: u32) -> Pumped {
    let Exec { readers, outputs, id, pid, pty, is_queued, .. } = exec;
    let reader = &mut readers[index];
    if *is_queued {
        return Pumped::Blocked;
    }
    if !reader.is_announced {
        let mut started = json!({ "execId": id, "pid": pid });
        if *pty && let Some(client) = &reader.client_id {
            started["clientId"] = client.as_str().into();
        }
        if server.send_message(stream, &json!({ "started": started })) == Err(SendError::Blocked) {
            return Pumped::Blocked;
        }
        reader.is_announced = true;
    }
    loop {
        let mut caught_up = 0;
        for which in 0..2 {
            let cursor = &mut reader.cursors[which];
            match outputs[which].ring.at(*cursor) {
                Found::End => caught_up += 1,
                Found::Gap(to) => {
                    let gap = json!({ "gap": { "channel": CHANNELS[which], "from": *cursor, "to": to } });
                    if server.send_message(stream, &gap) == Err(SendError::Blocked) {
                        return Pumped::Blocked;
                    }
                    *cursor = to;
                }
                Found::Bytes(bytes) => {
                    let bytes = &bytes[..bytes.len().min(PIECE)];
                    let sent = server.send_data(stream, CHANNELS[which], bytes);
                    *cursor += sent as u64;
                    if sent > 0 {
                        reader.last_progress = clock::now();
                        reader.holds = true;
                    }
                    if sent < bytes.len() {
                        return Pumped::Blocked;
                    }
                }
            }
        }
        if caught_up == 2 {
            reader.last_progress = clock::now();
            reader.holds = true;
            return Pumped::Caught;
        }
    }
}

/// True when the reader, which has all that the rings hold, will get nothing more.
fn is_complete(exec: &Exec, index: usize) -> bool {
    let reader = &exec.readers[index];
    match reader.until {
        Some(until) => (0..2).all(|which| reader.cursors[which] >= until[which]),
        None => {
            exec.ending.is_some()
                && (0..2).all(|which| exec.outputs[which].end.is_some_and(|end| reader.cursors[which] >= end))
        }
    }
}
