//! A body in chunks (RFC 9112 7.1), followed to its end. No extensions and no trailers: hardly anybody sends them, and servers disagree about them.

use crate::refusal::Reason;

/// Digits of the size of a chunk; more would not fit a u64.
const MAX_DIGITS: u8 = 15;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In the digits of a size, or before them.
    Size {
        size: u64,
        digits: u8,
    },
    /// Behind the CR after a size.
    SizeEnd {
        size: u64,
    },
    Data {
        left: u64,
    },
    DataReturn,
    DataEnd,
    LastReturn,
    LastEnd,
    Over,
}

#[derive(Debug)]
pub struct Chunks(Place);

impl Default for Chunks {
    fn default() -> Self {
        Self(Place::Size { size: 0, digits: 0 })
    }
}

impl Chunks {
    /// Takes bytes of the body and says how many are sound and of it: fewer than all when it [is over](Self::is_over), or at what is not sound, which is an error
    /// where it is the first.
    pub fn take(&mut self, bytes: &[u8]) -> Result<usize, Reason> {
        let mut at = 0;
        while at < bytes.len() && self.0 != Place::Over {
            if let Place::Data { left } = &mut self.0 {
                let length = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len() - at);
                *left -= length as u64;
                at += length;
                if *left == 0 {
                    self.0 = Place::DataReturn;
                }
                continue;
            }
            self.0 = match step(self.0, bytes[at]) {
                Some(place) => place,
                None if at == 0 => return Err(Reason::FramingInvalid),
                // What is sound goes on, however it came; the next look begins with what is not.
                None => break,
            };
            at += 1;
        }
        Ok(at)
    }

    pub fn is_over(&self) -> bool {
        self.0 == Place::Over
    }
}

fn step(place: Place, byte: u8) -> Option<Place> {
    Some(match (place, byte) {
        (Place::Size { size, digits }, byte) if byte.is_ascii_hexdigit() && digits < MAX_DIGITS => {
            let digit = char::from(byte).to_digit(16)?;
            Place::Size { size: size << 4 | u64::from(digit), digits: digits + 1 }
        }
        (Place::Size { size, digits: 1.. }, b'\r') => Place::SizeEnd { size },
        (Place::SizeEnd { size: 0 }, b'\n') => Place::LastReturn,
        (Place::SizeEnd { size }, b'\n') => Place::Data { left: size },
        (Place::DataReturn, b'\r') => Place::DataEnd,
        (Place::DataEnd, b'\n') => Place::Size { size: 0, digits: 0 },
        (Place::LastReturn, b'\r') => Place::LastEnd,
        (Place::LastEnd, b'\n') => Place::Over,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many bytes are of the body, however they are cut.
    fn length(bytes: &[u8]) -> Result<Option<usize>, Reason> {
        let mut chunks = Chunks::default();
        let whole = match chunks.take(bytes) {
            Ok(length) if chunks.is_over() => Ok(Some(length)),
            Ok(length) => chunks.take(&bytes[length..]).map(|_| None),
            Err(reason) => Err(reason),
        };
        let mut chunks = Chunks::default();
        let mut single = Ok(None);
        for at in 0..bytes.len() {
            match chunks.take(&bytes[at..=at]) {
                Ok(_) if chunks.is_over() => {
                    single = Ok(Some(at + 1));
                    break;
                }
                Ok(_) => {}
                Err(reason) => {
                    single = Err(reason);
                    break;
                }
            }
        }
        assert_eq!(whole, single);
        whole
    }

    #[test]
    fn a_body_is_followed_to_its_end() {
        assert_eq!(length(b"5\r\nhello\r\n0\r\n\r\nGET"), Ok(Some(15)));
        assert_eq!(length(b"00A\r\n0123456789\r\n0\r\n\r\n"), Ok(Some(22)));
        assert_eq!(length(b"0\r\n\r\n"), Ok(Some(5)));
        assert_eq!(length(b"5\r\nhel"), Ok(None));
        for wrong in [
            &b"\r\n"[..],
            b"g\r\n",
            b"5;x=y\r\nhello\r\n0\r\n\r\n",
            b"5 \r\nhello",
            b"5\nhello",
            b"5\r\nhello!0\r\n",
            b"0\r\nTrailer: x\r\n\r\n",
            b"0\r\n\n",
            b"-1\r\n",
            b"0x5\r\nhello",
            b"1000000000000000\r\n",
        ] {
            assert_eq!(length(wrong), Err(Reason::FramingInvalid), "{:?}", String::from_utf8_lossy(wrong));
        }
    }
}
