"""The record codec: nothing is lost, and no cut of the bytes hurts what was whole."""

from array import array
from dataclasses import fields, replace
from importlib.util import find_spec

import msgpack
import pytest

from harness.records.codec import NUMBER_FIELDS, OPTIONAL_NUMBERS, decode, encode, pack, unpack
from harness.records.python_arrays import ZEROS, pack_in_python, unpack_in_python
from harness.records.request_record import Outcome, RequestRecord

T = 1_790_000_000_000_000_000  # an instant of 2026, in ns


def record(number: int = 0, events: list[int] | None = None, **changes: object) -> RequestRecord:
    """A request sent at T with events at these offsets, stamps 3 ns wide."""
    at = [T + offset for offset in events or []]
    not_before = [instant - 3 for instant in at]
    made = RequestRecord(
        worker=2,
        number=number,
        user=7,
        sent_ns=T,
        done_ns=T + 10**9,
        outcome=Outcome.ok,
        head_ns=T + 5,
        status=200,
        planned_tokens=128,
        prompt_tokens=256,
        at_ns=array("q", at),
        not_before_ns=array("q", not_before),
        tokens=array("q", [1] * len(at)),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def encode_each(records: list[RequestRecord]) -> bytes:
    """Frames, one after another."""
    return b"".join(map(encode, records))


CASES = {
    "no events": record(),
    "one event": record(events=[100]),
    "even gaps": record(events=[100, 120, 140, 160]),
    "gaps of 20 ms take four bytes": record(events=[10**8, 10**8 + 2 * 10**7, 10**8 + 5 * 10**7]),
    "a gap of an hour takes eight": record(events=[1, 3_600 * 10**9]),
    "time runs backwards": record(events=[500, 100, 400]),
    "simulated time from zero": record(
        sent_ns=0,
        done_ns=9,
        at_ns=array("q", [4]),
        not_before_ns=array("q", [4]),
        tokens=array("q", [1]),
    ),
    "several tokens an event": record(events=[1, 2, 3], tokens=array("q", [1, 4, 300])),
    "failed, with words": record(outcome=Outcome.status, status=503, error="zu viel los: 负载过高"),
    "reasoning": record(events=[1, 2], answer_index=1, finish_reason="length"),
    "named": record(events=[1, 2], name="Zusammenfassung, kurz"),
    "extremes": record(scheduled_ns=-(2**63), connect_ns=2**63 - 1),
}


@pytest.mark.parametrize("name", CASES)
def test_a_record_comes_back_as_it_was(name: str) -> None:
    """Encoding and decoding is the identity."""
    got = decode(encode(CASES[name]))
    assert got.records == [CASES[name]]
    assert got.torn_bytes == 0
    assert got.damaged_bytes == 0


def test_a_token_takes_four_bytes() -> None:
    """Exact stamps some 20 ms apart: 4 bytes each, a constant lag and count beside them."""
    events = [10**8 + 2 * 10**7 * i + i % 7 for i in range(128)]
    small = encode(record(events=events[:80]))
    large = encode(record(events=events[:120]))
    assert len(large) - len(small) == 40 * 4


def test_every_truncation_reads() -> None:
    """Cut anywhere, the whole frames before the cut come back and the rest is counted."""
    records = [record(i, events=list(range(1, 40 * i, 7))) for i in range(4)]
    data = encode_each(records)
    # where each frame begins, and where the last one ends
    bounds = [len(encode_each(records[:i])) for i in range(5)]
    for cut in range(len(data) + 1):
        whole = sum(end <= cut for end in bounds[1:])
        got = decode(data[:cut])
        assert got.records == records[:whole]
        assert got.torn_bytes == cut - bounds[whole]


def test_every_flipped_byte_costs_one_record() -> None:
    """Damage inside a frame is skipped, the frames around it are read."""
    records = [record(i, events=[10, 25, 47]) for i in range(3)]
    data = bytearray(encode_each(records))
    size = len(data) // 3
    for place in range(size, 2 * size):
        damaged = bytearray(data)
        damaged[place] ^= 0xFF
        got = decode(bytes(damaged))
        assert got.records == [records[0], records[2]]
        assert got.damaged_bytes == size


def test_any_msgpack_reader_walks_the_file() -> None:
    """A frame is an array of version, checksum and payload."""
    unpacker = msgpack.Unpacker()
    unpacker.feed(encode_each([record(0), record(1)]))
    frames = list(unpacker)
    assert len(frames) == 2
    for version, _, payload in frames:
        assert version == 1
        assert type(payload) is bytes


def test_the_codec_knows_every_field() -> None:
    """A field added to the record must be added to the format: to LATER, with a default."""
    texts = ("outcome", "error", "finish_reason", "name")
    arrays = ("at_ns", "not_before_ns", "tokens")
    known = {*NUMBER_FIELDS, *OPTIONAL_NUMBERS, *texts, *arrays, "frame"}
    assert known == {f.name for f in fields(RequestRecord)}


# CASES["reasoning"] as the version before LATER wrote it
OLD = bytes.fromhex(
    "9301ce2b06ed2dc60000005bdc0016020007ff00cf18d75b8423f30000cf18d75b8423f30005ffcf18d75b84"
    "5f8dca00ccc8cc80cd0100ffff01a26f6ba0a66c656e67746802c409630100000000000000c4096303000000"
    "00000000c409630100000000000000"
)


def test_a_frame_of_an_older_version_reads() -> None:
    """What it lacks has its default; and what a newer one adds does not trouble the reader."""
    assert decode(OLD).records == [CASES["reasoning"]]
    wanted = replace(
        CASES["reasoning"],
        events_before=1,
        silent_events=3,
        last_silent_ns=T,
        session=4,
        turn=1,
        think_ns=9,
        new_tokens=300,
        mix_row=2,
        planned_prompt=16,
    )
    assert decode(encode(wanted)).records == [wanted]
    named = replace(wanted, name="summarize")
    assert decode(encode(named)).records == [named]
    # a name is all that the frame of a request without one lacks
    n_name_bytes = 1 + len("summarize")
    assert len(encode(named)) == len(encode(wanted)) + n_name_bytes


@pytest.mark.parametrize("name", CASES)
def test_packed_in_c_as_in_python(name: str) -> None:
    """The same bytes of the same arrays, and each reads the other's."""
    if find_spec("harness.records._arrays"):  # it is built wherever there is a compiler
        assert pack is not pack_in_python
    packed_record = CASES[name]
    sent_ns = packed_record.sent_ns
    arrays = (packed_record.at_ns, packed_record.not_before_ns, packed_record.tokens)
    packed = pack_in_python(sent_ns, *arrays)
    assert pack(sent_ns, *arrays) == packed
    for back in (unpack, unpack_in_python):
        got = back(sent_ns, len(packed_record.at_ns), *packed)
        assert tuple(array("q", raw) for raw in got) == arrays


HIGHEST = [2**width - 1 for width in (7, 15, 31, 63)]
LOWEST = [-(2**width) for width in (7, 15, 31, 63)]
ENDS = [end for ends in zip(HIGHEST, LOWEST, strict=True) for end in ends]
BEYOND = [*(high + 1 for high in HIGHEST[:-1]), *(low - 1 for low in LOWEST[:-1])]


@pytest.mark.parametrize("value", [*ENDS, *BEYOND])
def test_the_fewest_bytes_a_value(value: int) -> None:
    """At the ends of each width, and one beyond."""
    arrays = [array("q", [0, 0]), array("q", [0, 0]), array("q", [value, 0])]
    packed = pack_in_python(0, *arrays)
    assert pack(0, *arrays) == packed
    assert unpack(0, 2, *packed) == unpack_in_python(0, 2, *packed)
    assert array("q", unpack(0, 2, *packed)[2]) == arrays[2]


@pytest.mark.parametrize(
    "packed",
    [b"", b"c", b"c1234567", b"c123456789", b"2", b"212", b"21234567", b"3123456", b"\x80123456"],
)
def test_arrays_of_another_length_are_refused(packed: bytes) -> None:
    """Three events want a constant or three values: nothing else is read, in either code."""
    for back in (unpack, unpack_in_python):
        with pytest.raises((ValueError, KeyError)):
            back(0, 3, ZEROS, ZEROS, packed)
