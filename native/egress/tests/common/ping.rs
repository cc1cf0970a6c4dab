//! Echo requests.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, recv, sendto, socket_with, sockopt,
};

use super::packet::checksum;

const IDENTITY: [u8; 2] = [0x64, 0x73];
const WAIT: Duration = Duration::from_millis(700);

/// Whether an address answers one, in the network of the calling thread.
pub fn answers(to: IpAddr) -> Result<bool, Errno> {
    let (family, protocol, request, reply, header) = match to {
        IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP, 8, 0, 20),
        IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6, 128, 129, 0),
    };
    let socket = socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(protocol))?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(Duration::from_millis(50)))?;
    let mut message = vec![request, 0, 0, 0, IDENTITY[0], IDENTITY[1], 0, 1, b'x', b'y'];
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    match sendto(&socket, &message, SendFlags::empty(), &SocketAddr::new(to, 0)) {
        Ok(_) => {}
        // The kernel knows no way, or an answer to an earlier one has come.
        Err(Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::ACCESS | Errno::CONNREFUSED) => return Ok(false),
        Err(errno) => return Err(errno),
    }
    let until = Instant::now() + WAIT;
    let mut buffer = [0; 256];
    while Instant::now() < until {
        if let Ok((_, length)) = recv(&socket, &mut buffer, RecvFlags::empty())
            && let Some(answer) = buffer.get(header..length)
            && answer.first() == Some(&reply)
            && answer.get(4..6) == Some(&IDENTITY)
        {
            return Ok(true);
        }
    }
    Ok(false)
}
