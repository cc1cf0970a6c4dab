//! What aether reads of a sandbox that it does not trust: accounts, process tables, archives, params, and what its shells say.

use aether::chronus::shell_loop;
use aether::exec::oom;
use aether::exec::start::StartParams;
use aether::passwd;
use aether::proc;
use aether::tree::header::{self, Header, Kind};
use aether::tree::pax::{self, Records};
use aether::tree::reader::{self, ReadError};
use aether::tree::unpack;
use aether::watch::inotify;

use super::Target;

pub const ACCOUNTS: Target = Target {
    name: "aether-accounts",
    corpus: accounts_corpus,
    run: accounts,
    max_memory: |input| 65_536 + 256 * input,
};
pub const PROCESSES: Target = Target {
    name: "aether-processes",
    corpus: processes_corpus,
    run: processes,
    max_memory: |input| 65_536 + 16 * input,
};
pub const TAR: Target =
    Target { name: "aether-tar", corpus: tar_corpus, run: tar, max_memory: |input| 65_536 + 64 * input };
pub const PARAMS: Target =
    Target { name: "aether-params", corpus: params_corpus, run: params, max_memory: |input| 65_536 + 64 * input };

fn accounts_corpus() -> Vec<Vec<u8>> {
    [
        &b"root:x:0:0:root:/root:/bin/bash\nu:x:1000:1000:,,,:/home/u:/bin/sh\n# no\n"[..],
        b"root:x:0:\nsudo:x:27:u,v\n:::\nx:x:99999999999:a\n",
    ]
    .map(<[u8]>::to_vec)
    .to_vec()
}

fn accounts(input: &[u8]) -> u64 {
    let (users, groups) = (passwd::parse_passwd(input), passwd::parse_group(input));
    for user in &users {
        assert!(!user.name.is_empty() && !user.home.contains('\0') && !user.name.contains(':'));
    }
    assert!(groups.iter().all(|group| !group.name.is_empty()));
    (users.len().min(9) * 10 + groups.len().min(9)) as u64
}

fn processes_corpus() -> Vec<Vec<u8>> {
    let mut event = Vec::new();
    for word in [1u32, libc_in_create(), 7, 4] {
        event.extend(word.to_ne_bytes());
    }
    event.extend(b"ab\0\0");
    let texts = [
        &b"42 (a) R 1 1 (\n) S 7 8 9 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 12345 999 77 184 1"[..],
        b"oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
        b"12 255",
        b"0 0",
    ];
    texts.into_iter().map(<[u8]>::to_vec).chain([event]).collect()
}

/// IN_CREATE.
fn libc_in_create() -> u32 {
    0x100
}

fn processes(input: &[u8]) -> u64 {
    let stat = proc::parse_stat(input);
    let kills = oom::parse_kills(input);
    let status = shell_loop::parse_status(input);
    assert!(status.is_none_or(|(_, exit)| exit.is_none_or(|exit| (0..=255).contains(&exit))));
    let mut events = 0;
    for event in inotify::parse(input) {
        assert!(!event.name.contains(&0));
        events += 1;
    }
    assert!(events <= input.len() / 16);
    let parsed = [stat.is_some(), kills.is_some(), status.is_some()];
    parsed.iter().fold(events.min(9) as u64, |sum, &is_there| sum * 2 + u64::from(is_there))
}

fn tar_corpus() -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    pax::append(&mut records, "path", b"from/pax");
    pax::append(&mut records, "mtime", b"1.5");
    let entry = |name: &[u8], kind: Kind, link: &[u8], body: &[u8]| {
        let header =
            Header { name: name.to_vec(), link: link.to_vec(), kind, mode: 0o644, size: body.len() as u64, mtime: 1 };
        let mut bytes = header::build(&header, 0, 0).0.to_vec();
        bytes.extend_from_slice(body);
        bytes.resize(bytes.len() + header::padding(body.len() as u64) as usize, 0);
        bytes
    };
    let plain = [
        entry(b"a/", Kind::Directory, b"", b""),
        entry(b"a/f", Kind::File, b"", b"body"),
        entry(b"l", Kind::Symlink, b"a/../f", b""),
        entry(b"h", Kind::HardLink, b"a/f", b""),
        vec![0; 1024],
    ]
    .concat();
    let long = [
        entry(b"pax", Kind::PaxNext, b"", &records),
        entry(b"g", Kind::PaxGlobal, b"", &records),
        entry(b"././@LongLink", Kind::LongName, b"", b"from/gnu\0"),
        entry(b"x", Kind::File, b"", b""),
    ]
    .concat();
    vec![plain, long, records]
}

fn tar(input: &[u8]) -> u64 {
    let mut records = Records::default();
    let is_pax = pax::parse(input, &mut records).is_ok();
    if let (true, Some((seconds, nanos))) = (is_pax, records.mtime) {
        assert!(nanos < 1_000_000_000);
        let mut again = Records::default();
        let mut bytes = Vec::new();
        pax::append(&mut bytes, "mtime", pax::time_text(seconds, nanos).as_bytes());
        assert_eq!(pax::parse(&bytes, &mut again).map(|()| again.mtime), Ok(Some((seconds, nanos))));
    }
    match reader::read_all(input) {
        Ok(entries) => {
            for (entry, size) in &entries {
                assert!(entry.kind != Kind::File || entry.size == *size);
                if let Some(parts) = unpack::components(&entry.name) {
                    assert!(parts.iter().all(|part| !part.is_empty() && !part.contains(&b'/') && *part != b".."));
                    let is_inside = !parts.is_empty() && unpack::stays_inside(&parts, &entry.link);
                    assert!(!is_inside || !entry.link.starts_with(b"/"));
                }
            }
            (entries.len() * 2 + usize::from(is_pax)) as u64
        }
        Err(ReadError::Damaged(offset) | ReadError::Unsupported(offset)) => {
            assert!(offset <= input.len() as u64 + header::BLOCK as u64);
            1_000 + offset.min(4_096) / 512
        }
        Err(ReadError::Input(_)) => unreachable!("a slice does not fail"),
    }
}

fn params_corpus() -> Vec<Vec<u8>> {
    let texts = [
        r#"{"execId":"e","argv":["true"],"env":{"A":"1"},"stdin":"open","pty":{"rows":1,"cols":2},"timeoutMs":5}"#,
        r#"{"execId":"e","shell":{"script":"x","login":true},"sessionId":"s","cwd":"/","user":"root","tag":"t","fingerprint":"f"}"#,
    ];
    texts.into_iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn params(input: &[u8]) -> u64 {
    let Ok(text) = std::str::from_utf8(input) else { return 0 };
    match aether::params::parse::<StartParams>(text) {
        Ok(params) => 1 + u64::from(aether::params::check_id("execId", &params.exec_id).is_ok()),
        Err(failure) => {
            assert_eq!(failure.code, "invalid_argument");
            3 + (failure.message.len() % 32) as u64
        }
    }
}
