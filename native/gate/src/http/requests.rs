//! The requests of one connection, one behind the other: each head is read before a byte of it goes on.

use super::chunks::Chunks;
use super::head::{self, Body, Head, Upgrade};
use crate::bounds::MAX_PEEK;
use crate::name::HostName;
use crate::refusal::Reason;

/// What is to be done with the bytes that have come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Wait for more.
    More,
    /// Decide on this name, then say [`Requests::granted`].
    Ask(HostName),
    /// So many bytes may go on.
    Pass(usize),
    /// The next bytes may go on unread: so many.
    Splice(u64),
    /// Nothing goes on until the server has answered the upgrade.
    Upgrading,
}

#[derive(Debug)]
enum State {
    Head(Place),
    Asked { head: Head, length: usize },
    Granted { head: Head, length: usize },
    Sized { left: u64 },
    Chunked(Chunks),
    Upgrading,
}

/// How far a head has been looked at.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// Where the line begins whose end has not come.
    line: usize,
    /// Its end is not before this.
    looked: usize,
}

#[derive(Debug)]
pub struct Requests {
    state: State,
    port: u16,
    is_first: bool,
}

impl Requests {
    pub fn new(port: u16) -> Self {
        Self { state: State::Head(Place::default()), port, is_first: true }
    }

    /// Looks at the bytes that have come and have not gone on.
    pub fn step(&mut self, bytes: &[u8]) -> Result<Step, Reason> {
        loop {
            match &mut self.state {
                State::Head(place) => match head_length(bytes, place)? {
                    Some(length) => {
                        let head = head::parse(&bytes[..length - b"\r\n".len()], self.port)?;
                        if head.upgrade == Upgrade::WebSocket && !self.is_first {
                            return Err(Reason::UpgradeNotFirst);
                        }
                        self.state = State::Asked { head, length };
                    }
                    None if bytes.len() < MAX_PEEK => return Ok(Step::More),
                    None => return Err(Reason::HeadTooLarge),
                },
                State::Asked { head, .. } => return Ok(Step::Ask(head.name.clone())),
                State::Granted { head, length } => {
                    let length = *length;
                    self.state = match (head.upgrade, head.body) {
                        (Upgrade::WebSocket, _) => State::Upgrading,
                        (_, Body::None) => State::Head(Place::default()),
                        (_, Body::Sized(left)) => State::Sized { left },
                        (_, Body::Chunked) => State::Chunked(Chunks::default()),
                    };
                    self.is_first = false;
                    return Ok(Step::Pass(length));
                }
                State::Sized { left: 0 } => self.state = State::Head(Place::default()),
                State::Sized { left } if bytes.is_empty() => return Ok(Step::Splice(*left)),
                State::Sized { left } => {
                    let length = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    *left -= length as u64;
                    return Ok(Step::Pass(length));
                }
                State::Chunked(chunks) if chunks.is_over() => self.state = State::Head(Place::default()),
                State::Chunked(_) if bytes.is_empty() => return Ok(Step::More),
                State::Chunked(chunks) => return chunks.take(bytes).map(Step::Pass),
                State::Upgrading => return Ok(Step::Upgrading),
            }
        }
    }

    /// The name that was asked for is allowed.
    pub fn granted(&mut self) {
        self.state = match std::mem::replace(&mut self.state, State::Head(Place::default())) {
            State::Asked { head, length } => State::Granted { head, length },
            other => other,
        };
    }

    /// So many of the bytes that may go on unread have gone.
    pub fn spliced(&mut self, count: u64) {
        if let State::Sized { left } = &mut self.state {
            *left = left.saturating_sub(count);
        }
    }

    /// The server has not taken the upgrade.
    pub fn stayed(&mut self) {
        self.state = State::Head(Place::default());
    }
}

/// The length of a whole head with its empty line. No byte is looked at twice, so that one that comes byte by byte costs no more than one that comes at once.
fn head_length(bytes: &[u8], place: &mut Place) -> Result<Option<usize>, Reason> {
    // What begins otherwise need not be waited for, nor an empty line, which a server may or may not skip.
    if bytes.first().is_some_and(|byte| !byte.is_ascii_uppercase()) {
        return Err(Reason::HeadInvalid);
    }
    while let Some(end) = head::line_end(bytes, place.looked)? {
        if end == place.line {
            return Ok(Some(end + 2));
        }
        if place.line == 0 {
            head::check_request_line(&bytes[..end])?;
        }
        *place = Place { line: end + 2, looked: end + 2 };
    }
    // The last byte may be the CR of an end that has come by half.
    place.looked = place.line.max(bytes.len().saturating_sub(1));
    Ok(None)
}
