//! The static programs of the tests, compiled on first use, and the image with them.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Compiles `tests/programs/NAME.c`.
pub fn compiled(name: &str) -> PathBuf {
    compiled_from(&format!("tests/programs/{name}.c"), name)
}

/// What sandboxes execute: the stand-in, unless told otherwise.
pub fn aether() -> PathBuf {
    std::env::var_os("DSEC_AETHER").map_or_else(|| compiled("aether"), PathBuf::from)
}

/// Compiles a file, named from this package's directory.
pub fn compiled_from(source: &str, name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let is_current =
        || Some(fs::metadata(&program).ok()?.modified().ok()? > fs::metadata(&source).ok()?.modified().ok()?);
    if is_current() != Some(true) {
        let made = Command::new("cc").args(["-O2", "-static", "-o"]).arg(&program).arg(&source).status().expect("cc");
        assert!(made.success(), "{name} does not compile");
    }
    program
}

/// An image that is as hostile as an image can be: links where the platform mounts and writes, a device, a setuid program, odd owners.
fn image() -> &'static Path {
    static IMAGE: OnceLock<PathBuf> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("image-{}", std::process::id()));
        let image = root.with_extension("erofs");
        let _ = fs::remove_dir_all(&root);
        plant(&root);
        pack(&root, &image);
        let _ = fs::remove_dir_all(&root);
        image
    })
}

fn plant(root: &Path) {
    for directory in ["bin", "etc", "home/user", "run"] {
        fs::create_dir_all(root.join(directory)).expect("directory");
    }
    fs::copy(compiled("probe"), root.join("bin/probe")).expect("probe");
    fs::copy(compiled("probe"), root.join("bin/setuid-probe")).expect("probe");
    fs::set_permissions(root.join("bin/setuid-probe"), fs::Permissions::from_mode(0o4755)).expect("mode");
    fs::write(root.join("home/user/file"), "content\n").expect("file");
    fs::write(root.join("home/user/one"), "twins\n").expect("file");
    fs::hard_link(root.join("home/user/one"), root.join("home/user/other")).expect("link");
    chown(&root.join("home/user"), 1_000);
    fs::write(root.join("beyond"), "").expect("file");
    chown(&root.join("beyond"), 4_000_000);
    for (link, target) in [
        ("proc", "/etc"),
        ("sys", "../../../../tmp"),
        ("dev", "/proc/self/root"),
        ("tmp", "bin"),
        ("etc/hosts", "/../../../../etc/shadow"),
        ("etc/hostname", "/bin/probe"),
        ("etc/resolv.conf", "../run/systemd/resolve/stub-resolv.conf"),
    ] {
        symlink(target, root.join(link)).expect("link");
    }
    let device = root.join("image-device");
    let made = Command::new("mknod").arg(&device).args(["c", "1", "1"]).status().expect("mknod");
    assert!(made.success());
    fs::set_permissions(&device, fs::Permissions::from_mode(0o666)).expect("mode");
}

fn chown(path: &Path, uid: u32) {
    std::os::unix::fs::chown(path, Some(uid), Some(uid)).expect("chown");
}

pub fn pack(root: &Path, image: &Path) {
    pack_with(&[], root, image);
}

fn pack_with(options: &[String], root: &Path, image: &Path) {
    let made = Command::new("mkfs.erofs")
        .arg("-T0")
        .args(options)
        .arg(image)
        .arg(root)
        .output()
        .expect("mkfs.erofs (Debian: erofs-utils)");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// Puts the image into a data directory and returns its digest. The launcher takes the name for granted; here it is a number.
pub fn install_layer(data: &Path) -> String {
    install(data, image(), 1)
}

pub fn install(data: &Path, image: &Path, number: u64) -> String {
    let hex = format!("{number:064x}");
    let directory = data.join("layers").join(&hex);
    fs::create_dir_all(&directory).expect("layer directory");
    fs::copy(image, directory.join("rootfs.erofs")).expect("layer");
    format!("sha256:{hex}")
}

/// Layers that come as a set, and the set: of one layer that has data, with the image of [`install_layer`] in them, and of `markers` that have none.
pub struct Set {
    pub digest: String,
    /// Top first.
    pub layers: Vec<String>,
}

pub fn install_set(data: &Path, number: u64, markers: &[u64]) -> Set {
    let digest = format!("sha256:{number:064x}");
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("set-{}", std::process::id()));
    let _ = fs::remove_dir_all(&root);
    plant(&root);
    for marker in markers.iter().rev() {
        fs::write(root.join("marker"), format!("{marker}\n")).expect("file");
        fs::write(root.join(format!("only-{marker}")), "").expect("file");
    }
    let below = install(data, image(), number);
    let blob = data.join("layers").join(&below["sha256:".len()..]).join("data");
    let directory = data.join("sets").join(&digest["sha256:".len()..]);
    fs::create_dir_all(&directory).expect("set directory");
    let options = ["--chunksize=4096".to_owned(), format!("--blobdev={}", blob.display())];
    pack_with(&options, &root, &directory.join("rootfs.erofs"));
    fs::remove_dir_all(&root).expect("removed");
    let above = markers.iter().map(|marker| install_marker_layer(data, *marker));
    Set { digest, layers: above.chain([below]).collect() }
}

/// Another layer: one file that says which it is.
pub fn install_marker_layer(data: &Path, number: u64) -> String {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("marker-{}", std::process::id()));
    let image = root.with_extension("erofs");
    fs::create_dir_all(&root).expect("directory");
    fs::write(root.join("marker"), format!("{number}\n")).expect("file");
    fs::write(root.join(format!("only-{number}")), "").expect("file");
    pack(&root, &image);
    fs::remove_dir_all(&root).expect("removed");
    let digest = install(data, &image, number);
    fs::remove_file(&image).expect("removed");
    digest
}
