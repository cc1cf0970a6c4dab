//! The TLS client hello, strictly: RFC 8446 4.1.2 and 5.1, RFC 6066 3. Only what decides is kept.

use crate::bounds::MAX_PEEK;
use crate::name::HostName;
use crate::refusal::Reason;

const CHANGE_CIPHER_SPEC: u8 = 20;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;
const RECORD_HEADER: usize = 5;
const MAX_PLAIN_RECORD: usize = 1 << 14;
/// Of TLS 1.3, with what encryption adds.
const MAX_CIPHER_RECORD: usize = MAX_PLAIN_RECORD + 256;
const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;
const MESSAGE_HEADER: usize = 4;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;
const ENCRYPTED_CLIENT_HELLO: u16 = 0xfe0d;

/// The random of a server hello that asks for another client hello (RFC 8446 4.1.3).
const RETRY_RANDOM: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91, 0xc2, 0xa2, 0x11,
    0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

/// What a client hello says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub name: HostName,
    /// There is an encrypted_client_hello: real, or a random one that looks like it. Which of the two cannot be told, nor what is in it; `name` is the outer
    /// name, the only one that a server without the key can serve.
    pub has_encrypted: bool,
    /// Bytes of its records.
    pub length: usize,
}

/// Collects a client hello out of records. What a message costs is in proportion to its bytes, however it is cut.
#[derive(Debug)]
pub struct HelloReader {
    /// Bytes of whole records.
    at: usize,
    message: Vec<u8>,
    is_second: bool,
}

impl HelloReader {
    pub fn first() -> Self {
        Self { at: 0, message: Vec::new(), is_second: false }
    }

    /// The hello after a retry request: early data that the server does not read, and a change of ciphers without meaning, may come before it.
    pub fn second() -> Self {
        Self { is_second: true, ..Self::first() }
    }

    /// Goes on with all bytes since the beginning, of which there are more than last time. `None`: more are needed.
    pub fn read(&mut self, bytes: &[u8]) -> Result<Option<Hello>, Reason> {
        loop {
            let rest = bytes.get(self.at..).unwrap_or_default();
            let Some(&kind) = rest.first() else { return self.more(bytes) };
            let is_skipped = match kind {
                HANDSHAKE => false,
                CHANGE_CIPHER_SPEC | APPLICATION_DATA if self.is_second && self.message.is_empty() => true,
                _ => return Err(Reason::HelloInvalid),
            };
            let Some((header, rest)) = rest.split_at_checked(RECORD_HEADER) else { return self.more(bytes) };
            let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
            let most = if kind == APPLICATION_DATA { MAX_CIPHER_RECORD } else { MAX_PLAIN_RECORD };
            if header[1] != 3 || !(1..=3).contains(&header[2]) || length == 0 || length > most {
                return Err(Reason::HelloInvalid);
            }
            let Some(payload) = rest.get(..length) else { return self.more(bytes) };
            self.at += RECORD_HEADER + length;
            if is_skipped {
                continue;
            }
            self.message.extend_from_slice(payload);
            if let Some(body) = whole(&self.message)? {
                let (name, has_encrypted) = parse(body)?;
                return Ok(Some(Hello { name, has_encrypted, length: self.at }));
            }
        }
    }

    fn more(&self, bytes: &[u8]) -> Result<Option<Hello>, Reason> {
        if bytes.len() < MAX_PEEK { Ok(None) } else { Err(Reason::HelloTooLarge) }
    }
}

/// The body of a client hello that ends where its bytes do.
fn whole(message: &[u8]) -> Result<Option<&[u8]>, Reason> {
    if message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
        return Err(Reason::HelloInvalid);
    }
    let Some((header, body)) = message.split_at_checked(MESSAGE_HEADER) else { return Ok(None) };
    let length = u32::from_be_bytes([0, header[1], header[2], header[3]]) as usize;
    if length > MAX_PEEK {
        return Err(Reason::HelloTooLarge);
    }
    match body.len().cmp(&length) {
        std::cmp::Ordering::Less => Ok(None),
        std::cmp::Ordering::Equal => Ok(Some(body)),
        // Nothing may share its last record: it would be for keys that are not there yet.
        std::cmp::Ordering::Greater => Err(Reason::HelloInvalid),
    }
}

fn parse(body: &[u8]) -> Result<(HostName, bool), Reason> {
    let mut body = Fields(body);
    let version = body.take(2)?;
    if version[0] != 3 || !(1..=3).contains(&version[1]) {
        return Err(Reason::HelloInvalid);
    }
    body.take(32)?;
    let session = body.vector(1)?;
    let ciphers = body.vector(2)?;
    let compressions = body.vector(1)?;
    if session.len() > 32 || ciphers.is_empty() || !ciphers.len().is_multiple_of(2) || compressions.is_empty() {
        return Err(Reason::HelloInvalid);
    }
    if body.0.is_empty() {
        return Err(Reason::NameMissing);
    }
    let mut extensions = Fields(body.vector(2)?);
    body.end()?;
    let mut seen = Vec::new();
    let mut name = None;
    while !extensions.0.is_empty() {
        let kind = extensions.number()?;
        let content = extensions.vector(2)?;
        seen.push(kind);
        if kind == SERVER_NAME {
            name = Some(server_name(content)?);
        }
    }
    let all = seen.len();
    let has_encrypted = seen.contains(&ENCRYPTED_CLIENT_HELLO);
    seen.sort_unstable();
    seen.dedup();
    // Of two, one server reads the first and another the last.
    if seen.len() != all {
        return Err(Reason::HelloInvalid);
    }
    Ok((name.ok_or(Reason::NameMissing)?, has_encrypted))
}

/// One name, of the one type that there is.
fn server_name(content: &[u8]) -> Result<HostName, Reason> {
    let mut content = Fields(content);
    let mut list = Fields(content.vector(2)?);
    content.end()?;
    if list.take(1)? != [HOST_NAME] {
        return Err(Reason::HelloInvalid);
    }
    let name = list.vector(2)?;
    list.end()?;
    HostName::parse(name).ok_or(Reason::NameInvalid)
}

/// Bytes that are read from the front.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Reason> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Reason::HelloInvalid)?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u16, Reason> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// A vector whose length stands before it in so many bytes (1 or 2).
    fn vector(&mut self, width: usize) -> Result<&'a [u8], Reason> {
        let length = self.take(width)?.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        self.take(length)
    }

    fn end(&self) -> Result<(), Reason> {
        if self.0.is_empty() { Ok(()) } else { Err(Reason::HelloInvalid) }
    }
}

const ALERT: u8 = 21;
const ALERT_BYTES: usize = RECORD_HEADER + 2;
const WARNING: u8 = 1;

/// Collects the beginning of a server's answer, which says whether it asks for another client hello.
#[derive(Debug, Default)]
pub struct AnswerReader(Vec<u8>);

impl AnswerReader {
    const BYTES: usize = RECORD_HEADER + MESSAGE_HEADER + 2 + RETRY_RANDOM.len();

    /// Whether it does; `None`: more are needed.
    pub fn read(&mut self, mut bytes: &[u8]) -> Option<bool> {
        loop {
            let (piece, rest) = bytes.split_at(bytes.len().min(Self::BYTES - self.0.len()));
            self.0.extend_from_slice(piece);
            bytes = rest;
            match *self.0.first()? {
                HANDSHAKE if self.0.len() < Self::BYTES => return None,
                HANDSHAKE => return Some(self.0[RECORD_HEADER] == SERVER_HELLO && self.0.ends_with(&RETRY_RANDOM)),
                ALERT if self.0.len() < ALERT_BYTES => return None,
                // A warning (of a name that the server does not know) comes before the hello.
                ALERT if self.0[3..=RECORD_HEADER] == [0, 2, WARNING] => drop(self.0.drain(..ALERT_BYTES)),
                // No handshake goes on from here.
                _ => return Some(false),
            }
        }
    }
}
