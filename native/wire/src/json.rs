//! JSON payloads: kept as checked text, so that a method parses its own params into its own type and nothing is built twice.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::error::ProtocolError;
use crate::{MAX_JSON_DEPTH, PROTOCOL, VERSION};

/// A JSON value as text that is known to parse and to be within `MAX_JSON_DEPTH`.
pub type Json = Box<RawValue>;

/// The error member of CLOSE.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct WireError {
    pub code: String,
    pub message: String,
    #[serde(default)]
    pub details: serde_json::Map<String, serde_json::Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Open {
    method: String,
    #[serde(default, deserialize_with = "present")]
    params: Option<Json>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Close {
    #[serde(default, deserialize_with = "present")]
    ok: Option<Json>,
    error: Option<WireError>,
}

/// `null` is a value, and not the absence of one.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize(deserializer).map(Some)
}

#[derive(Deserialize)]
struct Hello {
    protocol: String,
    version: u64,
    role: String,
}

/// Greatest nesting of arrays and objects. Only brackets outside strings count; for text that is not JSON the answer has no meaning.
pub fn depth(text: &[u8]) -> usize {
    let (mut level, mut greatest) = (0usize, 0usize);
    let (mut in_string, mut escaped) = (false, false);
    for &byte in text {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'[' | b'{' => {
                level += 1;
                greatest = greatest.max(level);
            }
            b']' | b'}' => level = level.saturating_sub(1),
            _ => {}
        }
    }
    greatest
}

/// Parses a payload, which must be a JSON object. (Serde alone would also read a struct from an array.)
fn parse<'a, T: Deserialize<'a>>(payload: &'a [u8]) -> Result<T, ProtocolError> {
    if depth(payload) > MAX_JSON_DEPTH {
        return Err(ProtocolError::TooDeep);
    }
    if payload.trim_ascii_start().first() != Some(&b'{') {
        return Err(ProtocolError::BadJson);
    }
    serde_json::from_slice(payload).map_err(|_| ProtocolError::BadJson)
}

/// The role in a HELLO that this version can talk to.
pub(crate) fn hello(payload: &[u8]) -> Result<String, ProtocolError> {
    let hello: Hello = parse(payload)?;
    if hello.protocol != PROTOCOL || hello.version != VERSION {
        return Err(ProtocolError::HelloMismatch);
    }
    Ok(hello.role)
}

/// Method and params of an OPEN; params that are not there are `{}`.
pub(crate) fn open(payload: &[u8]) -> Result<(String, Json), ProtocolError> {
    let open: Open = parse(payload)?;
    let params = match open.params {
        Some(params) if params.get().starts_with('{') => params,
        Some(_) => return Err(ProtocolError::BadJson),
        None => RawValue::from_string("{}".to_owned()).map_err(|_| ProtocolError::BadJson)?,
    };
    Ok((open.method, params))
}

pub(crate) fn message(payload: &[u8]) -> Result<Json, ProtocolError> {
    parse(payload)
}

/// Result or error of a CLOSE: exactly one of them.
pub(crate) fn close(payload: &[u8]) -> Result<Result<Json, WireError>, ProtocolError> {
    let close: Close = parse(payload)?;
    match (close.ok, close.error) {
        (Some(ok), None) => Ok(Ok(ok)),
        (None, Some(error)) => Ok(Err(error)),
        _ => Err(ProtocolError::BadJson),
    }
}
