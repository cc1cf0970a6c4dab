//! A number of one's own among the servers of a host: who has the socket of its name has the number, as long as it lives.

use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};

use crate::block::SERVERS;
use crate::sys::{Errno, Result};

/// Takes a number, if nobody has it. Names of abstract sockets are of a network namespace, as are devices and tables.
pub fn try_take(number: u32) -> Result<Option<OwnedFd>> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let name = format!("dsec-network-{number}");
    match bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?) {
        Ok(()) => Ok(Some(socket)),
        Err(Errno::ADDRINUSE) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Takes the number that is wanted, or the first free one that `is_fit`.
pub fn take(wanted: Option<u32>, mut is_fit: impl FnMut(u32) -> bool) -> Result<Option<(u32, OwnedFd)>> {
    if let Some(number) = wanted {
        return Ok(try_take(number)?.map(|lock| (number, lock)));
    }
    for number in 0..SERVERS {
        if let Some(lock) = try_take(number)?
            && is_fit(number)
        {
            return Ok(Some((number, lock)));
        }
    }
    Ok(None)
}
