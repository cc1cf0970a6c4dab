"""What the suites of the network do inside a sandbox: one attempt, its outcome on stdout as JSON. `probe.py KIND ARGUMENT...`"""
import errno
import json
import os
import socket
import ssl
import struct
import subprocess
import sys
import time

PATIENCE = 3


def outcome(work):
    try:
        return {"ok": work()}
    except socket.timeout:
        return {"error": "timeout"}
    except socket.gaierror as error:
        return {"error": "name", "code": error.errno}
    except ssl.SSLError as error:
        return {"error": "tls", "what": str(error)}
    except OSError as error:
        return {"error": errno.errorcode.get(error.errno, str(error))}
    except Exception as error:
        return {"error": type(error).__name__}


def connect(host, port, patience=PATIENCE):
    return socket.create_connection((host, int(port)), patience)


def secured(host, port, name):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(connect(host, port), server_hostname=name or None)


def exchange(stream, host, path="/", body=b"", keep=False):
    method = "POST" if body else "GET"
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\nConnection: {'keep-alive' if keep else 'close'}\r\n\r\n"
    stream.sendall(head.encode() + body)
    received = b""
    while b"\r\n\r\n" not in received:
        chunk = stream.recv(65536)
        if not chunk:
            raise ConnectionResetError(errno.ECONNRESET, "closed")
        received += chunk
    head, _, rest = received.partition(b"\r\n\r\n")
    length = next((int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), None)
    chunked = b"transfer-encoding: chunked" in head.lower()
    while (b"\r\n0\r\n\r\n" not in rest and b"0\r\n\r\n" != rest[-5:]) if chunked else len(rest) < (length or 0):
        chunk = stream.recv(65536)
        if not chunk:
            raise ConnectionResetError(errno.ECONNRESET, "closed")
        rest += chunk
    text = rest.decode()
    return json.loads(text[text.index("{"):text.rindex("}") + 1])


def tcp(host, port):
    with connect(host, port):
        return "open"


def echo(host, port):
    with connect(host, port) as stream:
        stream.sendall(b"hello")
        return stream.recv(16).decode()


def greeted(host, port):
    """A server that speaks first, as SSH's does."""
    stream = connect(host, port)
    greeting = stream.recv(100)
    stream.sendall(b"SSH-2.0-probe\r\n")
    return {"greeting": greeting.decode().strip(), "answer": stream.recv(100).decode().strip()}


def tls(host, port, name, http_host=None, size=0):
    with secured(host, port, name) as stream:
        stream.settimeout(30 if int(size) else PATIENCE)
        return exchange(stream, http_host or name or host, body=b"x" * int(size))


def http(host, port, http_host, size=0):
    with connect(host, port) as stream:
        stream.settimeout(30 if int(size) else PATIENCE)
        return exchange(stream, http_host, body=b"x" * int(size))


def udp(host, port):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as stream:
        stream.settimeout(1)
        stream.connect((host, int(port)))
        stream.send(b"hello")
        return stream.recv(64).decode()


def resolve(name):
    return sorted({entry[4][0] for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)})


def getent(name):
    took = []
    for _ in range(5):
        begun = time.monotonic()
        done = subprocess.run(["getent", "hosts", name], capture_output=True, check=False)
        took.append((time.monotonic() - begun) * 1000)
    return {"code": done.returncode, "bestMs": min(took)}


def dns(name, kind, server, over="udp"):
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"
    query = struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + labels + struct.pack(">HH", int(kind), 1)
    if over == "tcp":
        with connect(server, 53) as stream:
            stream.sendall(struct.pack(">H", len(query)) + query)
            answer = stream.recv(4096)[2:]
    else:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stream:
            stream.settimeout(2)
            stream.connect((server, 53))
            stream.send(query)
            answer = stream.recv(4096)
    return {"code": answer[3] & 15, "answers": struct.unpack(">H", answer[6:8])[0]}


def flow(kind, address, port, name):
    """Requests on one connection until it breaks: when the last was answered, and why it ended."""
    stream = secured(address, port, name) if kind == "tls" else connect(address, port)
    stream.settimeout(20)
    last = None
    while True:
        try:
            if kind == "echo":
                stream.sendall(b"hello")
                if not stream.recv(16):
                    raise ConnectionResetError(errno.ECONNRESET, "closed")
            else:
                exchange(stream, name, keep=True)
        except Exception as error:
            return {"lastMs": last, "why": type(error).__name__}
        if last is None:
            print(json.dumps({"begun": True}), flush=True)
        last = time.time() * 1000
        if os.path.exists("/tmp/end-" + kind):
            return {"lastMs": last, "why": "told"}
        time.sleep(0.005)


def many(*attempts):
    return [outcome(lambda words=attempt.split(): KINDS[words[0]](*words[1:])) for attempt in attempts]


KINDS = {
    "tcp": tcp, "echo": echo, "greeted": greeted, "tls": tls, "http": http, "udp": udp, "resolve": resolve, "getent": getent, "dns": dns, "flow": flow, "many": many,
}
print(json.dumps(outcome(lambda: KINDS[sys.argv[1]](*sys.argv[2:]))), flush=True)
