//! Runs an inspector over bytes that come in pieces, without sockets: for tests and fuzzing, which hold that pieces make no difference.

use crate::bounds::MAX_PEEK;
use crate::inspector::{Inspector, Look};
use crate::refusal::Reason;

/// What became of a connection of which all names are allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub names: Vec<String>,
    /// Bytes that went on.
    pub passed: usize,
    pub refused: Option<Reason>,
    /// It waits for the server.
    pub is_held: bool,
}

/// `pieces` says how long each next one is (of at least 1 is taken); `answer` is what the server sends when it is waited for.
pub fn run(port: u16, bytes: &[u8], mut pieces: impl FnMut() -> usize, answer: &[u8]) -> Outcome {
    let (mut inspector, mut outcome) = (Inspector::new(port), Outcome::default());
    let (mut unread, mut rest): (Vec<u8>, &[u8]) = (Vec::new(), bytes);
    let mut answer = Some(answer);
    loop {
        match inspector.look(&unread) {
            Err(reason) => outcome.refused = Some(reason),
            Ok(Look::Ask(name)) => {
                outcome.names.push(name.to_string());
                inspector.granted();
                continue;
            }
            Ok(Look::Pass(count)) => {
                assert!((1..=unread.len()).contains(&count), "{count} of {} bytes go on", unread.len());
                assert!(!outcome.names.is_empty(), "bytes go on before a name is known");
                unread.drain(..count);
                outcome.passed += count;
                continue;
            }
            Ok(Look::More) => {
                assert!(unread.len() < MAX_PEEK, "{} bytes wait", unread.len());
                let count = pieces().clamp(1, MAX_PEEK - unread.len()).min(rest.len());
                if count > 0 {
                    let (piece, behind) = rest.split_at(count);
                    unread.extend_from_slice(piece);
                    rest = behind;
                    continue;
                }
            }
            Ok(Look::Splice(most)) => {
                assert!(unread.is_empty() && most > 0 && !outcome.names.is_empty());
                let count = pieces().clamp(1, most).min(rest.len());
                if count > 0 {
                    inspector.spliced(count);
                    rest = &rest[count..];
                    outcome.passed += count;
                    continue;
                }
            }
            Ok(Look::Hold) => {
                if let Some(answer) = answer.take() {
                    let mut left = answer;
                    while !left.is_empty() && inspector.wants_answer() {
                        let (piece, behind) = left.split_at(pieces().clamp(1, left.len()));
                        inspector.answered(piece);
                        left = behind;
                    }
                    continue;
                }
                outcome.is_held = true;
            }
        }
        return outcome;
    }
}
