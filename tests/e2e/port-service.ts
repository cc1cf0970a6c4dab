import type { Sandbox } from '@dsec/libdsec';
import { waitFor } from './wait-for.ts';

/**
 * A service in Python, on 127.0.0.1 only: `/ws` echoes WebSocket messages, `/events` sends an event and then waits for `/go`, `/big` sends
 * 100 MB, `/garbage` is no HTTP, everything else tells what it was asked.
 */
const SOURCE = `
import base64, hashlib, os, socket, struct, sys, threading, time
def exactly(file, count):
    data = file.read(count)
    if len(data) < count: raise EOFError
    return data
def serve(connection):
    file = connection.makefile('rb')
    method, path, _ = file.readline().decode().split(' ', 2)
    headers = {}
    while True:
        line = file.readline().decode().strip()
        if line == '': break
        name, value = line.split(':', 1)
        headers[name.lower()] = value.strip()
    body = file.read(int(headers.get('content-length', '0')))
    if path == '/ws':
        accept = base64.b64encode(hashlib.sha1((headers['sec-websocket-key'] + '258EAFA5-E914-47DA-95CA-C5AB0DC85B11').encode()).digest()).decode()
        connection.sendall(('HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\nSec-WebSocket-Accept: ' + accept + '\\r\\n\\r\\n').encode())
        while True:
            first, second = exactly(file, 2)
            length = second & 127
            if length == 126: length = struct.unpack('>H', exactly(file, 2))[0]
            elif length == 127: length = struct.unpack('>Q', exactly(file, 8))[0]
            mask = int.from_bytes(exactly(file, 4) * (length // 4 + 1), 'big') >> (8 * (4 - length % 4)) if length else exactly(file, 4) and 0
            data = (int.from_bytes(exactly(file, length), 'big') ^ mask).to_bytes(length, 'big') if length else b''
            size = bytes([length]) if length < 126 else b'\\x7e' + struct.pack('>H', length) if length < 65536 else b'\\x7f' + struct.pack('>Q', length)
            connection.sendall(bytes([first]) + size + data)
            if first & 15 == 8: return
    if path == '/events':
        connection.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Type: text/event-stream\\r\\nConnection: close\\r\\n\\r\\ndata: one\\n\\n')
        while not os.path.exists('/tmp/go'): time.sleep(0.05)
        connection.sendall(b'data: two\\n\\n')
    elif path == '/big':
        connection.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: 100000000\\r\\nConnection: close\\r\\n\\r\\n')
        for _ in range(1000): connection.sendall(b'x' * 100000)
    elif path == '/garbage':
        connection.sendall(b'\\x00\\x01 this is no HTTP\\r\\n\\r\\n')
    else:
        answer = (method + ' ' + path + ' ' + headers.get('host', '') + ' ' + headers.get('authorization', '-') + ' ').encode() + body
        connection.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\nConnection: close\\r\\n\\r\\n' % len(answer) + answer)
def guarded(connection):
    with connection:
        try: serve(connection)
        except (EOFError, OSError, ValueError, KeyError): pass
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(('127.0.0.1', int(sys.argv[1])))
listener.listen(64)
while True:
    connection, _ = listener.accept()
    threading.Thread(target=guarded, args=(connection,), daemon=True).start()
`;

/** Starts the service as a background process, which is no activity of the sandbox. */
export async function startPortService(sandbox: Sandbox, port: number): Promise<void> {
  await sandbox.files.write('/root/service.py', SOURCE);
  await sandbox.runShell(`setsid python3 /root/service.py ${port} >/tmp/service.log 2>&1 </dev/null &`);
  await waitFor('the service to listen', async () => (await sandbox.ports.fetch(port)).status === 200);
}
