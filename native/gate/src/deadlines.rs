//! What must have happened by when. A connection that is open and idle has no deadline.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

#[derive(Debug, Default)]
pub struct Deadlines(BTreeSet<(Instant, u32)>);

impl Deadlines {
    /// Moves the deadline of a connection.
    pub fn change(&mut self, flow: u32, from: Option<Instant>, to: Option<Instant>) {
        if from == to {
            return;
        }
        if let Some(from) = from {
            self.0.remove(&(from, flow));
        }
        if let Some(to) = to {
            self.0.insert((to, flow));
        }
    }

    /// How long until the next; `None` without any.
    pub fn wait(&self, now: Instant) -> Option<Duration> {
        self.0.first().map(|(at, _)| at.saturating_duration_since(now))
    }

    /// Connections whose time is over.
    pub fn over(&self, now: Instant) -> Vec<u32> {
        self.0.iter().take_while(|(at, _)| *at <= now).map(|(_, flow)| *flow).collect()
    }
}
