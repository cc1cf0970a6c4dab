//! The events of inotify as the kernel lays them out.

/// `struct inotify_event` without its name.
const HEADER: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    pub watch: i32,
    pub mask: u32,
    pub cookie: u32,
    /// Empty for the watched file itself.
    pub name: &'a [u8],
}

/// The events in what one read returned.
pub fn parse(mut bytes: &[u8]) -> impl Iterator<Item = Event<'_>> {
    std::iter::from_fn(move || {
        let header = bytes.first_chunk::<HEADER>()?;
        let word = |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let length = word(12) as usize;
        let name = bytes.get(HEADER..HEADER.checked_add(length)?)?;
        let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        let event = Event { watch: word(0) as i32, mask: word(4), cookie: word(8), name: &name[..end] };
        bytes = &bytes[HEADER + length..];
        Some(event)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_padded_and_a_cut_event_is_not_read() {
        let mut bytes = Vec::new();
        for (watch, name) in [(1u32, &b"ab\0\0"[..]), (2, b"")] {
            for word in [watch, libc::IN_CREATE, 7, name.len() as u32] {
                bytes.extend(word.to_ne_bytes());
            }
            bytes.extend(name);
        }
        let events: Vec<_> = parse(&bytes).collect();
        assert_eq!(events.len(), 2);
        assert_eq!((events[0].watch, events[0].cookie, events[0].name), (1, 7, &b"ab"[..]));
        assert!(events[1].name.is_empty());
        assert_eq!(parse(&bytes[..18]).count(), 0);
    }
}
