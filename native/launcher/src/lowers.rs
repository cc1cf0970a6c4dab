//! What sandboxes stand on: layers, and sets of layers whose metadata were merged into one image. Each is mounted once for the whole node, straight from
//! its files, and attached nowhere. The mounts end with the launcher and with the sandboxes that stand on them; nothing of them is in the host's mount
//! table.
//!
//! The files of both are root's, and their bytes were made by others. So nothing in them is taken for more than what it is: no link is
//! followed, the kernel gets the very file that was looked at, and as devices only the data of layers, which an image cannot name by itself.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, openat2};

use crate::failure::{Failure, errno_name};
use crate::layer_guard::LayerGuard;
use crate::node::Node;
use crate::request::{Digest, Forgotten, Lower};
use crate::sys::mount::{self, Attr, Value};
use crate::sys::{Errno, Result};

/// Those that no sandbox stands on and that stay mounted for the next one.
const MAX_IDLE: usize = 128;

/// Of the superblock of EROFS (`fs/erofs/erofs_fs.h`): where it is, and in it the incompatible features and the number of further devices.
const SUPERBLOCK_AT: u64 = 1024;
const SUPERBLOCK_BYTES: usize = 128;
const FEATURES_AT: usize = 80;
const HAS_DEVICE_TABLE: u8 = 8;
const DEVICES_AT: usize = 86;

struct Mounted {
    mount: OwnedFd,
    users: usize,
    last_used: u64,
}

pub struct Lowers {
    /// The data directory.
    directory: OwnedFd,
    layers: OwnedFd,
    proc: OwnedFd,
    pub guard: LayerGuard,
    mounted: HashMap<Lower, Mounted>,
    /// Users of what an earlier launcher mounted; it is not mounted here.
    adopted: HashMap<Lower, usize>,
    uses: u64,
}

impl Lowers {
    pub fn new(node: &Node, guard: LayerGuard) -> Result<Self> {
        let duplicate = |fd: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, 0);
        Ok(Self {
            directory: duplicate(&node.data.root)?,
            layers: duplicate(&node.data.layers)?,
            proc: duplicate(&node.proc)?,
            guard,
            mounted: HashMap::new(),
            adopted: HashMap::new(),
            uses: 0,
        })
    }

    /// Counts a new sandbox on the layers, which are mounted if they are not yet.
    pub fn acquire(&mut self, lower: &Lower) -> std::result::Result<(), Failure> {
        self.trim();
        if !self.mounted.contains_key(lower) {
            let mount = self.new_mount(lower)?;
            self.mounted.insert(lower.clone(), Mounted { mount, users: 0, last_used: 0 });
        }
        self.uses += 1;
        if let Some(mounted) = self.mounted.get_mut(lower) {
            mounted.users += 1;
            mounted.last_used = self.uses;
        }
        Ok(())
    }

    /// Counts a sandbox that an earlier launcher made.
    pub fn adopt(&mut self, lower: &Lower) {
        *self.adopted.entry(lower.clone()).or_default() += 1;
    }

    /// A sandbox on these layers is gone.
    pub fn release(&mut self, lower: &Lower, is_adopted: bool) {
        if is_adopted {
            if let Some(users) = self.adopted.get_mut(lower) {
                *users -= 1;
                if *users == 0 {
                    self.adopted.remove(lower);
                }
            }
        } else if let Some(mounted) = self.mounted.get_mut(lower) {
            mounted.users -= 1;
        }
    }

    /// The mount of what was acquired.
    pub fn mount(&self, lower: &Lower) -> Option<BorrowedFd<'_>> {
        self.mounted.get(lower).map(|mounted| mounted.mount.as_fd())
    }

    /// Sandboxes and blanks that stand on a layer or a set.
    pub fn users(&self, forgotten: &Forgotten) -> usize {
        let mounted = self.mounted.iter().map(|(lower, mounted)| (lower, mounted.users));
        let adopted = self.adopted.iter().map(|(lower, users)| (lower, *users));
        mounted.chain(adopted).filter(|(lower, _)| forgotten.is_under(lower)).map(|(_, users)| users).sum()
    }

    /// Lets go of a layer, or a set, whose files are about to be removed.
    pub fn forget(&mut self, forgotten: &Forgotten) -> std::result::Result<(), Failure> {
        let users = self.users(forgotten);
        if users > 0 {
            let (kind, digest) = forgotten.named();
            return Err(Failure::new("layer_in_use", format!("{users} sandboxes stand on the {kind} {digest}"))
                .with(kind, digest.to_string()));
        }
        self.mounted.retain(|lower, _| !forgotten.is_under(lower));
        Ok(())
    }

    fn trim(&mut self) {
        while self.mounted.values().filter(|mounted| mounted.users == 0).count() > MAX_IDLE {
            let idle = self.mounted.iter().filter(|(_, mounted)| mounted.users == 0);
            let Some(oldest) = idle.min_by_key(|(_, mounted)| mounted.last_used).map(|(lower, _)| lower.clone()) else {
                return;
            };
            self.mounted.remove(&oldest);
        }
    }

    fn new_mount(&mut self, lower: &Lower) -> std::result::Result<OwnedFd, Failure> {
        let mut devices = Vec::new();
        for layer in &lower.layers {
            self.guard.protect(self.layers.as_fd(), layer)?;
            devices.extend(self.data_of(layer).map_err(|errno| broken("layer", layer, errno))?);
        }
        let (kind, named) = match (&lower.set, &lower.layers[..]) {
            (Some(set), _) => ("set", set),
            (None, [layer]) => ("layer", layer),
            (None, _) => return Err(Failure::internal("several layers without a set")),
        };
        let path = format!("{kind}s/{}/rootfs.erofs", named.hex());
        self.open(&path, OFlags::RDONLY | OFlags::NONBLOCK)
            .and_then(|image| self.mount_files(&image, &devices))
            .map_err(|errno| broken(kind, named, errno))
    }

    /// The second file of a layer, which one without file contents does not have.
    fn data_of(&self, layer: &Digest) -> Result<Option<OwnedFd>> {
        match self.open(&format!("layers/{}/data", layer.hex()), OFlags::PATH) {
            Ok(data) => Ok(Some(data)),
            Err(Errno::NOENT) => self.open(&format!("layers/{}/rootfs.erofs", layer.hex()), OFlags::PATH).map(|_| None),
            Err(errno) => Err(errno),
        }
    }

    /// A file below the data directory, never through a link.
    fn open(&self, path: &str, flags: OFlags) -> Result<OwnedFd> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let file = openat2(&self.directory, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)?;
        match FileType::from_raw_mode(fstat(&file)?.st_mode) {
            FileType::RegularFile => Ok(file),
            _ => Err(Errno::INVAL),
        }
    }

    fn mount_files(&self, image: &OwnedFd, devices: &[OwnedFd]) -> Result<OwnedFd> {
        if named_devices(image)? != devices.len() {
            return Err(Errno::NXIO);
        }
        // The kernel opens its sources by paths; these lead to the files that are open here and no others.
        rustix::process::fchdir(&self.proc)?;
        let path_of = |file: &OwnedFd| format!("self/fd/{}", file.as_raw_fd());
        let source = path_of(image);
        let devices: Vec<String> = devices.iter().map(path_of).collect();
        let mut settings = vec![("source", Value::Text(&source)), ("ro", Value::Flag)];
        settings.extend(devices.iter().map(|device| ("device", Value::Text(device))));
        let attributes = Attr::MOUNT_ATTR_RDONLY | Attr::MOUNT_ATTR_NODEV | Attr::MOUNT_ATTR_NOSUID;
        mount::create("erofs", &settings, attributes)
    }
}

/// How many devices an image names. The kernel would mount it without any of them, and take what it finds in the image for the contents of files.
fn named_devices(image: &OwnedFd) -> Result<usize> {
    let mut superblock = [0; SUPERBLOCK_BYTES];
    if rustix::io::pread(image, &mut superblock, SUPERBLOCK_AT)? != SUPERBLOCK_BYTES {
        return Err(Errno::INVAL);
    }
    let has_table = superblock[FEATURES_AT] & HAS_DEVICE_TABLE != 0;
    let count = u16::from_le_bytes([superblock[DEVICES_AT], superblock[DEVICES_AT + 1]]);
    Ok(if has_table { usize::from(count) } else { 0 })
}

fn broken(kind: &'static str, digest: &Digest, errno: Errno) -> Failure {
    Failure::new("environment_broken", format!("the {kind} {digest} cannot be mounted"))
        .with(kind, digest.to_string())
        .with("errno", errno_name(errno))
}
