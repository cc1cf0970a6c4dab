//! The head of a request: for whom it is, and how long its body is.

use crate::bounds::MAX_FIELDS;
use crate::name::HostName;
use crate::refusal::Reason;

const MAX_METHOD: usize = 32;

/// What a head says that decides anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    pub name: HostName,
    pub body: Body,
    pub upgrade: Upgrade,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    None,
    Sized(u64),
    Chunked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upgrade {
    None,
    WebSocket,
    /// To something that is not known here. Should the server accept, the bytes that follow are no HTTP/1 and are refused.
    Other,
}

/// The lines of a head are ended by CR LF, and neither stands alone. Returns where the line after `from` ends.
pub fn line_end(bytes: &[u8], from: usize) -> Result<Option<usize>, Reason> {
    let rest = &bytes[from..];
    let Some(at) = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n' | 0)) else { return Ok(None) };
    match (rest[at], rest.get(at + 1)) {
        (b'\r', Some(b'\n')) => Ok(Some(from + at)),
        (b'\r', None) => Ok(None),
        _ => Err(Reason::HeadInvalid),
    }
}

/// Checks a request line as soon as it is whole: what is no HTTP need not be waited for.
pub fn check_request_line(line: &[u8]) -> Result<(), Reason> {
    request_line(line).map(drop)
}

/// Reads a head without its empty line, for a connection to this port.
pub fn parse(head: &[u8], port: u16) -> Result<Head, Reason> {
    let mut lines = head.strip_suffix(b"\r\n").ok_or(Reason::HeadInvalid)?;
    let first = next_line(&mut lines)?;
    let target = request_line(first)?;
    let mut fields = Fields::default();
    let mut count = 0;
    while !lines.is_empty() {
        count += 1;
        if count > MAX_FIELDS {
            return Err(Reason::HeadTooLarge);
        }
        let (name, value) = field(next_line(&mut lines)?)?;
        fields.note(&name, value)?;
    }
    let host = fields.host.ok_or(Reason::HostInvalid)?;
    let host = authority(host, port)?;
    if let Some(text) = target.authority
        && authority(text, port)? != host
    {
        return Err(Reason::HostInvalid);
    }
    let body = match (fields.length, fields.is_chunked) {
        (None, false) => Body::None,
        (Some(length), false) => Body::Sized(length),
        // An older server does not know chunks, and would read them as requests.
        (None, true) if !target.is_old => Body::Chunked,
        _ => return Err(Reason::FramingInvalid),
    };
    let upgrade = match fields.upgrade {
        None => Upgrade::None,
        Some(value) if value.eq_ignore_ascii_case(b"websocket") && fields.connection_upgrades => {
            if target.method != b"GET" || body != Body::None || target.is_old {
                return Err(Reason::FramingInvalid);
            }
            Upgrade::WebSocket
        }
        Some(_) => Upgrade::Other,
    };
    Ok(Head { name: host, body, upgrade })
}

fn next_line<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], Reason> {
    let end = line_end(rest, 0)?;
    let line = &rest[..end.unwrap_or(rest.len())];
    *rest = rest.get(line.len() + 2..).unwrap_or_default();
    Ok(line)
}

struct Target<'a> {
    method: &'a [u8],
    /// Of absolute-form.
    authority: Option<&'a [u8]>,
    /// HTTP/1.0.
    is_old: bool,
}

fn request_line(line: &[u8]) -> Result<Target<'_>, Reason> {
    let mut words = line.split(|byte| *byte == b' ');
    let (Some(method), Some(target), Some(version), None) = (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(Reason::ProtocolUnknown);
    };
    let is_old = match version {
        b"HTTP/1.1" => false,
        b"HTTP/1.0" => true,
        b"HTTP/2.0" => return Err(Reason::Http2),
        _ => return Err(Reason::ProtocolUnknown),
    };
    let is_method = (1..=MAX_METHOD).contains(&method.len())
        && method.iter().all(|byte| byte.is_ascii_uppercase() || matches!(byte, b'-' | b'_'));
    // Bytes above ASCII are passed on: no server takes one for a space or a line's end.
    let is_target = target.iter().all(|byte| *byte > b' ' && *byte != 0x7f);
    if !is_method || !is_target {
        return Err(Reason::HeadInvalid);
    }
    if method == b"CONNECT" {
        return Err(Reason::Tunnel);
    }
    let authority = match target {
        [b'/', ..] => None,
        b"*" if method == b"OPTIONS" => None,
        _ => Some(absolute_form(target).ok_or(Reason::HostInvalid)?),
    };
    Ok(Target { method, authority, is_old })
}

/// The authority of `http://AUTHORITY/...`.
fn absolute_form(target: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = target.split_at_checked(b"http://".len())?;
    if !scheme.eq_ignore_ascii_case(b"http://") {
        return None;
    }
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?' | b'#')).unwrap_or(rest.len());
    Some(&rest[..end])
}

/// The name in `NAME`, `NAME.`, `NAME:PORT`; its port is that of the connection. A name alone may be meant for any port: programs forget it.
fn authority(text: &[u8], port: u16) -> Result<HostName, Reason> {
    let (name, given) = match text.iter().position(|byte| *byte == b':') {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    if let Some(digits) = given {
        let number = std::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        if number.and_then(|text| text.parse::<u16>().ok()).is_none_or(|given| given != port) {
            return Err(Reason::HostInvalid);
        }
    }
    HostName::parse(name.strip_suffix(b".").unwrap_or(name)).ok_or(Reason::NameInvalid)
}

/// A name in lower case, and the value without the blanks around it.
fn field(line: &[u8]) -> Result<(Vec<u8>, &[u8]), Reason> {
    let colon = line.iter().position(|byte| *byte == b':').ok_or(Reason::HeadInvalid)?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    // No blank before the colon, and none at the front, which once went on with the line before.
    if name.is_empty() || !name.iter().all(|byte| is_token(*byte)) {
        return Err(Reason::HeadInvalid);
    }
    if value.iter().any(|byte| (*byte < b' ' && *byte != b'\t') || *byte == 0x7f) {
        return Err(Reason::HeadInvalid);
    }
    Ok((name.to_ascii_lowercase(), value.trim_ascii()))
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// The fields that decide.
#[derive(Default)]
struct Fields<'a> {
    host: Option<&'a [u8]>,
    length: Option<u64>,
    is_chunked: bool,
    upgrade: Option<&'a [u8]>,
    connection_upgrades: bool,
}

impl<'a> Fields<'a> {
    fn note(&mut self, name: &[u8], value: &'a [u8]) -> Result<(), Reason> {
        match name {
            b"host" => match self.host.replace(value) {
                None => {}
                Some(_) => return Err(Reason::HostInvalid),
            },
            b"content-length" => {
                let digits = std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
                let length = digits.and_then(|text| text.parse::<u64>().ok()).filter(|length| *length <= u64::MAX >> 1);
                // Two are refused even where they agree.
                if self.length.replace(length.ok_or(Reason::FramingInvalid)?).is_some() {
                    return Err(Reason::FramingInvalid);
                }
            }
            b"transfer-encoding" => {
                if self.is_chunked || !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Reason::FramingInvalid);
                }
                self.is_chunked = true;
            }
            b"upgrade" => match self.upgrade.replace(value) {
                None => {}
                Some(_) => return Err(Reason::FramingInvalid),
            },
            b"connection" => {
                let mut options = value.split(|byte| *byte == b',');
                self.connection_upgrades |= options.any(|option| option.trim_ascii().eq_ignore_ascii_case(b"upgrade"));
            }
            // Gateways that hand fields on as variables take these for the ones above.
            b"content_length" | b"transfer_encoding" => return Err(Reason::FramingInvalid),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(text: &str) -> Result<Head, Reason> {
        parse(text.as_bytes(), 80)
    }

    fn refused(text: &str, reason: Reason) {
        assert_eq!(head(text), Err(reason), "{text:?}");
    }

    #[test]
    fn heads_say_for_whom_and_how_long() {
        let read = |text| head(text).map(|head| (head.name.to_string(), head.body)).expect(text);
        let name = "a.test".to_owned();
        assert_eq!(read("GET / HTTP/1.1\r\nHost: a.test\r\n"), (name.clone(), Body::None));
        assert_eq!(read("GET http://A.test:80/x HTTP/1.1\r\nhOST:a.test.\r\n"), (name.clone(), Body::None));
        assert_eq!(read("OPTIONS * HTTP/1.1\r\nHost: a.test:80\r\n"), (name.clone(), Body::None));
        let post = "POST /?q=\u{e9} HTTP/1.0\r\nHost: a.test\r\nContent-Length: 007\r\n";
        assert_eq!(read(post), (name.clone(), Body::Sized(7)));
        let chunked = "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: Chunked \r\n";
        assert_eq!(read(chunked), (name, Body::Chunked));
    }

    #[test]
    fn upgrades_are_told_apart() {
        let upgrade =
            |fields: &str| head(&format!("GET / HTTP/1.1\r\nHost: a.test\r\n{fields}")).map(|head| head.upgrade);
        let socket = "Connection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n";
        assert_eq!(upgrade(socket), Ok(Upgrade::WebSocket));
        assert_eq!(upgrade("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"), Ok(Upgrade::Other));
        assert_eq!(upgrade("Upgrade: websocket\r\n"), Ok(Upgrade::Other));
        assert_eq!(upgrade("Connection: upgrade\r\nUpgrade: h2c, websocket\r\n"), Ok(Upgrade::Other));
        assert_eq!(upgrade(&format!("{socket}Upgrade: h2c\r\n")), Err(Reason::FramingInvalid));
        assert_eq!(upgrade(&format!("{socket}Content-Length: 1\r\n")), Err(Reason::FramingInvalid));
    }

    #[test]
    fn a_host_that_is_not_one_is_refused() {
        for text in [
            "GET / HTTP/1.1\r\n",
            "GET / HTTP/1.1\r\nHost: a.test\r\nHost: a.test\r\n",
            "GET http://b.test/ HTTP/1.1\r\nHost: a.test\r\n",
            "GET https://a.test/ HTTP/1.1\r\nHost: a.test\r\n",
            "GET a.test HTTP/1.1\r\nHost: a.test\r\n",
            "GET * HTTP/1.1\r\nHost: a.test\r\n",
            "GET / HTTP/1.1\r\nHost: a.test:81\r\n",
            "GET / HTTP/1.1\r\nHost: a.test:\r\n",
            "GET / HTTP/1.1\r\nHost: a.test:+80\r\n",
        ] {
            refused(text, Reason::HostInvalid);
        }
        for host in ["", "1.2.3.4", "[::1]", "a.test, b.test", "a.test/x", "b.test@a.test", "a..test"] {
            let outcome = head(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n"));
            assert!(matches!(outcome, Err(Reason::NameInvalid | Reason::HostInvalid)), "{host:?}: {outcome:?}");
        }
        refused("GET http://b.test@a.test/ HTTP/1.1\r\nHost: a.test\r\n", Reason::NameInvalid);
    }

    #[test]
    fn what_servers_could_read_differently_is_refused() {
        for fields in [
            "Content-Length: 1\r\nContent-Length: 1\r\n",
            "Content-Length: 1, 1\r\n",
            "Content-Length: +1\r\n",
            "Content-Length: -1\r\n",
            "Content-Length: \r\n",
            "Content-Length: 99999999999999999999\r\n",
            "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: \u{b}chunked\r\n",
            "Transfer-Encoding: identity\r\n",
            "Transfer_Encoding: chunked\r\n",
        ] {
            let outcome = head(&format!("POST / HTTP/1.1\r\nHost: a.test\r\n{fields}"));
            assert!(matches!(outcome, Err(Reason::FramingInvalid | Reason::HeadInvalid)), "{fields:?}: {outcome:?}");
        }
        refused("POST / HTTP/1.0\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n", Reason::FramingInvalid);
        for fields in
            ["Host : a.test", " Host: a.test", "X", ": x", "A: \rb", "A: \nHost: b.test", "A: b\r\n c", "A: \0"]
        {
            refused(&format!("GET / HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n"), Reason::HeadInvalid);
        }
    }

    #[test]
    fn what_is_not_http_1_is_refused() {
        refused("PRI * HTTP/2.0\r\n", Reason::Http2);
        refused("CONNECT b.test:80 HTTP/1.1\r\nHost: b.test\r\n", Reason::Tunnel);
        for text in
            ["GET /\r\n", "GET  / HTTP/1.1\r\n", "GET / HTTP/1.2\r\n", "GET / http/1.1\r\n", "SSH-2.0-x\r\n", "\r\n"]
        {
            refused(text, Reason::ProtocolUnknown);
        }
        for text in ["get / HTTP/1.1\r\n", "G\u{e9}T / HTTP/1.1\r\n", "GET /\t HTTP/1.1\r\n"] {
            refused(text, Reason::HeadInvalid);
        }
        let many = "A: b\r\n".repeat(MAX_FIELDS + 1);
        refused(&format!("GET / HTTP/1.1\r\n{many}"), Reason::HeadTooLarge);
    }
}
