//! What can be wrong with the bytes of the other side.

use std::fmt;

macro_rules! protocol_errors {
    ($($(#[doc = $doc:literal])+ $name:ident = $kind:literal,)+) => {
        /// The other side broke the protocol: the connection must be closed. Nothing more may be taken from it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum ProtocolError { $($(#[doc = $doc])+ $name,)+ }

        impl ProtocolError {
            /// The stable name that the golden vectors and the TypeScript end use too.
            pub fn kind(self) -> &'static str {
                match self { $(Self::$name => $kind,)+ }
            }
        }
    };
}

protocol_errors! {
    /// Unknown frame type.
    BadType = "bad_type",
    /// The reserved field is not 0.
    BadReserved = "bad_reserved",
    /// A channel on a frame that has none.
    BadChannel = "bad_channel",
    /// Stream 0 where a stream is needed, or the reverse.
    BadStream = "bad_stream",
    /// A length that this frame type cannot have.
    BadLength = "bad_length",
    /// JSON that does not parse, is not UTF-8, or is not of the form that this frame type needs.
    BadJson = "bad_json",
    /// JSON nested deeper than `MAX_JSON_DEPTH`.
    TooDeep = "too_deep",
    /// The first frame is not HELLO.
    HelloMissing = "hello_missing",
    /// A second HELLO.
    HelloTwice = "hello_twice",
    /// HELLO names another protocol or version.
    HelloMismatch = "hello_mismatch",
    /// A frame that only the other side may send: OPEN and RESET by a server, CLOSE by a client.
    WrongSide = "wrong_side",
    /// An OPEN whose id is not greater than the last one.
    StreamOrder = "stream_order",
    /// A frame for a stream that was never opened.
    StreamUnknown = "stream_unknown",
    /// DATA or a second END after END.
    AfterEnd = "after_end",
    /// More DATA and MESSAGE than credit.
    CreditExceeded = "credit_exceeded",
    /// A grant that lifts the credit above `MAX_WINDOW`.
    CreditOverflow = "credit_overflow",
    /// The other side asks for answers (PING) and does not read them.
    Flood = "flood",
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())
    }
}

impl std::error::Error for ProtocolError {}
