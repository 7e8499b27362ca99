"""A records file read some bytes at a time: what `decode` finds in all of it at once."""

from __future__ import annotations

import tracemalloc
from dataclasses import fields, replace
from io import FileIO
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hostile_frames import hostile
from random_tables import random_records
from test_records_codec import OLD

from harness.records import codec
from harness.records import record_tables as columns
from harness.records.codec import MAX_EVENTS, decode, encode
from harness.records.record_table import RecordTable, concat_tables, constants_once
from harness.records.record_tables import Damage, TablePart, read_tables
from harness.records.request_record import RequestRecord, SeenNumbers

if TYPE_CHECKING:
    from pathlib import Path

RECORDS = [
    replace(drawn, worker=0, finish_reason="stop" if drawn.number % 2 else "")
    for drawn in random_records(3, 30)
]
WHOLE = b"".join(map(encode, RECORDS))


def damaged_file(how: str) -> bytes:
    """The records' bytes, with something done to them."""
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
    elif how == "older between":  # and texts of more than ASCII, and one that is no UTF-8
        odd = replace(RECORDS[0], number=1000, error="größer", name="ä")
        data[:0] = OLD + encode(odd)
        data += encode(replace(odd, number=1001, name="plain")) + data[-50:]
    elif how == "empty":
        data.clear()
    return bytes(data)


def first_of_each(records: list[RequestRecord]) -> list[RequestRecord]:
    """Without those that came again."""
    seen = SeenNumbers()
    return [record for record in records if seen.add(record.key)]


def check_pieces(pieces: list[TablePart], records: list[RequestRecord]) -> None:
    """Together they have these records, and none of them is large."""
    got = concat_tables([piece.table for piece in pieces])
    texts = [record.name for record in records]
    known = list(dict.fromkeys(text for text in texts if text))
    numbers = [known.index(text) if text else -1 for text in texts]
    want = replace(RecordTable.from_records(records), name=np.array(numbers, np.int64))
    for f in fields(RecordTable):
        assert np.array_equal(getattr(got, f.name), getattr(want, f.name)), f.name
    errors = [error for piece in pieces for error in piece.errors]
    reasons = [reason for piece in pieces for reason in piece.reasons]
    names = [name for piece in pieces for name in piece.names]
    assert names == texts
    assert errors == [record.error for record in records]
    assert reasons == [record.finish_reason for record in records]
    most = max((len(piece.table.at_ns) for piece in pieces), default=0)
    assert most < 50 + 60  # one more request


@pytest.mark.parametrize("why_python", ["", "asked for"], ids=["C", "Python"])
@pytest.mark.parametrize("at_a_time", [1 << 19, 4096, 97])
@pytest.mark.parametrize(
    "how", ["whole", "cut", "flipped", "twice", "other bytes between", "older between", "empty"]
)
def test_the_same_as_at_once(
    how: str, at_a_time: int, why_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same requests and the same losses, however damaged, in whatever pieces."""
    if not why_python:
        assert not columns.WHY_PYTHON, "it is built wherever there is a compiler"
    monkeypatch.setattr(columns, "WHY_PYTHON", why_python)
    data = damaged_file(how)
    want = decode(data)
    monkeypatch.setattr(codec, "READ_BYTES", at_a_time)
    monkeypatch.setattr(columns, "MAX_TABLE_EVENTS", 50)
    (tmp_path / "records").write_bytes(data)
    damage = Damage()
    with FileIO(tmp_path / "records") as file:
        pieces = list(read_tables(file, SeenNumbers(), damage, {}))
    fresh = first_of_each(want.records)
    check_pieces(pieces, fresh)
    assert damage.torn_bytes == want.torn_bytes
    assert damage.damaged_bytes == want.damaged_bytes
    assert damage.duplicates == len(want.records) - len(fresh)


@pytest.mark.parametrize("n", [MAX_EVENTS + 1, 10**12, 2**62, -1])
def test_more_events_than_any_request_has_are_damage(n: int, tmp_path: Path) -> None:
    """Whatever a frame claims, nobody makes room for it; what is around it is read."""
    bad = hostile(n)
    data = WHOLE + bad + WHOLE
    (tmp_path / "records").write_bytes(data)
    damage = Damage()
    with FileIO(tmp_path / "records") as file:
        pieces = list(read_tables(file, SeenNumbers(), damage, {}))
    assert len(concat_tables([piece.table for piece in pieces])) == 30
    assert damage.damaged_bytes == len(bad)
    assert damage.duplicates == 30
    decoded = decode(data)
    assert decoded.records == RECORDS * 2
    assert decoded.damaged_bytes == len(bad)


def test_as_many_alike_as_a_request_may_have_are_read() -> None:
    """Events that came at one time, of a simulated server say."""
    (record,) = decode(hostile(1000)).records
    assert len(record.at_ns) == 1000


def damaged(size: int) -> bytes:
    """The header of a frame that is said to be so long."""
    return b"\x93\x01\xce" + bytes(4) + b"\xc6" + size.to_bytes(4, "big")


@pytest.mark.parametrize(
    ("junk", "most_kb"),
    [
        (bytes(1 << 20), 64),  # nothing that begins a frame
        (damaged(64 * 1024), 256),  # waited for
        (damaged(900 * 1024), 64),  # longer than any frame: not waited for
    ],
    ids=["no frame", "a damaged length", "a damaged length beyond all"],
)
def test_what_is_no_frame_is_not_kept(
    junk: bytes, most_kb: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The buffer does not grow with the file: all of it would be copied at each read."""
    monkeypatch.setattr(codec, "READ_BYTES", 4096)
    monkeypatch.setattr(codec, "MAX_PAYLOAD_BYTES", 128 * 1024)
    copies = 1 + (1 << 20) // len(WHOLE)
    (tmp_path / "records").write_bytes(junk + WHOLE * copies)
    damage = Damage()
    with FileIO(tmp_path / "records") as file:
        tracemalloc.start()
        count = sum(1 for _ in codec.read_frames(file, 1 << 30, damage))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert count == 30 * copies
    assert damage.damaged_bytes == len(junk)
    assert damage.torn_bytes == 0
    assert peak < most_kb * 1024


def test_texts_of_all_kinds_make_one_table(tmp_path: Path) -> None:
    """Names in ASCII and in others in turn: a table for each would take a minute."""
    names = ["plain", "größe", "", "大きさ"]
    records = [replace(record, name=names[i % 4]) for i, record in enumerate(RECORDS)]
    (tmp_path / "records").write_bytes(b"".join(map(encode, records)))
    with FileIO(tmp_path / "records") as file:
        (piece,) = read_tables(file, SeenNumbers(), Damage(), {})
    assert piece.names == [record.name for record in records]


@pytest.mark.parametrize("sizes", [[5, 1], [1, 5], [1, 1], [0, 5], [5, 0], [0, 1, 4]])
def test_columns_of_one_value_stay_so(sizes: list[int]) -> None:
    """Also where a table has one request, or none."""
    table = RecordTable.from_records([replace(RECORDS[0], status=200)] * 5)
    parts = [constants_once(table.select(np.arange(5) < size)) for size in sizes]
    joined = concat_tables(parts)
    assert joined.status.tolist() == [200] * sum(sizes)
    assert joined.status.strides == (0,)
    assert joined.select(np.arange(sum(sizes)) > 0).status.tolist() == [200] * (sum(sizes) - 1)
