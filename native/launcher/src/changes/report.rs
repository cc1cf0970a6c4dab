//! What the process that takes changes says to the launcher: one message each.

use super::walk::Sent;
use crate::sys::Errno;

/// Bytes of the longest message. What is longer of a path is cut.
pub const LENGTH: usize = 512;
const PATH_AT: usize = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Freeze,
    Snapshot,
    Confine,
    Connect,
    Read,
    Send,
}

const STAGES: [(Stage, &str); 6] = [
    (Stage::Freeze, "freeze"),
    (Stage::Snapshot, "snapshot"),
    (Stage::Confine, "confine"),
    (Stage::Connect, "connect"),
    (Stage::Read, "read"),
    (Stage::Send, "send"),
];

impl Stage {
    pub fn name(self) -> &'static str {
        STAGES[self as usize].1
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// The tree stands still, the sandbox goes on, and a reader may connect.
    Ready {
        frozen_us: u64,
    },
    Done(Sent),
    Failed {
        stage: Stage,
        errno: Errno,
        path: Vec<u8>,
    },
}

impl Report {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Ready { frozen_us } => [&[1][..], &frozen_us.to_le_bytes()].concat(),
            Self::Done(sent) => [&[2][..], &sent.entries.to_le_bytes(), &sent.bytes.to_le_bytes()].concat(),
            Self::Failed { stage, errno, path } => {
                let path = &path[..path.len().min(LENGTH - PATH_AT)];
                [&[3, *stage as u8][..], &errno.raw_os_error().to_le_bytes(), path].concat()
            }
        }
    }

    /// `None` for what is no message.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        Some(match (bytes.first()?, bytes.len()) {
            (1, 9) => Self::Ready { frozen_us: number(1)? },
            (2, 17) => Self::Done(Sent { entries: number(1)?, bytes: number(9)? }),
            (3, PATH_AT..=LENGTH) => {
                let (stage, _) = *STAGES.get(usize::from(bytes[1]))?;
                let errno = i32::from_le_bytes(bytes[2..PATH_AT].try_into().ok()?);
                if !(1..4096).contains(&errno) {
                    return None;
                }
                Self::Failed { stage, errno: Errno::from_raw_os_error(errno), path: bytes[PATH_AT..].to_vec() }
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_comes_back_as_it_went_and_a_long_path_is_cut() {
        for report in [
            Report::Ready { frozen_us: 1 << 40 },
            Report::Done(Sent { entries: 7, bytes: u64::MAX }),
            Report::Failed { stage: Stage::Send, errno: Errno::PIPE, path: b"a/\xff".to_vec() },
        ] {
            assert_eq!(Report::decode(&report.encode()), Some(report));
        }
        let long = Report::Failed { stage: Stage::Read, errno: Errno::IO, path: vec![b'a'; 5_000] };
        assert_eq!(long.encode().len(), LENGTH);
        assert!(Report::decode(&long.encode()).is_some());
    }

    #[test]
    fn what_is_no_report_is_none() {
        for bytes in [&[][..], &[1], &[1; 10], &[2; 9], &[3, 9, 1, 0, 0, 0], &[3, 0, 0, 0, 0, 0], &[4; 9], &[3; 600]] {
            assert_eq!(Report::decode(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn stages_have_their_own_names() {
        for (at, (stage, _)) in STAGES.iter().enumerate() {
            assert_eq!(*stage as usize, at);
        }
    }
}
