"""Both extensions and the parser, compiled with the sanitizers: run by `test_reader_lanes`.

    LD_PRELOAD="libasan.so libubsan.so" python sanitized.py lane.so _drain.abi3.so _arrays.abi3.so

Any finding ends the process with the sanitizer's own words.
"""

from __future__ import annotations

import importlib.util
import random
import select
import socket
import sys
from array import array
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from lane_library import LaneLibrary, compare, generated, lane_of
from random_tables import random_records

from harness.reader.fast_path import LAYOUT
from harness.records.codec import encode
from harness.records.python_arrays import pack_in_python, unpack_in_python
from harness.records.request_record import Outcome

READS, PACKS, ROUNDS = 2000, 500, 500
HOSTILE = (-1, 1 << 20, 1 << 40, (1 << 63) - 1, -(1 << 63), 0, 7)  # of a cell


def extension(library: Path) -> Any:
    """This one and not the installed one."""
    name = library.name.partition(".")[0]
    spec = importlib.util.spec_from_file_location(name, library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rounds(drain_module: Any) -> None:
    """Generated reads through a socket, an epoll and all of `_drain.c`, the thread too."""
    assert drain_module.LAYOUT == LAYOUT
    rng = random.Random(2)  # noqa: S311 - a test's dice
    theirs, ours = socket.socketpair()
    poll = select.epoll()
    drain = drain_module.Drain(poll.fileno(), 4096, 0, 0, 1_000_000)
    with closing(theirs), closing(ours), closing(poll), closing(drain):
        for _ in range(ROUNDS):
            one = generated(rng)
            cells = array("q", bytes(lane_of(one)))
            with drain:
                drain.watch(ours.fileno(), cells)
                theirs.sendall(one.data)
                rows, blob = bytearray(), bytearray()
                *_, left = drain.round(rows, blob)
                assert blob or rows or b"".join(read[1] for read in left) in one.data
                drain.take(ours.fileno(), one.data, 9, 7, one.exact, rows, blob)
                drain.forget(ours.fileno())
                poll.unregister(ours.fileno())
            with suppress(BlockingIOError):
                ours.recv(1 << 20, socket.MSG_DONTWAIT)
        with suppress(ValueError):  # cells of another size
            drain.watch(ours.fileno(), array("q", [0]))


def packs(arrays: Any) -> None:
    """Arrays of all widths, and packed bytes that are wrong in length or kind."""
    rng = random.Random(3)  # noqa: S311 - a test's dice
    for _ in range(PACKS):
        n = rng.randrange(6)
        whole = [
            array("q", [rng.randrange(-(1 << bits), 1 << bits) for _ in range(n)])
            for bits in (rng.choice((3, 15, 40, 63)) for _ in range(3))
        ]
        packed = arrays.pack(5, *whole)
        assert packed == pack_in_python(5, *whole)
        assert arrays.unpack(5, n, *packed) == unpack_in_python(5, n, *packed)
        hostile = [
            bytes(rng.choice(b"c1248\x00\xff") for _ in range(rng.randrange(12))) for _ in range(3)
        ]
        with suppress(ValueError):
            arrays.unpack(rng.randrange(-(1 << 63), 1 << 63), rng.randrange(4), *hostile)


def frames(arrays: Any) -> None:
    """Rows of whole and of damaged frames, and rows that are none of the data."""
    rng = random.Random(4)  # noqa: S311 - a test's dice
    draw = np.random.default_rng(4)
    outcomes = tuple(outcome.value.encode() for outcome in Outcome)
    whole = b"".join(map(encode, random_records(5, 40)))
    for _ in range(PACKS):
        data = bytearray(whole[rng.randrange(300) :])
        for _ in range(rng.randrange(20)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        sound = bytes(data)
        # Without checksums, damage reaches the parser.
        is_any = rng.random() < 0.5
        cells = np.empty((rng.randrange(1, 40), arrays.ROW_CELLS), np.int64)
        at = rng.randrange(-2, len(sound) + 2)
        start = max(0, sound.find(b"\x93\x01\xce")) if rng.random() < 0.8 else at
        crc_of_header = int.from_bytes(sound[start + 3 : start + 7], "big")

        def checksum(view: memoryview, known: int = crc_of_header, any_: bool = is_any) -> int:
            return known if any_ else crc32(view)

        n, _ = arrays.rows(sound, start, checksum, outcomes, 500, cells)
        rows = cells[:n].copy()
        if n and rng.random() < 0.3:
            rows[rng.randrange(n), rng.randrange(24, arrays.ROW_CELLS)] = rng.choice(HOSTILE)
        size = max(0, int(rows[:, 25].sum())) if n else 3
        columns = np.empty((3, min(size, 10_000)), np.int64)
        with suppress(ValueError):
            arrays.events(sound, rows, *columns)
        offsets = draw.integers(-2, 60, 5)
        events = draw.integers(0, 100, (2, 50))
        with suppress(ValueError):
            arrays.gaps(offsets, *events, *np.empty((4, rng.randrange(60)), np.int64))
        values = draw.integers(-1, 50, (2, 20))
        with suppress(ValueError):
            arrays.count(*values, *np.zeros((2, rng.randrange(1, 200))))


def main() -> None:
    """Run all, and say that nothing was found."""
    lane, drain, arrays = map(Path, sys.argv[1:])
    compare(LaneLibrary(lane), READS, 4)
    rounds(extension(drain))
    packs(extension(arrays))
    frames(extension(arrays))
    sys.stdout.write("nothing found\n")


if __name__ == "__main__":
    main()
