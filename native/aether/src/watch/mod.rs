//! `file.watch`: inotify, with a descriptor of its own for each stream, so that closing it leaves nothing behind.
//!
//! Events are told at least once: what a new directory already holds when its watch is there is told by looking, and may be told by
//! the kernel too. When the kernel or the client falls behind, `overflow` says so, and directories that were missed are looked for.

mod directories;
pub mod inotify;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};
use serde_json::json;
use wire::SendError;

use self::directories::{Directories, MAX_WATCHES, too_many};
use self::inotify::Event;
use crate::connection::StreamKey;
use crate::dispatch::Reply;
use crate::errors::{Failure, Outcome};
use crate::event_loop::{Aether, Source};
use crate::files::access::AsUser;
use crate::files::entry::base_name;
use crate::files::list::join;
use crate::files::open::{self, absolute, c_path};
use crate::files::write::is_temporary;
use crate::identity::Identity;
use crate::params;
use crate::slab::Key;
use crate::streams::{After, Stream};
use crate::sys::dir::DirReader;
use crate::sys::fd::{self, owned};
use crate::sys::{check, poll};

/// Streams of this kind at once: each is an inotify instance, of which a user has 128.
const MAX_STREAMS: usize = 32;
/// Names looked at in one turn.
const PER_TURN: usize = 256;
/// Bytes of events in one message: a path escaped by JSON may be six times as long.
const MESSAGE_BYTES: usize = 24 << 10;
/// Events that wait for the client; beyond them the kernel's own queue fills, and then overflows.
const MAX_WAITING: usize = 1_024;
const READ_SIZE: usize = 16 << 10;
const MAX_PATH: usize = libc::PATH_MAX as usize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WatchParams {
    path: String,
    user: Option<String>,
    #[serde(default)]
    recursive: bool,
}

#[derive(Debug, Serialize, PartialEq, Eq)]
struct Change {
    kind: &'static str,
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<String>,
}

impl Change {
    fn new(kind: &'static str, path: &[u8]) -> Self {
        Self { kind, path: String::from_utf8_lossy(path).into_owned(), to: None }
    }

    fn size(&self) -> usize {
        32 + self.path.len() + self.to.as_ref().map_or(0, String::len)
    }
}

#[derive(Debug)]
enum Waiting {
    Change(Change),
    Overflow,
}

/// A directory whose names are to be looked at.
#[derive(Debug)]
struct Look {
    path: Vec<u8>,
    /// What is found there is new, and told.
    is_new: bool,
}

#[derive(Debug)]
pub struct Watch {
    route: Key,
    identity: Identity,
    directories: Directories,
    is_watched: bool,
    recursive: bool,
    root: Vec<u8>,
    looks: VecDeque<Look>,
    looking: Option<(DirReader, Look)>,
    is_ready: bool,
    waiting: VecDeque<Waiting>,
    /// The first half of a move.
    moved_from: Option<(u32, Vec<u8>, bool)>,
    is_queued: bool,
}

pub fn watch(aether: &mut Aether, at: StreamKey, text: &str) -> Outcome<Reply> {
    let params: WatchParams = params::parse(text)?;
    let path = absolute("path", &params.path)?;
    if aether.watches >= MAX_STREAMS {
        let message = "The sandbox has as many watches as it may.";
        return Err(Failure::new("too_many_requests", message).with("limit", MAX_STREAMS));
    }
    let identity = aether.file_user(params.user.as_deref())?;
    let failed = |errno| Failure::file(errno, &path);
    let trimmed = if path.len() > 1 { path.trim_end_matches('/') } else { &path };
    let root = if trimmed.is_empty() { b"/".to_vec() } else { trimmed.as_bytes().to_vec() };
    // SAFETY: plain call.
    let made = check(unsafe { libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK) });
    let inotify = owned(made.map_err(|errno| Failure::internal(errno, "A watch could not be made"))?);
    let mut directories = Directories::new(inotify);
    let user = AsUser::enter(&identity)?;
    let c_root = c_path(root.as_slice()).map_err(failed)?;
    let stat = open::stat_at(libc::AT_FDCWD, &c_root, true).map_err(failed)?;
    let is_directory = open::kind(&stat) == libc::S_IFDIR;
    directories.add_root(&root).map_err(failed)?;
    drop(user);
    let route = aether.routes.insert(at);
    let added = aether.poll.add(directories.inotify(), poll::READ, Source::Stream(route).token());
    added.map_err(|errno| Failure::internal(errno, "A watch could not be made"))?;
    aether.watches += 1;
    let mut looks = VecDeque::new();
    if params.recursive && is_directory {
        looks.push_back(Look { path: root.clone(), is_new: false });
    }
    aether.queue(at);
    Ok(Reply::Stream(Stream::Watch(Box::new(Watch {
        route,
        identity: identity.clone(),
        directories,
        is_watched: true,
        recursive: params.recursive,
        root,
        looks,
        looking: None,
        is_ready: false,
        waiting: VecDeque::new(),
        moved_from: None,
        is_queued: true,
    }))))
}

impl Watch {
    /// The kernel has events.
    pub fn on_ready(&mut self, aether: &mut Aether, at: StreamKey) -> After {
        if self.waiting.len() < MAX_WAITING
            && let Ok(n) = fd::read(self.directories.inotify(), &mut aether.scratch[..READ_SIZE])
        {
            let outcome = inotify::parse(&aether.scratch[..n]).try_for_each(|event| self.on_event(&event));
            if let Err(failure) = outcome {
                aether.answer(at, Err(failure));
                return After::Done;
            }
            self.settle_move();
        }
        self.go_on(aether, at)
    }

    pub fn on_turn(&mut self, aether: &mut Aether, at: StreamKey) -> After {
        self.is_queued = false;
        if let Err(failure) = self.look() {
            aether.answer(at, Err(failure));
            return After::Done;
        }
        self.go_on(aether, at)
    }

    /// Tells what can be told, and arranges what comes next.
    pub fn go_on(&mut self, aether: &mut Aether, at: StreamKey) -> After {
        let is_looking = self.looking.is_some() || !self.looks.is_empty();
        let has_room = self.send(aether, at, is_looking);
        if is_looking && has_room && !self.is_queued {
            self.is_queued = true;
            aether.queue(at);
        }
        let wanted = self.waiting.len() < MAX_WAITING;
        if wanted != self.is_watched {
            self.is_watched = wanted;
            if wanted {
                let _ = aether.poll.add(self.directories.inotify(), poll::READ, Source::Stream(self.route).token());
            } else {
                aether.poll.remove(self.directories.inotify());
            }
        }
        After::Keep
    }

    fn send(&mut self, aether: &mut Aether, at: StreamKey, is_looking: bool) -> bool {
        let Some(connection) = aether.connections.get_mut(at.connection) else { return false };
        connection.is_dirty = true;
        if !self.is_ready {
            // Ready once everything that was there is watched.
            if is_looking {
                return true;
            }
            if connection.server.send_message(at.stream, &json!({ "ready": true })) == Err(SendError::Blocked) {
                return false;
            }
            self.is_ready = true;
        }
        while let Some(first) = self.waiting.front() {
            let count = match first {
                Waiting::Overflow => {
                    if connection.server.send_message(at.stream, &json!({ "overflow": true }))
                        == Err(SendError::Blocked)
                    {
                        return false;
                    }
                    1
                }
                Waiting::Change(_) => {
                    let mut bytes = 0;
                    let changes: Vec<&Change> = self
                        .waiting
                        .iter()
                        .map_while(|waiting| match waiting {
                            Waiting::Change(change) => Some(change),
                            Waiting::Overflow => None,
                        })
                        .take_while(|change| {
                            let is_first = bytes == 0;
                            bytes += change.size();
                            is_first || bytes * 2 <= MESSAGE_BYTES
                        })
                        .collect();
                    if connection.server.send_message(at.stream, &json!({ "events": changes }))
                        == Err(SendError::Blocked)
                    {
                        return false;
                    }
                    changes.len()
                }
            };
            self.waiting.drain(..count);
        }
        true
    }

    fn tell(&mut self, kind: &'static str, path: &[u8]) {
        self.waiting.push_back(Waiting::Change(Change::new(kind, path)));
    }

    fn on_event(&mut self, event: &Event<'_>) -> Outcome<()> {
        if event.mask & libc::IN_Q_OVERFLOW != 0 {
            self.waiting.push_back(Waiting::Overflow);
            if self.recursive {
                self.looks.push_back(Look { path: self.root.clone(), is_new: false });
            }
            return Ok(());
        }
        if event.mask & libc::IN_IGNORED != 0 {
            self.directories.forget(event.watch);
            return Ok(());
        }
        let Some(directory) = self.directories.path(event.watch) else { return Ok(()) };
        let path = if event.name.is_empty() { directory.to_vec() } else { join(directory, event.name) };
        let is_directory = event.mask & libc::IN_ISDIR != 0;
        if is_temporary(event.name) && event.mask & libc::IN_MOVED_FROM == 0 {
            return Ok(());
        }
        let is_second_half = event.mask & libc::IN_MOVED_TO != 0
            && self.moved_from.as_ref().is_some_and(|(cookie, ..)| *cookie == event.cookie);
        if !is_second_half {
            self.settle_move();
        }
        if event.mask & libc::IN_MOVED_FROM != 0 {
            self.moved_from = Some((event.cookie, path, is_directory));
        } else if event.mask & libc::IN_MOVED_TO != 0 {
            match self.moved_from.take() {
                Some((_, from, _)) if is_temporary(base_name(&from)) => self.tell("create", &path),
                Some((_, from, _)) => {
                    let mut change = Change::new("move", &from);
                    change.to = Some(String::from_utf8_lossy(&path).into_owned());
                    self.waiting.push_back(Waiting::Change(change));
                    if is_directory {
                        self.directories.rename(&from, &path);
                    }
                }
                None => self.tell("create", &path),
            }
            if is_directory && self.recursive {
                self.looks.push_back(Look { path, is_new: false });
            }
        } else if event.mask & libc::IN_CREATE != 0 {
            self.tell("create", &path);
            if is_directory && self.recursive {
                self.directories.add(&path, &self.identity)?;
                self.looks.push_back(Look { path, is_new: true });
            }
        } else if event.mask & libc::IN_MODIFY != 0 {
            self.tell("modify", &path);
        } else if event.mask & libc::IN_DELETE != 0 {
            self.tell("remove", &path);
        } else if event.mask & libc::IN_DELETE_SELF != 0 {
            // Others are told by the directory that they were in.
            if path == self.root {
                self.tell("remove", &path);
            }
        } else if event.mask & libc::IN_ATTRIB != 0 && (!event.name.is_empty() || path == self.root) {
            self.tell("attrib", &path);
        }
        Ok(())
    }

    /// A file that was moved away and did not appear elsewhere is gone.
    fn settle_move(&mut self) {
        let Some((_, path, is_directory)) = self.moved_from.take() else { return };
        if is_temporary(base_name(&path)) {
            return;
        }
        self.tell("remove", &path);
        if is_directory {
            self.directories.remove(&path);
        }
    }

    /// Looks at some names of directories, and watches those that are directories.
    fn look(&mut self) -> Outcome<()> {
        for _ in 0..PER_TURN {
            if self.waiting.len() >= MAX_WAITING {
                return Ok(());
            }
            let Some((reader, look)) = &mut self.looking else {
                let Some(look) = self.looks.pop_front() else { return Ok(()) };
                self.directories.add(&look.path, &self.identity)?;
                self.looking = self.open_look(&look).map(|directory| (DirReader::new(directory), look));
                continue;
            };
            let (path, is_new) = match reader.next_name() {
                Ok(Some(entry)) => {
                    let path = join(&look.path, entry.name);
                    let may_be_directory = matches!(entry.kind, libc::DT_DIR | libc::DT_UNKNOWN);
                    if may_be_directory && path.len() < MAX_PATH {
                        if self.looks.len() >= MAX_WATCHES {
                            return Err(too_many());
                        }
                        self.looks.push_back(Look { path: path.clone(), is_new: look.is_new });
                    }
                    (path, look.is_new)
                }
                _ => {
                    self.looking = None;
                    continue;
                }
            };
            if is_new {
                self.tell("create", &path);
            }
        }
        Ok(())
    }

    fn open_look(&self, look: &Look) -> Option<OwnedFd> {
        let _user = AsUser::enter(&self.identity).ok()?;
        let no_follow = if look.path == self.root { 0 } else { libc::O_NOFOLLOW };
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | no_follow;
        open::open(libc::AT_FDCWD, &c_path(look.path.as_slice()).ok()?, flags, 0).ok()
    }

    pub fn release(self, aether: &mut Aether) {
        aether.watches -= 1;
        if self.is_watched {
            aether.poll.remove(self.directories.inotify());
        }
        aether.routes.remove(self.route);
    }
}
