//! Whether a connection is looked at at all.

use std::net::SocketAddr;
use std::time::Instant;

use crate::bounds::{CROWDED_CONNECTIONS, CROWDED_QUARTERS, MAX_CONNECTIONS_PER_SANDBOX, MAX_UNDECIDED_PER_SANDBOX};
use crate::destination::is_never_reachable;
use crate::name::HostName;
use crate::refusal::Reason;
use crate::table::Sandbox;

/// Connections of all sandboxes: how many there are, and how many there may be.
#[derive(Clone, Copy, Debug)]
pub struct Crowd {
    pub open: usize,
    pub most: usize,
}

/// Admits a connection, where there is one with the name by which it may carry anything.
pub fn admit(
    sandbox: &mut Sandbox,
    destination: SocketAddr,
    crowd: Crowd,
    now: Instant,
) -> Result<Option<HostName>, Reason> {
    if sandbox.rate.take(now).is_none() {
        return Err(Reason::TooManyConnections);
    }
    if is_never_reachable(destination.ip()) {
        return Err(Reason::AddressNeverReachable);
    }
    let own = sandbox.flows.len();
    let is_crowded = crowd.open >= crowd.most / 4 * CROWDED_QUARTERS;
    if own >= MAX_CONNECTIONS_PER_SANDBOX || crowd.open >= crowd.most || (is_crowded && own >= CROWDED_CONNECTIONS) {
        return Err(Reason::TooManyConnections);
    }
    let name = sandbox.decide_unread(destination, now)?;
    if name.is_none() && sandbox.counts.undecided >= MAX_UNDECIDED_PER_SANDBOX {
        return Err(Reason::TooManyUndecided);
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::CONNECTION_BURST;
    use crate::request::{self, Request};
    use crate::table::Table;

    const POLICY: &str = r#"{"id":"a1","address4":"198.18.0.2","generation":1,
        "names":[{"pattern":"a.test","ports":[["tcp",443,443,true]]},{"pattern":"b.test","ports":[["tcp",22,22,true]],"anyProtocol":true}],
        "pins":[{"address":"192.0.2.1","name":"a.test","ttlMs":1000},{"address":"192.0.2.1","name":"b.test","ttlMs":1000},
        {"address":"127.0.0.1","name":"a.test","ttlMs":1000}]}"#;

    fn with_sandbox(test: impl FnOnce(&mut Sandbox, Instant)) {
        let (mut table, now) = (Table::default(), Instant::now());
        let Ok(Request::Set(policy)) = request::parse("policy.set", POLICY) else { panic!("not read") };
        table.set(policy, now).expect("set");
        test(table.at("198.18.0.2".parse().expect("address")).expect("known"), now);
    }

    fn to(destination: &str) -> SocketAddr {
        destination.parse().expect(destination)
    }

    const EMPTY: Crowd = Crowd { open: 0, most: 100 };

    #[test]
    fn where_it_goes_decides_whether_it_is_read() {
        with_sandbox(|sandbox, now| {
            assert_eq!(admit(sandbox, to("192.0.2.1:443"), EMPTY, now), Ok(None));
            let any = admit(sandbox, to("192.0.2.1:22"), EMPTY, now).expect("admitted");
            assert_eq!(any.expect("a name").as_str(), "b.test");
            assert_eq!(admit(sandbox, to("192.0.2.2:443"), EMPTY, now), Err(Reason::AddressNotPinned));
            assert_eq!(admit(sandbox, to("127.0.0.1:443"), EMPTY, now), Err(Reason::AddressNeverReachable));
        });
    }

    #[test]
    fn in_a_crowd_each_has_a_share() {
        with_sandbox(|sandbox, now| {
            sandbox.flows.extend(0..CROWDED_CONNECTIONS as u32);
            let admit =
                |sandbox: &mut Sandbox, open| admit(sandbox, to("192.0.2.1:443"), Crowd { open, most: 1_000 }, now);
            assert_eq!(admit(sandbox, 749), Ok(None));
            assert_eq!(admit(sandbox, 750), Err(Reason::TooManyConnections));
            sandbox.flows.remove(&0);
            assert_eq!(admit(sandbox, 999), Ok(None));
            assert_eq!(admit(sandbox, 1_000), Err(Reason::TooManyConnections));
            sandbox.flows.extend(0..MAX_CONNECTIONS_PER_SANDBOX as u32);
            assert_eq!(admit(sandbox, 100), Err(Reason::TooManyConnections));
        });
    }

    #[test]
    fn connections_in_a_second_are_bounded() {
        with_sandbox(|sandbox, now| {
            for _ in 0..CONNECTION_BURST {
                assert_eq!(admit(sandbox, to("192.0.2.1:443"), EMPTY, now), Ok(None));
            }
            assert_eq!(admit(sandbox, to("192.0.2.1:443"), EMPTY, now), Err(Reason::TooManyConnections));
            let later = now + std::time::Duration::from_secs(1);
            assert_eq!(admit(sandbox, to("192.0.2.1:443"), EMPTY, later), Ok(None));
        });
    }
}
