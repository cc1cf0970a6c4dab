//! JSON lines on stderr, at a bounded rate, and never waiting for whoever reads them.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec};
use serde_json::{Map, Value, json};

/// Lines in one second; more are counted and left out.
const MAX_PER_SECOND: u32 = 50;

#[derive(Clone, Copy, Debug)]
pub enum Level {
    Info,
    Warn,
    Error,
}

pub struct Log {
    component: &'static str,
    role: Option<&'static str>,
    rate: Mutex<Rate>,
}

struct Rate {
    second: Instant,
    written: u32,
    dropped: u64,
}

impl Log {
    /// `role` tells the processes of one component apart.
    pub fn new(component: &'static str, role: Option<&'static str>) -> Self {
        Self { component, role, rate: Mutex::new(Rate { second: Instant::now(), written: 0, dropped: 0 }) }
    }

    /// `fields` is an object.
    pub fn write(&self, level: Level, event: &str, fields: &Value) {
        let mut rate = self.rate.lock().unwrap_or_else(PoisonError::into_inner);
        if rate.second.elapsed() >= Duration::from_secs(1) {
            rate.second = Instant::now();
            rate.written = 0;
        }
        if rate.written >= MAX_PER_SECOND {
            rate.dropped += 1;
            return;
        }
        rate.written += 1;
        let line = self.line(level, event, fields, std::mem::take(&mut rate.dropped));
        let stderr = std::io::stderr();
        let mut poll = [PollFd::new(&stderr, PollFlags::OUT)];
        if matches!(rustix::event::poll(&mut poll, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1)) {
            // A log that cannot be written has nowhere to be reported.
            let _ = rustix::io::write(&stderr, line.as_bytes());
        }
    }

    fn line(&self, level: Level, event: &str, fields: &Value, dropped: u64) -> String {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut members = Map::new();
        members.insert(
            "level".into(),
            json!(match level {
                Level::Info => "info",
                Level::Warn => "warn",
                Level::Error => "error",
            }),
        );
        members.insert("time".into(), json!(now.as_millis() as u64));
        members.insert("component".into(), json!(self.component));
        if let Some(role) = self.role {
            members.insert("role".into(), json!(role));
        }
        members.insert("event".into(), json!(event));
        if let Value::Object(fields) = fields {
            members.extend(fields.clone());
        }
        if dropped > 0 {
            members.insert("droppedLines".into(), json!(dropped));
        }
        format!("{}\n", Value::Object(members))
    }
}
