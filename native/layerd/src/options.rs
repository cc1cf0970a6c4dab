//! The command line.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use daemon::given::Given;

pub const USAGE: &str = "usage:
  layerd serve --data DIR --blob file:///PATH|s3://BUCKET[/PREFIX] [--blob-account FILE]
               [--cache-bytes N] [--free-low-bytes N --free-high-bytes N]
               [--peer-tls DIR [--peer-listen IP:PORT] [--peers IP:PORT,... [--peer-wait-ms N]]]
               [--store-wait-ms N] [--edge-uid UID --edge-gid GID]

The account of an S3 server is in AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and
AWS_SESSION_TOKEN, or in a JSON file with endpoint, accessKeyId, secretAccessKey, region and sessionToken.
Other nodes (--peers) are asked before the store, for --peer-wait-ms (200) at most, and this one answers them at
--peer-listen; DIR has ca.pem, cert.pem and key.pem, and certificates name dsec-layerd.
The cache has no bound unless --cache-bytes gives one, or the water marks of the free space of its volume:
below the low one, what was read longest ago is taken out until the high one is reached. A read waits for a store that does not answer
for --store-wait-ms (30000) and then fails. run/layerd.sock belongs to root unless an owner is given.";

const DEFAULT_STORE_WAIT_MS: u64 = 30_000;
const STORE_WAIT_MS: std::ops::RangeInclusive<u64> = 10..=600_000;
/// Other nodes that are known.
const MAX_PEERS: usize = 256;
const DEFAULT_PEER_WAIT_MS: u64 = 200;
const MAX_BYTES: u64 = 1 << 60;
const MIN_CACHE_BYTES: u64 = 1 << 20;
const FILE_SCHEME: &str = "file://";
const S3_SCHEME: &str = "s3://";

/// Free bytes of the volume that has the layers: below the low mark the cache shrinks until there are as many as the high one says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeMarks {
    pub low_bytes: u64,
    pub high_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serve {
    pub data: PathBuf,
    pub blob: Store,
    /// A file with the account of an S3 server, beside what the environment says.
    pub blob_account: Option<PathBuf>,
    pub peers: Option<Peers>,
    pub cache_bytes: Option<u64>,
    pub free_marks: Option<FreeMarks>,
    pub store_wait: Duration,
    pub edge_uid: u32,
    pub edge_gid: u32,
}

impl Serve {
    /// The arguments that say the same to another process of the family.
    pub fn arguments(&self) -> Vec<std::ffi::OsString> {
        let mut arguments = vec!["--data".into(), self.data.clone().into(), "--blob".into(), self.blob.url()];
        if let Some(account) = &self.blob_account {
            arguments.extend(["--blob-account".into(), account.clone().into()]);
        }
        let mut number = |name: &str, value: u64| arguments.extend([name.into(), value.to_string().into()]);
        number("--store-wait-ms", self.store_wait.as_millis() as u64);
        number("--edge-uid", self.edge_uid.into());
        number("--edge-gid", self.edge_gid.into());
        if let Some(peers) = &self.peers {
            arguments.extend(["--peer-tls".into(), peers.tls.clone().into()]);
            if let Some(address) = peers.listen {
                arguments.extend(["--peer-listen".into(), address.to_string().into()]);
            }
            if !peers.addresses.is_empty() {
                let list: Vec<String> = peers.addresses.iter().map(ToString::to_string).collect();
                let wait = peers.wait.as_millis().to_string();
                arguments.extend(["--peers".into(), list.join(",").into(), "--peer-wait-ms".into(), wait.into()]);
            }
        }
        let mut number = |name: &str, value: u64| arguments.extend([name.into(), value.to_string().into()]);
        if let Some(bytes) = self.cache_bytes {
            number("--cache-bytes", bytes);
        }
        if let Some(marks) = self.free_marks {
            number("--free-low-bytes", marks.low_bytes);
            number("--free-high-bytes", marks.high_bytes);
        }
        arguments
    }
}

/// Other nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peers {
    /// The directory of certificates and key.
    pub tls: PathBuf,
    pub listen: Option<SocketAddr>,
    pub addresses: Vec<SocketAddr>,
    /// What asking them may cost a read.
    pub wait: Duration,
}

/// Which blob store is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Store {
    Directory(PathBuf),
    Bucket(Bucket),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    pub name: String,
    pub prefix: Option<String>,
}

impl std::fmt::Display for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let prefix = self.prefix.as_ref().map(|prefix| format!("/{prefix}")).unwrap_or_default();
        write!(f, "{S3_SCHEME}{}{prefix}", self.name)
    }
}

impl Store {
    fn parse(url: &str) -> Option<Self> {
        if let Some(path) = url.strip_prefix(FILE_SCHEME) {
            return Some(Self::Directory(path.into())).filter(|_| Path::new(path).is_absolute());
        }
        let place = url.strip_prefix(S3_SCHEME)?;
        let place = place.strip_suffix('/').unwrap_or(place);
        let (name, prefix) = place.split_once('/').map_or((place, None), |(name, prefix)| (name, Some(prefix)));
        let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-".contains(&byte);
        // Such a path is the same with and without escapes, and no part of it means anything.
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let is_part = |part: &str| !matches!(part, "" | "." | "..") && part.bytes().all(is_plain);
        let is_sound = (3..=63).contains(&name.len())
            && name.bytes().all(is_name)
            && prefix.is_none_or(|prefix| prefix.split('/').all(is_part));
        is_sound.then(|| Self::Bucket(Bucket { name: name.to_owned(), prefix: prefix.map(str::to_owned) }))
    }

    fn url(&self) -> std::ffi::OsString {
        match self {
            Self::Directory(path) => {
                let mut url = std::ffi::OsString::from(FILE_SCHEME);
                url.push(path);
                url
            }
            Self::Bucket(bucket) => bucket.to_string().into(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// What people start.
    Serve(Serve),
    /// What the family starts: a holder, or whoever waits to become it.
    Hold(Serve),
    /// What the family starts: the worker.
    Work(Serve),
}

fn serve(given: &mut Given) -> Result<Serve, String> {
    let blob = given.need("blob")?;
    Ok(Serve {
        data: given.need("data")?.into(),
        blob: Store::parse(&blob).ok_or("--blob must be file:///PATH, s3://BUCKET or s3://BUCKET/PREFIX")?,
        blob_account: given.take("blob-account").map(PathBuf::from),
        peers: peers(given)?,
        cache_bytes: given.optional_number("cache-bytes", MIN_CACHE_BYTES, MAX_BYTES)?,
        free_marks: free_marks(given)?,
        store_wait: Duration::from_millis(given.number(
            "store-wait-ms",
            Some(DEFAULT_STORE_WAIT_MS),
            *STORE_WAIT_MS.start(),
            *STORE_WAIT_MS.end(),
        )?),
        edge_uid: given.number("edge-uid", Some(0), 0, u32::MAX - 1)?,
        edge_gid: given.number("edge-gid", Some(0), 0, u32::MAX - 1)?,
    })
}

fn peers(given: &mut Given) -> Result<Option<Peers>, String> {
    let address = |text: &str| text.parse().map_err(|_| format!("{text} is not IP:PORT"));
    let listen = given.take("peer-listen").map(|text| address(&text)).transpose()?;
    let list = given.take("peers").unwrap_or_default();
    let addresses = list.split(',').filter(|text| !text.is_empty()).map(address).collect::<Result<Vec<_>, _>>()?;
    if addresses.len() > MAX_PEERS {
        return Err(format!("--peers names more than {MAX_PEERS}"));
    }
    let wait = given.optional_number("peer-wait-ms", 1, *STORE_WAIT_MS.end())?;
    if addresses.is_empty() && wait.is_some() {
        return Err("--peer-wait-ms is for --peers".to_owned());
    }
    let wait = Duration::from_millis(wait.unwrap_or(DEFAULT_PEER_WAIT_MS));
    match given.take("peer-tls") {
        Some(_) if listen.is_none() && addresses.is_empty() => {
            Err("--peer-tls is for --peer-listen or --peers".to_owned())
        }
        Some(tls) => Ok(Some(Peers { tls: tls.into(), listen, addresses, wait })),
        None if listen.is_some() || !addresses.is_empty() => Err("--peer-tls is missing".to_owned()),
        None => Ok(None),
    }
}

fn free_marks(given: &mut Given) -> Result<Option<FreeMarks>, String> {
    let low = given.optional_number("free-low-bytes", 0, MAX_BYTES)?;
    let high = given.optional_number("free-high-bytes", 0, MAX_BYTES)?;
    match (low, high) {
        (None, None) => Ok(None),
        (Some(low_bytes), Some(high_bytes)) if low_bytes <= high_bytes => Ok(Some(FreeMarks { low_bytes, high_bytes })),
        (Some(_), Some(_)) => Err("--free-low-bytes is above --free-high-bytes".to_owned()),
        _ => Err("--free-low-bytes and --free-high-bytes go together".to_owned()),
    }
}

/// Reads the arguments after the program's name.
pub fn parse(arguments: &[String]) -> Result<Command, String> {
    let (name, rest) = arguments.split_first().ok_or("a command is missing")?;
    let mut given = Given::read(rest)?;
    let command = match name.as_str() {
        "serve" => Command::Serve(serve(&mut given)?),
        "hold" => Command::Hold(serve(&mut given)?),
        "work" => Command::Work(serve(&mut given)?),
        other => return Err(format!("there is no command {other}")),
    };
    given.finish()?;
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Result<Command, String> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn what_is_handed_on_says_the_same() {
        for line in [
            "serve --data /d --blob file:///b",
            "serve --data /d --blob file:///b --cache-bytes 1048576 --store-wait-ms 10 --edge-uid 1 --edge-gid 2",
            "serve --data /d --blob s3://bucket --blob-account /a",
            "serve --data /d --blob file:///b --peer-tls /t --peers 10.0.0.1:7,[::1]:8 --peer-wait-ms 5",
            "serve --data /d --blob file:///b --peer-tls /t --peer-listen 0.0.0.0:7",
            "serve --data /d --blob s3://bucket/some/prefix/",
            "serve --data /d --blob file:///b --free-low-bytes 5 --free-high-bytes 6",
        ] {
            let Ok(Command::Serve(serve)) = parse_line(line) else { panic!("{line}") };
            let mut again = vec!["hold".to_owned()];
            again.extend(serve.arguments().into_iter().map(|argument| argument.into_string().expect("UTF-8")));
            assert_eq!(parse(&again), Ok(Command::Hold(serve)));
        }
    }

    #[test]
    fn wrong_lines_are_refused() {
        for line in [
            "",
            "explode",
            "serve",
            "serve --data /d",
            "serve --data /d --blob /b",
            "serve --data /d --blob file://b",
            "serve --data /d --blob s3://b",
            "serve --data /d --blob file:///b --peers 10.0.0.1:7",
            "serve --data /d --blob file:///b --peer-tls /t",
            "serve --data /d --blob file:///b --peer-tls /t --peers somewhere:7",
            "serve --data /d --blob file:///b --peer-tls /t --peer-listen 10.0.0.1",
            "serve --data /d --blob file:///b --peer-tls /t --peer-listen 10.0.0.1:1 --peer-wait-ms 5",
            "serve --data /d --blob s3://bucket/a/../b",
            "serve --data /d --blob s3://bucket//b",
            "serve --data /d --blob s3://Bucket",
            "serve --data /d --blob s3://bucket/a?b",
            "serve --data /d --blob file:///b --cache-bytes 5",
            "serve --data /d --blob file:///b --free-low-bytes 5",
            "serve --data /d --blob file:///b --free-low-bytes 5 --free-high-bytes 4",
            "serve --data /d --blob file:///b --data /e",
            "serve --data /d --blob file:///b --edge-uid -1",
            "serve --data /d --blob file:///b --force 1",
        ] {
            assert!(parse_line(line).is_err(), "{line}");
        }
    }
}
