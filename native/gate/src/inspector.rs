//! What the bytes of one connection may do: pure, without sockets. The client's bytes are looked at before they go on, and the first of the server's
//! where they decide how the client's are to be read.

use crate::bounds::SPLICE_BYTES;
use crate::hello::{self, Hello, HelloReader};
use crate::http::requests::{Requests, Step};
use crate::http::upgrade::{Answer, AnswerReader};
use crate::name::HostName;
use crate::refusal::Reason;

const TLS_HANDSHAKE: u8 = 22;

/// What is to be done with the client's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look {
    /// Wait for more.
    More,
    /// Decide on this name, then say [`Inspector::granted`].
    Ask(HostName),
    /// So many bytes may go on.
    Pass(usize),
    /// All have gone on, and so many more may unread; then say [`Inspector::spliced`].
    Splice(usize),
    /// Nothing goes on until [`Inspector::answered`] has seen enough.
    Hold,
}

#[derive(Debug)]
enum State {
    First,
    Hello(HelloReader),
    /// The name of a hello was asked for.
    Asked(Hello),
    Granted(Hello),
    /// A hello has gone on; should the server ask for another, that one may not name another.
    Answering {
        name: HostName,
        answer: hello::AnswerReader,
    },
    SecondHello {
        name: HostName,
        reader: HelloReader,
    },
    Http(Requests),
    Upgrading {
        requests: Requests,
        answer: AnswerReader,
    },
    Free,
}

#[derive(Debug)]
pub struct Inspector {
    state: State,
    port: u16,
    has_encrypted: bool,
}

impl Inspector {
    /// For a connection to this port.
    pub fn new(port: u16) -> Self {
        Self { state: State::First, port, has_encrypted: false }
    }

    /// For a connection that may carry anything.
    pub fn free() -> Self {
        Self { state: State::Free, port: 0, has_encrypted: false }
    }

    /// Looks at all bytes that have come and have not gone on.
    pub fn look(&mut self, bytes: &[u8]) -> Result<Look, Reason> {
        loop {
            match &mut self.state {
                State::First => match bytes.first() {
                    None => return Ok(Look::More),
                    Some(&TLS_HANDSHAKE) => self.state = State::Hello(HelloReader::first()),
                    Some(byte) if byte.is_ascii_uppercase() => self.state = State::Http(Requests::new(self.port)),
                    Some(_) => return Err(Reason::ProtocolUnknown),
                },
                State::Hello(reader) => match reader.read(bytes)? {
                    Some(hello) => {
                        self.has_encrypted = hello.has_encrypted;
                        self.state = State::Asked(hello);
                    }
                    None => return Ok(Look::More),
                },
                State::Asked(hello) => return Ok(Look::Ask(hello.name.clone())),
                State::Granted(hello) => {
                    let length = hello.length;
                    self.state = State::Answering { name: hello.name.clone(), answer: hello::AnswerReader::default() };
                    return Ok(Look::Pass(length));
                }
                State::Answering { .. } | State::Upgrading { .. } => return Ok(Look::Hold),
                State::SecondHello { name, reader } => match reader.read(bytes)? {
                    Some(hello) if hello.name == *name => {
                        self.state = State::Free;
                        return Ok(Look::Pass(hello.length));
                    }
                    Some(_) => return Err(Reason::NameChanged),
                    None => return Ok(Look::More),
                },
                State::Http(requests) => {
                    return Ok(match requests.step(bytes)? {
                        Step::More => Look::More,
                        Step::Ask(name) => Look::Ask(name),
                        Step::Pass(length) => Look::Pass(length),
                        Step::Splice(length) => {
                            Look::Splice(usize::try_from(length).unwrap_or(SPLICE_BYTES).min(SPLICE_BYTES))
                        }
                        Step::Upgrading => {
                            if let State::Http(requests) = std::mem::replace(&mut self.state, State::Free) {
                                self.state = State::Upgrading { requests, answer: AnswerReader::default() };
                            }
                            Look::Hold
                        }
                    });
                }
                State::Free if bytes.is_empty() => return Ok(Look::Splice(SPLICE_BYTES)),
                State::Free => return Ok(Look::Pass(bytes.len())),
            }
        }
    }

    /// The name that was asked for is allowed.
    pub fn granted(&mut self) {
        self.state = match std::mem::replace(&mut self.state, State::First) {
            State::Asked(hello) => State::Granted(hello),
            State::Http(mut requests) => {
                requests.granted();
                State::Http(requests)
            }
            other => other,
        };
    }

    /// So many bytes have gone on unread.
    pub fn spliced(&mut self, count: usize) {
        if let State::Http(requests) = &mut self.state {
            requests.spliced(count as u64);
        }
    }

    /// Whether the server's bytes are to be shown to [`Self::answered`].
    pub fn wants_answer(&self) -> bool {
        matches!(self.state, State::Answering { .. } | State::Upgrading { .. })
    }

    /// The server has sent these bytes.
    pub fn answered(&mut self, bytes: &[u8]) {
        self.state = match std::mem::replace(&mut self.state, State::First) {
            State::Answering { name, mut answer } => match answer.read(bytes) {
                None => State::Answering { name, answer },
                Some(true) => State::SecondHello { name, reader: HelloReader::second() },
                Some(false) => State::Free,
            },
            State::Upgrading { mut requests, mut answer } => match answer.read(bytes) {
                Answer::More => State::Upgrading { requests, answer },
                Answer::Switched => State::Free,
                Answer::Stayed => {
                    requests.stayed();
                    State::Http(requests)
                }
            },
            other => other,
        };
    }

    /// The server sends no more: what was waited for does not come, and the client's end must be seen.
    pub fn answer_ended(&mut self) {
        self.state = match std::mem::replace(&mut self.state, State::First) {
            // Without an answer there is no handshake that could go on.
            State::Answering { .. } => State::Free,
            State::Upgrading { mut requests, .. } => {
                requests.stayed();
                State::Http(requests)
            }
            other => other,
        };
    }

    /// Whether the client hello had an encrypted one in it.
    pub fn has_encrypted(&self) -> bool {
        self.has_encrypted
    }
}
