//! pax records: `LENGTH KEY=VALUE\n`.

use super::header::Damaged;

/// What pax records say that matters here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records {
    pub path: Option<Vec<u8>>,
    pub link: Option<Vec<u8>>,
    pub size: Option<u64>,
    /// Seconds and nanoseconds.
    pub mtime: Option<(i64, u32)>,
    /// The body is a GNU sparse map and not the file.
    pub is_sparse: bool,
}

pub fn parse(mut bytes: &[u8], records: &mut Records) -> Result<(), Damaged> {
    while !bytes.is_empty() {
        let space = bytes.iter().take(20).position(|&byte| byte == b' ').ok_or(Damaged)?;
        let length: usize =
            std::str::from_utf8(&bytes[..space]).ok().and_then(|text| text.parse().ok()).ok_or(Damaged)?;
        if length <= space + 1 || length > bytes.len() || bytes[length - 1] != b'\n' {
            return Err(Damaged);
        }
        let record = &bytes[space + 1..length - 1];
        let equals = record.iter().position(|&byte| byte == b'=').ok_or(Damaged)?;
        take(&record[..equals], &record[equals + 1..], records)?;
        bytes = &bytes[length..];
    }
    Ok(())
}

fn take(key: &[u8], value: &[u8], records: &mut Records) -> Result<(), Damaged> {
    let text = || std::str::from_utf8(value).map_err(|_| Damaged);
    match key {
        b"path" => records.path = Some(value.to_vec()),
        b"linkpath" => records.link = Some(value.to_vec()),
        b"size" => records.size = Some(text()?.parse().map_err(|_| Damaged)?),
        b"mtime" => records.mtime = Some(time(text()?)?),
        _ if key.starts_with(b"GNU.sparse.") => records.is_sparse = true,
        _ => {}
    }
    Ok(())
}

/// A decimal number of seconds, as it is rounded down.
fn time(text: &str) -> Result<(i64, u32), Damaged> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().map_err(|_| Damaged)?;
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Damaged);
    }
    let digits: String = fraction.chars().chain(std::iter::repeat('0')).take(9).collect();
    let nanos: u32 = digits.parse().map_err(|_| Damaged)?;
    match (text.starts_with('-'), nanos) {
        (true, 1..) => Ok((seconds.checked_sub(1).ok_or(Damaged)?, 1_000_000_000 - nanos)),
        _ => Ok((seconds, nanos)),
    }
}

/// Appends one record; its length counts itself.
pub fn append(out: &mut Vec<u8>, key: impl AsRef<[u8]>, value: &[u8]) {
    let key = key.as_ref();
    let rest = 1 + key.len() + 1 + value.len() + 1;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    out.extend_from_slice(format!("{length} ").as_bytes());
    out.extend_from_slice(key);
    out.push(b'=');
    out.extend_from_slice(value);
    out.push(b'\n');
}

/// A time as pax has it.
pub fn time_text(seconds: i64, nanos: u32) -> String {
    match (seconds < 0, nanos) {
        (_, 0) => seconds.to_string(),
        (false, _) => format!("{seconds}.{nanos:09}"),
        // -1.25 is two seconds before 1970 and 0.75 after that.
        (true, _) => format!("-{}.{:09}", -(seconds + 1), 1_000_000_000 - nanos),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_as_they_went() {
        for value_length in [0, 1, 85, 86, 87, 88, 989, 990, 991, 5_000] {
            let value = vec![b'\n'; value_length];
            let mut bytes = Vec::new();
            append(&mut bytes, "path", &value);
            append(&mut bytes, "mtime", time_text(-2, 750_000_000).as_bytes());
            let mut records = Records::default();
            assert_eq!(parse(&bytes, &mut records), Ok(()));
            assert_eq!(records.path, Some(value));
            assert_eq!(records.mtime, Some((-2, 750_000_000)));
        }
    }

    #[test]
    fn broken_records_are_errors() {
        for bytes in [
            &b"x"[..],
            b"5 a=b\n",
            b"99 a=b\n",
            b"6 a=b ",
            b"4 ab\n",
            b"0 \n",
            b"13 size=-1\n\n\n\n",
            b"15 mtime=1.2.3\n",
        ] {
            assert_eq!(parse(bytes, &mut Records::default()), Err(Damaged), "{bytes:?}");
        }
    }
}
