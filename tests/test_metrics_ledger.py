"""Records and parts as they come: in any order, some twice."""

import os
import sys
from dataclasses import fields, replace
from itertools import permutations
from types import SimpleNamespace

import numpy as np
import pytest
from measure_tables import MS, SECOND, record, window
from random_tables import random_records

from harness.core.load import Users
from harness.core.run_kinds import KneeRun, LevelRun
from harness.core.states import Purpose
from harness.metrics import ledger as ledgers
from harness.metrics.evidence import Window, gather_evidence
from harness.metrics.ledger import Ledger, LedgerView, waiting_or_thinking
from harness.metrics.record_source import REQUEST_BYTES, PackedTable
from harness.metrics.result import Latency
from harness.metrics.slo import Slo
from harness.metrics.window_summary import window_summary
from harness.records.record_table import OPEN, RecordTable, concat_tables
from harness.records.request_record import Outcome, RequestRecord
from harness.run.page_viewer import ended_levels
from harness.search.locust_levels import locust_levels
from harness.search.replay import requests_in_window

# one request in three parts, known until 15, 25 and 45 ms; the second brought nothing
PARTS = [
    record(0, 0, [10, 11], done=15, outcome=Outcome.open),
    record(0, 0, [], done=25, outcome=Outcome.open),
    record(0, 0, [30, 40], done=45, outcome=Outcome.open),
]
WHOLE = record(0, 0, [10, 11, 30, 40, 50], done=51)


def whole(look: LedgerView) -> RecordTable:
    """All that it holds as one table."""
    return concat_tables(list(look.chunks()))


@pytest.mark.parametrize("order", list(permutations(range(3))))
@pytest.mark.parametrize("twice", [None, 0, 1, 2])
def test_parts_in_any_order_one_of_them_twice(order, twice):
    """The joined request has each event once, in time order, and is known until the last part."""
    arriving = list(order)
    if twice is not None:
        arriving.append(twice)
    ledger = Ledger()
    for i in arriving:
        ledger.put([PARTS[i]])
    seen = whole(ledger.look(0, 100 * MS))
    assert (seen.at_ns / MS).tolist() == [10, 11, 30, 40]
    assert seen.tokens.tolist() == [1, 1, 1, 1]
    assert len(seen) == 1
    assert PARTS[0].at_ns.tolist() == [10 * MS, 11 * MS]  # the caller's own stays as it was


def test_a_whole_record_replaces_its_parts_and_comes_once():
    """What comes after it, part or whole, is dropped; wholes that came again are counted."""
    ledger = Ledger()
    of_another_worker = record(0, 0, [9], worker=1)
    ledger.put([PARTS[0], WHOLE, PARTS[2], WHOLE, of_another_worker])
    seen = whole(ledger.look(0, 100 * MS))
    assert len(seen) == 2
    assert seen.counts.tolist() == [5, 1]
    assert ledger.total == 2
    assert ledger.twice == 1


@pytest.mark.parametrize(
    ("from_ms", "horizon_ms", "want"),
    [
        (0, 100, [(0, 5, 51), (1, 2, 70)]),  # worker: events, known until (ms)
        (60, 100, [(1, 2, 70)]),  # ended before 60
        (0, 35, [(0, 3, 35)]),  # as it was at 35: three events, and worker 1 had not sent
        (0, 65, [(0, 5, 51), (1, 1, 65)]),
    ],
)
def test_what_was_known_at_an_instant(from_ms, horizon_ms, want):
    """Requests that ended after one instant, as they were known at another."""
    ledger = Ledger()
    ledger.put([WHOLE, record(0, 55, [60, 70], worker=1)])
    seen = whole(ledger.table(from_ms * MS, horizon_ms * MS))
    workers = seen.worker.tolist()
    events = seen.counts.tolist()
    known_until_ms = (seen.done_ns // MS).tolist()
    assert list(zip(workers, events, known_until_ms, strict=True)) == want


def test_what_ended_long_ago_is_forgotten():
    """Half a minute before the instant asked for: memory stays bounded, counts stay."""
    ledger = Ledger()
    for number in range(100):
        ledger.put([record(number, 1000 * number, [1000 * number + 500])])
        ledger.table(1000 * number * MS, 1000 * number * MS)
    assert len(ledger.table(0, 200_000 * MS).table) < 70
    assert ledger.total == 100
    assert ledger.twice == 0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("events", [1, 500, 1 << 16])
def test_packed_tokens_are_the_same(seed, events, monkeypatch):
    """Evidence of a ledger that packs after so many events is that of the records."""
    monkeypatch.setattr(ledgers, "PACK_EVENTS", events)
    records = random_records(seed, 200)
    step = window(20, 2, 9)
    ledger = Ledger()
    for first in range(0, len(records), 7):
        ledger.put(records[first : first + 7])
    slos = (Slo.parse("ttft_p95=90ms"), Slo.parse("itl_p95=21ms"))
    got = gather_evidence(ledger.table(step.settled_ns, step.end_ns), step, slos)
    known = RecordTable.from_records(records)
    known = known.select((known.done_ns >= step.settled_ns) | (known.outcome == OPEN))
    want = gather_evidence(known.until(step.end_ns), step, slos)
    for f in fields(want)[1:]:
        assert np.array_equal(getattr(got, f.name), getattr(want, f.name)), f.name


@pytest.mark.parametrize("seed", range(4))
def test_a_packed_table_comes_back(seed):
    """Whatever gaps, stamps and tokens; a gap of three seconds, and none at all, too."""
    gap_ms = [20, 0.001, 3000, 0][seed]
    table = RecordTable.from_records(random_records(seed, 50, gap_ms=gap_ms))
    for f in fields(table):
        got = getattr(next(PackedTable.of(table).chunks()), f.name)
        assert np.array_equal(got, getattr(table, f.name)), f.name


def two_tokens(number: int, sent_ms: float, first_ms: float, last_ms: float) -> RequestRecord:
    """A request as a run records it, with every instant that such a one has."""
    lows_ms = [first_ms - 0.02, last_ms - 0.03]
    made = record(number, sent_ms, [first_ms, last_ms], last_ms + 0.1, lows=lows_ms)
    return replace(
        made,
        head_ns=round((first_ms - 1) * MS),
        first_event_ns=round((first_ms - 0.1) * MS),
        last_silent_ns=round((last_ms + 0.05) * MS),
        prompt_tokens=130 + number % 3,
        user=number % 35,
    )


def test_a_packed_request_takes_few_bytes():
    """Those of users who wait 0.7 s for two tokens and more; a table takes 272 at three events."""
    draw = np.random.default_rng(1)
    records = []
    sends_ms = np.sort(draw.uniform(0, 40_000, 2000)).tolist()
    for number, sent_ms in enumerate(sends_ms):
        first_ms = sent_ms + 50 + draw.exponential(20)
        last_ms = sent_ms + 700 + draw.normal(0, 50)
        records.append(two_tokens(number, sent_ms, first_ms, last_ms))
    packed = PackedTable.of(RecordTable.from_records(records))
    size = 0
    for column in packed.columns.values():
        _, _, steps = column
        size += sys.getsizeof(column) + sys.getsizeof(steps)
    assert REQUEST_BYTES / 2 < size / 2000 < REQUEST_BYTES


def test_tokens_are_let_go_and_requests_are_not(monkeypatch):
    """After ten seconds: what is asked of the last ones is there, of older ones it is refused."""
    monkeypatch.setattr(ledgers, "PACK_EVENTS", 5)
    ledger = Ledger(tokens_ns=10 * SECOND)
    for number in range(100):  # one a second, two tokens each
        at = 1000 * number
        ledger.put([record(number, at, [at + 300, at + 500])])
    assert len(ledger.look(0, 100 * SECOND).table) == 100
    assert len(whole(ledger.look(95 * SECOND, 100 * SECOND)).at_ns) == 2 * 5
    assert ledger.ended(0, 100 * SECOND) == (100, 0)
    all_of_it = ledger.look(0, 100 * SECOND)
    with pytest.raises(ValueError, match="thin table"):
        gather_evidence(all_of_it, window(1, 0, 100), [Slo.parse("itl_p95=21ms")])


@pytest.mark.parametrize("is_full", [False, True])
def test_many_requests_wait_on_disk(is_full, tmp_path, monkeypatch):
    """What is asked of them is the same, also where the disk takes nothing."""
    monkeypatch.setattr(ledgers, "PACK_EVENTS", 5)
    monkeypatch.setattr(ledgers, "REQUESTS_IN_MEMORY", 20)
    if is_full:
        monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    in_memory = Ledger(tokens_ns=10 * SECOND)
    on_disk = Ledger(tokens_ns=10 * SECOND, folder=tmp_path)
    for number in range(100):  # one a second, two tokens each
        at = 1000 * number
        for ledger in (in_memory, on_disk):
            ledger.put([record(number, at, [at + 300, at + 500])])
    tables = [one for one in on_disk.look(0, 100 * SECOND).ended if isinstance(one, PackedTable)]
    assert any(one.is_stored for one in tables) is not is_full
    assert list(tmp_path.iterdir()) == []
    for from_s, until_s in [(0, 100), (30, 60), (95, 100)]:
        want = in_memory.look(from_s * SECOND, until_s * SECOND).table
        got = on_disk.look(from_s * SECOND, until_s * SECOND).table
        for f in fields(want):
            assert np.array_equal(getattr(got, f.name), getattr(want, f.name)), f.name
        ended = on_disk.ended(from_s * SECOND, until_s * SECOND)
        assert ended == in_memory.ended(from_s * SECOND, until_s * SECOND)


def run_of(ledger, held, kind=KneeRun, horizon_ns=0):
    """A run whose one level had the window `held`, as far as a page reads it."""
    controller = SimpleNamespace(levels=[SimpleNamespace(window=held)], horizon_ns=horizon_ns)
    wanted = SimpleNamespace(kind=kind)
    return SimpleNamespace(wanted=wanted, ended=[], ledger=ledger, controller=controller)


@pytest.mark.parametrize("until_s", [99, 60])
def test_a_long_level_has_the_figures_of_its_end(until_s, monkeypatch):
    """Its first tokens are forgotten, all of them if records came long after it."""
    monkeypatch.setattr(ledgers, "PACK_EVENTS", 5)
    ledger = Ledger(tokens_ns=20 * SECOND)
    for number in range(100):
        at = 1000 * number
        ledger.put([record(number, at, [at + 300, at + 500])])
    [level] = ended_levels(run_of(ledger, window(1, 0, until_s), kind=LevelRun))
    assert level.ended == until_s
    assert level.failed == 0
    assert level.p95_ms["ttft"][0] == 300.0
    known = until_s == 99
    assert (level.p95_ms["itl"][0] == pytest.approx(200, rel=0.01)) == known
    assert (level.output_tokens_per_s == pytest.approx(2, rel=0.1)) == known


def slow_request(number: int, done_s: float, outcome: Outcome = Outcome.ok) -> RequestRecord:
    """Sent at 9 s; its first token comes with its end, if it has ended."""
    tokens = [] if outcome == Outcome.open else [1000 * done_s]
    return replace(record(number, 9000, tokens, 1000 * done_s), outcome=outcome)


@pytest.mark.parametrize(
    ("horizon_s", "last", "over", "want"),
    [
        (11, None, False, None),  # the request runs: the level is not shown yet
        (12, 12, False, (3000, 0, True)),  # it took 3 s, as the report will say
        (11, None, True, (2000, 1, True)),  # nothing more will come: its age, and it is said
        (21, None, False, (12000, 1, True)),  # it was waited for long enough
    ],
)
def test_a_level_is_shown_with_its_last_request(horizon_s, last, over, want):
    """One level has one value everywhere, so its figures wait for the requests sent in it."""
    ledger = Ledger()
    for second in range(1, 9):
        sent_ms = 1000 * second
        ledger.put([record(second, sent_ms, [sent_ms + 300])])
    ledger.put([slow_request(99, 11, Outcome.open)])
    if last:
        ledger.put([slow_request(99, last)])
    run = run_of(ledger, window(1, 0, 10), horizon_ns=horizon_s * SECOND)
    shown = []
    for level in ended_levels(run, over=over):
        p95_ms = level.p95_ms["ttft"][0]
        shown.append((p95_ms, level.n_open, level.whole))
    if want is None:
        assert shown == []
        kept = 9  # none of its requests is forgotten meanwhile
    else:
        assert shown == [want]
        _, kept, _ = want  # the request that is still open
    ledger.table(100 * SECOND, 200 * SECOND)
    assert len(ledger.look(0, 200 * SECOND).table) == kept


def test_a_row_has_the_figures_of_the_report() -> None:
    """Values and intervals, from the records in memory and from those of the folder."""
    records = [drawn for drawn in random_records(3, 600) if drawn.outcome != Outcome.open]
    ledger = Ledger()
    ledger.put(records)
    first_ns = min(drawn.done_ns for drawn in records)
    last_ns = max(drawn.done_ns for drawn in records)
    held = Window(0, Users(8), Purpose.hold, first_ns, first_ns, first_ns, last_ns, last_ns)
    [row] = ended_levels(run_of(ledger, held, horizon_ns=last_ns))
    table = requests_in_window(RecordTable.from_records(records), held)
    report = window_summary(table, held.settled_ns, held.end_ns)
    for key, got in row.p95_ms.items():
        want = Latency.of(report[f"{key}_ms"]).at("p95")
        assert got == pytest.approx(want, rel=1e-6, nan_ok=True)
    assert row.output_tokens_per_s == pytest.approx(report["output_tokens_per_s"], abs=1e-3)


def pausing(number: int, sent_s: float, pause_s: float) -> RequestRecord:
    """A request of a second, and what its user planned to pause after it."""
    sent_ms = 1000 * sent_s
    return replace(record(number, sent_ms, [sent_ms + 1000]), think_ns=round(pause_s * SECOND))


# sent at 0, 0.5 and 1 s; pauses end at 4 to 5 s
THINKERS = [pausing(n, n / 2, 3) for n in range(3)]


@pytest.mark.parametrize(
    ("at_s", "want"), [(0.9, 2), (1.5, 3), (3.9, 3), (4.2, 2), (4.7, 1), (5.5, 0)]
)
def test_users_in_flight_or_thinking(at_s: float, want: int) -> None:
    """At an instant, by what was known of the requests then."""
    at_ns = round(at_s * SECOND)
    known = RecordTable.from_records(THINKERS).until(at_ns)
    assert waiting_or_thinking(known, at_ns) == (want, 3 * SECOND)
    assert waiting_or_thinking(RecordTable.from_records([]), 0) == (0, 0)


def test_users_of_a_locust_run_may_think() -> None:
    """The most that were in flight or in their pause; without pauses the most in flight."""
    (level,) = locust_levels(RecordTable.from_records(THINKERS))
    assert level.window.load.count == 3
    busy = [replace(thinker, think_ns=-1) for thinker in THINKERS]
    (level,) = locust_levels(RecordTable.from_records(busy))
    assert level.window.load.count == 2
