//! Reading an archive: a byte stream cut into entries, with nothing trusted and no entry kept whole.

use super::header::{self, BLOCK, Header, Kind};
use super::pax::{self, Records};

/// Names and pax records longer than this are refused.
const MAX_META: u64 = 1 << 20;

/// Where the bytes come from; `Ok(0)` is the end.
pub trait Input {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ReadError>;
}

impl Input for &[u8] {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ReadError> {
        let n = buffer.len().min(self.len());
        buffer[..n].copy_from_slice(&self[..n]);
        *self = &self[n..];
        Ok(n)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// The archive is damaged at this offset.
    Damaged(u64),
    /// It uses a form that is not read here.
    Unsupported(u64),
    /// The input failed.
    Input(i32),
}

/// An entry before its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: Vec<u8>,
    pub link: Vec<u8>,
    pub kind: Kind,
    pub mode: u32,
    pub size: u64,
    pub mtime: (i64, u32),
    /// Where its header is.
    pub offset: u64,
}

#[derive(Debug)]
pub struct Reader<I> {
    input: I,
    offset: u64,
    /// Bytes of the present body that were not read, and its padding.
    body: u64,
    padding: u64,
    global: Records,
}

impl<I: Input> Reader<I> {
    pub fn new(input: I) -> Self {
        Self { input, offset: 0, body: 0, padding: 0, global: Records::default() }
    }

    /// The next entry; what is left of the body of the one before is passed over.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, ReadError> {
        let (mut long_name, mut long_link) = (None, None);
        let mut records = self.global.clone();
        loop {
            self.skip_body()?;
            let at = self.offset;
            let Some(header) = self.next_header()? else { return Ok(None) };
            self.body = header.size;
            self.padding = header::padding(header.size);
            let damaged = ReadError::Damaged(at);
            match header.kind {
                Kind::PaxNext => pax::parse(&self.meta(at)?, &mut records).map_err(|_| damaged)?,
                Kind::PaxGlobal => {
                    let bytes = self.meta(at)?;
                    pax::parse(&bytes, &mut self.global).map_err(|_| damaged)?;
                    pax::parse(&bytes, &mut records).map_err(|_| damaged)?;
                }
                Kind::LongName => long_name = Some(until_nul(self.meta(at)?)),
                Kind::LongLink => long_link = Some(until_nul(self.meta(at)?)),
                Kind::Label => {}
                Kind::Other(_) => return Err(ReadError::Unsupported(at)),
                _ if records.is_sparse => return Err(ReadError::Unsupported(at)),
                _ => return Ok(Some(self.entry(header, records, long_name, long_link, at))),
            }
        }
    }

    fn entry(
        &mut self,
        header: Header,
        records: Records,
        long_name: Option<Vec<u8>>,
        long_link: Option<Vec<u8>>,
        offset: u64,
    ) -> Entry {
        let has_body = header.kind == Kind::File;
        let size = records.size.unwrap_or(header.size);
        // Links and directories have no body whatever their size says; only some old archives give hard links one.
        let body = if has_body {
            size
        } else if header.kind == Kind::HardLink {
            0
        } else {
            header.size
        };
        self.body = body;
        self.padding = header::padding(body);
        let name = records.path.or(long_name).unwrap_or(header.name);
        let kind = if header.kind == Kind::File && name.ends_with(b"/") { Kind::Directory } else { header.kind };
        Entry {
            name,
            link: records.link.or(long_link).unwrap_or(header.link),
            kind,
            mode: header.mode,
            size: if has_body { size } else { 0 },
            mtime: records.mtime.unwrap_or((header.mtime, 0)),
            offset,
        }
    }

    /// Reads of the present body; `Ok(0)` is its end.
    pub fn read_body(&mut self, buffer: &mut [u8]) -> Result<usize, ReadError> {
        let want = (buffer.len() as u64).min(self.body) as usize;
        if want == 0 {
            return Ok(0);
        }
        let n = self.input.read(&mut buffer[..want])?;
        if n == 0 {
            return Err(ReadError::Damaged(self.offset));
        }
        self.offset += n as u64;
        self.body -= n as u64;
        Ok(n)
    }

    fn skip_body(&mut self) -> Result<(), ReadError> {
        let mut buffer = [0; 4096];
        while self.read_body(&mut buffer)? > 0 {}
        self.body = std::mem::take(&mut self.padding);
        while self.read_body(&mut buffer)? > 0 {}
        Ok(())
    }

    /// The body of an entry that describes others.
    fn meta(&mut self, at: u64) -> Result<Vec<u8>, ReadError> {
        if self.body > MAX_META {
            return Err(ReadError::Unsupported(at));
        }
        let mut bytes = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            match self.read_body(&mut buffer)? {
                0 => return Ok(bytes),
                n => bytes.extend_from_slice(&buffer[..n]),
            }
        }
    }

    /// `None` at the end: a block of zeros, or the end of the input between two entries.
    fn next_header(&mut self) -> Result<Option<Header>, ReadError> {
        let at = self.offset;
        let mut block = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            match self.input.read(&mut block[filled..])? {
                0 if filled == 0 && at > 0 => return Ok(None),
                // Not even the beginning of an archive, or a cut header.
                0 => return Err(ReadError::Damaged(at)),
                n => filled += n,
            }
        }
        self.offset += BLOCK as u64;
        header::parse(&block).map_err(|_| ReadError::Damaged(at))
    }

    /// Reads on to the end of the input: what follows the archive is of no interest, but its sender waits for it to be taken.
    pub fn drain(mut self) -> Result<(), ReadError> {
        let mut buffer = [0; 4096];
        while self.input.read(&mut buffer)? > 0 {}
        Ok(())
    }
}

fn until_nul(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(end) = bytes.iter().position(|&byte| byte == 0) {
        bytes.truncate(end);
    }
    bytes
}

/// Reads everything; for fuzzing.
pub fn read_all(bytes: &[u8]) -> Result<Vec<(Entry, u64)>, ReadError> {
    let mut reader = Reader::new(bytes);
    let mut entries = Vec::new();
    let mut buffer = [0; 4096];
    while let Some(entry) = reader.next_entry()? {
        let mut size = 0;
        loop {
            match reader.read_body(&mut buffer)? {
                0 => break,
                n => size += n as u64,
            }
        }
        entries.push((entry, size));
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(entries: &[(Header, &[u8])]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (header, body) in entries {
            bytes.extend(header::build(header, 0, 0).0);
            bytes.extend_from_slice(body);
            bytes.extend(vec![0; header::padding(body.len() as u64) as usize]);
        }
        bytes.extend([0; 2 * BLOCK]);
        bytes
    }

    fn header(name: &[u8], kind: Kind, size: usize) -> Header {
        Header { name: name.to_vec(), link: Vec::new(), kind, mode: 0o644, size: size as u64, mtime: 1 }
    }

    #[test]
    fn long_names_of_gnu_and_pax_replace_the_short_one() {
        let mut records = Vec::new();
        pax::append(&mut records, "path", b"from/pax");
        let bytes = archive(&[
            (header(b"././@LongLink", Kind::LongName, 9), b"from/gnu\0"),
            (header(b"short", Kind::File, 3), b"abc"),
            (header(b"pax", Kind::PaxNext, records.len()), &records),
            (header(b"short", Kind::File, 0), b""),
            (header(b"plain", Kind::File, 0), b""),
        ]);
        let entries = read_all(&bytes).expect("reads");
        let names: Vec<_> = entries.iter().map(|(entry, size)| (entry.name.as_slice(), *size)).collect();
        assert_eq!(names, [(&b"from/gnu"[..], 3), (b"from/pax", 0), (b"plain", 0)]);
    }

    #[test]
    fn damage_is_named_by_its_offset() {
        let mut bytes = archive(&[(header(b"a", Kind::File, 600), &[1; 600]), (header(b"b", Kind::File, 0), b"")]);
        assert_eq!(read_all(&bytes[..700]), Err(ReadError::Damaged(700)));
        assert_eq!(read_all(b""), Err(ReadError::Damaged(0)));
        assert_eq!(read_all(b"not a tar"), Err(ReadError::Damaged(0)));
        bytes[512 + 1024] ^= 0x55;
        assert_eq!(read_all(&bytes), Err(ReadError::Damaged(1536)));
        let sparse = archive(&[(header(b"s", Kind::Other(b'S'), 0), b"")]);
        assert_eq!(read_all(&sparse), Err(ReadError::Unsupported(0)));
    }
}
