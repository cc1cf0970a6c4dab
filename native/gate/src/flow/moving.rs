//! Bytes of one connection on their way, in both directions.

use std::os::fd::OwnedFd;

use rustix::net::{RecvFlags, Shutdown, recv, shutdown};

use super::{End, Flow, Stage, Turn};
use crate::bounds::{HEAD_TIME, MAX_NAMES_PER_CONNECTION, SPLICES_A_TURN};
use crate::inspector::Look;
use crate::name::HostName;
use crate::refusal::Reason;
use crate::splice::Moved;
use crate::{Errno, Result};

impl Flow {
    pub(super) fn move_up(&mut self, turn: &mut Turn<'_>) -> std::result::Result<(), End> {
        let mut reads = 0;
        let last = loop {
            if let Some(upstream) = &self.upstream {
                let waiting = self.up.waiting().len();
                let is_flushed = self.up.flush(upstream).map_err(|_| End::Broken)?;
                self.moved[0] += (waiting - self.up.waiting().len()) as u64;
                if !is_flushed {
                    break None;
                }
            }
            let look = self.inspector.look(self.up.unread());
            match look.map_err(|reason| End::Refused(reason, self.names.last().cloned()))? {
                Look::Pass(count) => self.up.pass(count),
                Look::Ask(name) => {
                    self.ask(name, turn)?;
                    self.inspector.granted();
                    if self.stage == Stage::Deciding {
                        return self.connect(turn.now);
                    }
                }
                Look::More if self.up.has_ended => {
                    self.ended_early()?;
                    break None;
                }
                look if self.up.has_ended || reads == SPLICES_A_TURN => break Some(look),
                // What is held back is read as well, as far as there is room: the client's end must be seen.
                Look::Hold if self.up.is_full() => break Some(Look::Hold),
                look @ (Look::More | Look::Hold) => {
                    reads += 1;
                    let room = self.up.room().min(turn.tools.scratch.len());
                    match receive(&self.client, &mut turn.tools.scratch[..room]).map_err(|_| End::Broken)? {
                        None => break Some(look),
                        Some([]) => self.up.has_ended = true,
                        Some(bytes) => self.up.push(bytes),
                    }
                }
                Look::Splice(most) => {
                    reads += 1;
                    let upstream = self.upstream.as_ref().ok_or(End::Broken)?;
                    let most = most.min(turn.splice_bytes());
                    let moved = turn.tools.pipe.transfer(&self.client, upstream, most).map_err(|_| End::Broken)?;
                    match moved {
                        Moved::Nothing => break None,
                        Moved::End => self.up.has_ended = true,
                        Moved::Bytes { count, left } => {
                            self.inspector.spliced(count);
                            self.moved[0] += (count - left.len()) as u64;
                            self.up.push(&left);
                            self.up.pass(left.len());
                        }
                    }
                }
            }
        };
        self.is_holding = last == Some(Look::Hold);
        if self.stage == Stage::Open {
            let is_midway = last == Some(Look::More) && !self.up.unread().is_empty();
            self.deadline = is_midway.then(|| self.deadline.unwrap_or(turn.now + HEAD_TIME));
        }
        if let Some(upstream) = &self.upstream
            && self.up.is_to_be_shut()
        {
            shutdown(upstream, Shutdown::Write).map_err(|_| End::Broken)?;
            self.up.is_shut = true;
        }
        Ok(())
    }

    /// The client has sent its end where more was needed.
    fn ended_early(&self) -> std::result::Result<(), End> {
        match (self.stage, self.up.unread()) {
            // One that only looked whether somebody is there.
            (Stage::Deciding, []) => Err(End::Done),
            (_, []) => Ok(()),
            _ => Err(End::Refused(Reason::Incomplete, self.names.last().cloned())),
        }
    }

    fn ask(&mut self, name: HostName, turn: &Turn<'_>) -> std::result::Result<(), End> {
        if self.names.contains(&name) {
            return Ok(());
        }
        // A pin counts at the moment when the connection came, as for the packet filter; for a later name, now.
        let at = if self.stage == Stage::Deciding { self.accepted_at } else { turn.now };
        let mut decision = turn.sandbox.decide(&name, self.destination, at);
        if decision.is_ok() && self.names.len() >= MAX_NAMES_PER_CONNECTION {
            decision = Err(Reason::TooManyNames);
        }
        if let Err(reason) = decision {
            return Err(End::Refused(reason, Some(name)));
        }
        self.names.push(name);
        Ok(())
    }

    pub(super) fn move_down(&mut self, turn: &mut Turn<'_>) -> std::result::Result<(), End> {
        let Some(upstream) = &self.upstream else { return Ok(()) };
        for _ in 0..SPLICES_A_TURN {
            let waiting = self.down.waiting().len();
            let is_flushed = self.down.flush(&self.client).map_err(|_| End::Broken)?;
            self.moved[1] += (waiting - self.down.waiting().len()) as u64;
            if !is_flushed || self.down.has_ended {
                break;
            }
            let has_ended = if self.inspector.wants_answer() {
                match receive(upstream, &mut turn.tools.scratch).map_err(|_| End::Broken)? {
                    None => break,
                    Some(bytes) => {
                        self.inspector.answered(bytes);
                        self.down.push(bytes);
                        self.down.pass(bytes.len());
                        bytes.is_empty()
                    }
                }
            } else {
                let most = turn.splice_bytes();
                let moved = turn.tools.pipe.transfer(upstream, &self.client, most);
                match moved.map_err(|_| End::Broken)? {
                    Moved::Nothing => break,
                    Moved::End => true,
                    Moved::Bytes { count, left } => {
                        self.moved[1] += (count - left.len()) as u64;
                        self.down.push(&left);
                        self.down.pass(left.len());
                        false
                    }
                }
            };
            if has_ended {
                self.down.has_ended = true;
                self.inspector.answer_ended();
            }
        }
        if self.down.is_to_be_shut() {
            shutdown(&self.client, Shutdown::Write).map_err(|_| End::Broken)?;
            self.down.is_shut = true;
        }
        Ok(())
    }
}

/// Bytes that have come; none at the end. `None`: nothing yet.
fn receive<'a>(from: &OwnedFd, into: &'a mut [u8]) -> Result<Option<&'a [u8]>> {
    loop {
        match recv(from, &mut *into, RecvFlags::DONTWAIT) {
            Ok((_, count)) => return Ok(Some(&into[..count])),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}
