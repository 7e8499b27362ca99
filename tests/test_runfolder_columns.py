"""A records file read some bytes at a time: what `decode` finds in all of it at once."""

from __future__ import annotations

from dataclasses import fields, replace
from io import FileIO
from typing import TYPE_CHECKING

import numpy as np
import pytest
from random_tables import random_records

from harness.measure.seen import Seen
from harness.measure.table import RecordTable, concat
from harness.runfolder import columns
from harness.runfolder.codec import decode, encode
from harness.runfolder.columns import tables
from harness.runfolder.damage import Damage

if TYPE_CHECKING:
    from pathlib import Path

RECORDS = [
    replace(r, worker=0, finish_reason="stop" * (r.number % 2)) for r in random_records(3, 30)
]
WHOLE = b"".join(map(encode, RECORDS))


@pytest.mark.parametrize("at_a_time", [1 << 19, 4096, 97])
@pytest.mark.parametrize(
    "how", ["whole", "cut", "flipped", "twice", "other bytes between", "empty"]
)
def test_the_same_as_at_once(
    how: str, at_a_time: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same requests and the same losses, however damaged, in whatever pieces."""
    draw = np.random.default_rng(5)
    data = bytearray(WHOLE)
    if how == "cut":
        data = data[: len(data) * 2 // 3]
    elif how == "flipped":
        for place in draw.integers(0, len(data), 40):
            data[place] ^= 1 << draw.integers(8)
    elif how == "twice":
        data = data * 2
    elif how == "other bytes between":
        data[1000:1000] = draw.bytes(3000) + b"\x93\x01\xce" * 9  # so a frame begins
    elif how == "empty":
        data.clear()
    monkeypatch.setattr(columns, "READ", at_a_time)
    monkeypatch.setattr(columns, "EVENTS", 50)
    (tmp_path / "records").write_bytes(data)
    damage = Damage()
    with FileIO(tmp_path / "records") as file:
        pieces = list(tables(file, Seen(), damage))
    want = decode(bytes(data))
    seen = Seen()
    fresh = [record for record in want.records if seen.add(record.key)]
    got, once = concat([piece.table for piece in pieces]), RecordTable.from_records(fresh)
    for f in fields(RecordTable):
        assert np.array_equal(getattr(got, f.name), getattr(once, f.name)), f.name
    got_texts = [text for piece in pieces for text in zip(*piece[1:], strict=True)]
    assert got_texts == [(record.error, record.finish_reason) for record in fresh]
    assert (damage.torn_bytes, damage.damaged_bytes) == (want.torn_bytes, want.damaged_bytes)
    assert damage.duplicates == len(want.records) - len(fresh)
    most = max((len(piece.table.at_ns) for piece in pieces), default=0)
    assert most < 50 + 60  # one more request
