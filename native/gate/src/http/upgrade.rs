//! The answer to an upgrade: only a 101 ends HTTP.

use crate::bounds::MAX_PEEK;

/// What an answer that came so far means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    More,
    /// The connection is no longer HTTP.
    Switched,
    /// It goes on as it was.
    Stayed,
}

/// Collects the head of the answer to the first request of a connection. It is the server's, who may be trusted not to lie about itself: whoever controls it needs no
/// upgrade to be sent what he likes.
#[derive(Debug, Default)]
pub struct AnswerReader {
    bytes: Vec<u8>,
    /// No end is before this.
    looked: usize,
}

impl AnswerReader {
    pub fn read(&mut self, bytes: &[u8]) -> Answer {
        self.bytes.extend_from_slice(bytes);
        loop {
            let Some(end) = head_end(&self.bytes, self.looked) else {
                self.looked = self.bytes.len().saturating_sub(3);
                return if self.bytes.len() < MAX_PEEK { Answer::More } else { Answer::Stayed };
            };
            match status(&self.bytes[..end]) {
                Some(101) => return Answer::Switched,
                // An interim answer: the one that counts follows.
                Some(100..=199) => {
                    self.bytes.drain(..end);
                    self.looked = 0;
                }
                _ => return Answer::Stayed,
            }
        }
    }
}

/// A head without CR is an end as well, but says nothing that is believed.
fn head_end(bytes: &[u8], from: usize) -> Option<usize> {
    let rest = &bytes[from..];
    let strict = rest.windows(4).position(|window| window == b"\r\n\r\n").map(|at| from + at + 4);
    let loose = rest.windows(2).position(|window| window == b"\n\n").map(|at| from + at + 2);
    strict.into_iter().chain(loose).min()
}

fn status(head: &[u8]) -> Option<u16> {
    let digits = head.strip_suffix(b"\r\n\r\n")?.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
    std::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(bytes: &[u8]) -> Answer {
        let whole = AnswerReader::default().read(bytes);
        let mut reader = AnswerReader::default();
        let mut single = Answer::More;
        for byte in bytes {
            single = reader.read(&[*byte]);
            if single != Answer::More {
                break;
            }
        }
        assert_eq!(whole, single);
        whole
    }

    #[test]
    fn only_a_101_switches() {
        assert_eq!(answer(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n\x81"), Answer::Switched);
        assert_eq!(answer(b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 101 S\r\n\r\n"), Answer::Switched);
        assert_eq!(answer(b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 101 S\r\n\r\n"), Answer::Stayed);
        assert_eq!(answer(b"HTTP/1.1 101 S\n\n"), Answer::Stayed);
        assert_eq!(answer(b"HTTP/1.1 101 S\r\n"), Answer::More);
        assert_eq!(answer(b"nonsense\r\n\r\n"), Answer::Stayed);
        assert_eq!(AnswerReader::default().read(&[b'x'; MAX_PEEK]), Answer::Stayed);
    }
}
