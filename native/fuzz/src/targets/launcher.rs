//! The launcher: params of requests, and records that it reads back after a restart. Whatever is accepted can be used as a file name.

use launcher::behaviour::facts;
use launcher::record::Record;
use launcher::request::{self, Digest, Request, SandboxId};

use super::Target;
use crate::random::hash;

pub const REQUEST: Target = Target { name: "launcher-request", corpus: requests, run: request, max_memory };
pub const RECORD: Target = Target { name: "launcher-record", corpus: records, run: record, max_memory };
pub const PROCESS: Target = Target { name: "launcher-process", corpus: processes, run: process, max_memory };

const HEX: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn max_memory(input: usize) -> usize {
    (64 << 10) + 64 * input
}

/// An input is a first line and the rest: method and params.
fn requests() -> Vec<Vec<u8>> {
    let create = format!(
        r#"sandbox.create
{{"id":"a1","layers":["sha256:{HEX}"],"set":"sha256:{HEX}","hostname":"box","memoryBytes":67108864,"cpuMillis":1000,"pids":64,"diskBytes":67108864,"tripwires":["/root/.ssh/id_rsa","/"]}}"#
    );
    let others = [
        "node.info\n{}",
        "sandbox.destroy\n{\"id\":\"a1\"}",
        "sandbox.usage\n{\"id\":\"../a\"}",
        "sandbox.list\n{}",
        "events\n{}",
        "behaviour\n{}",
        "nothing\n[]",
    ];
    let forget = format!("layer.forget\n{{\"digest\":\"sha256:{HEX}\"}}");
    let others = others.iter().map(|text| text.as_bytes().to_vec());
    others.chain([create.into_bytes(), forget.into_bytes()]).collect()
}

fn request(input: &[u8]) -> u64 {
    let Ok(text) = std::str::from_utf8(input) else { return 0 };
    let (method, params) = text.split_once('\n').unwrap_or((text, ""));
    match request::parse(method, params) {
        Err(failure) => {
            // Why it was refused, but not at which column.
            let reason: Vec<u8> = failure.message.bytes().filter(|byte| !byte.is_ascii_digit()).collect();
            hash(&reason)
        }
        Ok(Request::Create(create)) => {
            check_id(&create.id);
            create.lower.layers.iter().chain(&create.lower.set).for_each(check_digest);
            assert!(create.lower.layers.len() == 1 || create.lower.set.is_some());
            assert!((1..=request::MAX_LAYERS).contains(&create.lower.layers.len()));
            assert!((1..=request::MAX_HOSTNAME_LENGTH).contains(&create.hostname.len()));
            assert!(create.hostname.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'));
            assert!(request::MEMORY_BYTES.contains(&create.limits.memory_bytes));
            assert!(request::CPU_MILLIS.contains(&create.limits.cpu_millis));
            assert!(request::PIDS.contains(&create.limits.pids));
            assert!(request::DISK_BYTES.contains(&create.limits.disk_bytes));
            check_tripwires(&create.tripwires);
            1_000 + create.lower.layers.len() as u64
        }
        Ok(Request::Destroy(id)) => {
            check_id(&id);
            1
        }
        Ok(Request::Usage(id)) => {
            check_id(&id);
            2
        }
        Ok(Request::Forget(forgotten)) => {
            check_digest(forgotten.named().1);
            3
        }
        Ok(Request::NodeInfo) => 4,
        Ok(Request::List) => 5,
        Ok(Request::Events) => 6,
        Ok(Request::Changes(id)) => {
            check_id(&id);
            7
        }
        Ok(Request::Behaviour) => 8,
    }
}

/// File name and content.
fn records() -> Vec<Vec<u8>> {
    let whole = format!(
        r#"a1.json
{{"version":1,"id":"a1","boot":"b","slot":3,"pid":77,"pidIdentity":99,"layers":["sha256:{HEX}"],"set":"sha256:{HEX}","tripwires":["/a b"],"createdAtMs":5,"exit":{{"signal":9,"oomKills":1}}}}"#
    );
    vec![whole.into_bytes(), b"a1.json\n{}".to_vec(), b"../a.json\n[1]".to_vec()]
}

fn record(input: &[u8]) -> u64 {
    let line = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let Ok(name) = std::str::from_utf8(&input[..line]) else { return 0 };
    let Some(record) = Record::parse(name, input.get(line + 1..).unwrap_or_default()) else { return 1 };
    check_id(&record.id);
    record.lower.layers.iter().chain(&record.lower.set).for_each(check_digest);
    assert_eq!(name, format!("{}.json", record.id));
    check_tripwires(&record.tripwires);
    assert!(record.pid > 1 && i32::try_from(record.pid).is_ok());
    2 + record.lower.layers.len() as u64 + u64::from(record.exit.is_some())
}

fn check_tripwires(paths: &[String]) {
    assert!(paths.len() <= request::MAX_TRIPWIRES);
    let is_path = |path: &String| path.starts_with('/') && path.len() <= request::MAX_TRIPWIRE_BYTES;
    assert!(paths.iter().all(|path| is_path(path) && !path.contains(['\0', '\n'])));
}

/// What a hostile process says of itself: the first byte says which file of /proc it is.
fn processes() -> Vec<Vec<u8>> {
    let status = "sName:\tevil\nTgid:\t812\nPPid:\t700\nUid:\t200003\t0\t0\t0\nNSpid:\t813\t10\nNSsid:\t700\t8\n";
    let others = ["aprobe\0--flag\0\0last\0", "g9:cpu,cpuacct:/top/dsec-1/s12\n0::/dsec-1/s12\n"];
    let mut all: Vec<Vec<u8>> = [status, others[0], others[1]].iter().map(|text| text.as_bytes().to_vec()).collect();
    all.push([b"a".as_slice(), &[0xFF; 5_000]].concat());
    all
}

fn process(input: &[u8]) -> u64 {
    let Some((kind, text)) = input.split_first() else { return 0 };
    match kind {
        b's' => match facts::parse_status(text) {
            Some(status) => {
                assert!(status.pid > 0 && status.process > 0);
                assert!(facts::uid_inside(status.uid, 200_000) < 65_536);
                1 + u64::from(status.session > 0)
            }
            None => 3,
        },
        b'a' => {
            let arguments = facts::parse_arguments(text);
            assert!(arguments.len() <= 64 && arguments.iter().map(String::len).sum::<usize>() <= 4_096);
            4 + arguments.len() as u64
        }
        _ => facts::parse_slot(text, "dsec-1").map_or(100, |slot| 101 + u64::from(slot % 2)),
    }
}

fn check_id(id: &SandboxId) {
    let text = id.as_str();
    assert!(
        (1..=24).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    );
}

fn check_digest(digest: &Digest) {
    assert!(digest.hex().len() == 64 && digest.hex().bytes().all(|byte| byte.is_ascii_hexdigit()));
}
