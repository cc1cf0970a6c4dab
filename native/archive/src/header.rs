//! The 512-byte headers of tar: ustar as written here; ustar, GNU and the old form as read.

pub const BLOCK: usize = 512;

/// Greatest size that fits the octal field.
const MAX_OCTAL_SIZE: u64 = 0o77_777_777_777;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    HardLink,
    Symlink,
    Directory,
    Fifo,
    /// A device.
    Device,
    /// pax records for the next entry.
    PaxNext,
    /// pax records for all entries that follow.
    PaxGlobal,
    /// GNU: the next entry's name, or link target.
    LongName,
    LongLink,
    /// GNU: a label of the whole archive.
    Label,
    Other(u8),
}

impl Kind {
    fn from_flag(flag: u8) -> Self {
        match flag {
            0 | b'0' | b'7' => Self::File,
            b'1' => Self::HardLink,
            b'2' => Self::Symlink,
            b'3' | b'4' => Self::Device,
            b'5' => Self::Directory,
            b'6' => Self::Fifo,
            b'x' | b'X' => Self::PaxNext,
            b'g' => Self::PaxGlobal,
            b'L' => Self::LongName,
            b'K' => Self::LongLink,
            b'V' => Self::Label,
            other => Self::Other(other),
        }
    }

    fn flag(self) -> u8 {
        match self {
            Self::File => b'0',
            Self::HardLink => b'1',
            Self::Symlink => b'2',
            Self::Device => b'3',
            Self::Directory => b'5',
            Self::Fifo => b'6',
            Self::PaxNext => b'x',
            Self::PaxGlobal => b'g',
            Self::LongName => b'L',
            Self::LongLink => b'K',
            Self::Label => b'V',
            Self::Other(flag) => flag,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub name: Vec<u8>,
    pub link: Vec<u8>,
    pub kind: Kind,
    pub mode: u32,
    pub size: u64,
    /// Seconds since 1970.
    pub mtime: i64,
}

/// The header is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged;

fn field(block: &[u8; BLOCK], from: usize, length: usize) -> &[u8] {
    let bytes = &block[from..from + length];
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(length);
    &bytes[..end]
}

/// Octal text, or GNU's base-256 where the first bit is set.
fn number(bytes: &[u8]) -> Result<i64, Damaged> {
    let &first = bytes.first().ok_or(Damaged)?;
    if first & 0x80 != 0 {
        // Two's complement over all bits but the first; only what fits in 63 bits makes sense.
        let is_negative = first & 0x40 != 0;
        let mut value: i64 = if is_negative { -1 } else { 0 };
        for (index, &byte) in bytes.iter().enumerate() {
            let byte = if index == 0 { byte & 0x7f | if is_negative { 0x80 } else { 0 } } else { byte };
            value = value.checked_mul(256).ok_or(Damaged)? | i64::from(byte);
        }
        return Ok(value);
    }
    let text: Vec<u8> = bytes.iter().copied().take_while(|&byte| byte != 0).collect();
    let text = text.trim_ascii();
    text.iter().try_fold(0i64, |value, &byte| match byte {
        b'0'..=b'7' => value.checked_mul(8).map(|value| value + i64::from(byte - b'0')).ok_or(Damaged),
        _ => Err(Damaged),
    })
}

fn checksum(block: &[u8; BLOCK]) -> i64 {
    block.iter().enumerate().map(|(at, &byte)| i64::from(if (148..156).contains(&at) { b' ' } else { byte })).sum()
}

/// Some old programs added the bytes as signed ones.
fn signed_checksum(block: &[u8; BLOCK]) -> i64 {
    block
        .iter()
        .enumerate()
        .map(|(at, &byte)| i64::from(if (148..156).contains(&at) { b' ' as i8 } else { byte as i8 }))
        .sum()
}

/// `None` for a block of zeros, which ends an archive.
pub fn parse(block: &[u8; BLOCK]) -> Result<Option<Header>, Damaged> {
    if block.iter().all(|&byte| byte == 0) {
        return Ok(None);
    }
    let claimed = number(&block[148..156])?;
    if claimed != checksum(block) && claimed != signed_checksum(block) {
        return Err(Damaged);
    }
    let is_ustar = &block[257..263] == b"ustar\0";
    let mut name = field(block, 0, 100).to_vec();
    if is_ustar {
        let prefix = field(block, 345, 155);
        if !prefix.is_empty() {
            name = [prefix, b"/", &name].concat();
        }
    }
    let mut kind = Kind::from_flag(block[156]);
    if kind == Kind::File && name.ends_with(b"/") {
        kind = Kind::Directory;
    }
    Ok(Some(Header {
        name,
        link: field(block, 157, 100).to_vec(),
        kind,
        mode: (number(&block[100..108])? & 0o7777) as u32,
        size: u64::try_from(number(&block[124..136])?).map_err(|_| Damaged)?,
        mtime: number(&block[136..148])?,
    }))
}

/// What did not fit into the fields and must stand in pax records before the header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overflow {
    pub name: bool,
    pub link: bool,
    pub size: bool,
    pub mtime: bool,
}

fn put(block: &mut [u8; BLOCK], at: usize, length: usize, bytes: &[u8]) -> bool {
    let n = bytes.len().min(length);
    block[at..at + n].copy_from_slice(&bytes[..n]);
    bytes.len() <= length
}

fn put_octal(block: &mut [u8; BLOCK], at: usize, digits: usize, value: u64) {
    let text = format!("{value:0digits$o}");
    put(block, at, digits, text.as_bytes());
}

/// The header as ustar. Names outside of ASCII go into pax records too, as the standard has it.
pub fn build(header: &Header, uid: u32, gid: u32) -> ([u8; BLOCK], Overflow) {
    let mut block = [0; BLOCK];
    let fits = |bytes: &[u8]| bytes.is_ascii();
    let name = put(&mut block, 0, 100, &header.name) && fits(&header.name);
    let link = put(&mut block, 157, 100, &header.link) && fits(&header.link);
    let (size, mtime) = (header.size <= MAX_OCTAL_SIZE, (0..=MAX_OCTAL_SIZE as i64).contains(&header.mtime));
    put_octal(&mut block, 100, 7, u64::from(header.mode));
    put_octal(&mut block, 108, 7, u64::from(uid.min(0o7_777_777)));
    put_octal(&mut block, 116, 7, u64::from(gid.min(0o7_777_777)));
    put_octal(&mut block, 124, 11, if size { header.size } else { 0 });
    put_octal(&mut block, 136, 11, if mtime { header.mtime as u64 } else { 0 });
    block[156] = header.kind.flag();
    put(&mut block, 257, 8, b"ustar\x0000");
    let sum = checksum(&block);
    let text = format!("{sum:06o}\0 ");
    put(&mut block, 148, 8, text.as_bytes());
    (block, Overflow { name: !name, link: !link, size: !size, mtime: !mtime })
}

/// Bytes that fill a body up to whole blocks.
pub fn padding(size: u64) -> u64 {
    size.wrapping_neg() % BLOCK as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Header {
        Header { name: b"a/b".to_vec(), link: Vec::new(), kind: Kind::File, mode: 0o755, size: 5, mtime: 1_700_000_000 }
    }

    #[test]
    fn what_is_built_is_parsed_again() {
        let (block, overflow) = build(&sample(), 0, 0);
        assert_eq!(overflow, Overflow::default());
        assert_eq!(parse(&block), Ok(Some(sample())));
        let long = Header { name: vec![b'x'; 300], size: 1 << 40, mtime: -5, ..sample() };
        let (_, overflow) = build(&long, 0, 0);
        assert_eq!(overflow, Overflow { name: true, link: false, size: true, mtime: true });
    }

    #[test]
    fn a_changed_byte_is_noticed_and_zeros_end() {
        let (mut block, _) = build(&sample(), 0, 0);
        block[3] ^= 1;
        assert_eq!(parse(&block), Err(Damaged));
        assert_eq!(parse(&[0; BLOCK]), Ok(None));
        assert_eq!(parse(&[0xff; BLOCK]), Err(Damaged));
    }

    #[test]
    fn numbers_in_base_256() {
        assert_eq!(number(&[0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]), Ok(256));
        assert_eq!(number(&[0xff; 12]), Ok(-1));
        assert_eq!(number(b"0000644\0"), Ok(0o644));
        assert_eq!(number(b" 644 \0\0\0"), Ok(0o644));
        assert_eq!(number(&[0x80, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), Err(Damaged));
        assert_eq!(number(b"9"), Err(Damaged));
    }
}
