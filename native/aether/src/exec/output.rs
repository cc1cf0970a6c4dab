//! Reading what a command writes into its rings, for as long as anybody holds the pipes.

use super::table::MAX_RING_BYTES;
use crate::clock;
use crate::event_loop::{Aether, Deadline, Source};
use crate::slab::Key;
use crate::sys::{fd, poll};

/// What one read asks for: as much as a pipe holds by default.
const READ_SIZE: usize = 64 << 10;

const SOURCES: [fn(Key) -> Source; 2] = [Source::Stdout, Source::Stderr];

/// What came of one read.
#[derive(PartialEq, Eq)]
enum Taken {
    Bytes,
    Nothing,
    Closed,
    HeldBack,
}

impl Aether {
    /// Registers the outputs of a new command.
    pub fn watch_outputs(&mut self, key: Key) {
        self.resume_outputs(key);
    }

    /// Output `which` is readable or was closed.
    pub fn on_output(&mut self, key: Key, which: usize) {
        if self.take_output(key, which) != Taken::Nothing {
            self.pump_readers(key);
        }
        self.drop_if_spent(key);
    }

    /// One read into the ring. Watching stops while readers hold the command back.
    fn take_output(&mut self, key: Key, which: usize) -> Taken {
        if self.execs.ring_bytes > MAX_RING_BYTES
            && let Some(exec) = self.execs.get_mut(key)
        {
            exec.outputs[which].ring.stop_growing();
        }
        let Some(exec) = self.execs.get_mut(key) else { return Taken::Nothing };
        let room = exec.room(which);
        let output = &mut exec.outputs[which];
        let Some(source) = &output.source else { return Taken::Nothing };
        if room == 0 {
            if output.is_watched {
                output.is_watched = false;
                self.poll.remove(source);
            }
            self.watch_slow_readers(key);
            return Taken::HeldBack;
        }
        let buffer = &mut self.scratch[..READ_SIZE.min(room)];
        match fd::read(source, buffer) {
            Ok(0) | Err(libc::EIO) => {
                if output.is_watched {
                    self.poll.remove(source);
                }
                output.is_watched = false;
                output.source = None;
                if output.end.is_some() {
                    output.end = Some(output.ring.total());
                }
                Taken::Closed
            }
            Ok(n) => {
                let before = output.ring.held_bytes();
                output.ring.write(&buffer[..n]);
                let grown = output.ring.held_bytes() - before;
                self.execs.ring_bytes += grown;
                Taken::Bytes
            }
            Err(_) => {
                // Nothing there: what was announced at the command's end has been read by somebody else.
                if output.end.is_some_and(|end| end > output.ring.total()) {
                    output.end = Some(output.ring.total());
                    return Taken::Closed;
                }
                Taken::Nothing
            }
        }
    }

    /// The command has ended: what it wrote until now is what its clients wait for. A background child that writes on does not
    /// prolong it.
    pub fn mark_output_ends(&mut self, key: Key) {
        for which in 0..2 {
            let Some(exec) = self.execs.get_mut(key) else { return };
            let is_pty = exec.pty;
            let output = &mut exec.outputs[which];
            let waiting = match &output.source {
                // A terminal whose session leader is gone says EIO after its last byte; how many wait is not known before.
                Some(_) if is_pty => u64::MAX - output.ring.total(),
                Some(source) => fd::readable_bytes(source) as u64,
                None => 0,
            };
            output.end = Some(output.ring.total() + waiting);
            if exec.session.is_some() {
                // A FIFO that the shell did not come to open never reports its end; reading it tells.
                self.take_output(key, which);
            }
            while self.lacks_output(key, which) {
                match self.take_output(key, which) {
                    Taken::Bytes => self.pump_readers(key),
                    _ => break,
                }
            }
        }
    }

    fn lacks_output(&self, key: Key, which: usize) -> bool {
        self.execs.get(key).is_some_and(|exec| {
            let output = &exec.outputs[which];
            output.source.is_some() && output.end.is_some_and(|end| output.ring.total() < end)
        })
    }

    /// Watches again what may be read again.
    pub fn resume_outputs(&mut self, key: Key) {
        let Some(exec) = self.execs.get_mut(key) else { return };
        for (which, source_of) in SOURCES.iter().enumerate() {
            if exec.outputs[which].source.is_none() || exec.outputs[which].is_watched || exec.room(which) == 0 {
                continue;
            }
            let output = &mut exec.outputs[which];
            if let Some(source) = &output.source {
                output.is_watched = self.poll.add(source, poll::READ, source_of(key).token()).is_ok();
            }
        }
    }

    fn watch_slow_readers(&mut self, key: Key) {
        let Some(deadline) = self.execs.get(key).and_then(|exec| exec.slow_reader_deadline()) else { return };
        self.deadlines.insert((deadline, Deadline::SlowReader(key)));
    }

    /// A reader may have been slow for too long.
    pub fn on_slow_reader(&mut self, key: Key) {
        let Some(exec) = self.execs.get_mut(key) else { return };
        exec.release_slow_readers(clock::now());
        let is_held = (0..2).any(|which| exec.outputs[which].source.is_some() && exec.room(which) == 0);
        if is_held {
            self.watch_slow_readers(key);
        }
        self.resume_outputs(key);
    }
}
