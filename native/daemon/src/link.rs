//! The server's end of a connection: bytes of its socket in and out of the wire protocol, without waiting.

use std::os::fd::AsFd;

use rustix::net::{RecvFlags, SendFlags};
use serde_json::Value;
use wire::server::Server;

use crate::Errno;
use crate::failure::Failure;

/// The connection is over: closed, broken, or the client broke the protocol.
#[derive(Debug)]
pub struct Over;

/// Takes what has come in, as far as the server wants it.
pub fn receive(socket: impl AsFd, server: &mut Server, buffer: &mut [u8]) -> Result<(), Over> {
    while server.wants_input() {
        match rustix::net::recv(&socket, &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Err(Over),
            Ok((_, length)) => server.receive(&buffer[..length]).map_err(|_| Over)?,
            Err(Errno::AGAIN) => break,
            Err(Errno::INTR) => {}
            Err(_) => return Err(Over),
        }
    }
    Ok(())
}

/// Writes what can be written now.
pub fn send(socket: impl AsFd, server: &mut Server) -> Result<(), Over> {
    while !server.output().is_empty() {
        match rustix::net::send(&socket, server.output(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(length) => server.advance_output(length),
            Err(Errno::AGAIN) => break,
            Err(Errno::INTR) => {}
            Err(_) => return Err(Over),
        }
    }
    Ok(())
}

/// Ends a stream with what its request came to.
pub fn answer(server: &mut Server, stream: u32, answer: Result<Value, Failure>) {
    match answer {
        Ok(result) => server.close_ok(stream, &result),
        Err(failure) => server.close_err(stream, failure.code, &failure.message, &failure.details),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use serde_json::json;
    use wire::client::Client;
    use wire::server::{Event, Limits, READ_SIZE};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("a pair of sockets")
    }

    fn server() -> Server {
        Server::new("test", Limits::default())
    }

    #[test]
    fn a_request_comes_in_and_its_answer_goes_out_without_waiting() {
        let (ours, theirs) = pair();
        let (mut server, mut client) = (server(), Client::new("test"));
        let mut buffer = vec![0; READ_SIZE];
        assert!(receive(&ours, &mut server, &mut buffer).is_ok(), "nothing has come yet");
        let stream = client.open("ask", &json!({})).expect("a stream");
        rustix::net::send(&theirs, client.output(), SendFlags::empty()).expect("room for a request");
        assert!(receive(&ours, &mut server, &mut buffer).is_ok());
        let opened = std::iter::from_fn(|| server.next_event()).find_map(|event| match event {
            Event::Open { stream, .. } => Some(stream),
            _ => None,
        });
        assert_eq!(opened, Some(stream));
        answer(&mut server, stream, Err(Failure::invalid("a", "is wrong")));
        assert!(send(&ours, &mut server).is_ok());
        assert!(server.output().is_empty());
        let (_, length) = rustix::net::recv(&theirs, &mut *buffer, RecvFlags::DONTWAIT).expect("an answer");
        assert!(String::from_utf8_lossy(&buffer[..length]).contains("invalid_argument"));
    }

    #[test]
    fn it_is_over_when_the_client_goes_or_breaks_the_protocol() {
        let mut buffer = vec![0; READ_SIZE];
        let (ours, theirs) = pair();
        rustix::net::send(&theirs, &[0xff; 64], SendFlags::empty()).expect("room for a few bytes");
        assert!(receive(&ours, &mut server(), &mut buffer).is_err());
        let (ours, theirs) = pair();
        drop(theirs);
        let mut server = server();
        assert!(receive(&ours, &mut server, &mut buffer).is_err());
        assert!(send(&ours, &mut server).is_err(), "what it says first reaches nobody");
    }

    #[test]
    fn what_nobody_reads_waits() {
        let (ours, theirs) = pair();
        rustix::net::sockopt::set_socket_send_buffer_size(&ours, 4_096).expect("a small buffer");
        let mut server = server();
        while rustix::net::send(&ours, &[0; 4_096], SendFlags::DONTWAIT).is_ok() {}
        let waiting = server.output().len();
        assert!(waiting > 0 && send(&ours, &mut server).is_ok());
        assert_eq!(server.output().len(), waiting);
        drop(theirs);
    }
}
