"""The image's health check: does what the container runs do its work? 0: yes.

It knows from the words of process 1, with or without an init before it:

    engine, exporter     its health page answers
    locust --worker      the connection to the master stands
    locust               the web UI answers
    anything else        it runs, or there would be no container

It takes CPU time from a measurement: that is why it imports no HTTP client.
"""

import os
import socket
import sys
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Final

ENTRYPOINT: Final = "/usr/local/bin/entrypoint"
PROGRAMS: Final = ("locust", "vllm-harness")
ESTABLISHED: Final = "01"  # in /proc/net/tcp
PAGES: Final = {"engine": (8000, "/health"), "exporter": (9400, "/healthz")}  # port, path
NO_PAGE: Final = (0, "")
PATIENCE_S: Final = 4
OK: Final = (200, 302, 401)  # a login is no failure


def value(words: Sequence[str], options: Sequence[str], otherwise: int) -> int:
    """The port that the last of these options names."""
    found = otherwise
    for word, after in zip_longest(words, words[1:]):
        name, _, joined = word.partition("=")
        if name in options:
            found = int(joined or after)
    return found


def answers(port: int, path: str) -> bool:
    """Whether a page of this container is served."""
    try:
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as sock:
            sock.sendall(f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n".encode())
            status = sock.recv(64).split()[1:2]
    except OSError:
        return False
    return bool(status) and int(status[0]) in OK


def is_connected_to(port: int) -> bool:
    """Whether a connection to this port of another host stands."""
    for name in ("tcp", "tcp6"):
        for line in Path("/proc/net", name).read_text().splitlines()[1:]:
            remote, state = line.split()[2:4]
            if state == ESTABLISHED and int(remote.rpartition(":")[2], 16) == port:
                return True
    return False


def running(words: list[str]) -> tuple[str, list[str]]:
    """The program of a command line, and its arguments."""
    for at, word in enumerate(words, 1):
        name = Path(word).name
        if name in PROGRAMS:
            return name, words[at:]
    # An init before the entrypoint shows what that was given: see there what it makes of it.
    given = words[words.index(ENTRYPOINT) + 1 :] if ENTRYPOINT in words else []
    is_locust = bool(given) and given[0].startswith("-")
    return PROGRAMS[not is_locust], given


def is_healthy(words: list[str]) -> bool:
    """`words`: the command line of process 1."""
    program, arguments = running(words)
    if program == "vllm-harness":
        command = arguments[0] if arguments else ""
        port, path = PAGES.get(command, NO_PAGE)
        return not port or answers(value(arguments, ["--port"], port), path)
    if "--worker" in arguments:
        port = int(os.environ.get("LOCUST_MASTER_NODE_PORT", "5557"))
        return is_connected_to(value(arguments, ["--master-port"], port))
    if "--headless" in arguments:
        return True
    port = int(os.environ.get("LOCUST_WEB_PORT", "8089"))
    return answers(value(arguments, ["--web-port", "-P"], port), "/")


if __name__ == "__main__":
    process_1 = Path("/proc/1/cmdline").read_text().rstrip("\0").split("\0")
    sys.exit(not is_healthy(process_1))
