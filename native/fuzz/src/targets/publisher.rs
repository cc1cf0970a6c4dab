//! The publisher: requests, and the records of what is handed over.

use layer_form::digest::Digest;
use layer_form::set_name;
use publisher::{record, request};

use super::Target;
use crate::random::hash;

pub const REQUEST: Target = Target { name: "publisher-request", corpus: requests, run: read_request, max_memory };
pub const RECORD: Target = Target { name: "publisher-record", corpus: records, run: read_record, max_memory };

const METHODS: [&str; 3] = ["layer.publish", "set.publish", "set.remove"];
const LAYERS: [Digest; 2] = [Digest([1; 32]), Digest([2; 32])];

fn max_memory(input: usize) -> usize {
    (64 << 10) + 64 * input
}

fn requests() -> Vec<Vec<u8>> {
    let digest = Digest([7; 32]);
    [
        format!(r#"{{"layer":"{digest}","form":"packed"}}"#),
        format!(r#"{{"layer":"{digest}","form":"fetched"}}"#),
        format!(r#"{{"set":"{digest}"}}"#),
        r#"{"set":"sha256:../../../etc"}"#.to_owned(),
        "{}".to_owned(),
    ]
    .map(String::into_bytes)
    .to_vec()
}

/// What is accepted names something by 64 digits, which are a name below the directory that they are put into.
fn read_request(input: &[u8]) -> u64 {
    let Ok(params) = std::str::from_utf8(input) else { return 0 };
    let mut outcome = 1;
    for method in METHODS {
        let what = match request::parse(method, params) {
            Ok(request) => {
                let (request::Request::Layer(digest, _)
                | request::Request::Set(digest)
                | request::Request::RemoveSet(digest)) = &request;
                assert!(params.contains(&digest.hex()) || params.contains('\\'));
                hash(format!("{:?}", request.asker()).as_bytes())
            }
            Err(failure) => hash(failure.code.as_bytes()),
        };
        outcome = outcome * 31 + what % 1_000;
    }
    outcome
}

fn layer_of(data: &[u8]) -> (Digest, Digest, Digest) {
    let (metadata, data) = (Digest::of(b"metadata"), Digest::of(data));
    (layer_form::layer_name(&metadata, &data), metadata, data)
}

fn records() -> Vec<Vec<u8>> {
    let (name, metadata, data) = layer_of(b"");
    let set = set_name(&LAYERS);
    let [one, two] = LAYERS;
    [
        format!(
            r#"{{"version":2,"digest":"{name}","sizeBytes":9,"metadata":{{"digest":"{metadata}","sizeBytes":9}},"data":{{"digest":"{data}","sizeBytes":0}},"createdAtMs":1,"architecture":"amd64","source":{{"kind":"changes","name":"a"}},"config":{{"env":{{"A":"b"}}}}}}"#
        ),
        format!(
            r#"{{"version":1,"digest":"{set}","layers":["{one}","{two}"],"metadata":{{"digest":"{metadata}","sizeBytes":4096}}}}"#
        ),
        "{".repeat(300),
        "[]".to_owned(),
    ]
    .map(String::into_bytes)
    .to_vec()
}

/// A record that is accepted is of what it is asked for: the digests in it are those that make the name.
fn read_record(input: &[u8]) -> u64 {
    let (name, metadata, data) = layer_of(b"");
    let layer = record::layer(input, &name);
    if let Some(layer) = layer {
        assert_eq!((layer.metadata.digest, layer.data.digest), (metadata, data));
        assert!(layer.metadata.size_bytes.checked_add(layer.data.size_bytes).is_some());
    }
    let set = record::set(input, &set_name(&LAYERS));
    assert!(set.is_none() || layer.is_none());
    // Nothing is a record of what nobody knows the parts of.
    assert_eq!(record::layer(input, &Digest([9; 32])), None);
    assert_eq!(record::set(input, &Digest([9; 32])), None);
    // Why one was refused is told to nobody; how far the parser came tells inputs apart.
    let outcome = match serde_json::from_slice::<serde_json::Value>(input) {
        Ok(value) => value.as_object().map_or(4, |members| 8 * (1 + members.len() as u64)),
        Err(error) => hash(error.to_string().as_bytes()),
    };
    (outcome & !3) | u64::from(layer.is_some()) | u64::from(set.is_some()) << 1
}
