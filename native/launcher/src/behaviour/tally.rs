//! What is told and what is only counted: alike events of one window are one, and a sandbox has a budget.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::bounds::{ALL_EVENTS, EVENTS, MAX_ALIKE, WINDOW};
use super::facts::Facts;
use super::rate::Allowance;

/// What makes events alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Alike {
    pub slot: u32,
    /// The thread of a call, and the process of an opening; on the host.
    pub id: u32,
    pub kind: &'static str,
    pub call: Option<&'static str>,
    pub argument: Option<String>,
    pub path: Option<String>,
    pub outcome: &'static str,
}

struct Counted {
    until: Instant,
    more: u64,
    process: Option<Facts>,
}

struct Teller {
    sandbox: String,
    budget: Allowance,
    /// Beyond the budget since the last event.
    missed: u64,
}

/// Counts for sandboxes that are known by their slots.
pub struct Tally {
    tellers: HashMap<u32, Teller>,
    counted: HashMap<Alike, Counted>,
    budget: Allowance,
    /// No window ends before.
    due: Option<Instant>,
}

impl Tally {
    pub fn new(now: Instant) -> Self {
        Self { tellers: HashMap::new(), counted: HashMap::new(), budget: Allowance::new(ALL_EVENTS, now), due: None }
    }

    pub fn begin(&mut self, slot: u32, sandbox: String, now: Instant) {
        self.end(slot);
        self.tellers.insert(slot, Teller { sandbox, budget: Allowance::new(EVENTS, now), missed: 0 });
    }

    /// What was counted of it is told no more.
    pub fn end(&mut self, slot: u32) {
        self.tellers.remove(&slot);
        self.counted.retain(|alike, _| alike.slot != slot);
    }

    /// Counts one. Where it is to be told now, `who` is asked for the process and the event is returned.
    pub fn count(
        &mut self,
        alike: Alike,
        now: Instant,
        at_ms: u64,
        who: impl FnOnce() -> Option<Facts>,
    ) -> Option<Value> {
        if let Some(counted) = self.counted.get_mut(&alike) {
            counted.more += 1;
            return None;
        }
        let teller = self.tellers.get_mut(&alike.slot)?;
        if self.counted.len() >= MAX_ALIKE || !teller.budget.take(now) || !self.budget.take(now) {
            teller.missed += 1;
            return None;
        }
        let process = who();
        let event = teller.event(&alike, 1, at_ms, process.as_ref());
        let until = now + WINDOW;
        self.due = Some(self.due.map_or(until, |due| due.min(until)));
        self.counted.insert(alike, Counted { until, more: 0, process });
        Some(event)
    }

    /// How long nothing is to be told by itself.
    pub fn rest(&self, now: Instant) -> Option<Duration> {
        self.due.map(|due| due.saturating_duration_since(now))
    }

    /// Events of windows that have ended.
    pub fn ended(&mut self, now: Instant, at_ms: u64) -> Vec<Value> {
        if self.due.is_none_or(|due| due > now) {
            return Vec::new();
        }
        let mut events = Vec::new();
        let (tellers, budget) = (&mut self.tellers, &mut self.budget);
        self.counted.retain(|alike, counted| {
            if counted.until > now {
                return true;
            }
            let Some(teller) = tellers.get_mut(&alike.slot) else { return false };
            if counted.more == 0 {
                return false;
            }
            let more = std::mem::take(&mut counted.more);
            if !teller.budget.take(now) || !budget.take(now) {
                teller.missed += more;
                return false;
            }
            counted.until = now + WINDOW;
            events.push(teller.event(alike, more, at_ms, counted.process.as_ref()));
            true
        });
        self.due = self.counted.values().map(|counted| counted.until).min();
        events
    }
}

impl Teller {
    fn event(&mut self, alike: &Alike, count: u64, at_ms: u64, process: Option<&Facts>) -> Value {
        let mut event = json!({
            "id": self.sandbox,
            "atMs": at_ms,
            "kind": alike.kind,
            "outcome": alike.outcome,
            "count": count + std::mem::take(&mut self.missed),
        });
        for (name, value) in
            [("call", alike.call), ("argument", alike.argument.as_deref()), ("path", alike.path.as_deref())]
        {
            if let Some(value) = value {
                event[name] = value.into();
            }
        }
        if let Some(process) = process {
            event["process"] = json!(process);
        }
        event
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alike(slot: u32, id: u32) -> Alike {
        Alike { slot, id, kind: "call", call: Some("bpf"), argument: None, path: None, outcome: "EPERM" }
    }

    fn counts(events: &[Value]) -> Vec<u64> {
        events.iter().map(|event| event["count"].as_u64().expect("a count")).collect()
    }

    #[test]
    fn the_first_comes_at_once_and_those_alike_at_the_end_of_the_window() {
        let start = Instant::now();
        let mut tally = Tally::new(start);
        tally.begin(1, "a1".to_owned(), start);
        let first = tally.count(alike(1, 7), start, 5, || None).expect("told");
        let expected = json!({
            "id": "a1", "atMs": 5, "kind": "call", "call": "bpf", "outcome": "EPERM", "count": 1
        });
        assert_eq!(first, expected);
        for _ in 0..9 {
            assert_eq!(tally.count(alike(1, 7), start, 6, || panic!("nobody is asked")), None);
        }
        assert_eq!(tally.rest(start), Some(WINDOW));
        assert_eq!(tally.ended(start + WINDOW / 2, 7), Vec::<Value>::new());
        assert_eq!(counts(&tally.ended(start + WINDOW, 7)), [9]);
        assert_eq!(tally.count(alike(1, 7), start + WINDOW, 8, || None), None, "the next window has begun");
        assert_eq!(counts(&tally.ended(start + WINDOW * 2, 9)), [1]);
        assert!(tally.ended(start + WINDOW * 3, 9).is_empty());
        assert_eq!(tally.rest(start), None, "nothing is to be done for a quiet sandbox");
    }

    #[test]
    fn what_is_beyond_the_budget_of_a_sandbox_is_counted_and_costs_nobody_else_anything() {
        let start = Instant::now();
        let mut tally = Tally::new(start);
        tally.begin(1, "a1".to_owned(), start);
        tally.begin(2, "a2".to_owned(), start);
        let told = (0..1_000).filter(|id| tally.count(alike(1, *id), start, 0, || None).is_some()).count();
        assert_eq!(told, EVENTS.burst as usize);
        assert!(tally.count(alike(2, 1), start, 0, || None).is_some());
        let later = tally.count(alike(1, 5_000), start + Duration::from_secs(1), 0, || None).expect("told");
        assert_eq!(later["count"], 1_000 - told as u64 + 1, "the next one counts them too");
    }

    #[test]
    fn nothing_is_kept_of_who_is_gone_and_little_of_who_floods() {
        let start = Instant::now();
        let mut tally = Tally::new(start);
        for slot in 0..1_000 {
            tally.begin(slot, "a".to_owned(), start);
            for id in 0..100 {
                tally.count(alike(slot, id), start, 0, || None);
            }
        }
        assert!(tally.counted.len() <= ALL_EVENTS.burst as usize);
        (0..1_000).for_each(|slot| tally.end(slot));
        assert!(tally.counted.is_empty() && tally.tellers.is_empty());
        assert_eq!(tally.count(alike(1, 1), start, 0, || None), None);
    }
}
