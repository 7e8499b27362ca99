"""`_drain.c` says what the Python beside it says."""

from __future__ import annotations

import fcntl
import os
import random
import select
import socket
import subprocess
import sys
import termios
from array import array
from contextlib import closing, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from lane_library import SANITIZE, Generated, Lane, LaneLibrary, compare, compiled, lane_of
from wire_examples import chunk, delta, event

from harness.core.extensions import load_extension
from harness.reader import fast_path
from harness.reader.backends import END_OF_FILE, CReader, Sockets, why_not_c
from harness.reader.clock import CLOCK
from harness.reader.fast_path import (
    BEFORE_SIZE,
    REST_SIZE,
    SHAPE_BYTES,
    TRANSITIONS,
    Event,
    FastPath,
    IllegalTransition,
    Owner,
)
from harness.reader.raw_batch import BYTES, EXACT, ROW, TOKEN, Batch
from harness.reader.stamping import NO_STAMP, SocketStamps
from harness.records import codec
from harness.wire.sse import EVENT_STREAM
from harness.wire.token_template import template_of

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(bool(why_not_c()), reason="no C compiler at the installation")

READS = int(os.environ.get("HARNESS_READS", "3000"))  # of the parser; a million by hand


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> LaneLibrary:
    """`_lane.c`, compiled as it is shipped."""
    return LaneLibrary(compiled(tmp_path_factory.mktemp("lane"), "-O2")[0])


def test_arrivals_as_in_python(library: LaneLibrary) -> None:
    """Any sequence of reads: stamps missing, too old or of the future, rounds left out."""
    for seed in range(20):
        rng = random.Random(seed)  # noqa: S311 - a test's dice
        path = FastPath(nullcontext(), 500)
        stamps = SocketStamps(500, 0)
        lane = Lane.from_buffer(path.cells)
        path.mark_request_sent(500)
        now = 0
        for number in range(1, 200):
            before = now
            now += rng.randint(1, 1000)
            if rng.random() < 0.1:
                path.end_response()
                path.mark_request_sent(now - 50)
                stamps.mark_request_sent(now - 50)
            if rng.random() < 0.1:
                path.clamp_bounds(now - 20)
                stamps.clamp_bounds(now - 20)
            if rng.random() < 0.7:
                stamp = rng.choice((NO_STAMP, now - rng.randint(-300, 1500)))
                drained = rng.random() < 0.7
                read = (stamp, now, now + 100, drained, number, before)
                assert library.arrival(lane, *read) == stamps.arrival(*read)


def test_rows_as_in_python(library: LaneLibrary, figure: Callable[[str], None]) -> None:
    """Whatever a read holds, C makes of it what `wire` does; each of the three often enough."""
    seen = compare(library, READS, seed=1)
    assert min(seen.values()) > READS / 20
    figure(f"reads of the parser, C = Python: {seen}")


@pytest.mark.parametrize(
    ("before", "rest"),
    [(-1, 5), (5, -1), (SHAPE_BYTES, 1), (1, SHAPE_BYTES), (2**62, 2**62), (-(2**63), 2**63 - 1)],
)
def test_a_template_beyond_its_memory(library: LaneLibrary, before: int, rest: int) -> None:
    """Sizes that Python would never write are no template to C."""
    data = chunk(ONE)
    lane = lane_of(Generated(Owner.EVENTS, template_of(ONE[6:-2]), b"", data, exact=True))
    token_row = (7, 9, 7, TOKEN + EXACT, 1)
    assert library.rows(lane, data, exact=True) == ([token_row], b"")
    lane[BEFORE_SIZE] = before
    lane[REST_SIZE] = rest
    bytes_row = (7, 9, 7, BYTES + EXACT, len(ONE))
    assert library.rows(lane, data, exact=True) == ([bytes_row], ONE)


def sanitizer_libraries() -> list[str]:
    """Paths of libasan and libubsan, those that the compiler has."""
    paths = []
    for name in ("libasan.so", "libubsan.so"):
        command = ["cc", f"-print-file-name={name}"]
        done = subprocess.run(command, stdout=-1, text=True, check=True)
        path = done.stdout.strip()
        if Path(path).is_absolute():
            paths.append(path)
    return paths


def test_the_sanitizers_find_nothing(tmp_path: Path) -> None:
    """Address and undefined behavior: parser, both extensions, hostile bytes in exact memory."""
    preload = sanitizer_libraries()
    if len(preload) < 2:
        pytest.skip("the compiler has no libasan or libubsan (Debian, Ubuntu: libgcc-dev)")
    environment = os.environ | {
        "LD_PRELOAD": " ".join(preload),
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",
        "PYTHONPATH": str(Path(__file__).parent),
    }
    lane, *extensions = compiled(tmp_path, *SANITIZE)
    script = Path(__file__).with_name("sanitized.py")
    command = [sys.executable, script, lane, *extensions]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "nothing found"


def check_transition(owner: Owner, what: Event) -> None:
    """A path of that owner does with the event what the table says."""
    path = FastPath(nullcontext(), 0)
    path.owner = owner
    to = TRANSITIONS[owner].get(what)
    if to is None:
        with pytest.raises(IllegalTransition, match=f"{what.name} .* {owner.name}"):
            path._process(what)  # noqa: SLF001 - the table's one user
        assert path.owner is owner
    else:
        path._process(what)  # noqa: SLF001
        assert path.owner is to
        assert path.cells[fast_path.OWNER] == max(to, 0)


def test_owners() -> None:
    """What is not in the table raises, and changes nothing; what is there C sees at once."""
    for owner in Owner:
        for what in Event:
            check_transition(owner, what)


@pytest.mark.parametrize(
    ("owner", "illegal"),
    [
        # a second request on a connection that has not answered the first
        (Owner.PYTHON, [Event.REQUEST_SENT]),
        (Owner.LEARNING, [Event.REQUEST_SENT]),
        (Owner.EVENTS, [Event.REQUEST_SENT, Event.TEMPLATE_KNOWN]),
        # no response is under way
        (
            Owner.IDLE,
            [Event.NOT_EVENTS, Event.TEMPLATE_KNOWN, Event.LESSONS_OVER, Event.RESPONSE_ENDED],
        ),
        # its descriptor may be another's
        (Owner.CLOSED, list(Event)),
    ],
)
def test_illegal(owner: Owner, illegal: list[Event]) -> None:
    """Written out once more."""
    assert [event for event in Event if event not in TRANSITIONS[owner]] == illegal


GOOD = SimpleNamespace(between=True, status=200, content_type=EVENT_STREAM)


@pytest.mark.parametrize(
    ("response", "body", "owners"),
    [
        # a template at once, eight lessons, then no more of them
        ({}, b"token", [Owner.LEARNING] * 7 + [Owner.EVENTS] * 2),
        ({}, b"other", [Owner.PYTHON] * 7 + [Owner.EVENTS] * 2),
        # what follows may be anything
        ({"between": False}, b"token", [Owner.PYTHON] * 9),
        ({"status": 500}, b"token", [Owner.PYTHON] * 9),
        ({"content_type": "text/plain"}, b"token", [Owner.PYTHON] * 9),
        ({}, b"half", [Owner.PYTHON] * 9),
    ],
)
def test_who_takes_the_next_read(
    response: dict[str, Any], body: bytes, owners: list[Owner]
) -> None:
    """After each read that Python was handed; and idle when the response has ended."""
    bodies = {b"token": ONE, b"other": event(b"{}"), b"half": ONE[:-1]}
    path = FastPath(nullcontext(), 0)
    path.mark_request_sent(1)
    under_way: Any = SimpleNamespace(**vars(GOOD) | response)
    for owner in owners:
        path.after_read(7, under_way, bodies[body])
        assert path.owner == owner
    assert path.end_response() == (0, -1, -1)
    assert path.owner is Owner.IDLE


def test_a_closed_path_leaves_the_next_connection_alone() -> None:
    """Its descriptor is another's by now: its cells are its own, and nothing may happen to it."""
    with closing(Lanes()) as it:
        old = it.fast_path
        it.reads.dismiss(it)  # type: ignore[arg-type]
        it.poll.unregister(it.fd)
        it.reads.admit(it, CLOCK.now_ns())  # type: ignore[arg-type]
        assert it.fast_path is not old
        with pytest.raises(IllegalTransition):
            old.end_response()
        it.fast_path.mark_request_sent(CLOCK.now_ns())
        assert it.rows(chunk(token(12)), ONE) == [(7, TOKEN, 12)]


def test_layout() -> None:
    """The extensions were compiled with what Python has; other ones are a reason to do without."""
    name = "harness.reader._drain"
    assert load_extension(name, fast_path.LAYOUT) == ""
    assert load_extension("harness.records._arrays", codec.LAYOUT) == ""
    for key, value in fast_path.LAYOUT.items():
        other = fast_path.LAYOUT | {key: (value, value)}
        assert "built from other sources" in load_extension(name, other)


@pytest.mark.parametrize(
    ("content", "why"),
    [(None, "it was not built"), (b"", "it does not load"), (b"\x7fELF" * 9, "it does not load")],
)
def test_an_extension_that_does_not_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, why: str
) -> None:
    """Not there, empty, or built for something else: a reason, not a crash."""
    monkeypatch.syspath_prepend(tmp_path)
    if content is not None:
        (tmp_path / "extension_of_this_test.abi3.so").write_bytes(content)
    assert load_extension("extension_of_this_test", 1)[: len(why)] == why


FORK = """
import os, select
from harness.reader._drain import Drain
poll = select.epoll()
drain = Drain(poll.fileno(), 4096, 0, 0, 1_000_000)
if not os.fork():
    drain.close()
    del drain
    os._exit(7)
print(os.waitstatus_to_exitcode(os.wait()[1]))
drain.close()
"""


def test_it_reserves_little_address_space() -> None:
    """Under `ulimit -v`, or without overcommitment, a table for a million users cannot be had."""
    code = """
import select
from harness.reader.backends import CReader, Sockets
from harness.reader.clock import CLOCK
def mapped_kb():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmSize"))
before = mapped_kb()
reader = CReader(Sockets(select.epoll(), {}, CLOCK, None, None, 65536, stand_in=False))
print(mapped_kb() - before)
reader.close()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 64 << 10  # KiB; it was 1 GiB


def test_a_forked_child_waits_for_no_thread() -> None:
    """It has a copy of the object, and not the thread."""
    command = [sys.executable, "-W", "ignore", "-c", FORK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "7\n"


class Lanes:
    """One lane on a socket pair, and what was left to Python."""

    def __init__(
        self, read_bytes: int = 65_536, *, stand_in: bool = False, tls: object = None
    ) -> None:
        """Let go for stream 7."""
        self.theirs, self.sock = socket.socketpair()
        self.fd = self.sock.fileno()
        self.tls = tls
        self.fast_path: FastPath
        self.left: list[Any] = []
        self.batch = Batch()
        self.poll = select.epoll()
        sockets = Sockets(
            self.poll,
            {self.fd: self},
            CLOCK,
            lambda _, data, *__: self.left.append(data),
            lambda _, why: self.left.append(why),
            read_bytes,
            stand_in,
        )  # type: ignore[dict-item]
        self.reads = CReader(sockets)
        self.reads.admit(self, CLOCK.now_ns())  # type: ignore[arg-type]
        self.fast_path.mark_request_sent(CLOCK.now_ns())

    def let_go(self, taught: bytes = b"") -> None:
        """For stream 7, after one event to learn from, or after eight that teach nothing."""
        for _ in range(1 if taught else 8):
            self.fast_path.after_read(7, GOOD, taught or event(b"{}"))  # type: ignore[arg-type]

    def close(self) -> None:
        """All three descriptors."""
        self.reads.close()
        for descriptor in (self.poll, self.theirs, self.sock):
            descriptor.close()

    def rows(self, data: bytes, taught: bytes = b"") -> list[tuple[int, int, int]]:
        """(stream, kind without exactness, value) of each row that one read makes."""
        self.let_go(taught)
        self.theirs.sendall(data)
        self.round()
        return self.got()

    def round(self) -> None:
        """Read what there is."""
        self.reads.read(self.batch, True)
        self.reads.over(believe=True)

    def wait_for_the_thread(self) -> None:
        """Until it has read all that there was."""
        left = array("i", [1])
        while left[0]:
            fcntl.ioctl(self.sock, termios.FIONREAD, left)
        # The kernel may have nothing left while its recvmsg still goes on, and would take along
        # what is sent meanwhile. Who reads holds the lock.
        with self.reads._drain:  # noqa: SLF001
            pass

    def got(self) -> list[tuple[int, int, int]]:
        """(stream, kind without exactness, value) of each row."""
        rows = ROW.iter_unpack(self.batch.rows)
        return [(stream, kind & ~EXACT, value) for stream, _, _, kind, value in rows]


def token(n: int, text: str = "x", **more: Any) -> bytes:
    """An event with the running count n."""
    return event(delta(usage=n, content=text) | more)


ONE = token(1)
OTHER = token(9, other=True)
ERROR = event({"error": {"message": "out of room"}})
MANY = b"".join(chunk(token(n)) for n in range(2, 42))


@pytest.mark.parametrize(
    ("data", "taught", "rows", "blob", "left"),
    [
        # like the one before: its count is all that the decoder needs
        (chunk(token(12)), ONE, [(TOKEN, 12)], b"", []),
        (chunk(token(12, "\u20ac \\n")), ONE, [(TOKEN, 12)], b"", []),
        (MANY, ONE, [(TOKEN, n) for n in range(2, 42)], b"", []),
        (chunk(event(delta(content="y"))), event(delta(content="x")), [(TOKEN, -1)], b"", []),
        # unlike it: Python may learn from it, while it still learns
        (chunk(OTHER), ONE, [], b"", [chunk(OTHER)]),
        (chunk(token(12)) + chunk(OTHER), ONE, [], b"", [chunk(token(12)) + chunk(OTHER)]),
        (chunk(token(3, "")), ONE, [], b"", [chunk(token(3, ""))]),
        (chunk(token(3, 'a"')), ONE, [], b"", [chunk(token(3, 'a"'))]),
        # nothing was learnt, nothing will be: the decoder gets the bytes, without the chunks
        (chunk(ONE), b"", [(BYTES, len(ONE))], ONE, []),
        (chunk(ONE) + chunk(OTHER), b"", [(BYTES, len(ONE + OTHER))], ONE + OTHER, []),
        # what the user must hear of at once, and what is not whole
        (chunk(event(b"[DONE]")), b"", [], b"", [chunk(event(b"[DONE]"))]),
        (chunk(ONE) + chunk(ERROR), b"", [], b"", [chunk(ONE) + chunk(ERROR)]),
        (chunk(ONE)[:-1], b"", [], b"", [chunk(ONE)[:-1]]),
        (chunk(ONE) + b"0\r\n\r\n", b"", [], b"", [chunk(ONE) + b"0\r\n\r\n"]),
        (chunk(ONE) + b"5", b"", [], b"", [chunk(ONE) + b"5"]),
        (chunk(ONE[:20]), b"", [], b"", [chunk(ONE[:20])]),
        (chunk(b"event: x\n" + ONE), b"", [], b"", [chunk(b"event: x\n" + ONE)]),
        (b"ffffffffff\r\n" + ONE, b"", [], b"", [b"ffffffffff\r\n" + ONE]),
        (
            b"%x;a=b\r\n%b\r\n" % (len(ONE), ONE),
            b"",
            [],
            b"",
            [b"%x;a=b\r\n%b\r\n" % (len(ONE), ONE)],
        ),
    ],
)
def test_what_a_read_becomes(
    data: bytes, taught: bytes, rows: list[tuple[int, int]], blob: bytes, left: list[bytes]
) -> None:
    """Rows for the decoder, their bytes, and what Python is to read."""
    with closing(Lanes()) as it:
        got = it.rows(data, taught)
        assert got == [(7, *row) for row in rows]
        assert bytes(it.batch.blob) == blob
        assert it.left == left
        handed = sum(map(len, left))
        assert it.fast_path.progress()[0] == len(data) - handed


@pytest.mark.parametrize(
    ("taught", "plain", "exact", "rows", "blob"),
    [
        # as of a socket that is not sealed: only the last event is as exact as the read
        (ONE, chunk(token(2)), True, [(7, 9, 7, TOKEN + EXACT, 2)], b""),
        (ONE, chunk(token(2)), False, [(7, 9, 7, TOKEN, 2)], b""),
        (
            ONE,
            chunk(token(2)) + chunk(token(3)),
            True,
            [(7, 9, 7, TOKEN, 2), (7, 9, 7, TOKEN + EXACT, 3)],
            b"",
        ),
        (b"", chunk(OTHER), True, [(7, 9, 7, BYTES + EXACT, len(OTHER))], OTHER),
        # Python has to look at it
        (ONE, chunk(OTHER), True, [], b""),
        (ONE, chunk(token(2))[:-1], True, [], b""),
        (ONE, chunk(event(b"[DONE]")), True, [], b""),
    ],
)
def test_what_a_decrypted_read_becomes(
    taught: bytes, plain: bytes, exact: bool, rows: list[tuple[int, ...]], blob: bytes
) -> None:
    """Over TLS each read is handed over, whatever its bytes look like, and is taken back plain."""
    with closing(Lanes(tls=object())) as it:
        assert it.rows(chunk(ONE), taught) == []
        assert it.left == [chunk(ONE)]
        is_taken = it.reads.take(it, it.batch, plain, 9, 7, exact=exact)  # type: ignore[arg-type]
        assert is_taken == bool(rows)
        assert list(ROW.iter_unpack(it.batch.rows)) == rows
        assert bytes(it.batch.blob) == blob
        assert it.fast_path.progress()[0] == (len(plain) if rows else 0)
        it.fast_path.end_response()
        assert not it.reads.take(it, it.batch, chunk(ONE), 9, 7, exact=True)  # type: ignore[arg-type]


def test_a_large_read() -> None:
    """Its events are moved together."""
    data = b"".join(chunk(OTHER) for _ in range(400))
    with closing(Lanes(read_bytes=250_000)) as it:
        it.rows(data)
        assert bytes(it.batch.blob) == OTHER * 400
        assert it.left == []


def test_ends() -> None:
    """A closed connection has its words."""
    with closing(Lanes()) as it:
        it.theirs.close()
        it.round()
        assert it.left == [END_OF_FILE]


def test_the_thread_keeps_the_order() -> None:
    """Read while nobody asks: a token, then what Python must see, and from there on all of it."""
    with closing(Lanes(stand_in=True)) as it:
        it.round()
        it.let_go(ONE)
        for data in (chunk(token(2)), chunk(token(3)), chunk(OTHER), chunk(token(4))):
            it.theirs.sendall(data)
            it.wait_for_the_thread()
        assert it.poll.poll(0) != []  # the loop would wake up
        it.round()
        assert it.got() == [(7, TOKEN, 2), (7, TOKEN, 3)]
        assert it.left == [chunk(OTHER), chunk(token(4))]
        assert it.poll.poll(0) == []


def test_a_connection_that_is_gone() -> None:
    """What the thread has read of it is dropped: its descriptor may be another's by now."""
    with closing(Lanes(stand_in=True)) as it:
        it.round()
        it.theirs.sendall(b"HTTP/1.1 200 OK")
        it.wait_for_the_thread()
        it.reads.dismiss(it)
        it.round()
        assert it.left == []
