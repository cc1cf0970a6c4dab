//! The credit of one stream, in both directions.

use crate::error::ProtocolError;
use crate::{INITIAL_WINDOW, MAX_WINDOW, MIN_COST};

/// Credit that was taken is granted again once it adds up to this.
const GRANT_AT: u32 = INITIAL_WINDOW / 2;

#[derive(Debug)]
pub(crate) struct Stream {
    /// What may still be sent.
    pub credit: u32,
    /// What the other side may still send.
    window: u32,
    /// Bytes and cost that came in and are not granted again yet. They differ by what short frames cost above their length.
    pending_bytes: u32,
    pending_cost: u32,
    /// Cost of what was taken and is not granted yet.
    taken: u32,
    pub end_sent: bool,
    pub end_received: bool,
    /// A send fell short of credit; a grant makes the stream ready.
    pub wants_credit: bool,
    /// In the queue of streams that can go on.
    pub is_ready: bool,
}

impl Stream {
    pub fn new() -> Self {
        Self {
            credit: INITIAL_WINDOW,
            window: INITIAL_WINDOW,
            pending_bytes: 0,
            pending_cost: 0,
            taken: 0,
            end_sent: false,
            end_received: false,
            wants_credit: false,
            is_ready: false,
        }
    }

    /// A DATA or MESSAGE of this length came in.
    pub fn charge(&mut self, length: usize) -> Result<(), ProtocolError> {
        let cost = cost(length);
        self.window = self.window.checked_sub(cost).ok_or(ProtocolError::CreditExceeded)?;
        self.pending_bytes += length as u32;
        self.pending_cost += cost;
        Ok(())
    }

    /// The other side lets this one send more.
    pub fn granted(&mut self, grant: u32) -> Result<(), ProtocolError> {
        self.credit = match self.credit.checked_add(grant) {
            Some(credit) if credit <= MAX_WINDOW => credit,
            _ => return Err(ProtocolError::CreditOverflow),
        };
        Ok(())
    }

    /// How much to grant now that the consumer has taken `n` more bytes. The surcharge of short frames comes back when nothing is left.
    pub fn take(&mut self, n: usize) -> Option<u32> {
        let n = u32::try_from(n).unwrap_or(u32::MAX).min(self.pending_bytes);
        self.pending_bytes -= n;
        let cost = if self.pending_bytes == 0 { self.pending_cost } else { n };
        self.pending_cost -= cost;
        self.taken += cost;
        if self.taken < GRANT_AT {
            return None;
        }
        self.window += self.taken;
        Some(std::mem::take(&mut self.taken))
    }
}

/// What a DATA or MESSAGE of this length costs.
pub(crate) fn cost(length: usize) -> u32 {
    (length as u32).max(MIN_COST)
}
