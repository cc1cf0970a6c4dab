//! Who is told of events, and what waits for whom: the oldest goes when there is too much.

use std::collections::VecDeque;
use std::rc::Rc;

use serde_json::{Value, json};

use super::bounds::MAX_WAITING_EVENTS;

/// Events that wait.
#[derive(Clone, Default)]
pub struct Waiting {
    events: VecDeque<Rc<Value>>,
    lost: u64,
}

impl Waiting {
    pub fn push(&mut self, event: Rc<Value>) {
        if self.events.len() >= MAX_WAITING_EVENTS {
            self.events.pop_front();
            self.lost += 1;
        }
        self.events.push_back(event);
    }

    /// The next message; it is still there until [`Self::sent`].
    pub fn next(&self) -> Option<Value> {
        let event = self.events.front()?;
        Some(if self.lost == 0 { json!({ "event": **event }) } else { json!({ "event": **event, "lost": self.lost }) })
    }

    pub fn sent(&mut self) {
        self.events.pop_front();
        self.lost = 0;
    }
}

/// Events on their way from the observer to clients.
#[derive(Default)]
pub struct Subscribers {
    published: Vec<Rc<Value>>,
    /// For the first client: without one, nobody has heard of them.
    kept: Waiting,
}

impl Subscribers {
    pub fn publish(&mut self, event: Value) {
        self.published.push(Rc::new(event));
    }

    /// What came since it was asked last.
    pub fn take_published(&mut self) -> Vec<Rc<Value>> {
        std::mem::take(&mut self.published)
    }

    /// Nobody was there to hear it.
    pub fn keep(&mut self, event: Rc<Value>) {
        self.kept.push(event);
    }

    /// For a client that begins to listen.
    pub fn take_kept(&mut self) -> Waiting {
        std::mem::take(&mut self.kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_read_loses_the_oldest_and_hears_how_many() {
        let mut waiting = Waiting::default();
        for number in 0..MAX_WAITING_EVENTS + 5 {
            waiting.push(Rc::new(json!(number)));
        }
        assert_eq!(waiting.next(), Some(json!({ "event": 5, "lost": 5 })));
        assert_eq!(waiting.next(), Some(json!({ "event": 5, "lost": 5 })), "until it was sent");
        waiting.sent();
        assert_eq!(waiting.next(), Some(json!({ "event": 6 })));
    }
}
