"""`_lane.c` alone, loaded with ctypes, against the Python that says the same, on generated reads.

By hand, a million reads: `python tests/lane_library.py 1000000`.
"""

from __future__ import annotations

import ctypes
import random
import re
import subprocess
import sys
import sysconfig
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson
from wire_examples import chunk, delta, event

from harness.reader.fast_path import (
    BEFORE_SIZE,
    COUNTED,
    LANE_CELLS,
    OWNER,
    REST_SIZE,
    SHAPE,
    SHAPE_BYTES,
    STREAM,
    Owner,
)
from harness.reader.raw_batch import BYTES, EXACT, TOKEN
from harness.wire.openai import NotACompletion, read_event
from harness.wire.sse import ABORT, CHOICES_KEY, DATA, DELTA_KEY, DONE, ERROR_KEY, EVENT_END
from harness.wire.token_template import NO_MATCH, TokenTemplate, template_of

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCES: Final = Path(__file__).parents[1] / "harness"
TARGETS: Final = {
    "lane.so": ["reader/_lane.c"],
    "_drain.abi3.so": ["reader/_drain.c", "reader/_lane.c"],
    "_arrays.abi3.so": ["records/_arrays.c"],
}
SANITIZE: Final = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
COUNT: Final = re.compile(rb'"completion_tokens": *([0-9]*)')
MAX_DIGITS: Final = 15  # as in `_lane.h`
SHORTEST: Final = len(DATA + EVENT_END)

Lane = ctypes.c_int64 * LANE_CELLS


class PollRound(ctypes.Structure):
    """As in `_lane.h`."""

    _fields_ = [
        ("number", ctypes.c_int64),
        ("polled_ns", ctypes.c_int64),
        ("before_ns", ctypes.c_int64),
        ("offset_ns", ctypes.c_int64),
        ("anchor_ns", ctypes.c_int64),
        ("trust_stamps", ctypes.c_int),
        ("read_bytes", ctypes.c_size_t),
    ]


class SocketRead(ctypes.Structure):
    """As in `_lane.h`."""

    _fields_ = [
        ("fd", ctypes.c_int),
        ("code", ctypes.c_int),
        ("handed", ctypes.c_int),
        ("stamped", ctypes.c_int),
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_ssize_t),
        ("at_ns", ctypes.c_int64),
        ("bound_ns", ctypes.c_int64),
        ("exact", ctypes.c_int),
    ]


def compiled(folder: Path, *flags: str) -> list[Path]:
    """`_lane.c` alone, the reader's extension and the codec's, side by side."""
    include = f"-I{sysconfig.get_path('include')}"
    command = ["cc", "-g", "-shared", "-fPIC", "-pthread", include, *flags]
    started = []
    for name, sources in TARGETS.items():
        files = [str(SOURCES / source) for source in sources]
        started.append(subprocess.Popen([*command, *files, "-o", str(folder / name)]))
    assert [process.wait() for process in started] == [0] * len(started)
    return [folder / name for name in TARGETS]


class LaneLibrary:
    """Its functions."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.lane_rows.restype = ctypes.c_size_t

    def arrival(
        self,
        lane: ctypes.Array[ctypes.c_int64],
        stamp_ns: int,
        polled_ns: int,
        read_ns: int,
        drained: bool,
        number: int,
        before_ns: int,
    ) -> tuple[int, int, bool]:
        """(at_ns, bound_ns, exact) of one read."""
        when = PollRound(number=number, polled_ns=polled_ns, before_ns=before_ns)
        out = SocketRead()
        self._library.lane_arrival(
            lane,
            ctypes.byref(when),
            ctypes.c_int64(stamp_ns),
            int(drained),
            ctypes.c_int64(read_ns),
            ctypes.byref(out),
        )
        return out.at_ns, out.bound_ns, bool(out.exact)

    def rows(
        self, lane: ctypes.Array[ctypes.c_int64], data: bytes, exact: bool
    ) -> tuple[list[tuple[int, ...]], bytes]:
        """Rows of one read, and their bytes; both are held in exactly as much memory as allowed."""
        memory = (ctypes.c_char * len(data)).from_buffer_copy(data)
        most_rows = len(data) // 13 + 1
        rows = (ctypes.c_int64 * (5 * most_rows))()
        address = ctypes.addressof(memory)
        read = SocketRead(data=address, size=len(data), at_ns=9, bound_ns=7, exact=exact)
        n = self._library.lane_rows(lane, ctypes.byref(read), rows)
        got = [tuple(rows[5 * i : 5 * i + 5]) for i in range(n)]
        return got, memory.raw[: read.size] if n else b""


class Generated(NamedTuple):
    """A lane's state, and a read of it."""

    owner: Owner
    template: tuple[bytes, bytes] | None
    taught: bytes
    data: bytes
    exact: bool


TEXTS: Final = (
    "x",
    " the",
    "",
    'a"',
    "\\",
    "\u20ac\u2028",
    '"content":"x"',
    "[DONE]",
    '"error"',
    "\n\n",
    "data: ",
)
OTHERS: Final = (b"[DONE]", b"", b"{}", b'{"error": {"message": "no"}}', b'"', b"\x00\x01\x02")
ENDS: Final = (b"", b"0\r\n\r\n", b"5", b"\r\n", b"ffffffffff\r\n", b"7fffffff\r\n", b"8;a=b\r\n")


def token(rng: random.Random, kind: int) -> bytes:
    """The data of a token's event, of one of a few servers."""
    count = rng.choice((1, 2, 12, 999, 10**6, 10**14, 10**15, 10**18))
    text = rng.choice(TEXTS) if rng.random() < 0.3 else "x"
    chat = delta(content=text, usage=count)
    completion = {"choices": [{"text": text}]}
    body = chat if kind % 2 else completion
    return orjson.dumps({"id": f"cmpl-{kind // 2}"} | body)


def event_chunk(rng: random.Random, kind: int) -> bytes:
    """One event: nearly always a token of that server in a chunk as servers write it."""
    draw = rng.random()
    data = token(rng, kind if draw < 0.95 else rng.randrange(4))
    if draw > 0.97:
        data = rng.choice(OTHERS)
    body = event(data) if rng.random() < 0.97 else rng.choice((data, b": note\n\n", b"data"))
    piece = chunk(body)
    if rng.random() < 0.1:  # upper case, leading zeros: the same size
        digits, _, rest = piece.partition(b"\r\n")
        piece = digits.upper().zfill(rng.choice((3, 4, 7, 8))) + b"\r\n" + rest
    return piece


def mutate(rng: random.Random, data: bytearray) -> None:
    """One change at random: a byte, a few that are lost or come in between, or the end is lost."""
    at = rng.randrange(len(data))
    match rng.randrange(4):
        case 0:
            data[at] = rng.choice((0, 1, 2, 10, 13, 34, 48, 92, rng.randrange(256)))
        case 1:
            del data[at : at + rng.choice((1, 1, 2, 20))]
        case 2:
            data[at:at] = rng.choice((b"\r", b"\n", b'"', b"9", b"\x02"))
        case _:
            del data[at:]


def generated(rng: random.Random) -> Generated:
    """Reads of chunks with events: nearly what servers send, then bytes changed at random."""
    kind = rng.randrange(4)
    pieces = [event_chunk(rng, kind) for _ in range(rng.choice((1, 1, 1, 2, 3, 8)))]
    if rng.random() < 0.1:
        pieces.append(rng.choice(ENDS))
    data = bytearray(b"".join(pieces))
    while rng.random() < 0.15 and data:
        mutate(rng, data)
    taught = token(rng, kind)
    owner = rng.choice((Owner.LEARNING, Owner.EVENTS))
    template = template_of(taught) if rng.random() < 0.9 else None
    return Generated(owner, template, taught, bytes(data) or b"0", rng.random() < 0.5)


def lane_of(one: Generated) -> ctypes.Array[ctypes.c_int64]:
    """As `FastPath` writes it."""
    lane = Lane()
    lane[OWNER] = one.owner
    lane[STREAM] = 7
    lane[COUNTED] = -1
    if one.template is not None:
        before, rest = one.template
        shape = before + rest
        assert len(shape) <= SHAPE_BYTES
        lane[BEFORE_SIZE] = len(before)
        lane[REST_SIZE] = len(rest)
        ctypes.memmove(ctypes.addressof(lane) + 8 * SHAPE, shape, len(shape))
    return lane


def events_of(data: bytes) -> Iterator[bytes | None]:
    """The data of each event, each alone in a whole chunk; None: not that."""
    while data:
        size = re.match(rb"([0-9a-fA-F]{1,7})\r\n", data)
        n = int(size[1], 16) if size else 0
        if size is None or n < SHORTEST:
            yield None
            return
        body = data[size.end() : size.end() + n]
        data = data[size.end() + n :]
        is_event = body.startswith(DATA) and body.endswith(EVENT_END)
        if not is_event or not data.startswith(b"\r\n"):
            yield None
            return
        yield body[len(DATA) : -len(EVENT_END)]
        data = data[2:]


def is_special(data: bytes) -> bool:
    """Whether an event, or a read of several, says more than a token: the rule of C.

    How a stream ends, an error, or an object that is no part of an answer.
    """
    if DELTA_KEY not in data and CHOICES_KEY not in data:
        return True
    return DONE in data or ERROR_KEY in data or ABORT in data


def rows_in_python(one: Generated) -> tuple[list[tuple[int, ...]], bytes]:
    """What `lane_rows` must make of it, by `wire`."""
    alike = TokenTemplate()
    if one.template is not None:
        for _ in range(2):  # nothing is learned from a stream's first token
            alike.learn(one.taught, read_event(one.taught))
    counts = []
    blob = b""
    for data in events_of(one.data):
        if data is None:
            return [], b""
        count = alike.match(data)
        if count == NO_MATCH:
            if one.owner is Owner.LEARNING or is_special(data):
                return [], b""
        else:  # never anything that reading the JSON would not say; a text is not validated
            with suppress(NotACompletion):
                assert read_event(data)[:4] == (True, True, -1, count)
        counts.append(count)
        blob += DATA + data + EVENT_END
    exactness = EXACT if one.exact else 0
    if NO_MATCH in counts:
        return [(7, 9, 7, BYTES + exactness, len(blob))], blob
    *before, last = counts
    rows = [(7, 9, 7, TOKEN, count) for count in before]
    return [*rows, (7, 9, 7, TOKEN + exactness, last)], b""


def count_in_python(one: Generated) -> int:
    """The running count of the latest event that has one; -1: none has."""
    latest = -1
    for data in events_of(one.data):
        found = COUNT.search(data or b"")
        if found and 1 <= len(found[1]) <= MAX_DIGITS:
            latest = int(found[1])
    return latest


def compare(library: LaneLibrary, n: int, seed: int) -> dict[str, int]:
    """Generate so many reads; how many became what."""
    rng = random.Random(seed)  # noqa: S311 - a test's dice
    seen = {"handed over": 0, "tokens": 0, "bytes": 0}
    for _ in range(n):
        one = generated(rng)
        lane = lane_of(one)
        rows, blob = library.rows(lane, one.data, one.exact)
        assert (rows, blob) == rows_in_python(one), one
        assert lane[COUNTED] == (count_in_python(one) if rows else -1), one
        if not rows:
            seen["handed over"] += 1
        elif blob:
            seen["bytes"] += 1
        else:
            seen["tokens"] += 1
    return seen


def main() -> None:
    """Compare as many reads as the argument says."""
    with tempfile.TemporaryDirectory() as folder:
        library = LaneLibrary(compiled(Path(folder), "-O2")[0])
        sys.stdout.write(f"{compare(library, int(sys.argv[1]), 0)}\n")


if __name__ == "__main__":
    main()
