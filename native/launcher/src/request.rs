//! What clients may ask for. Everything is checked here, and nothing in a request is a path of the host.

use std::fmt;
use std::net::IpAddr;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::failure::Failure;
use crate::profile::Profile;

pub const MAX_ID_LENGTH: usize = 24;
pub const MAX_HOSTNAME_LENGTH: usize = 63;
pub const MAX_LAYERS: usize = 64;
pub const MEMORY_BYTES: std::ops::RangeInclusive<u64> = 4 << 20..=16 << 40;
/// Thousandths of a core.
pub const CPU_MILLIS: std::ops::RangeInclusive<u64> = 10..=1_024_000;
pub const PIDS: std::ops::RangeInclusive<u64> = 4..=4_000_000;
pub const DISK_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=1 << 50;
pub const MAX_TRIPWIRES: usize = 64;
pub const MAX_TRIPWIRE_BYTES: usize = 512;

const DIGEST_PREFIX: &str = "sha256:";
const DIGEST_HEX: usize = 64;

/// `[a-z0-9]{1,24}`: safe as a file name and a cgroup name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SandboxId(String);

impl SandboxId {
    pub fn parse(text: &str) -> Option<Self> {
        let fits = (1..=MAX_ID_LENGTH).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        fits.then(|| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The content address of a layer; holds the 64 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(String);

impl Digest {
    pub fn parse(text: &str) -> Option<Self> {
        let hex = text.strip_prefix(DIGEST_PREFIX)?;
        let fits =
            hex.len() == DIGEST_HEX && hex.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        fits.then(|| Self(hex.to_owned()))
    }

    pub fn hex(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{DIGEST_PREFIX}{}", self.0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub memory_bytes: u64,
    pub cpu_millis: u64,
    pub pids: u64,
    pub disk_bytes: u64,
}

/// What a sandbox stands on, which is one mount whatever the number of layers: a layer, or a set, whose image has the metadata of all its layers and
/// names the data of each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lower {
    /// Top first, which is also the order of their data as devices of the set.
    pub layers: Vec<Digest>,
    /// Needed for more than one layer.
    pub set: Option<Digest>,
}

/// What somebody is about to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Forgotten {
    Layer(Digest),
    Set(Digest),
}

impl Forgotten {
    /// Whether it is what sandboxes stand on, or a part of it.
    pub fn is_under(&self, lower: &Lower) -> bool {
        match self {
            Self::Layer(layer) => lower.layers.contains(layer),
            Self::Set(set) => lower.set.as_ref() == Some(set),
        }
    }

    pub fn named(&self) -> (&'static str, &Digest) {
        match self {
            Self::Layer(digest) => ("layer", digest),
            Self::Set(digest) => ("set", digest),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Create {
    pub id: SandboxId,
    pub lower: Lower,
    pub hostname: String,
    /// Whom programs inside ask for names; without one nobody.
    pub nameserver: Option<IpAddr>,
    pub limits: Limits,
    pub profile: Profile,
    /// Absolute paths, inside.
    pub tripwires: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    NodeInfo,
    Create(Create),
    Destroy(SandboxId),
    List,
    Usage(SandboxId),
    Changes(SandboxId),
    Events,
    Behaviour,
    Forget(Forgotten),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfSandbox {
    id: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfLayer {
    digest: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfSet {
    set: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct CreateParams {
    id: String,
    layers: Vec<String>,
    set: Option<String>,
    hostname: String,
    nameserver: Option<IpAddr>,
    memory_bytes: u64,
    cpu_millis: u64,
    pids: u64,
    disk_bytes: u64,
    profile: Option<String>,
    #[serde(default)]
    tripwires: Vec<String>,
}

/// Reads a method and the text of its params.
pub fn parse(method: &str, params: &str) -> Result<Request, Failure> {
    Ok(match method {
        "node.info" => read::<Nothing>(params).map(|_| Request::NodeInfo)?,
        "sandbox.create" => Request::Create(create(read(params)?)?),
        "sandbox.destroy" => Request::Destroy(sandbox(&read::<OfSandbox>(params)?.id)?),
        "sandbox.list" => read::<Nothing>(params).map(|_| Request::List)?,
        "sandbox.usage" => Request::Usage(sandbox(&read::<OfSandbox>(params)?.id)?),
        "sandbox.changes" => Request::Changes(sandbox(&read::<OfSandbox>(params)?.id)?),
        "events" => read::<Nothing>(params).map(|_| Request::Events)?,
        "behaviour" => read::<Nothing>(params).map(|_| Request::Behaviour)?,
        "layer.forget" => Request::Forget(Forgotten::Layer(digest("digest", &read::<OfLayer>(params)?.digest)?)),
        "set.forget" => Request::Forget(Forgotten::Set(digest("set", &read::<OfSet>(params)?.set)?)),
        _ => return Err(Failure::new("unknown_method", "the launcher has no such method")),
    })
}

fn read<T: DeserializeOwned>(params: &str) -> Result<T, Failure> {
    // The parser's text names members and positions, never values.
    serde_json::from_str(params).map_err(|error| Failure::invalid("params", &format!("do not fit the method: {error}")))
}

fn sandbox(text: &str) -> Result<SandboxId, Failure> {
    SandboxId::parse(text).ok_or_else(|| Failure::invalid("id", "is not 1 to 24 of a-z and 0-9"))
}

fn digest(field: &str, text: &str) -> Result<Digest, Failure> {
    Digest::parse(text).ok_or_else(|| Failure::invalid(field, "is not sha256: and 64 hexadecimal digits"))
}

fn create(params: CreateParams) -> Result<Create, Failure> {
    let layers = params.layers.iter().map(|layer| digest("layers", layer)).collect::<Result<Vec<_>, _>>()?;
    if !(1..=MAX_LAYERS).contains(&layers.len()) {
        return Err(Failure::invalid("layers", &format!("must be 1 to {MAX_LAYERS}")));
    }
    let mut distinct: Vec<&Digest> = layers.iter().collect();
    distinct.sort();
    distinct.dedup();
    if distinct.len() != layers.len() {
        return Err(Failure::invalid("layers", "name one layer twice"));
    }
    let set = params.set.map(|set| digest("set", &set)).transpose()?;
    if layers.len() > 1 && set.is_none() {
        return Err(Failure::invalid("set", "is missing: several layers are mounted as a set"));
    }
    if !is_hostname(&params.hostname) {
        return Err(Failure::invalid("hostname", "is not 1 to 63 of a-z, 0-9 and inner hyphens"));
    }
    for (field, value, range) in [
        ("memoryBytes", params.memory_bytes, MEMORY_BYTES),
        ("cpuMillis", params.cpu_millis, CPU_MILLIS),
        ("pids", params.pids, PIDS),
        ("diskBytes", params.disk_bytes, DISK_BYTES),
    ] {
        if !range.contains(&value) {
            return Err(Failure::invalid(field, &format!("must be {} to {}", range.start(), range.end())));
        }
    }
    if !are_tripwires(&params.tripwires) {
        let most = format!("are not at most {MAX_TRIPWIRES} absolute paths of at most {MAX_TRIPWIRE_BYTES} bytes");
        return Err(Failure::invalid("tripwires", &most));
    }
    let profile = params.profile.map_or(Some(Profile::default()), |name| Profile::parse(&name));
    Ok(Create {
        id: sandbox(&params.id)?,
        lower: Lower { layers, set },
        hostname: params.hostname,
        nameserver: params.nameserver,
        limits: Limits {
            memory_bytes: params.memory_bytes,
            cpu_millis: params.cpu_millis,
            pids: params.pids,
            disk_bytes: params.disk_bytes,
        },
        profile: profile.ok_or_else(|| Failure::invalid("profile", "is none of strict, default and builder"))?,
        tripwires: params.tripwires,
    })
}

/// Paths of files that are looked up in a sandbox's own root, and nowhere else.
pub fn are_tripwires(paths: &[String]) -> bool {
    let is_path = |path: &String| {
        path.starts_with('/') && path.len() <= MAX_TRIPWIRE_BYTES && !path.chars().any(char::is_control)
    };
    paths.len() <= MAX_TRIPWIRES && paths.iter().all(is_path)
}

fn is_hostname(text: &str) -> bool {
    (1..=MAX_HOSTNAME_LENGTH).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create_params() -> serde_json::Value {
        serde_json::json!({
            "id": "a1", "layers": [format!("sha256:{}", "0".repeat(64))], "hostname": "box-1",
            "memoryBytes": 64u64 << 20, "cpuMillis": 1000, "pids": 64, "diskBytes": 64u64 << 20,
        })
    }

    fn refused_field(params: &serde_json::Value) -> String {
        let failure = parse("sandbox.create", &params.to_string()).expect_err("refused");
        assert_eq!(failure.code, "invalid_argument");
        failure.details["field"].as_str().expect("a field").to_owned()
    }

    #[test]
    fn a_whole_create_is_read() {
        let Ok(Request::Create(create)) = parse("sandbox.create", &create_params().to_string()) else {
            panic!("not read")
        };
        assert_eq!(create.id.as_str(), "a1");
        assert_eq!(create.lower.layers[0].to_string(), format!("sha256:{}", "0".repeat(64)));
        assert_eq!(create.limits.pids, 64);
    }

    #[test]
    fn ids_that_are_no_plain_names_are_refused() {
        for id in ["", ".", "..", "a/b", "../a", "A", "a b", "a\0", "é", "a-b", "aaaaaaaaaaaaaaaaaaaaaaaaa"] {
            let failure = parse("sandbox.destroy", &serde_json::json!({ "id": id }).to_string()).expect_err(id);
            assert_eq!(failure.details["field"], "id", "{id:?}");
        }
    }

    #[test]
    fn digests_that_are_no_digests_are_refused() {
        let hex = "0".repeat(64);
        for digest in [
            "",
            &hex,
            &format!("sha256:{}", &hex[1..]),
            &format!("sha256:{}G", &hex[1..]),
            &format!("sha512:{hex}"),
            "sha256:../x",
        ] {
            assert!(parse("layer.forget", &serde_json::json!({ "digest": digest }).to_string()).is_err(), "{digest:?}");
        }
    }

    #[test]
    fn every_limit_has_two_ends() {
        for (field, range) in
            [("memoryBytes", MEMORY_BYTES), ("cpuMillis", CPU_MILLIS), ("pids", PIDS), ("diskBytes", DISK_BYTES)]
        {
            for outside in [0, range.start() - 1, range.end() + 1] {
                let mut params = create_params();
                params[field] = outside.into();
                assert_eq!(refused_field(&params), field, "{outside}");
            }
            for wrong in
                [serde_json::json!(-1), serde_json::json!(1.5), serde_json::json!("1"), serde_json::json!(1e300)]
            {
                let mut params = create_params();
                params[field] = wrong;
                assert_eq!(refused_field(&params), "params");
            }
        }
    }

    #[test]
    fn layers_are_some_and_distinct() {
        let one = format!("sha256:{}", "1".repeat(64));
        for layers in
            [vec![], vec![one.clone(), one.clone()], vec![one.clone(); MAX_LAYERS + 1], vec!["/etc".to_owned()]]
        {
            let mut params = create_params();
            params["layers"] = layers.into();
            assert_eq!(refused_field(&params), "layers");
        }
    }

    #[test]
    fn several_layers_come_as_a_set() {
        let digests: Vec<String> = (1..4).map(|number| format!("sha256:{number:064x}")).collect();
        let mut params = create_params();
        params["layers"] = digests[..2].into();
        assert_eq!(refused_field(&params), "set");
        for wrong in ["", "/etc", "sha256:../x"] {
            params["set"] = wrong.into();
            assert_eq!(refused_field(&params), "set");
        }
        params["set"] = digests[2].clone().into();
        let Ok(Request::Create(create)) = parse("sandbox.create", &params.to_string()) else { panic!("not read") };
        assert_eq!(create.lower.layers.len(), 2);
        assert_eq!(create.lower.set.map(|set| set.to_string()), Some(digests[2].clone()));
    }

    #[test]
    fn a_profile_is_one_of_the_table_and_need_not_be_given() {
        let mut params = create_params();
        let profile = |params: &serde_json::Value| match parse("sandbox.create", &params.to_string()) {
            Ok(Request::Create(create)) => create.profile,
            other => panic!("{other:?}"),
        };
        assert_eq!(profile(&params), Profile::Default);
        for known in Profile::ALL {
            params["profile"] = known.name().into();
            assert_eq!(profile(&params), known);
        }
        params["profile"] = "root".into();
        assert_eq!(refused_field(&params), "profile");
    }

    #[test]
    fn tripwires_are_few_short_absolute_paths() {
        let mut params = create_params();
        let paths = ["/root/.ssh/id_ed25519", "/", "/a b/é"];
        params["tripwires"] = serde_json::json!(paths);
        let Ok(Request::Create(create)) = parse("sandbox.create", &params.to_string()) else { panic!("not read") };
        assert_eq!(create.tripwires, paths);
        for wrong in ["", "a", "./a", "/a\nb", "/a\0", &format!("/{}", "a".repeat(MAX_TRIPWIRE_BYTES))] {
            params["tripwires"] = serde_json::json!([wrong]);
            assert_eq!(refused_field(&params), "tripwires", "{wrong:?}");
        }
        params["tripwires"] = vec!["/a"; MAX_TRIPWIRES + 1].into();
        assert_eq!(refused_field(&params), "tripwires");
    }

    #[test]
    fn hostnames_are_labels() {
        for hostname in ["", "-a", "a-", "a.b", "a\nb", "A", "a b", &"a".repeat(64)] {
            let mut params = create_params();
            params["hostname"] = hostname.into();
            assert_eq!(refused_field(&params), "hostname", "{hostname:?}");
        }
    }

    #[test]
    fn unknown_members_and_methods_are_refused() {
        let mut params = create_params();
        params["path"] = "/etc".into();
        assert_eq!(refused_field(&params), "params");
        assert!(parse("node.info", r#"{"x":1}"#).is_err());
        assert_eq!(parse("sandbox.explode", "{}").expect_err("unknown").code, "unknown_method");
    }
}
