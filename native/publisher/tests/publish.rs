//! What was handed over becomes a layer or a set, or nothing does.

mod common;

use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{Handed, Node, fetched, names, noise, packed, set, wait_for};
use layer_form::digest::Digest;
use serde_json::{Value, json};

const PUBLISH: &str = "layer.publish";

/// Two chunks and a half, the first of them a hole, and some holes of a block in the last.
fn data() -> Vec<u8> {
    let mut data = vec![0; 262_144];
    data.extend(noise(1, 262_144 + 131_072));
    data[600_000..620_000].fill(0);
    data
}

fn metadata() -> Vec<u8> {
    noise(2, 3_000_000)
}

fn is_empty(node: &Node) -> bool {
    names(&node.data.join("layers")).is_empty() && names(&node.data.join("sets")).is_empty()
}

#[test]
fn a_packed_layer_is_copied_whole_with_its_holes() {
    let node = Node::start(&[]);
    let layer = packed(&node, &metadata(), &data());
    node.ok(PUBLISH, &layer.packed());
    let at = node.layer(&layer.hex);
    assert_eq!(names(&at), ["data", "layer.json", "rootfs.erofs"]);
    layer.assert_published(&at);
    let stat = std::fs::metadata(at.join("data")).expect("data");
    assert!(stat.blocks() * 512 <= 131_072 + 262_144 - 16_384, "{} blocks", stat.blocks());
    for path in [&at, &at.join("data"), &at.join("layer.json"), &at.join("rootfs.erofs")] {
        let stat = std::fs::metadata(path).expect("there");
        assert_eq!((stat.uid(), stat.gid(), stat.mode() & 0o022), (0, 0, 0), "{}", path.display());
    }
    assert_eq!(names(&node.data.join("layers")), [layer.hex.as_str()]);
    // One without file contents has one file less.
    let bare = packed(&node, b"only metadata", b"");
    node.ok(PUBLISH, &bare.packed());
    assert_eq!(names(&node.layer(&bare.hex)), ["layer.json", "rootfs.erofs"]);
}

#[test]
fn a_fetched_layer_has_data_of_full_length_and_no_byte_in_them() {
    let node = Node::start(&[]);
    let layer = fetched(&node, &metadata(), &noise(3, 300_000 / 4_096 * 4_096));
    node.ok(PUBLISH, &layer.fetched());
    let at = node.layer(&layer.hex);
    assert_eq!(names(&at), ["chunks", "data", "layer.json", "rootfs.erofs"]);
    layer.assert_published(&at);
    let data = std::fs::metadata(at.join("data")).expect("data");
    assert_eq!((data.len(), data.blocks()), (299_008, 0));
}

#[test]
fn a_layer_that_is_there_stays_as_it_is_whatever_is_handed_over() {
    let node = Node::start(&[]);
    let layer = packed(&node, &metadata(), &data());
    node.ok(PUBLISH, &layer.packed());
    let inode = std::fs::metadata(node.layer(&layer.hex).join("data")).expect("data").ino();
    std::fs::write(layer.directory.join("data"), "other").expect("written");
    node.ok(PUBLISH, &layer.packed());
    std::fs::remove_dir_all(&layer.directory).expect("removed");
    node.ok(PUBLISH, &layer.packed());
    node.ok(PUBLISH, &layer.fetched());
    assert_eq!(std::fs::metadata(node.layer(&layer.hex).join("data")).expect("data").ino(), inode);
    layer.assert_published(&node.layer(&layer.hex));
}

#[test]
fn what_stands_in_the_place_of_a_layer_and_is_none_gives_way() {
    let node = Node::start(&[]);
    let layer = packed(&node, &metadata(), &data());
    let at = node.layer(&layer.hex);
    let spoils: [Spoil; 5] = [
        |at| std::fs::write(at, "a file").expect("written"),
        |at| symlink("/etc", at).expect("linked"),
        |at| std::fs::create_dir(at).expect("made"),
        |at| {
            std::fs::create_dir(at).expect("made");
            std::fs::write(at.join("layer.json"), "{").expect("written");
            std::fs::write(at.join("rootfs.erofs"), "").expect("written");
        },
        |at| {
            std::fs::create_dir(at).expect("made");
            std::fs::write(at.join("data"), "").expect("written");
        },
    ];
    for spoil in spoils {
        spoil(&at);
        node.ok(PUBLISH, &layer.packed());
        layer.assert_published(&at);
        assert_eq!(names(&node.data.join("layers")), [layer.hex.as_str()]);
        std::fs::remove_dir_all(&at).expect("removed");
    }
    // One whose files are shorter than its record says is none either.
    node.ok(PUBLISH, &layer.packed());
    OpenOptions::new().write(true).open(at.join("data")).and_then(|data| data.set_len(5)).expect("cut");
    node.ok(PUBLISH, &layer.packed());
    layer.assert_published(&at);
}

type Spoil = fn(&Path);

fn fifo(at: &Path, name: &str) {
    std::fs::remove_file(at.join(name)).expect("removed");
    let mode = rustix::fs::Mode::from_raw_mode(0o644);
    rustix::fs::mknodat(rustix::fs::CWD, at.join(name), rustix::fs::FileType::Fifo, mode, 0).expect("a fifo");
}

fn link(at: &Path, name: &str) {
    std::fs::rename(at.join(name), at.join("elsewhere")).expect("renamed");
    symlink("elsewhere", at.join(name)).expect("linked");
}

fn change(at: &Path, name: &str, offset: u64) {
    let mut file = OpenOptions::new().write(true).open(at.join(name)).expect("opened");
    file.seek(SeekFrom::Start(offset)).and_then(|_| file.write_all(b"other")).expect("changed");
}

fn cut(at: &Path, name: &str, less: u64) {
    let file = OpenOptions::new().write(true).open(at.join(name)).expect("opened");
    file.set_len(file.metadata().expect("known").len() - less).expect("cut");
}

fn grow(at: &Path, name: &str, more: u64) {
    let file = OpenOptions::new().write(true).open(at.join(name)).expect("opened");
    file.set_len(file.metadata().expect("known").len() + more).expect("grown");
}

/// Replaces text in a record, which is JSON in one line.
fn rewrite(at: &Path, name: &str, from: &str, to: &str) {
    let text = std::fs::read_to_string(at.join(name)).expect("read");
    assert!(text.contains(from), "{text}");
    std::fs::write(at.join(name), text.replace(from, to)).expect("written");
}

fn refuse(node: &Node, handed: &Handed, (method, params): (&str, &Value), cases: &[(&str, Spoil)]) {
    for (n, (code, spoil)) in cases.iter().enumerate() {
        handed.write();
        spoil(&handed.directory);
        let failure = node.call(method, params).expect_err("refused");
        assert_eq!(failure["code"], *code, "case {n}: {failure}");
        let kind = if method == PUBLISH { "layer" } else { "set" };
        assert_eq!(failure["details"][kind], format!("sha256:{}", handed.hex), "case {n}");
        assert!(is_empty(node), "case {n}");
    }
    handed.write();
    node.ok(method, params);
}

#[test]
fn what_is_not_the_packed_layer_is_refused_and_leaves_nothing() {
    let node = Node::start(&[]);
    let layer = packed(&node, &metadata(), &data());
    let cases: [(&str, Spoil); 22] = [
        ("layer_corrupt", |at| change(at, "rootfs.erofs", 2_999_990)),
        ("layer_corrupt", |at| cut(at, "rootfs.erofs", 1)),
        ("layer_corrupt", |at| grow(at, "rootfs.erofs", 1)),
        ("layer_corrupt", |at| change(at, "data", 300_000)),
        ("layer_corrupt", |at| change(at, "data", 7)),
        ("layer_corrupt", |at| cut(at, "data", 4_096)),
        ("layer_corrupt", |at| grow(at, "data", 4_096)),
        ("layer_corrupt", |at| grow(at, "data", 1 << 40)),
        ("layer_corrupt", |at| cut(at, "layer.json", 1)),
        ("layer_corrupt", |at| std::fs::write(at.join("layer.json"), "{}").expect("written")),
        ("layer_corrupt", |at| rewrite(at, "layer.json", r#""version":2"#, r#""version":3"#)),
        ("layer_corrupt", |at| rewrite(at, "layer.json", r#""architecture""#, r#""path":"/","architecture""#)),
        ("layer_corrupt", |at| rewrite(at, "layer.json", r#""version":2"#, r#""version":2,"version":2"#)),
        ("internal", |at| grow(at, "layer.json", 2 << 20)),
        ("internal", |at| link(at, "rootfs.erofs")),
        ("internal", |at| link(at, "data")),
        ("internal", |at| link(at, "layer.json")),
        ("internal", |at| fifo(at, "rootfs.erofs")),
        ("internal", |at| fifo(at, "data")),
        ("layer_not_found", |at| std::fs::remove_file(at.join("layer.json")).expect("removed")),
        ("layer_not_found", |at| std::fs::remove_file(at.join("data")).expect("removed")),
        ("internal", |at| {
            let elsewhere = at.with_extension("elsewhere");
            let _ = std::fs::remove_dir_all(&elsewhere);
            std::fs::rename(at, &elsewhere).expect("renamed");
            symlink(&elsewhere, at).expect("linked");
        }),
    ];
    let link = node.data.join("state/packer/layers").join(&layer.hex);
    refuse_all(&node, &layer, &link, &cases);
}

/// As `refuse`, where the directory itself may have become a link.
fn refuse_all(node: &Node, layer: &Handed, link: &Path, cases: &[(&str, Spoil)]) {
    for case in cases {
        if link.is_symlink() {
            std::fs::remove_file(link).expect("removed");
        }
        refuse_one(node, layer, case);
    }
    std::fs::remove_file(link).expect("the last has made a link");
    refuse(node, layer, (PUBLISH, &layer.packed()), &[]);
}

fn refuse_one(node: &Node, layer: &Handed, (code, spoil): &(&str, Spoil)) {
    layer.write();
    spoil(&layer.directory);
    let failure = node.call(PUBLISH, &layer.packed()).expect_err("refused");
    assert_eq!(failure["code"], *code, "{failure}");
    assert_eq!(failure["details"]["layer"], format!("sha256:{}", layer.hex));
    assert!(is_empty(node), "{failure}");
}

#[test]
fn data_that_end_in_zeros_are_held_to_their_length() {
    let node = Node::start(&[]);
    // The digest of a chunk of zeros is the same for every length, so only the record tells.
    let layer = packed(&node, b"metadata", &[noise(4, 262_144), vec![0; 8_192]].concat());
    let none = packed(&node, b"other", b"");
    refuse(
        &node,
        &layer,
        (PUBLISH, &layer.packed()),
        &[("layer_corrupt", |at| cut(at, "data", 4_096)), ("layer_corrupt", |at| grow(at, "data", 4_096))],
    );
    std::fs::remove_dir_all(node.layer(&layer.hex)).expect("removed");
    // A device more than the metadata name could not be mounted.
    refuse(
        &node,
        &none,
        (PUBLISH, &none.packed()),
        &[("layer_corrupt", |at| {
            std::fs::write(at.join("data"), "").expect("written");
        })],
    );
}

#[test]
fn what_is_not_the_fetched_layer_is_refused_and_leaves_nothing() {
    let node = Node::start(&[]);
    let layer = fetched(&node, &metadata(), &noise(3, 524_288));
    refuse(
        &node,
        &layer,
        (PUBLISH, &layer.fetched()),
        &[
            ("layer_corrupt", |at| change(at, "rootfs.erofs", 0)),
            ("layer_corrupt", |at| cut(at, "rootfs.erofs", 1)),
            ("layer_corrupt", |at| cut(at, "chunks", 1)),
            ("layer_corrupt", |at| change(at, "chunks", 70)),
            ("layer_corrupt", |at| std::fs::write(at.join("chunks"), "").expect("written")),
            ("layer_not_found", |at| std::fs::remove_file(at.join("layer.json")).expect("removed")),
            ("layer_not_found", |at| std::fs::remove_file(at.join("chunks")).expect("removed")),
            ("internal", |at| link(at, "chunks")),
            ("internal", |at| fifo(at, "chunks")),
            ("layer_not_found", |at| std::fs::remove_dir_all(at).expect("removed")),
        ],
    );
}

#[test]
fn a_set_is_published_in_the_place_of_what_is_there_and_removed() {
    let node = Node::start(&[]);
    let layers = [Digest([1; 32]), Digest([2; 32])];
    let one = set(&node, &layers, &noise(5, 100_000));
    refuse(
        &node,
        &one,
        ("set.publish", &one.set()),
        &[
            ("invalid_argument", |at| change(at, "rootfs.erofs", 99_990)),
            ("invalid_argument", |at| cut(at, "rootfs.erofs", 1)),
            ("invalid_argument", |at| grow(at, "rootfs.erofs", 1)),
            ("invalid_argument", |at| cut(at, "set.json", 1)),
            // The name is that of other layers, or of the same in another order.
            ("invalid_argument", |at| rewrite(at, "set.json", &"01".repeat(32), &"03".repeat(32))),
            ("invalid_argument", |at| {
                rewrite(at, "set.json", &"01".repeat(32), &"03".repeat(32));
                rewrite(at, "set.json", &"02".repeat(32), &"01".repeat(32));
                rewrite(at, "set.json", &"03".repeat(32), &"02".repeat(32));
            }),
            ("invalid_argument", |at| std::fs::remove_file(at.join("set.json")).expect("removed")),
            ("invalid_argument", |at| std::fs::remove_dir_all(at).expect("removed")),
            ("internal", |at| link(at, "rootfs.erofs")),
            ("internal", |at| fifo(at, "set.json")),
        ],
    );
    one.assert_published(&node.set(&one.hex));
    // One that is in use stays what it is for whoever has it open.
    let before = std::fs::File::open(node.set(&one.hex).join("rootfs.erofs")).expect("opened");
    let other = set(&node, &layers, &noise(6, 50_000));
    assert_eq!(other.hex, one.hex);
    node.ok("set.publish", &other.set());
    other.assert_published(&node.set(&other.hex));
    assert_eq!(before.metadata().expect("known").len(), 100_000);
    for _ in 0..2 {
        node.ok("set.remove", &other.set());
        assert!(is_empty(&node));
    }
    std::fs::write(node.set(&one.hex), "a file").expect("written");
    node.ok("set.remove", &one.set());
    assert!(is_empty(&node));
}

#[test]
fn a_writer_that_keeps_its_files_open_changes_nothing() {
    let node = Node::start(&[]);
    let layer = packed(&node, &metadata(), &data());
    let names = ["layer.json", "rootfs.erofs", "data"];
    let open = |name| OpenOptions::new().write(true).open(layer.directory.join(name)).expect("opened");
    let mut files = names.map(open);
    node.ok(PUBLISH, &layer.packed());
    for file in &mut files {
        file.write_all(b"other bytes").expect("written");
        file.set_len(20).expect("cut");
    }
    layer.assert_published(&node.layer(&layer.hex));
}

#[test]
fn a_writer_that_changes_bytes_meanwhile_gets_the_layer_or_none() {
    let node = Node::start(&[]);
    let layer = packed(&node, &metadata(), &data());
    let over = AtomicBool::new(false);
    let (mut made, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let open = |name| OpenOptions::new().write(true).open(layer.directory.join(name)).expect("opened");
            let mut files = ["rootfs.erofs", "data"].map(|name| (open(name), layer.file(name)));
            let mut write = |bytes: Option<&[u8]>, n: usize| {
                let (file, honest) = &mut files[n % 2];
                let at = (n * 4_096) % (honest.len() - 8);
                let bytes = bytes.unwrap_or(&honest[at..at + 8]);
                file.seek(SeekFrom::Start(at as u64)).and_then(|_| file.write_all(bytes)).expect("written");
            };
            for n in (0..).take_while(|_| !over.load(Ordering::Relaxed)) {
                write(Some(b"evil one"), n);
                std::thread::yield_now();
                write(None, n);
                // There must be moments at which all is well.
                if n % 64 == 0 {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
            }
        });
        while made + refused < 60 {
            match node.call(PUBLISH, &layer.packed()) {
                Ok(_) => {
                    layer.assert_published(&node.layer(&layer.hex));
                    std::fs::remove_dir_all(node.layer(&layer.hex)).expect("removed");
                    made += 1;
                }
                Err(failure) => {
                    assert_eq!(failure["code"], "layer_corrupt");
                    refused += 1;
                }
            }
            assert!(is_empty(&node));
        }
        over.store(true, Ordering::Relaxed);
    });
    eprintln!("{made} made, {refused} refused");
}

#[test]
fn a_kill_in_the_middle_leaves_nothing_that_the_next_one_does_not_remove() {
    let mut node = Node::start(&[]);
    let layer = packed(&node, &metadata(), &noise(7, 64 << 20));
    let socket = node.socket();
    for _ in 0..3 {
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| common::call(&socket, PUBLISH, &layer.packed()));
            wait_for("a draft", || !names(&node.data.join("layers")).is_empty());
            node.kill();
            assert!(asking.join().expect("asked").is_none());
        });
        assert!(!node.layer(&layer.hex).exists(), "it was too fast to be killed");
        node.launch();
        assert!(is_empty(&node));
    }
    node.ok(PUBLISH, &layer.packed());
    layer.assert_published(&node.layer(&layer.hex));
    node.stop();
}

#[test]
fn many_at_once_get_the_same_layer() {
    let node = Node::start(&[]);
    let layer = packed(&node, &metadata(), &data());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| node.ok(PUBLISH, &layer.packed()));
        }
    });
    layer.assert_published(&node.layer(&layer.hex));
    assert_eq!(names(&node.data.join("layers")), [layer.hex.as_str()]);
}

/// A call as another user: the identity of a thread is its own.
fn call_as(uid: u32, node: &Node, method: &str, params: &Value) -> Option<Result<Value, Value>> {
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let uid = rustix::process::Uid::from_raw(uid);
            rustix::thread::set_thread_res_uid(uid, uid, uid).expect("another user");
            common::call(&node.socket(), method, params)
        });
        asking.join().expect("asked")
    })
}

#[test]
fn each_asks_for_its_own_and_hands_over_only_what_is_its_own() {
    const EDGE: u32 = 64_801;
    const PACKER: u32 = 64_803;
    let node = Node::start(&["--edge-uid", "64801", "--packer-uid", "64803"]);
    let layer = packed(&node, &metadata(), &data());
    let other = fetched(&node, b"metadata", &noise(3, 4_096));
    let one = set(&node, &[Digest([1; 32])], b"image");
    let code = |answer: Option<Result<Value, Value>>| answer.expect("answered").expect_err("refused")["code"].clone();
    assert_eq!(code(call_as(EDGE, &node, PUBLISH, &layer.packed())), "permission_denied");
    assert_eq!(code(call_as(PACKER, &node, PUBLISH, &other.fetched())), "permission_denied");
    for method in ["set.publish", "set.remove"] {
        assert_eq!(code(call_as(PACKER, &node, method, &one.set())), "permission_denied");
    }
    // The connection of anybody else is closed.
    assert_eq!(call_as(64_802, &node, PUBLISH, &layer.packed()), None);
    // These files are root's, as those would be that a hard link leads to.
    assert_eq!(code(call_as(PACKER, &node, PUBLISH, &layer.packed())), "internal");
    assert_eq!(code(call_as(EDGE, &node, "set.publish", &one.set())), "internal");
    assert!(is_empty(&node));
    for (handed, uid) in [(&layer, PACKER), (&other, EDGE), (&one, EDGE)] {
        for name in names(&handed.directory) {
            std::os::unix::fs::chown(handed.directory.join(name), Some(uid), Some(uid)).expect("given");
        }
    }
    for (uid, method, params) in
        [(PACKER, PUBLISH, layer.packed()), (EDGE, PUBLISH, other.fetched()), (EDGE, "set.publish", one.set())]
    {
        assert_eq!(call_as(uid, &node, method, &params), Some(Ok(json!({}))));
    }
    let files = [node.layer(&layer.hex).join("data"), node.layer(&other.hex).join("chunks"), node.set(&one.hex)];
    for path in files {
        assert_eq!(std::fs::metadata(&path).expect("there").uid(), 0, "{}", path.display());
    }
}
