//! A blob store that is an S3 server: a process of its own, which checks signatures and fails on demand.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

use common::image::files;
use common::{Node, wait_for};
use serde_json::{Value, json};

struct Server {
    process: Child,
    output: BufReader<ChildStdout>,
    said: Value,
}

impl Server {
    fn start(objects: &Path, prefix: &str) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut process = Command::new(root.join("bin/node24"))
            .arg(root.join("packages/blob/src/s3-server-process.fixture.ts"))
            .args([objects.as_os_str(), prefix.as_ref()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a server");
        let output = BufReader::new(process.stdout.take().expect("output"));
        let mut server = Self { process, output, said: Value::Null };
        server.said = server.line();
        server
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        serde_json::from_str(&line).expect("JSON")
    }

    fn ask(&mut self, line: &str) -> Value {
        let input = self.process.stdin.as_mut().expect("input");
        input.write_all(format!("{line}\n").as_bytes()).expect("written");
        self.line()
    }

    fn fail(&mut self, fault: &Value) {
        self.ask(&fault.to_string());
    }

    fn requests(&mut self) -> usize {
        self.ask("requests").as_array().expect("requests").len()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A node whose packs are in a bucket only.
fn node(prefix: &str, arguments: &[&str]) -> (Node, Server) {
    with_bucket(Node::prepare(&files(16, 500_000), arguments), prefix)
}

/// Puts what the store of a node has into a bucket instead.
fn with_bucket(mut node: Node, prefix: &str) -> (Node, Server) {
    let mut server = Server::start(&node.data.join("blob"), prefix);
    std::fs::remove_dir_all(node.data.join("blob")).expect("removed");
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let place = prefix.strip_suffix('/').map(|prefix| format!("/{prefix}")).unwrap_or_default();
    node.blob = Some(format!("s3://{}{place}", text(&server.said["bucket"])));
    node.variables = vec![
        ("AWS_ENDPOINT_URL", text(&server.said["endpoint"])),
        ("AWS_ACCESS_KEY_ID", text(&server.said["account"]["accessKeyId"])),
        ("AWS_SECRET_ACCESS_KEY", text(&server.said["account"]["secretAccessKey"])),
        ("AWS_REGION", "eu-central-1".to_owned()),
    ];
    assert_eq!(server.requests(), 0);
    node.launch();
    (node, server)
}

fn read(mount: &Path, name: &str) -> std::io::Result<Vec<u8>> {
    std::fs::read(mount.join(name))
}

#[test]
fn every_file_comes_from_a_bucket() {
    for prefix in ["", "some/where/"] {
        let (mut node, mut server) = node(prefix, &[]);
        let mount = node.mount();
        node.assert_same(&mount);
        assert_eq!(node.stat("errors"), 0, "{}", node.log());
        assert_eq!(server.requests() as u64, node.stat("fetches"), "each range is asked for once");
        let command = node
            .processes()
            .iter()
            .map(|pid| std::fs::read(format!("/proc/{pid}/cmdline")).expect("a line"))
            .collect::<Vec<_>>()
            .concat();
        assert!(!String::from_utf8_lossy(&command).contains("secret"), "no secret is an argument");
        // A worker after the first has the account too.
        node.change_worker();
        node.chill(&mount);
        let mount = node.mount();
        node.assert_same(&mount);
    }
}

#[test]
fn what_may_help_is_tried_again() {
    let (mut node, mut server) = node("", &[]);
    let mount = node.mount();
    for (name, fault) in [
        ("f000", json!({ "status": 503, "code": "SlowDown" })),
        ("f002", json!({ "status": 500 })),
        ("f004", json!({ "status": 429, "headers": { "retry-after": "2" } })),
        ("f006", json!({ "status": 200, "cutAtBytes": 1_000 })),
        ("f008", json!({ "status": 200, "isSilent": true })),
    ] {
        let begun = Instant::now();
        server.fail(&fault);
        assert!(
            read(&mount, name).unwrap_or_else(|error| panic!("{fault}: {error}\n{}", node.log()))
                == node.image.files[name]
        );
        if fault["status"] == 429 {
            assert!(begun.elapsed().as_secs() >= 2, "the server is left alone as it asks");
        }
    }
    assert_eq!(node.stat("errors"), 0);
}

#[test]
fn a_map_that_the_server_does_not_give_at_once_is_asked_for_again() {
    let node = Node::prepare(&files(16, 500_000), &[]);
    node.image.relayout(&node.data, &[]);
    let (mut node, mut server) = with_bucket(node, "");
    let mount = node.mount();
    server.fail(&json!({ "status": 404, "code": "NoSuchKey" }));
    for _ in 0..3 {
        server.fail(&json!({ "status": 503, "code": "SlowDown" }));
    }
    node.assert_same(&mount);
    assert_eq!(node.stat("errors"), 0, "{}", node.log());
}

#[test]
fn what_does_not_help_is_an_error_at_once() {
    for (code, message) in [(403, "the blob store answers with 403"), (404, "the blob store does not have the pack")] {
        let (mut node, mut server) = node("", &[]);
        let mount = node.mount();
        for _ in 0..8 {
            server.fail(&json!({ "status": code, "code": "NoSuchKey" }));
        }
        let begun = Instant::now();
        assert_eq!(read(&mount, "f000").expect_err("refused").raw_os_error(), Some(libc::EIO), "{code}");
        assert!(begun.elapsed().as_secs() < 20, "{code}");
        assert!(node.log().contains(message), "{}", node.log());
    }
}

#[test]
fn a_server_that_goes_is_waited_for_within_bounds() {
    let (mut node, mut server) = node("", &["--store-wait-ms", "500"]);
    let mount = node.mount();
    for _ in 0..200 {
        server.fail(&json!({ "status": 503, "headers": { "retry-after": "30" } }));
    }
    assert_eq!(read(&mount, "f000").expect_err("busy").raw_os_error(), Some(libc::EIO));
    drop(server);
    assert_eq!(read(&mount, "f008").expect_err("gone").raw_os_error(), Some(libc::EIO));
    assert!(node.log().contains("the blob store does not answer"), "{}", node.log());
    node.ok("stats", &json!({}));
}

#[test]
fn an_account_may_be_in_a_file_and_must_be_somewhere() {
    let (mut node, server) = node("", &[]);
    node.stop();
    wait_for("their end", || node.processes().is_empty());
    let file: PathBuf = node.data.join("account.json");
    let mut account = server.said["account"].clone();
    account["endpoint"] = server.said["endpoint"].clone();
    std::fs::write(&file, account.to_string()).expect("written");
    node.variables = Vec::new();
    let refused = node.command().stdin(Stdio::null()).stderr(Stdio::piped()).output().expect("layerd");
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("AWS_ENDPOINT_URL"));
    let path = file.to_string_lossy().into_owned();
    node.set_arguments(&["--blob-account", &path]);
    node.launch();
    let mount = node.mount();
    node.assert_same(&mount);
}
