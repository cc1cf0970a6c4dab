//! Limits that the kernel has for the whole host, where one sandbox could use up what is there for all: open files, requests of asynchronous I/O,
//! terminals. What they count is memory that the kernel counts for the sandbox, too, so its own limit of memory is the one to meet first. While there are
//! servers, each is at least what all memory of the node is enough for. None is lowered.
//!
//! `/run/dsec/host-limits` has what they were before, for the last server to put back.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

pub const SAVED: &str = "/run/dsec/host-limits";

/// The least that an open file takes: `struct file`.
const FILE_BYTES: u64 = 160;
/// `struct io_event`, which is in pages of the ring of its process.
const REQUEST_BYTES: u64 = 32;
/// The kernel takes no more (NR_UNIX98_PTY_MAX).
const TERMINALS: u64 = 1 << 20;

struct Limit {
    /// Below /proc/sys.
    name: &'static str,
    enough: fn(memory_bytes: u64) -> u64,
}

const LIMITS: [Limit; 3] = [
    Limit { name: "fs/file-max", enough: |memory_bytes| memory_bytes / FILE_BYTES },
    Limit { name: "fs/aio-max-nr", enough: |memory_bytes| memory_bytes / REQUEST_BYTES },
    Limit { name: "kernel/pty/max", enough: |_| TERMINALS },
];

pub struct HostLimits {
    settings: PathBuf,
    saved: PathBuf,
    memory_bytes: u64,
}

impl HostLimits {
    pub fn of_this_host() -> Self {
        let found = rustix::system::sysinfo();
        let memory_bytes = found.totalram.saturating_mul(u64::from(found.mem_unit));
        Self { settings: "/proc/sys".into(), saved: SAVED.into(), memory_bytes }
    }

    /// Raises what is too low. The error names the first that cannot be: then sandboxes can use it up for each other.
    pub fn raise(&self) -> Result<(), String> {
        let mut saved = read_saved(&self.saved);
        for limit in &LIMITS {
            let (path, enough) = (self.settings.join(limit.name), (limit.enough)(self.memory_bytes));
            let failed = |error: io::Error| format!("{}: {error}", path.display());
            let present = read(&path).map_err(failed)?;
            if present >= enough {
                continue;
            }
            // Before it is raised: a launcher that is killed in between leaves nothing that nobody puts back.
            saved.entry(limit.name).or_insert_with(|| present.into());
            write_saved(&self.saved, &saved).map_err(failed)?;
            fs::write(&path, enough.to_string()).map_err(failed)?;
        }
        Ok(())
    }

    /// Puts back what was raised, but what somebody else has set meanwhile.
    pub fn restore(&self) -> Result<(), String> {
        for (name, before) in read_saved(&self.saved) {
            let Some(limit) = LIMITS.iter().find(|limit| limit.name == name) else { continue };
            let Some(before) = before.as_u64() else { continue };
            let path = self.settings.join(limit.name);
            let failed = |error: io::Error| format!("{}: {error}", path.display());
            if read(&path).map_err(failed)? == (limit.enough)(self.memory_bytes) {
                fs::write(&path, before.to_string()).map_err(failed)?;
            }
        }
        match fs::remove_file(&self.saved) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(format!("{}: {error}", self.saved.display())),
            _ => Ok(()),
        }
    }

    /// What is lower than all memory is enough for, with its present value.
    pub fn low(&self) -> Result<Vec<(&'static str, u64)>, String> {
        let mut low = Vec::new();
        for limit in &LIMITS {
            let path = self.settings.join(limit.name);
            let present = read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            if present < (limit.enough)(self.memory_bytes) {
                low.push((limit.name, present));
            }
        }
        Ok(low)
    }
}

fn read(path: &Path) -> io::Result<u64> {
    fs::read_to_string(path)?.trim().parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
}

/// What cannot be read counts for nothing: then a limit stays raised.
fn read_saved(path: &Path) -> Map<String, Value> {
    fs::read(path).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}

fn write_saved(path: &Path, saved: &Map<String, Value>) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let new = path.with_extension("new");
    fs::write(&new, Value::Object(saved.clone()).to_string())?;
    fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixture(PathBuf);

    impl Fixture {
        fn new(name: &str, values: [&str; 3]) -> Self {
            let root = std::env::temp_dir().join(format!("host-limits-{name}-{}", std::process::id()));
            for (limit, value) in LIMITS.iter().zip(values) {
                let path = root.join(limit.name);
                fs::create_dir_all(path.parent().expect("parent")).expect("made");
                fs::write(path, value).expect("written");
            }
            Self(root)
        }

        fn limits(&self) -> HostLimits {
            HostLimits { settings: self.0.clone(), saved: self.0.join("dsec/saved"), memory_bytes: 1 << 30 }
        }

        fn values(&self) -> [u64; 3] {
            LIMITS.each_ref().map(|limit| read(&self.0.join(limit.name)).expect("read"))
        }
    }

    impl Drop for Fixture {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const ENOUGH: [u64; 3] = [(1 << 30) / 160, (1 << 30) / 32, 1 << 20];

    #[test]
    fn what_is_too_low_is_raised_and_put_back() {
        let fixture = Fixture::new("raise", ["1000\n", "65536\n", "4096\n"]);
        let limits = fixture.limits();
        assert_eq!(limits.low().expect("read").len(), 3);
        limits.raise().expect("raised");
        assert_eq!(fixture.values(), ENOUGH);
        assert_eq!(limits.low(), Ok(Vec::new()));
        // Another server, and this one again.
        limits.raise().expect("raised");
        limits.restore().expect("restored");
        assert_eq!(fixture.values(), [1000, 65536, 4096]);
        limits.restore().expect("nothing to do");
    }

    #[test]
    fn what_is_high_or_changed_by_others_stays() {
        let fixture = Fixture::new("stay", ["9223372036854775807\n", "65536\n", "4096\n"]);
        let limits = fixture.limits();
        limits.raise().expect("raised");
        assert_eq!(fixture.values(), [9_223_372_036_854_775_807, ENOUGH[1], ENOUGH[2]]);
        fs::write(fixture.0.join("kernel/pty/max"), "2097152").expect("written");
        limits.restore().expect("restored");
        assert_eq!(fixture.values(), [9_223_372_036_854_775_807, 65536, 2_097_152]);
    }

    #[test]
    fn what_cannot_be_raised_is_named() {
        let fixture = Fixture::new("named", ["1000\n", "65536\n", "4096\n"]);
        fs::remove_file(fixture.0.join("fs/aio-max-nr")).expect("removed");
        let error = fixture.limits().raise().expect_err("missing");
        assert!(error.contains("aio-max-nr"), "{error}");
    }
}
