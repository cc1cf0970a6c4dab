//! Errors that leave a daemon: a code of the error table, a sentence, and small public details.

use serde_json::{Map, Value};

use crate::Errno;

#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    pub code: &'static str,
    pub message: String,
    pub details: Map<String, Value>,
}

impl Failure {
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: Map::new() }
    }

    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.details.insert(key.to_owned(), value.into());
        self
    }

    pub fn invalid(field: &str, why: &str) -> Self {
        Self::new("invalid_argument", format!("{field} {why}")).with("field", field)
    }

    pub fn internal(message: impl Into<String>) -> Self {
        Self::new("internal", message)
    }
}

/// `No such file or directory (2)`: the sentence for people, the number for the rest.
pub fn errno_name(errno: Errno) -> String {
    let text = std::io::Error::from_raw_os_error(errno.raw_os_error()).to_string();
    text.replace(" (os error ", " (")
}
