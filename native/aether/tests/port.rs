//! Connections to services in the sandbox: N13 and the two directions.

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};

use serde_json::{Value, json};
use support::Sandbox;

#[test]
fn n13_a_service_on_loopback_is_reached_over_both_versions_and_a_closed_port_is_said() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    for (address, host) in [
        ("127.0.0.1:0", Value::Null),
        ("[::1]:0", Value::Null),
        ("127.0.0.1:0", json!("127.0.0.1")),
        ("[::1]:0", json!("::1")),
    ] {
        let Ok(listener) = TcpListener::bind(address) else { continue };
        let port = listener.local_addr().expect("address").port();
        let server = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().expect("accept");
            // Half-close: it answers after the end of the request.
            let mut request = Vec::new();
            socket.read_to_end(&mut request).expect("read");
            socket.write_all(&request).expect("write");
            socket.write_all(b"!").expect("write");
        });
        let mut params = json!({ "port": port });
        if !host.is_null() {
            params["host"] = host;
        }
        let stream = conn.open("port.connect", params);
        let request: Vec<u8> = (0..1_000_000u32).map(|i| i as u8).collect();
        conn.send(stream, &request);
        conn.end(stream);
        let heard = conn.wait(stream);
        assert_eq!(heard.ok(), &json!({}));
        assert!(heard.ended && heard.bytes(0).len() == 1_000_001 && heard.bytes(0).starts_with(&request));
        server.join().expect("server");
        let error = conn.call("port.connect", json!({ "port": port })).expect_err("closed");
        assert_eq!((error.0.as_str(), &error.1["port"]), ("port_closed", &json!(port)));
    }
    for params in
        [json!({ "port": 0 }), json!({ "port": 70_000 }), json!({ "port": 80, "host": "10.0.0.1" }), json!({})]
    {
        assert_eq!(conn.code("port.connect", params), "invalid_argument");
    }
}

#[test]
fn the_service_may_end_first_a_slow_client_holds_it_back_and_a_broken_one_is_told() {
    let sandbox = Sandbox::start();
    let mut conn = sandbox.connect();
    let listener = TcpListener::bind("127.0.0.1:0").expect("listener");
    let port = listener.local_addr().expect("address").port();
    let stream = conn.open("port.connect", json!({ "port": port }));
    let (mut socket, _) = listener.accept().expect("accept");
    socket.write_all(b"bye").expect("write");
    socket.shutdown(Shutdown::Write).expect("shutdown");
    conn.until("the service's end", |conn| conn.streams[&stream].ended);
    // The other direction is still open.
    conn.send(stream, b"late");
    conn.end(stream);
    let mut late = String::new();
    socket.read_to_string(&mut late).expect("read");
    assert_eq!((late.as_str(), conn.wait(stream).text(0).as_str()), ("late", "bye"));

    conn.hold = true;
    let slow = conn.open("port.connect", json!({ "port": port }));
    let (socket, _) = listener.accept().expect("accept");
    let writer = std::thread::spawn(move || {
        let mut socket = socket;
        let _ = socket.write_all(&vec![9; 8 << 20]);
        let _ = socket.shutdown(Shutdown::Write);
        let mut rest = Vec::new();
        let _ = socket.read_to_end(&mut rest);
    });
    conn.until("a window came", |conn| conn.streams[&slow].bytes(0).len() >= 200_000);
    // Nobody else is held up.
    let mut other = sandbox.connect();
    assert_eq!(other.run("echo hi").stdout(), "hi\n");
    assert!(conn.streams[&slow].bytes(0).len() < 1 << 20);
    conn.release();
    conn.end(slow);
    assert_eq!(conn.wait(slow).bytes(0).len(), 8 << 20);
    writer.join().expect("writer");

    let broken = conn.open("port.connect", json!({ "port": port }));
    let (socket, _) = listener.accept().expect("accept");
    conn.send(broken, b"unread");
    // Closing with unread bytes resets.
    let mut peeked = [0; 1];
    socket.peek(&mut peeked).expect("peek");
    drop(socket);
    assert_eq!(conn.wait(broken).code(), "port_closed");
    // A reset by the client closes the socket.
    let gone = conn.open("port.connect", json!({ "port": port }));
    let (mut socket, _) = listener.accept().expect("accept");
    conn.reset(gone);
    assert_eq!(socket.read(&mut [0; 1]).expect("end"), 0);
}
