"""A server that sends what each request tells it to: `python scripted_wire.py [CERTIFICATE]`.

A request's body is JSON: {"id": 3, "script": [["send", "bytes as latin-1"], ["sleep", 20],
["repeat", "bytes", times], ["close"], ["reset"], ["hang"]], "again": [...]}; `again` is played
when the same id comes a second time. It notes the clock (CLOCK_REALTIME, ns) just before and just
after each send; GET /log returns {"sends": {id: [[before, after], ...]}, "connections": n,
"requests": n}. Prints its port.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
import sys
import threading
import time
from typing import Any

LOG: dict[str, Any] = {"sends": {}, "connections": 0, "requests": 0}


def read_request(reader: Any) -> tuple[str, dict[str, Any]] | None:
    """(path, body); None at the end."""
    words = reader.readline().split()
    if len(words) < 2:
        return None
    length = 0
    while line := reader.readline().strip():
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return words[1].decode(), json.loads(reader.read(length) or b"{}")


def play(sock: socket.socket, script: list[list[Any]], log: list[list[int]]) -> bool:
    """False when the connection is over."""
    for action, *values in script:
        if action == "send":
            data = values[0].encode("latin-1")
            before = time.time_ns()
            sock.sendall(data)
            log.append([before, time.time_ns()])
        elif action == "repeat":
            data, times = values[0].encode("latin-1"), values[1]
            for _ in range(times):
                sock.sendall(data)
        elif action == "sleep":
            time.sleep(values[0] / 1000)
        elif action == "hang":
            sock.recv(1)
            return False
        else:
            if action == "reset":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return False
    return True


def serve(sock: socket.socket) -> None:
    """One connection."""
    LOG["connections"] += 1
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # BBR, where it is the default, paces: segments would leave after `send` returned
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    with contextlib.suppress(OSError, ssl.SSLError), sock:
        if len(sys.argv) > 1:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(sys.argv[1])
            sock = context.wrap_socket(sock, server_side=True)
        reader = sock.makefile("rb")
        while request := read_request(reader):
            path, body = request
            if path == "/log":
                data = json.dumps(LOG).encode()
                sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
                continue
            LOG["requests"] += 1
            again = str(body["id"]) in LOG["sends"]
            log = LOG["sends"].setdefault(str(body["id"]), [])
            if not play(sock, body["again"] if again else body["script"], log):
                reader.close()
                break
        sock.close()


def main() -> None:
    """Serve until killed."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    while True:
        sock, _ = listener.accept()
        threading.Thread(target=serve, args=(sock,), daemon=True).start()


if __name__ == "__main__":
    main()
