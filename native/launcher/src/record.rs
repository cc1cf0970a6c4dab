//! What is written down about each sandbox, so that the next launcher finds it again.

use std::os::fd::OwnedFd;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, openat, renameat, unlinkat};
use serde::{Deserialize, Serialize};

use crate::profile::Profile;
use crate::request::{Digest, Lower, MAX_LAYERS, SandboxId, are_tripwires};
use crate::sys::clone::Ending;
use crate::sys::{Errno, Result};

const VERSION: u32 = 1;
/// A record with the greatest number of layers and of tripwires is smaller.
const MAX_BYTES: usize = 128 << 10;
const SUFFIX: &str = ".json";

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_millis() as u64)
}

/// How a sandbox ended by itself.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Exit {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub signal: Option<i32>,
    pub oom_kills: u64,
}

impl Exit {
    pub fn new(ending: Ending, oom_kills: u64) -> Self {
        let (exit_code, signal) = match ending {
            Ending::Code(code) => (Some(code), None),
            Ending::Signal(signal) => (None, Some(signal)),
            Ending::Unknown => (None, None),
        };
        Self { exit_code, signal, oom_kills }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub id: SandboxId,
    pub boot: String,
    pub slot: u32,
    pub pid: u32,
    /// The inode of its pidfd, which no other process of the boot has.
    pub pid_identity: u64,
    /// The inode of its network namespace. Without one, as in records of launchers that did not write it down, it gets no uplink.
    pub net_identity: Option<u64>,
    pub lower: Lower,
    pub profile: Profile,
    pub tripwires: Vec<String>,
    pub created_at_ms: u64,
    pub exit: Option<Exit>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Stored {
    version: u32,
    id: String,
    boot: String,
    slot: u32,
    pid: u32,
    pid_identity: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    net_identity: Option<u64>,
    layers: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    set: Option<String>,
    /// Records without one are of launchers that knew one way only.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    profile: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    tripwires: Vec<String>,
    created_at_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    exit: Option<Exit>,
}

impl Record {
    /// Reads a record of a file of this name; `None` when it is not one.
    pub fn parse(file_name: &str, text: &[u8]) -> Option<Self> {
        let stored: Stored = serde_json::from_slice(text).ok()?;
        let id = SandboxId::parse(&stored.id)?;
        let layers = stored.layers.iter().map(|layer| Digest::parse(layer)).collect::<Option<Vec<_>>>()?;
        let set = match &stored.set {
            Some(set) => Some(Digest::parse(set)?),
            None => None,
        };
        let profile = stored.profile.as_deref().map_or(Some(Profile::default()), Profile::parse)?;
        let is_sound = stored.version == VERSION
            && file_name.strip_suffix(SUFFIX) == Some(id.as_str())
            && stored.pid > 1
            && i32::try_from(stored.pid).is_ok()
            && layers.len() <= MAX_LAYERS
            && are_tripwires(&stored.tripwires);
        is_sound.then_some(Self {
            id,
            boot: stored.boot,
            slot: stored.slot,
            pid: stored.pid,
            pid_identity: stored.pid_identity,
            net_identity: stored.net_identity,
            lower: Lower { layers, set },
            profile,
            tripwires: stored.tripwires,
            created_at_ms: stored.created_at_ms,
            exit: stored.exit,
        })
    }

    fn to_bytes(&self) -> Result<Vec<u8>> {
        let stored = Stored {
            version: VERSION,
            id: self.id.to_string(),
            boot: self.boot.clone(),
            slot: self.slot,
            pid: self.pid,
            pid_identity: self.pid_identity,
            net_identity: self.net_identity,
            layers: self.lower.layers.iter().map(Digest::to_string).collect(),
            set: self.lower.set.as_ref().map(Digest::to_string),
            profile: Some(self.profile.name().to_owned()),
            tripwires: self.tripwires.clone(),
            created_at_ms: self.created_at_ms,
            exit: self.exit,
        };
        serde_json::to_vec(&stored).map_err(|_| Errno::INVAL)
    }
}

fn file_name(id: &SandboxId) -> String {
    format!("{id}{SUFFIX}")
}

/// Writes a record so that a crash leaves the old one or the new one. It need not survive the machine: sandboxes do not either.
pub fn write(directory: &OwnedFd, record: &Record) -> Result<()> {
    let bytes = record.to_bytes()?;
    // One at a time: the launcher has one thread.
    let temporary = "next.tmp";
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(directory, temporary, flags, Mode::from_raw_mode(0o600))?;
    if rustix::io::write(&file, &bytes)? != bytes.len() {
        return Err(Errno::NOSPC);
    }
    renameat(directory, temporary, directory, file_name(&record.id))
}

pub fn remove(directory: &OwnedFd, id: &SandboxId) -> Result<()> {
    match unlinkat(directory, file_name(id), AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error),
    }
}

/// All sound records. Files that are none are removed: they describe nothing that could be found.
pub fn read_all(directory: &OwnedFd) -> Result<Vec<Record>> {
    let mut records = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        match name.to_str().ok().and_then(|name| Record::parse(name, &read(directory, name)?)) {
            Some(record) => records.push(record),
            None => unlinkat(directory, name, AtFlags::empty())?,
        }
    }
    Ok(records)
}

fn read(directory: &OwnedFd, name: &str) -> Option<Vec<u8>> {
    let file =
        openat(directory, name, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
            .ok()?;
    let mut bytes = vec![0; MAX_BYTES];
    let length = rustix::io::read(&file, &mut bytes).ok()?;
    bytes.truncate(length);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            id: SandboxId::parse("a1").expect("an id"),
            boot: "b".into(),
            slot: 3,
            pid: 77,
            pid_identity: 1 << 40,
            net_identity: Some(4_026_532_008),
            lower: Lower {
                layers: vec![Digest::parse(&format!("sha256:{}", "a".repeat(64))).expect("a digest")],
                set: Digest::parse(&format!("sha256:{}", "b".repeat(64))),
            },
            profile: Profile::Strict,
            tripwires: vec!["/root/.aws/credentials".to_owned(), "/a \"b\"".to_owned()],
            created_at_ms: 5,
            exit: Some(Exit { exit_code: None, signal: Some(9), oom_kills: 1 }),
        }
    }

    #[test]
    fn a_record_survives_its_file() {
        let bytes = record().to_bytes().expect("bytes");
        assert_eq!(Record::parse("a1.json", &bytes), Some(record()));
    }

    #[test]
    fn a_record_without_a_profile_is_of_the_default_one() {
        let text = String::from_utf8(record().to_bytes().expect("bytes")).expect("text");
        let old = text.replace(r#""profile":"strict","#, "");
        assert_ne!(old, text);
        let read = Record::parse("a1.json", old.as_bytes());
        assert_eq!(read, Some(Record { profile: Profile::Default, ..record() }));
    }

    #[test]
    fn a_record_without_a_network_is_one() {
        let text = String::from_utf8(record().to_bytes().expect("bytes")).expect("text");
        let old = text.replace(r#""netIdentity":4026532008,"#, "");
        assert_ne!(old, text);
        assert_eq!(Record::parse("a1.json", old.as_bytes()), Some(Record { net_identity: None, ..record() }));
    }

    #[test]
    fn a_record_without_tripwires_says_nothing_of_them() {
        let plain = Record { tripwires: Vec::new(), ..record() };
        let text = String::from_utf8(plain.to_bytes().expect("bytes")).expect("text");
        assert!(!text.contains("tripwires"), "{text}");
        assert_eq!(Record::parse("a1.json", text.as_bytes()), Some(plain));
    }

    #[test]
    fn the_greatest_record_is_read_whole() {
        let most = crate::request::MAX_TRIPWIRE_BYTES - 1;
        let tripwires = vec![format!("/{}", "\\".repeat(most)); crate::request::MAX_TRIPWIRES];
        let layers = (0..MAX_LAYERS).map(|n| Digest::parse(&format!("sha256:{n:064x}")).expect("a digest")).collect();
        let greatest = Record { tripwires, lower: Lower { layers, ..record().lower }, ..record() };
        assert!(greatest.to_bytes().expect("bytes").len() < MAX_BYTES);
    }

    #[test]
    fn records_that_cannot_be_are_refused() {
        let bytes = record().to_bytes().expect("bytes");
        assert_eq!(Record::parse("a2.json", &bytes), None, "another id than its file");
        assert_eq!(Record::parse("a1", &bytes), None);
        for (from, to) in [
            (r#""pid":77"#, r#""pid":1"#),
            (r#""pid":77"#, r#""pid":4294967295"#),
            (r#""pid":77"#, r#""pid":-1"#),
            (r#""version":1"#, r#""version":2"#),
            (r#""slot":3"#, r#""slot":3,"path":"/etc""#),
            (r#""profile":"strict""#, r#""profile":"lax""#),
            ("sha256:", "sha256:../"),
            (r#""/root/.aws"#, r#""root/.aws"#),
        ] {
            let text = String::from_utf8(bytes.clone()).expect("text").replace(from, to);
            assert_eq!(Record::parse("a1.json", text.as_bytes()), None, "{to}");
        }
        assert_eq!(Record::parse("a1.json", &bytes[..bytes.len() - 1]), None);
    }
}
