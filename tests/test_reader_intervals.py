"""The interval is honest: it always meets [clock before send, clock after it], on real sockets."""

from __future__ import annotations

import itertools
import random
import time
from bisect import bisect_right
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import gevent
import pytest
from reader_cases import LAST, Case, Step, case, send, wire_server
from wire_examples import HEAD, chunk, delta, event

from harness.reader.backends import IN_C
from harness.reader.clock import Clock
from harness.records.request_record import Outcome
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.records.request_record import RequestRecord

DONE = chunk(event(b"[DONE]")) + LAST
SLACK_NS = 20_000  # two clocks are compared, each read on its own


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A server that does as it is told."""
    with wire_server() as port:
        yield port


def token(size: int = 1) -> bytes:
    """An event with a token of so many characters."""
    return chunk(event(delta(content="x" * size)))


def script_of(rng: random.Random) -> tuple[list[Step], list[tuple[int, int]]]:
    """A stream, and for each token the sends with the first and the last byte of its end.

    An event ends with the two line feeds, and its chunk with two bytes more: a cut between them
    leaves open which of the two sends counts.
    """
    events = [token(rng.choice((1, 1, 1, 40, 900))) for _ in range(rng.randint(1, 6))]
    whole = HEAD + b"".join(events) + DONE
    boundaries = [*accumulate(map(len, events), initial=len(HEAD))]
    cuts = [0, *random_places(rng, len(whole), boundaries), len(whole)]
    script: list[Step] = []
    for start, end in pairwise(cuts):
        script += [["sleep", rng.choice((0, 0, 0.3, 2, 8))], *send(whole[start:end])]

    def send_of(byte: int) -> int:
        return bisect_right(cuts, byte) - 1

    return script, [(send_of(end - 3), send_of(end - 1)) for end in boundaries[1:]]


def random_places(rng: random.Random, size: int, boundaries: list[int]) -> list[int]:
    """Up to six places to cut at, in order: anywhere, or at the end of an event."""
    places = set()
    for _ in range(6):
        anywhere = rng.randrange(1, size)
        boundary = rng.choice(boundaries)
        places.add(rng.choice((anywhere, boundary)))
    return sorted(places)


def misses(it: Case, truth: dict[int, list[tuple[int, int]]]) -> list[Any]:
    """Tokens whose interval does not meet that of their send."""
    log = it.log()["sends"]
    to_records = it.to_records_ns()
    found = []
    for number, ends in truth.items():
        record = it.records[number]
        sends = log[f"{it.name}-{number}"]
        assert record.outcome == Outcome.ok
        assert len(record.at_ns) == len(ends)
        for i, (first, last) in enumerate(ends):
            before = sends[first][0] + to_records
            after = sends[last][1] + to_records
            low = record.not_before_ns[i]
            at = record.at_ns[i]
            if at < before - SLACK_NS or low > after + SLACK_NS:
                found.append((number, i, low - before, at - after))
    return found


def stall(rng: random.Random) -> None:
    """The loop stands still now and then, as it does under load."""
    while True:
        gevent.sleep(rng.random() * 0.02)
        time.sleep(rng.choice((0.0, 0.001, 0.01, 0.03)))


@pytest.mark.usefixtures("each_reader")
@pytest.mark.parametrize("stamps", [True, False])
@pytest.mark.parametrize("read_bytes", [65_536, 300])
@pytest.mark.parametrize("stand_in", [True, False])
def test_a_thousand_streams(port: int, stamps: bool, read_bytes: int, stand_in: bool) -> None:
    """Coalesced, split, undrained and delayed reads, with kernel stamps and without any.

    Reads of 300 bytes leave bytes behind. `stand_in`: a thread reads while the loop stands still.
    """
    rng = random.Random(read_bytes + stamps)  # noqa: S311 - a test's dice
    with case(port, stamps=stamps, read_bytes=read_bytes, stand_in=stand_in) as it:
        stalling = gevent.spawn(stall, rng)
        scripts = {n: script_of(rng) for n in range(500)}
        todo = iter(scripts.items())

        def user() -> None:
            for number, (script, _) in todo:
                it.ask(number, script)

        gevent.joinall([gevent.spawn(user) for _ in range(48)])
        stalling.kill()
        assert it.reader.link.flush(20)
        truth = {number: ends for number, (_, ends) in scripts.items()}
        assert misses(it, truth) == []
        figures = it.reader.figures()
    assert figures["stamp_source"] == ("kernel" if stamps else "read")
    assert (figures["exact_share"] > 0) == stamps


@pytest.mark.usefixtures("each_reader")
def test_a_loop_that_stood_still_says_so(port: int) -> None:
    """Its timer was due 20 ms after the loop stopped for 60."""
    with case(port) as it:
        gevent.sleep(0.01)  # the timer is set
        time.sleep(0.06)
        gevent.sleep(0.01)
        assert it.reader.figures()["loop_lag_max_ms"] >= 20


def tokens_after(*pauses_ms: int) -> list[Step]:
    """A token after each pause."""
    steps: list[Step] = []
    for pause_ms in pauses_ms:
        steps += [["sleep", pause_ms], *send(token())]
    return steps


def while_the_loop_stands_still(it: Case) -> tuple[RequestRecord, list[tuple[int, int]]]:
    """Two tokens come, 30 ms apart; the record, and when each send was made."""
    script = [*send(HEAD), *tokens_after(50, 30), ["sleep", 200], *send(DONE)]
    user = it.start(0, script)
    it.wait_for_heads(1)
    time.sleep(0.15)
    user.join()
    assert it.reader.link.flush(10)
    return it.records[0], it.sends(0)


def test_a_thread_stands_in_for_the_loop(port: int, each_reader: str) -> None:
    """In C each is read when it comes, so both are exact though the loop stood still."""
    if each_reader != IN_C:
        return
    with case(port) as it:
        record, sends = while_the_loop_stands_still(it)
    assert record.not_before_ns == record.at_ns
    for at, (before, after) in zip(record.at_ns, sends[1:], strict=False):
        assert before - SLACK_NS <= at <= after + 5 * MS


@pytest.mark.usefixtures("each_reader")
def test_what_came_before_a_request_was_stopped(port: int) -> None:
    """Its user is cut off just after the loop stood still: the record has what came meanwhile."""
    with case(port) as it:
        first = send(HEAD, token())
        others = tokens_after(20, 20, 20, 20)
        script = [*first, *others, ["sleep", 5000], *send(DONE)]
        user = it.start(0, script)
        it.wait_for_heads(1)
        time.sleep(0.2)
        user.kill()
        assert it.reader.link.flush(10)
    record = it.records[0]
    assert record.outcome == Outcome.cancelled
    assert len(record.at_ns) == 5


@pytest.mark.usefixtures("each_reader")
def test_two_tokens_30_ms_apart_read_late(port: int) -> None:
    """One read brings both: the second is exact, the first lies in between, and the gap says so."""
    with case(port, stand_in=False) as it:
        record, sends = while_the_loop_stands_still(it)
    low = record.not_before_ns
    at = record.at_ns
    first = sends[1][1]
    second = sends[2][1]
    assert low[1] == at[1] == at[0]
    assert low[0] < first < at[0]
    assert abs(at[1] - second) < 5 * MS  # not the 70 ms by which it was read late


class SetClock:
    """CLOCK_REALTIME as if somebody had set it: `by_ns` ahead.

    It is set back by itself: at the second read after `clock` has noticed.
    """

    def __init__(self) -> None:
        self.by_ns = 0
        self.clock: Clock | None = None
        self._more = 1

    def __call__(self) -> int:
        if self.by_ns and self.clock is not None and self.clock.steps:
            self.by_ns *= self._more
            self._more = 0
        return time.time_ns() + self.by_ns


def check_no_jump(record: RequestRecord, sends: list[tuple[int, int]]) -> None:
    """Each token lies where it was sent, behind the head; none by as much as a clock was set."""
    for i, (low, at) in enumerate(zip(record.not_before_ns, record.at_ns, strict=True)):
        before, after = sends[i + 1]
        assert at >= before - SLACK_NS
        assert low <= after + SLACK_NS
        assert at - before < SECOND // 2


@pytest.mark.usefixtures("each_reader")
@pytest.mark.parametrize("by_ns", [SECOND, -SECOND, 5 * MS, -5 * MS])
def test_a_clock_that_is_set_in_the_middle_of_a_stream(port: int, by_ns: int) -> None:
    """The step is counted, no token jumps, and stamps are believed again after it.

    The kernel's stamps do not follow the injected clock: after the step they look wrong by as much,
    as stamps taken before a real step do. The last tokens are 60 ms apart: a loop that gets no
    processor meanwhile reads both steps' tokens at once, and cannot tell them.
    """
    realtime = SetClock()
    realtime.clock = Clock(realtime_ns=realtime)
    tokens = tokens_after(*[10] * 20, *[60] * 5)
    script = [*send(HEAD), *tokens, ["sleep", 30], *send(DONE)]
    with case(port, clock=realtime.clock) as it:
        user = it.start(0, script)
        gevent.sleep(0.1)
        realtime.by_ns = by_ns  # for two events: a third one's stamp would be believed
        user.join()
        assert it.reader.link.flush(10)
        sends = it.sends(0)
        steps = it.reader.figures()["clock_steps"]
    record = it.records[0]
    assert steps == 2  # there and back
    check_no_jump(record, sends)
    assert record.not_before_ns[-1] == record.at_ns[-1]


def test_small_corrections_are_followed_without_a_step() -> None:
    """Below a tenth of a millisecond the offset just moves."""
    ticks = itertools.count(0, 1_000)
    ahead_ns = [0]
    clock = Clock(lambda: next(ticks), lambda: next(ticks) + ahead_ns[0])
    clock.sample()
    ahead_ns[0] = 90_000
    assert clock.sample()[1] is False
    assert clock.steps == 0
    assert clock.offset_ns == 90_000


def test_a_step_is_seen_although_a_reading_is_torn_apart() -> None:
    """The process loses its processor within the first reading after the clock was set."""
    ticks = itertools.count(0, 1_000)
    late_ns = [0]
    ahead_ns = [0]
    clock = Clock(lambda: next(ticks) + late_ns[0], lambda: next(ticks) + late_ns[0] + ahead_ns[0])
    torn = iter([0, 7 * MS])  # the instant before the realtime clock is read, then later

    def monotonic() -> int:
        late_ns[0] = next(torn, 7 * MS)
        return next(ticks) + late_ns[0]

    clock._monotonic_ns = monotonic  # noqa: SLF001
    ahead_ns[0] = 5 * MS
    _, stepped = clock.sample()
    assert stepped is True
    assert clock.steps == 1
    assert clock.offset_ns == 5 * MS


def test_an_anchor_torn_apart_is_no_step() -> None:
    """The process loses its processor between the first two readings."""
    instants = itertools.chain([0, 5 * MS, 5 * MS], itertools.count(6 * MS, 1_000))
    clock = Clock(lambda: next(instants), lambda: next(instants))
    assert clock.sample()[1] is False
    assert clock.steps == 0
    assert clock.anchor_ns == 0
