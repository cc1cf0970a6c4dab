//! The state of the launcher, and what each request does to it. It knows nothing of connections: answers and events are collected for whoever serves.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::behaviour::Behaviour;
use crate::blank_pool::BlankPool;
use crate::changes::Changes;
use crate::failure::{self, Failure};
use crate::lowers::Lowers;
use crate::namespace_pool::NamespacePool;
use crate::node::Node;
use crate::poller::{Poller, Token};
use crate::record::Exit;
use crate::request::{Create, Forgotten, Request, SandboxId};
use crate::sandbox::{Caller, Phase, Sandbox};
use crate::usage;
use daemon::log::{Level, Log};

/// Creates that wait for their turn; a client has no more streams anyway.
const MAX_WAITING: usize = 8_192;
/// Without foreground requests for so long, the pools are filled.
pub const QUIET: Duration = Duration::from_millis(3);

pub type Answer = (Caller, Result<Value, Failure>);

pub struct Launcher {
    pub node: Node,
    pub poller: Poller,
    pub log: Log,
    pub lowers: Lowers,
    pub namespaces: NamespacePool,
    pub max_sandboxes: usize,
    pub sandboxes: HashMap<u32, Sandbox>,
    pub slots_by_id: HashMap<SandboxId, u32>,
    pub free_slots: VecDeque<u32>,
    /// Blanks that are ready.
    pub blanks: BlankPool,
    /// Layers and sets that are forgotten when the blanks on them are gone.
    pub forgets: Vec<(Caller, Forgotten)>,
    /// Processes on their way: sandboxes and blanks.
    pub starting: usize,
    pub waiting: VecDeque<(Caller, Create)>,
    /// Slots whose processes are gone and whose remains are being removed.
    pub ending: VecDeque<u32>,
    /// Slots whose processes were killed and have not ended yet.
    pub killed: Vec<u32>,
    /// Slots whose first process has ended and was not waited for by its parent, and until when that is hoped for.
    pub zombies: Vec<(u32, Instant)>,
    pub answers: Vec<Answer>,
    /// What callers hear before their answer.
    pub messages: Vec<(Caller, Value)>,
    pub changes: Changes,
    pub behaviour: Behaviour,
    pub events: Vec<(SandboxId, Exit)>,
    /// When the last foreground request came.
    pub last_request: Instant,
    /// Do not try to fill the pools before.
    pub refill_after: Instant,
    /// Quota groups of removed subvolumes, and when to try to remove them.
    pub stale_groups: VecDeque<u64>,
    pub sweep_groups_at: Instant,
    /// Gives each sandbox other cores.
    pub core_turn: usize,
}

impl Launcher {
    pub fn request(&mut self, caller: Caller, request: Request, now: Instant) {
        match request {
            Request::NodeInfo => {
                let answer = self.node_info();
                self.answers.push((caller, answer));
            }
            Request::Create(create) => {
                self.last_request = now;
                if self.waiting.len() >= MAX_WAITING {
                    self.answers
                        .push((caller, Err(Failure::new("too_many_requests", "too many creates wait on this node"))));
                } else {
                    self.waiting.push_back((caller, create));
                }
            }
            Request::Destroy(id) => {
                self.last_request = now;
                self.destroy(caller, &id, now);
            }
            Request::List => {
                let answer = Ok(self.list());
                self.answers.push((caller, answer));
            }
            Request::Usage(id) => {
                let answer = self.usage(&id);
                self.answers.push((caller, answer));
            }
            Request::Changes(id) => self.take_changes(caller, &id),
            Request::Forget(forgotten) => {
                if !self.stands_on(&forgotten) {
                    self.give_up_blanks(now, |lower| forgotten.is_under(lower));
                }
                self.forgets.push((caller, forgotten));
                self.answer_forgets();
            }
            // The stream stays open; whoever serves keeps it.
            Request::Events | Request::Behaviour => {}
        }
    }

    /// What its descriptor has become ready for.
    pub fn ready(&mut self, token: Token, now: Instant) {
        match token {
            Token::Channel(slot) => self.channel_ready(slot, now),
            Token::Process(slot) => self.process_ended(slot, now),
            Token::Helper => self.helper_ready(),
            Token::Observer => self.observer_ready(now),
            Token::Changes(serial) => self.changes_ready(serial),
            Token::ChangesEnd(serial) => self.changes_ended(serial),
            Token::Stdin | Token::Listener | Token::Keep | Token::Connection(_) => {}
        }
    }

    /// Whether somebody's sandbox stands on it.
    fn stands_on(&self, forgotten: &Forgotten) -> bool {
        self.sandboxes.values().any(|sandbox| sandbox.id.is_some() && forgotten.is_under(&sandbox.lower))
    }

    /// Answers those who want something forgotten: at once, or when the last blank on it is gone.
    pub fn answer_forgets(&mut self) {
        for (caller, forgotten) in std::mem::take(&mut self.forgets) {
            if self.lowers.users(&forgotten) == 0 || self.stands_on(&forgotten) {
                let answer = self.lowers.forget(&forgotten).map(|()| json!({}));
                self.answers.push((caller, answer));
            } else {
                self.forgets.push((caller, forgotten));
            }
        }
    }

    /// Everything that may go on now. Returns how long nothing more will.
    pub fn advance(&mut self, now: Instant) -> Option<Duration> {
        self.start_waiting(now);
        let endings = self.advance_endings(now);
        let refill = self.refill(now);
        let sweep = self.sweep_groups(now);
        let zombies = self.look_at_zombies(now);
        let guard = self.lowers.guard.advance(now);
        let snapshots = self.remove_snapshots(now);
        let behaviour = self.advance_behaviour(now);
        [behaviour, refill, sweep, endings, zombies, guard, snapshots].into_iter().flatten().min()
    }

    /// No request is under way.
    pub fn is_quiet(&self, now: Instant) -> bool {
        self.waiting.is_empty() && now.saturating_duration_since(self.last_request) >= QUIET
    }

    /// A sandbox by id, with its slot.
    pub fn find(&self, id: &SandboxId) -> Option<&Sandbox> {
        self.slots_by_id.get(id).and_then(|slot| self.sandboxes.get(slot))
    }

    /// Sandboxes that somebody has.
    pub fn live_count(&self) -> usize {
        self.slots_by_id.len()
    }

    pub fn warn(&mut self, event: &str, fields: &Value) {
        self.log.write(Level::Warn, event, fields);
    }

    fn node_info(&self) -> Result<Value, Failure> {
        let (total, free) = self.node.volume.space().map_err(|errno| failure::stage("volume", errno))?;
        Ok(json!({
            "version": env!("CARGO_PKG_VERSION"),
            "kernel": self.node.kernel,
            "cgroup": self.node.cgroups.version(),
            "quota": if self.node.volume.quota == crate::volume::Quota::Btrfs { "btrfs" } else { "none" },
            "slots": self.max_sandboxes,
            "live": self.live_count(),
            "blanks": self.blanks.len(),
            "furnished": self.furnished_count(),
            "diskTotalBytes": total,
            "diskFreeBytes": free,
        }))
    }

    /// Blanks that have a root filesystem.
    fn furnished_count(&self) -> usize {
        let is_furnished = |sandbox: &&Sandbox| {
            matches!(sandbox.phase, Phase::Blank) && sandbox.id.is_none() && !sandbox.lower.layers.is_empty()
        };
        self.sandboxes.values().filter(is_furnished).count()
    }

    fn list(&self) -> Value {
        let mut shown: Vec<&Sandbox> = self.sandboxes.values().filter(|sandbox| sandbox.id.is_some()).collect();
        shown.sort_by_key(|sandbox| (sandbox.created_at_ms, sandbox.slot));
        let describe = |sandbox: &&Sandbox| {
            let state = match sandbox.phase {
                Phase::Live => "live",
                Phase::Exited(_) => "exited",
                // What is not made yet or already on its way out is nobody's to use.
                Phase::Starting(_) | Phase::Blank | Phase::Ending(_) => return None,
            };
            let mut shown = json!({
                "id": sandbox.id.as_ref().map(SandboxId::as_str),
                "pid": sandbox.pid,
                "state": state,
                "createdAtMs": sandbox.created_at_ms,
            });
            if let Phase::Exited(exit) = sandbox.phase {
                shown["exit"] = json!(exit);
            }
            Some(shown)
        };
        json!({ "sandboxes": shown.iter().filter_map(describe).collect::<Vec<_>>() })
    }

    fn usage(&self, id: &SandboxId) -> Result<Value, Failure> {
        match self.find(id) {
            Some(sandbox) if matches!(sandbox.phase, Phase::Live | Phase::Exited(_)) => {
                usage::of(&self.node, sandbox).map_err(|errno| failure::stage("usage", errno))
            }
            Some(_) => Err(Failure::new("sandbox_not_ready", format!("the sandbox {id} is being made or removed"))),
            None => Err(Failure::new("sandbox_not_found", format!("there is no sandbox {id}"))),
        }
    }
}
