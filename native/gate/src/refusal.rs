//! Why a connection is refused or cut.

/// Each has one word, which is part of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// No pin of the sandbox is for this address.
    AddressNotPinned,
    /// The address is never reachable, whatever a policy says.
    AddressNeverReachable,
    /// The connection came out on this host.
    AddressIsLocal,
    /// The name is not allowed at this port.
    NameNotAllowed,
    /// The address was not an answer for this name, or no longer is.
    NameNotOfAddress,
    /// A client hello without a server name: nothing to decide by.
    NameMissing,
    /// What stands where a name must is none.
    NameInvalid,
    /// The client hello of the second try asks for another name than the first.
    NameChanged,
    /// One connection asks for too many names.
    TooManyNames,
    /// Neither TLS nor HTTP/1.
    ProtocolUnknown,
    /// HTTP/2 without TLS: its requests are not read.
    Http2,
    HelloInvalid,
    HelloTooLarge,
    HeadInvalid,
    HeadTooLarge,
    /// Absolute-form, Host, or the port in them do not agree, or Host is not there exactly once.
    HostInvalid,
    /// Where the request ends cannot be told with certainty.
    FramingInvalid,
    /// CONNECT: a tunnel to another name.
    Tunnel,
    /// An upgrade that is not the first request of its connection.
    UpgradeNotFirst,
    /// The first bytes, or a later head, took too long.
    TooSlow,
    /// Closed before the first bytes were whole.
    Incomplete,
    TooManyConnections,
    TooManyUndecided,
    /// More bytes wait than may.
    TooManyBytes,
    /// The policy changed and no longer allows the open connection.
    PolicyChanged,
}

impl Reason {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AddressNotPinned => "address_not_pinned",
            Self::AddressNeverReachable => "address_never_reachable",
            Self::AddressIsLocal => "address_is_local",
            Self::NameNotAllowed => "name_not_allowed",
            Self::NameNotOfAddress => "name_not_of_address",
            Self::NameMissing => "name_missing",
            Self::NameInvalid => "name_invalid",
            Self::NameChanged => "name_changed",
            Self::TooManyNames => "too_many_names",
            Self::ProtocolUnknown => "protocol_unknown",
            Self::Http2 => "http2_without_tls",
            Self::HelloInvalid => "hello_invalid",
            Self::HelloTooLarge => "hello_too_large",
            Self::HeadInvalid => "head_invalid",
            Self::HeadTooLarge => "head_too_large",
            Self::HostInvalid => "host_invalid",
            Self::FramingInvalid => "framing_invalid",
            Self::Tunnel => "tunnel",
            Self::UpgradeNotFirst => "upgrade_not_first",
            Self::TooSlow => "too_slow",
            Self::Incomplete => "incomplete",
            Self::TooManyConnections => "too_many_connections",
            Self::TooManyUndecided => "too_many_undecided",
            Self::TooManyBytes => "too_many_bytes",
            Self::PolicyChanged => "policy_changed",
        }
    }
}
