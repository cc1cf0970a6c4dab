//! What clients may ask for. Everything is checked here, and nothing in a request is a path.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::digest::Digest;
use crate::failure::Failure;

/// Ranges, or chunks of a trace, in one request.
pub const MAX_ITEMS: usize = 65_536;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    Open(Digest),
    Close(Digest),
    Prefetch(Digest, Prefetch),
    CancelPrefetch(Digest),
    Trace(Digest, Opening),
    Stats,
}

/// What to fetch ahead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prefetch {
    /// Bytes: offset and length.
    Ranges(Vec<(u64, u64)>),
    /// In this order.
    Chunks(Vec<u32>),
    /// What the opening before has read.
    Recorded,
}

/// Since when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Opening {
    /// Since the layer was opened last.
    #[default]
    Last,
    /// From the opening before until then.
    Before,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfLayer {
    layer: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PrefetchParams {
    layer: String,
    ranges: Option<Vec<(u64, u64)>>,
    trace: Option<Vec<u32>>,
    #[serde(default)]
    recorded: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TraceParams {
    layer: String,
    #[serde(default)]
    opening: Opening,
}

/// Reads a method and the text of its params.
pub fn parse(method: &str, params: &str) -> Result<Request, Failure> {
    Ok(match method {
        "layer.open" => Request::Open(layer(&read::<OfLayer>(params)?.layer)?),
        "layer.close" => Request::Close(layer(&read::<OfLayer>(params)?.layer)?),
        "layer.prefetch" => prefetch(read(params)?)?,
        "layer.prefetch.cancel" => Request::CancelPrefetch(layer(&read::<OfLayer>(params)?.layer)?),
        "layer.trace" => {
            let params: TraceParams = read(params)?;
            Request::Trace(layer(&params.layer)?, params.opening)
        }
        "stats" => read::<Nothing>(params).map(|_| Request::Stats)?,
        _ => return Err(Failure::new("unknown_method", "layerd has no such method")),
    })
}

fn read<T: DeserializeOwned>(params: &str) -> Result<T, Failure> {
    // The parser's text names members and positions, never values.
    serde_json::from_str(params).map_err(|error| Failure::invalid("params", &format!("do not fit the method: {error}")))
}

fn layer(text: &str) -> Result<Digest, Failure> {
    Digest::parse(text).ok_or_else(|| Failure::invalid("layer", "is not sha256: and 64 hexadecimal digits"))
}

fn prefetch(params: PrefetchParams) -> Result<Request, Failure> {
    let digest = layer(&params.layer)?;
    let check = |field: &str, length: usize| {
        let fits = (1..=MAX_ITEMS).contains(&length);
        fits.then_some(()).ok_or_else(|| Failure::invalid(field, &format!("must be 1 to {MAX_ITEMS}")))
    };
    let which = match (params.ranges, params.trace, params.recorded) {
        (Some(ranges), None, false) => check("ranges", ranges.len()).map(|()| Prefetch::Ranges(ranges)),
        (None, Some(trace), false) => check("trace", trace.len()).map(|()| Prefetch::Chunks(trace)),
        (None, None, true) => Ok(Prefetch::Recorded),
        _ => Err(Failure::invalid("params", "must have one of ranges, trace and recorded: true")),
    };
    Ok(Request::Prefetch(digest, which?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read() {
        let (hex, digest) = ("ab".repeat(32), Digest([0xab; 32]));
        let one = format!(r#"{{"layer":"sha256:{hex}"}}"#);
        assert_eq!(parse("layer.open", &one), Ok(Request::Open(digest)));
        assert_eq!(parse("layer.close", &one), Ok(Request::Close(digest)));
        assert_eq!(parse("layer.trace", &one), Ok(Request::Trace(digest, Opening::Last)));
        let before = format!(r#"{{"layer":"sha256:{hex}","opening":"before"}}"#);
        assert_eq!(parse("layer.trace", &before), Ok(Request::Trace(digest, Opening::Before)));
        assert_eq!(parse("layer.prefetch.cancel", &one), Ok(Request::CancelPrefetch(digest)));
        assert_eq!(parse("stats", "{}"), Ok(Request::Stats));
        let with = |more: &str| parse("layer.prefetch", &format!(r#"{{"layer":"sha256:{hex}",{more}}}"#));
        assert_eq!(with(r#""ranges":[[0,5]]"#), Ok(Request::Prefetch(digest, Prefetch::Ranges(vec![(0, 5)]))));
        assert_eq!(with(r#""trace":[3,1]"#), Ok(Request::Prefetch(digest, Prefetch::Chunks(vec![3, 1]))));
        assert_eq!(with(r#""recorded":true"#), Ok(Request::Prefetch(digest, Prefetch::Recorded)));
        for wrong in [
            r#""recorded":false"#,
            r#""recorded":true,"trace":[1]"#,
            r#""trace":[]"#,
            r#""trace":[1],"ranges":[[0,1]]"#,
            r#""trace":[-1]"#,
            r#""ranges":[[0]]"#,
        ] {
            assert_eq!(with(wrong).expect_err(wrong).code, "invalid_argument");
        }
        for wrong in ["{}", r#"{"layer":"x"}"#, r#"{"layer":"sha256:../../etc"}"#, "[]", ""] {
            assert_eq!(parse("layer.open", wrong).expect_err(wrong).code, "invalid_argument");
        }
        assert_eq!(parse("layer.explode", "{}").expect_err("unknown").code, "unknown_method");
    }
}
