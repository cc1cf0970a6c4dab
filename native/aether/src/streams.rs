//! What an open stream is about, once its method has begun.

use crate::connection::StreamKey;
use crate::event_loop::Aether;
use crate::exec::methods::StdinStream;
use crate::files::list::FileList;
use crate::files::read::FileRead;
use crate::files::remove::FileRemove;
use crate::files::write::FileWrite;
use crate::port::Port;
use crate::processes::Listing;
use crate::slab::Key;
use crate::watch::Watch;
use crate::worker::{Pull, Push};

/// Whether a stream goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    Keep,
    /// It was answered, or there is nothing to answer.
    Done,
}

#[derive(Debug)]
pub enum Stream {
    /// exec.start.
    Starter(Key),
    /// exec.attach: input only for a terminal.
    Attached(Key),
    Stdin(StdinStream),
    /// It waits for an answer that is on its way.
    Answered,
    Processes(Box<Listing>),
    FileList(Box<FileList>),
    FileRead(Box<FileRead>),
    FileWrite(Box<FileWrite>),
    FileRemove(Box<FileRemove>),
    Watch(Box<Watch>),
    Port(Box<Port>),
    /// tree.read, and file.read of what is big.
    Pull(Box<Pull>),
    TreeWrite(Box<Push>),
}

impl Stream {
    pub fn on_data(&mut self, aether: &mut Aether, at: StreamKey, channel: u8, bytes: Vec<u8>) -> After {
        match self {
            Self::Starter(key) if channel == 0 => aether.write_stdin(*key, at, bytes),
            Self::Attached(key) if channel == 0 && aether.is_terminal(*key) => aether.write_stdin(*key, at, bytes),
            Self::Stdin(stdin) if channel == 0 => stdin.on_data(aether, at, bytes),
            Self::FileWrite(write) => return write.on_data(aether, at, &bytes),
            Self::TreeWrite(push) => push.on_data(aether, at, &bytes),
            Self::Port(port) => return port.on_data(aether, at, &bytes),
            _ => {
                if let Some(connection) = aether.connections.get_mut(at.connection) {
                    connection.server.consumed(at.stream, bytes.len());
                }
            }
        }
        After::Keep
    }

    pub fn on_end(&mut self, aether: &mut Aether, at: StreamKey) -> After {
        match self {
            Self::Starter(key) => aether.end_stdin(*key, at, None),
            Self::Stdin(stdin) => stdin.on_end(aether, at),
            Self::FileWrite(write) => return write.on_end(aether, at),
            Self::TreeWrite(push) => push.on_end(aether, at),
            Self::Port(port) => return port.on_end(aether, at),
            _ => {}
        }
        After::Keep
    }

    /// It may send again.
    pub fn on_writable(&mut self, aether: &mut Aether, at: StreamKey) -> After {
        match self {
            Self::Starter(key) | Self::Attached(key) => aether.pump_reader(*key, at),
            Self::FileRead(read) => read.on_turn(aether, at),
            Self::FileList(list) => list.on_turn(aether, at),
            Self::Watch(watch) => watch.go_on(aether, at),
            Self::Pull(pull) => pull.on_ready(aether, at),
            Self::Port(port) => port.on_writable(aether, at),
            _ => After::Keep,
        }
    }

    /// Its turn, which it asked for by [`Aether::queue`].
    pub fn on_turn(&mut self, aether: &mut Aether, at: StreamKey) -> After {
        match self {
            Self::Processes(listing) => listing.on_turn(aether, at),
            Self::FileRead(read) => read.on_turn(aether, at),
            Self::FileList(list) => list.on_turn(aether, at),
            Self::FileRemove(removal) => removal.on_turn(aether, at),
            Self::Watch(watch) => watch.on_turn(aether, at),
            _ => After::Keep,
        }
    }

    /// A descriptor of its own is ready.
    pub fn on_ready(&mut self, aether: &mut Aether, at: StreamKey) -> After {
        match self {
            Self::Watch(watch) => watch.on_ready(aether, at),
            Self::Port(port) => port.on_ready(aether, at),
            Self::Pull(pull) => pull.on_ready(aether, at),
            Self::FileWrite(write) => write.on_ready(aether, at),
            Self::TreeWrite(push) => match push.on_ready(aether, at) {
                None => After::Keep,
                Some(report) => {
                    aether.answer(at, report);
                    After::Done
                }
            },
            _ => After::Keep,
        }
    }

    pub fn on_timeout(&mut self, aether: &mut Aether, at: StreamKey) -> After {
        match self {
            Self::Port(port) => port.on_timeout(aether, at),
            _ => After::Keep,
        }
    }

    /// The stream is over, whoever ended it.
    pub fn release(self, aether: &mut Aether, at: StreamKey) {
        match self {
            Self::Starter(key) | Self::Attached(key) => aether.detach(key, at),
            Self::Watch(watch) => watch.release(aether),
            Self::Port(port) => port.release(aether),
            Self::Pull(pull) => pull.worker.release(aether),
            Self::TreeWrite(push) => push.worker.release(aether),
            Self::FileWrite(write) => write.release(aether),
            _ => {}
        }
    }
}
