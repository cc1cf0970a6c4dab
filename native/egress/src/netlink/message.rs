//! The form of messages of netlink(7): a header, the structure of a kind, and attributes, all aligned to four bytes.

use crate::sys::Errno;

const HEADER: usize = 16;
const ALIGN: usize = 4;
/// The kernel knows no higher number of an error.
const MAX_ERRNO: i32 = 4_096;

/// Requests that are sent together.
#[derive(Default)]
pub struct Batch {
    bytes: Vec<u8>,
    starts: Vec<usize>,
}

impl Batch {
    /// Adds a request; `body` is the structure of its kind. `flags` come on top of `NLM_F_REQUEST`.
    pub fn request(mut self, kind: u16, flags: libc::c_int, body: &[u8]) -> Self {
        self.starts.push(self.bytes.len());
        self.bytes.extend([0; 4]);
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(((flags | libc::NLM_F_REQUEST) as u16).to_ne_bytes());
        self.bytes.extend([0; 8]);
        self.bytes.extend(body);
        self.close()
    }

    /// Adds an attribute to the last request.
    pub fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        self.bytes.extend(((4 + value.len()) as u16).to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value);
        self.close()
    }

    pub fn number_attribute(self, kind: u16, value: u32) -> Self {
        self.attribute(kind, &value.to_ne_bytes())
    }

    /// A text with its final zero.
    pub fn text_attribute(self, kind: u16, text: &str) -> Self {
        let mut bytes = text.as_bytes().to_vec();
        bytes.push(0);
        self.attribute(kind, &bytes)
    }

    /// Adds an attribute that holds what `inner` adds.
    pub fn nested(mut self, kind: u16, inner: impl FnOnce(Self) -> Self) -> Self {
        let start = self.bytes.len();
        self = inner(self.attribute(kind, &[]));
        let length = (self.bytes.len() - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self
    }

    /// Adds plain bytes, such as a structure within an attribute.
    pub fn plain(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self.close()
    }

    /// Adds the requests of another.
    pub fn and(mut self, other: Self) -> Self {
        let offset = self.bytes.len();
        self.bytes.extend(other.bytes);
        self.starts.extend(other.starts.iter().map(|start| start + offset));
        self
    }

    fn close(mut self) -> Self {
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGN), 0);
        if let Some(&start) = self.starts.last() {
            let length = (self.bytes.len() - start) as u32;
            self.bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
        }
        self
    }

    /// Asks for an answer of the last alone: of those before it only a refusal is told.
    pub fn answered_once(mut self) -> Self {
        let before_last = self.starts.len().saturating_sub(1);
        for start in &self.starts[..before_last] {
            let at = start + 6;
            let flags = u16::from_ne_bytes([self.bytes[at], self.bytes[at + 1]]) & !(libc::NLM_F_ACK as u16);
            self.bytes[at..at + 2].copy_from_slice(&flags.to_ne_bytes());
        }
        self
    }

    /// Numbers the requests from `first` on. How many there are.
    pub fn number(&mut self, first: u32) -> u32 {
        for (offset, start) in (0u32..).zip(&self.starts) {
            self.bytes[start + 8..start + 12].copy_from_slice(&first.wrapping_add(offset).to_ne_bytes());
        }
        self.starts.len() as u32
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

pub enum Received<'a> {
    Acknowledged { sequence: u32, errno: Option<Errno> },
    Object { kind: u16, payload: &'a [u8] },
    Done,
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

/// The messages of a datagram, up to the first that is not whole.
pub fn read(datagram: &[u8]) -> impl Iterator<Item = Received<'_>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let length = u32_at(rest, 0)? as usize;
        let kind = u16_at(rest, 4)?;
        let sequence = u32_at(rest, 8)?;
        let message = rest.get(..length).filter(|message| message.len() >= HEADER)?;
        rest = rest.get(length.next_multiple_of(ALIGN)..).unwrap_or_default();
        let payload = &message[HEADER..];
        Some(match i32::from(kind) {
            libc::NLMSG_DONE => Received::Done,
            libc::NLMSG_ERROR => {
                let code = u32_at(payload, 0).unwrap_or_default() as i32;
                let number = code.saturating_neg();
                let is_known = (1..MAX_ERRNO).contains(&number);
                let errno = (code != 0).then(|| if is_known { Errno::from_raw_os_error(number) } else { Errno::IO });
                Received::Acknowledged { sequence, errno }
            }
            _ => Received::Object { kind, payload },
        })
    })
}

/// The attributes behind a structure of `offset` bytes.
pub fn attributes(payload: &[u8], offset: usize) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = payload.get(offset..).unwrap_or_default();
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(rest, 0)?);
        let kind = u16_at(rest, 2)?;
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(ALIGN)..).unwrap_or_default();
        Some((kind, value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let batch = Batch::default()
            .request(20, libc::NLM_F_ACK, &[1, 2, 3, 4])
            .text_attribute(3, "abc")
            .nested(18, |batch| batch.number_attribute(1, 7));
        let mut both = batch.and(Batch::default().request(21, 0, &[]));
        assert_eq!(both.number(5), 2);
        let kinds: Vec<(u16, Vec<u8>)> = read(both.bytes())
            .map(|received| match received {
                Received::Object { kind, payload } => (kind, payload.to_vec()),
                _ => panic!("an object"),
            })
            .collect();
        assert_eq!(kinds.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [20, 21]);
        let found: Vec<(u16, Vec<u8>)> =
            attributes(&kinds[0].1, 4).map(|(kind, value)| (kind, value.to_vec())).collect();
        assert_eq!(found[0], (3, b"abc\0".to_vec()));
        assert_eq!(found[1].0, 18);
        assert_eq!(attributes(&found[1].1, 0).next(), Some((1, 7u32.to_ne_bytes().as_slice())));
    }

    #[test]
    fn fuzz_of_what_the_kernel_could_say() {
        let mut state = 1u64;
        for _ in 0..20_000 {
            let mut bytes = vec![0u8; 40];
            for byte in &mut bytes {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = if state >> 60 < 8 { 0 } else { (state >> 33) as u8 & 0x1f };
            }
            for received in read(&bytes) {
                if let Received::Object { payload, .. } = received {
                    assert!(attributes(payload, 4).count() <= bytes.len());
                }
            }
        }
    }
}
