//! Reading the params of a method: unknown and ill-typed members are `invalid_argument`.

use serde::de::DeserializeOwned;

use crate::errors::{Failure, Outcome};

pub fn parse<T: DeserializeOwned>(text: &str) -> Outcome<T> {
    serde_json::from_str(text).map_err(|error| {
        let message = error.to_string();
        let field = quoted(&message).unwrap_or("params").to_owned();
        Failure::invalid(&field, message)
    })
}

/// The first word in backquotes: serde names fields so.
fn quoted(message: &str) -> Option<&str> {
    let (_, rest) = message.split_once('`')?;
    rest.split_once('`').map(|(word, _)| word)
}

/// Longest id of an exec or a session.
const MAX_ID: usize = 128;

/// Ids that clients choose: printable, short, without what would need quoting.
pub fn check_id(field: &str, id: &str) -> Outcome<()> {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    if id.is_empty() || id.len() > MAX_ID || !id.bytes().all(is_good) {
        return Err(Failure::invalid(
            field,
            format!("{field} must be 1 to {MAX_ID} characters of A-Z a-z 0-9 - _ . :"),
        ));
    }
    Ok(())
}

/// A string that goes to the kernel.
pub fn check_no_nul(field: &str, text: &str) -> Outcome<()> {
    if text.as_bytes().contains(&0) {
        return Err(Failure::invalid(field, format!("{field} contains a NUL byte")));
    }
    Ok(())
}
