//! Uids of the host that stand behind the users of sandboxes.
//!
//! Each slot has 65,536 of them for itself. Data directories on one host take whole granules of slots from one table in `/run`, so that no two ever
//! share a uid; a claim lasts until `launcher teardown`, until the next boot, or until its data directory is gone and its cgroup is empty.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

pub const UIDS_PER_SLOT: u32 = 1 << 16;
/// Slots that are claimed together.
pub const SLOTS_PER_GRANULE: u32 = 256;
/// Claims start low: the kernel lets no group from 2^31 on send echo requests.
const FIRST_UID: u32 = 0x4000_0000;
const END_UID: u32 = 0xF000_0000;
const UIDS_PER_GRANULE: u32 = SLOTS_PER_GRANULE * UIDS_PER_SLOT;
const GRANULES: u32 = (END_UID - FIRST_UID) / UIDS_PER_GRANULE;

pub const TABLE: &str = "/run/dsec/uid-ranges";

/// The contiguous uids of one data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UidRange {
    first_uid: u32,
    slots: u32,
}

impl UidRange {
    pub fn slots(self) -> u32 {
        self.slots
    }

    /// The host's uid and gid behind root of the slot.
    pub fn root_of(self, slot: u32) -> u32 {
        self.first_uid + slot * UIDS_PER_SLOT
    }

    fn of_granules(first: u32, count: u32) -> Self {
        Self { first_uid: FIRST_UID + first * UIDS_PER_GRANULE, slots: count * SLOTS_PER_GRANULE }
    }
}

#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
struct Claim {
    boot: String,
    path: PathBuf,
    group: String,
}

/// Who claims.
pub struct Claimant<'a> {
    pub boot: &'a str,
    pub path: &'a Path,
    pub group: &'a str,
    /// Whether sandboxes may still live whose uids must not change.
    pub has_sandboxes: bool,
}

/// The table of claims.
pub struct Table {
    directory: PathBuf,
    _lock: File,
}

impl Table {
    /// Opens the table and keeps everybody else out of it until dropped.
    pub fn open(directory: &Path) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(directory.join("lock"))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        Ok(Self { directory: directory.to_owned(), _lock: lock })
    }

    /// Finds this directory's claim, or makes one of at least `slots`. `None` when the table has no room.
    pub fn claim(
        &self,
        who: &Claimant<'_>,
        slots: u32,
        is_inhabited: impl Fn(&str) -> bool,
    ) -> io::Result<Option<UidRange>> {
        let wanted = slots.div_ceil(SLOTS_PER_GRANULE).max(1);
        let claims: Vec<Option<Claim>> = (0..GRANULES).map(|granule| self.read(granule)).collect();
        let is_mine = |claim: &Option<Claim>| {
            claim.as_ref().is_some_and(|claim| claim.path == who.path && claim.boot == who.boot)
        };
        let mine: Vec<u32> =
            (0..).zip(&claims).filter(|(_, claim)| is_mine(claim)).map(|(granule, _)| granule).collect();
        if let (Some(first), Some(last)) = (mine.first(), mine.last()) {
            let count = last - first + 1;
            let is_whole = count as usize == mine.len();
            if is_whole && (count >= wanted || who.has_sandboxes) {
                return Ok(Some(UidRange::of_granules(*first, count)));
            }
        }
        let is_free = |claim: &Option<Claim>| match claim {
            None => true,
            Some(claim) => {
                claim.path == who.path
                    || claim.boot != who.boot
                    || (!claim.path.exists() && !is_inhabited(&claim.group))
            }
        };
        let Some(first) = claims.windows(wanted as usize).position(|window| window.iter().all(is_free)) else {
            return Ok(None);
        };
        for granule in mine {
            fs::remove_file(self.file(granule))?;
        }
        let first = first as u32;
        for granule in first..first + wanted {
            self.write(
                granule,
                &Claim { boot: who.boot.to_owned(), path: who.path.to_owned(), group: who.group.to_owned() },
            )?;
        }
        Ok(Some(UidRange::of_granules(first, wanted)))
    }

    /// Gives up all claims of a data directory.
    pub fn release(&self, path: &Path) -> io::Result<()> {
        for granule in 0..GRANULES {
            if self.read(granule).is_some_and(|claim| claim.path == path) {
                fs::remove_file(self.file(granule))?;
            }
        }
        Ok(())
    }

    /// Whether no other data directory that exists has a claim.
    pub fn is_last(&self, path: &Path) -> bool {
        (0..GRANULES).filter_map(|granule| self.read(granule)).all(|claim| claim.path == path || !claim.path.exists())
    }

    fn file(&self, granule: u32) -> PathBuf {
        self.directory.join(granule.to_string())
    }

    /// A claim that does not parse was cut short by a crash before anyone used it.
    fn read(&self, granule: u32) -> Option<Claim> {
        let mut text = String::new();
        File::open(self.file(granule)).ok()?.take(16 << 10).read_to_string(&mut text).ok()?;
        serde_json::from_str(&text).ok()
    }

    fn write(&self, granule: u32, claim: &Claim) -> io::Result<()> {
        let mut file = File::create(self.file(granule))?;
        file.write_all(&serde_json::to_vec(claim)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixture {
        root: PathBuf,
    }

    impl Fixture {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("uid-range-{name}-{}", std::process::id()));
            fs::create_dir_all(root.join("a")).expect("temporary directory");
            fs::create_dir_all(root.join("b")).expect("temporary directory");
            Self { root }
        }

        fn claim(&self, name: &str, boot: &str, slots: u32, has_sandboxes: bool) -> Option<UidRange> {
            let path = self.root.join(name);
            let who = Claimant { boot, path: &path, group: name, has_sandboxes };
            Table::open(&self.root.join("table"))
                .expect("table")
                .claim(&who, slots, |group| group == "kept")
                .expect("claim")
        }
    }

    impl Drop for Fixture {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.root);
        }
    }

    #[test]
    fn two_directories_never_overlap_and_a_claim_lasts() {
        let fixture = Fixture::new("overlap");
        let a = fixture.claim("a", "x", SLOTS_PER_GRANULE + 1, false).expect("room");
        let b = fixture.claim("b", "x", 10, false).expect("room");
        assert_eq!((a.slots(), b.slots()), (2 * SLOTS_PER_GRANULE, SLOTS_PER_GRANULE));
        assert_eq!(a.root_of(0), FIRST_UID);
        assert_eq!(b.root_of(0), a.root_of(a.slots() - 1) + UIDS_PER_SLOT);
        assert_eq!(fixture.claim("a", "x", a.slots(), true), Some(a));
    }

    #[test]
    fn a_claim_grows_only_without_sandboxes() {
        let fixture = Fixture::new("grows");
        let first = fixture.claim("a", "x", 10, false).expect("room");
        assert_eq!(fixture.claim("a", "x", SLOTS_PER_GRANULE * 3, true), Some(first));
        assert_eq!(fixture.claim("a", "x", SLOTS_PER_GRANULE * 3, false).expect("room").slots(), SLOTS_PER_GRANULE * 3);
    }

    #[test]
    fn what_is_claimed_of_another_boot_or_of_a_lost_directory_is_free() {
        let fixture = Fixture::new("free");
        let all = GRANULES * SLOTS_PER_GRANULE;
        assert!(fixture.claim("a", "x", all, false).is_some());
        assert_eq!(fixture.claim("b", "x", 1, false), None);
        assert!(fixture.claim("b", "y", all, false).is_some(), "another boot");
        fs::remove_dir(fixture.root.join("b")).expect("removed");
        assert!(fixture.claim("a", "y", all, false).is_some(), "directory and sandboxes gone");
        assert!(fixture.claim("kept", "z", all, false).is_some());
        assert_eq!(fixture.claim("a", "z", 1, false), None, "its sandboxes may still live");
    }

    #[test]
    fn who_is_the_last_is_known() {
        let fixture = Fixture::new("last");
        let is_last =
            |name: &str| Table::open(&fixture.root.join("table")).expect("table").is_last(&fixture.root.join(name));
        assert!(fixture.claim("a", "x", 10, false).is_some());
        assert!(is_last("a") && !is_last("b"));
        assert!(fixture.claim("b", "x", 10, false).is_some());
        assert!(!is_last("a"));
        fs::remove_dir(fixture.root.join("b")).expect("removed");
        assert!(is_last("a"));
    }

    #[test]
    fn a_released_claim_is_free() {
        let fixture = Fixture::new("released");
        assert!(fixture.claim("a", "x", GRANULES * SLOTS_PER_GRANULE, false).is_some());
        Table::open(&fixture.root.join("table")).expect("table").release(&fixture.root.join("a")).expect("released");
        assert!(fixture.claim("b", "x", 1, false).is_some());
    }
}
