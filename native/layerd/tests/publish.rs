//! What the edge has fetched becomes a layer, or nothing does.

mod common;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use common::Node;
use common::image::files;
use serde_json::json;

/// A node whose layer lies where the edge leaves what it fetches, as root.
fn node() -> (Node, PathBuf) {
    let node = Node::start(&files(3, 300_000), &[]);
    let fetched = node.data.join("state/edge/layers").join(&node.image.hex);
    std::fs::create_dir_all(&fetched).expect("directory");
    for name in ["rootfs.erofs", "chunks"] {
        std::fs::rename(node.image.directory.join(name), fetched.join(name)).expect("moved");
    }
    std::fs::write(fetched.join("layer.json"), "{}").expect("record");
    std::fs::remove_dir_all(&node.image.directory).expect("removed");
    (node, fetched)
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).expect("listed");
    let mut names: Vec<_> =
        entries.map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn a_layer_is_published_once_and_filled_when_it_is_read() {
    let (mut node, fetched) = node();
    // What another worker has left.
    let left = node.data.join("layers").join(format!(".fetched-{}", node.image.hex));
    std::fs::create_dir_all(&left).expect("directory");
    std::fs::write(left.join("chunks"), "part").expect("left");
    assert_eq!(node.ok("layer.publish", &node.layer()), json!({}));
    assert_eq!(names(&node.image.directory), ["chunks", "data", "layer.json", "rootfs.erofs"]);
    assert_eq!(node.allocated(), 0);
    // The edge changes its own copy, which is nobody's any more.
    std::fs::remove_dir_all(&fetched).expect("removed");
    assert_eq!(node.ok("layer.publish", &node.layer()), json!({}));
    let mount = node.mount();
    for (name, bytes) in &node.image.files {
        assert!(std::fs::read(mount.join(name)).expect("read") == *bytes, "{name}");
    }
    node.unmount(&mount);
    node.close();
}

type Spoil = fn(&Path);

#[test]
fn what_is_not_the_layer_is_refused_and_leaves_nothing() {
    let (node, fetched) = node();
    let cases: [(&str, Spoil); 9] = [
        ("layer_corrupt", |at| std::fs::write(at.join("rootfs.erofs"), "other").expect("written")),
        ("layer_corrupt", |at| std::fs::write(at.join("rootfs.erofs"), "").expect("written")),
        ("layer_corrupt", |at| {
            let map = std::fs::read(at.join("chunks")).expect("read");
            std::fs::write(at.join("chunks"), &map[..map.len() - 1]).expect("written");
        }),
        ("layer_corrupt", |at| std::fs::write(at.join("chunks"), "").expect("written")),
        ("layer_not_found", |at| std::fs::remove_file(at.join("layer.json")).expect("removed")),
        ("internal", |at| std::fs::write(at.join("layer.json"), vec![b' '; 2 << 20]).expect("written")),
        ("internal", |at| {
            std::fs::remove_file(at.join("rootfs.erofs")).expect("removed");
            symlink("/etc/passwd", at.join("rootfs.erofs")).expect("linked");
        }),
        ("internal", |at| {
            std::fs::remove_file(at.join("chunks")).expect("removed");
            rustix::fs::mknodat(
                rustix::fs::CWD,
                at.join("chunks"),
                rustix::fs::FileType::Fifo,
                rustix::fs::Mode::from_raw_mode(0o644),
                0,
            )
            .expect("a fifo");
        }),
        ("layer_not_found", |at| std::fs::remove_dir_all(at).expect("removed")),
    ];
    let kept = node.data.join("kept");
    copy_all(&fetched, &kept);
    for (n, (code, spoil)) in cases.into_iter().enumerate() {
        spoil(&fetched);
        let failure = node.call("layer.publish", &node.layer()).expect_err("refused");
        assert_eq!(failure["code"], code, "case {n}: {failure}");
        assert_eq!(failure["details"]["layer"], format!("sha256:{}", node.image.hex), "case {n}");
        assert!(names(&node.data.join("layers")).is_empty(), "case {n}");
        let _ = std::fs::remove_dir_all(&fetched);
        copy_all(&kept, &fetched);
    }
    node.ok("layer.publish", &node.layer());
}

fn copy_all(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("directory");
    for name in names(from) {
        std::fs::copy(from.join(&name), to.join(&name)).expect("copied");
    }
}
