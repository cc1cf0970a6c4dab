//! Two nodes: one gives the other what it has.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use common::image::files;
use common::{Node, wait_for};

const CHUNK: u64 = 262_144;

fn openssl(at: &Path, arguments: &str) {
    let done = Command::new("openssl").args(arguments.split(' ')).current_dir(at).output().expect("openssl");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// An authority of its own, and a certificate for a name.
fn certificates(at: PathBuf, name: &str) -> PathBuf {
    std::fs::create_dir_all(&at).expect("directory");
    std::fs::write(at.join("names"), format!("subjectAltName=DNS:{name}")).expect("names");
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(&at, &format!("req -x509 {key} -keyout ca.key -out ca.pem -subj /CN=authority -days 1"));
    openssl(&at, &format!("req {key} -keyout key.pem -out request -subj /CN=node"));
    openssl(&at, "x509 -req -in request -CA ca.pem -CAkey ca.key -CAcreateserial -days 1 -extfile names -out cert.pem");
    at
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port")
}

/// A node that has everything and gives it, and where it does.
fn giver() -> (Node, PathBuf, SocketAddr) {
    let mut node = Node::prepare(&files(16, 500_000), &[]);
    let (tls, address) = (certificates(node.data.join("tls"), "dsec-layerd"), free_address());
    node.set_arguments(&["--peer-tls", &tls.to_string_lossy(), "--peer-listen", &address.to_string()]);
    node.launch();
    let mount = node.mount();
    node.assert_same(&mount);
    wait_for("it to listen", || TcpStream::connect(address).is_ok());
    (node, tls, address)
}

/// A node that asks others, and has nothing yet.
fn asker(tls: &Path, peers: &str, more: &[&str]) -> Node {
    let mut node = Node::prepare(&files(16, 500_000), &[]);
    let tls = tls.to_string_lossy().into_owned();
    node.set_arguments(&[&["--peer-tls", &tls, "--peers", peers], more].concat());
    node
}

#[test]
fn what_another_node_has_is_not_asked_of_the_store() {
    let (giver, tls, address) = giver();
    let mut node = asker(&tls, &address.to_string(), &["--peer-wait-ms", "20000"]);
    std::fs::remove_dir_all(node.data.join("blob")).expect("a store that is away");
    std::fs::create_dir(node.data.join("blob")).expect("empty");
    node.launch();
    let mount = node.mount();
    node.assert_same(&mount);
    let data = std::fs::read(node.image.directory.join("data")).expect("data");
    assert!(data == node.image.data);
    assert_eq!((node.stat("fetches"), node.stat("errors")), (0, 0), "{}", node.log());
    assert_eq!(node.stat("peerBytes"), node.stat("storedBytes"));
    assert_eq!(giver.stat("givenBytes"), node.stat("peerBytes"));
}

#[test]
fn what_another_node_has_not_or_has_wrongly_comes_from_the_store() {
    let (giver, tls, address) = giver();
    let wrong = giver.image.chunks_of("f004")[0] as u64;
    let data = std::fs::OpenOptions::new().write(true).open(giver.image.directory.join("data")).expect("data");
    data.write_all_at(&[7; 4_096], wrong * CHUNK).expect("written");
    drop(data);
    let mut node = asker(&tls, &address.to_string(), &["--peer-wait-ms", "20000"]);
    node.launch();
    let mount = node.mount();
    node.assert_same(&mount);
    assert!(node.log().contains("peer-wrong") && node.stat("fetches") > 0 && node.stat("errors") == 0);
    // A giver that knows nothing of the layer any more.
    node.chill(&mount);
    node.stop();
    giver.unmount(&giver.data.join("mnt1"));
    giver.close();
    wait_for("their end", || node.processes().is_empty());
    node.launch();
    let mount = node.mount();
    node.assert_same(&mount);
    assert_eq!((node.stat("peerBytes"), node.stat("errors")), (0, 0));
}

#[test]
fn nodes_that_do_not_answer_cost_little() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (silent, nobody) = (listener.local_addr().expect("address"), free_address());
    let base = PathBuf::from(format!("/tmp/dsec-layerd-tls-{}", std::process::id()));
    let tls = certificates(base.clone(), "dsec-layerd");
    let mut node = asker(&tls, &format!("{silent},{nobody}"), &["--peer-wait-ms", "300"]);
    node.launch();
    let mount = node.mount();
    let begun = Instant::now();
    node.assert_same(&mount);
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    assert_eq!((node.stat("peerBytes"), node.stat("errors")), (0, 0));
    std::fs::remove_dir_all(&base).expect("removed");
}

#[test]
fn nobody_else_is_given_anything() {
    let (giver, tls, address) = giver();
    let stranger = certificates(giver.data.join("stranger"), "dsec-layerd");
    let mut node = asker(&stranger, &address.to_string(), &["--peer-wait-ms", "20000"]);
    node.launch();
    let mount = node.mount();
    node.assert_same(&mount);
    assert_eq!((node.stat("peerBytes"), giver.stat("givenBytes")), (0, 0));
    wait_for("a word about it", || giver.log().contains("peer-lost"));
    // One of the cluster's own certificates, for another use.
    std::fs::write(tls.join("names"), "subjectAltName=DNS:apiserver").expect("names");
    openssl(
        &tls,
        "x509 -req -in request -CA ca.pem -CAkey ca.key -CAcreateserial -days 1 -extfile names -out other.pem",
    );
    let other = Command::new("openssl")
        .args([
            "s_client",
            "-connect",
            &address.to_string(),
            "-CAfile",
            "ca.pem",
            "-cert",
            "other.pem",
            "-key",
            "key.pem",
        ])
        .args(["-quiet", "-verify_quiet"])
        .current_dir(&tls)
        .stdin(std::process::Stdio::null())
        .output()
        .expect("openssl");
    assert!(other.stdout.is_empty());
    let mut plain = TcpStream::connect(address).expect("connected");
    plain.write_all(&[0; 200]).expect("written");
    let mut rest = Vec::new();
    let _ = plain.read_to_end(&mut rest);
    assert!(!String::from_utf8_lossy(&rest).contains("file "), "nothing but an alert");
    assert_eq!(giver.stat("givenBytes"), 0);
    // And such a certificate is refused where it is meant to be used.
    std::fs::copy(tls.join("other.pem"), tls.join("cert.pem")).expect("copied");
    let refused = asker(&tls, "127.0.0.1:1", &[])
        .command()
        .stdin(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .output();
    let refused = refused.expect("layerd");
    assert!(
        !refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("does not name dsec-layerd")
    );
}

#[test]
fn a_giver_that_is_killed_costs_no_reader_anything() {
    let (giver, tls, address) = giver();
    let mut node = asker(&tls, &address.to_string(), &[]);
    node.launch();
    let mount = node.mount();
    for (n, (name, bytes)) in node.image.files.iter().enumerate() {
        if n % 4 == 1 {
            giver.kill("workerPid");
        }
        assert!(std::fs::read(mount.join(name)).expect("read") == *bytes, "{name}");
    }
    assert_eq!(node.stat("errors"), 0);
}
