//! What clients may ask for. Everything is checked here, and nothing in a request is a path.

use layer_form::digest::Digest;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::failure::Failure;

/// How a layer was made, which says who hands it over, and what of it there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// By the edge, from the blob store: without its data, but with a chunk map.
    Fetched,
    /// By the packer, from what a sandbox has written: whole, without a chunk map.
    Packed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    Layer(Digest, Form),
    Set(Digest),
    RemoveSet(Digest),
}

/// Whose request it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    Edge,
    Packer,
}

impl Request {
    pub fn asker(&self) -> Asker {
        match self {
            Self::Layer(_, Form::Packed) => Asker::Packer,
            Self::Layer(_, Form::Fetched) | Self::Set(_) | Self::RemoveSet(_) => Asker::Edge,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfLayer {
    layer: String,
    form: Form,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfSet {
    set: String,
}

/// Reads a method and the text of its params.
pub fn parse(method: &str, params: &str) -> Result<Request, Failure> {
    let set = |params| digest("set", &read::<OfSet>(params)?.set);
    Ok(match method {
        "layer.publish" => {
            let OfLayer { layer, form } = read(params)?;
            Request::Layer(digest("layer", &layer)?, form)
        }
        "set.publish" => Request::Set(set(params)?),
        "set.remove" => Request::RemoveSet(set(params)?),
        _ => return Err(Failure::new("unknown_method", "the publisher has no such method")),
    })
}

fn read<T: DeserializeOwned>(params: &str) -> Result<T, Failure> {
    // The parser's text names members and positions, never values.
    serde_json::from_str(params).map_err(|error| Failure::invalid("params", &format!("do not fit the method: {error}")))
}

fn digest(field: &str, text: &str) -> Result<Digest, Failure> {
    Digest::parse(text).ok_or_else(|| Failure::invalid(field, "is not sha256: and 64 hexadecimal digits"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read() {
        let (hex, digest) = ("ab".repeat(32), Digest([0xab; 32]));
        let layer = |form: &str| parse("layer.publish", &format!(r#"{{"layer":"sha256:{hex}","form":"{form}"}}"#));
        assert_eq!(layer("fetched"), Ok(Request::Layer(digest, Form::Fetched)));
        assert_eq!(layer("packed"), Ok(Request::Layer(digest, Form::Packed)));
        assert_eq!(layer("whole").expect_err("unknown").code, "invalid_argument");
        let set = format!(r#"{{"set":"sha256:{hex}"}}"#);
        assert_eq!(parse("set.publish", &set), Ok(Request::Set(digest)));
        assert_eq!(parse("set.remove", &set), Ok(Request::RemoveSet(digest)));
        for wrong in ["{}", r#"{"set":"x"}"#, r#"{"set":"sha256:../../etc"}"#, r#"{"set":"x","path":"/"}"#, "[]", ""] {
            assert_eq!(parse("set.remove", wrong).expect_err(wrong).code, "invalid_argument");
        }
        assert_eq!(parse("layer.explode", "{}").expect_err("unknown").code, "unknown_method");
    }
}
