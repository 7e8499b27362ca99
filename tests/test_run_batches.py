"""Batches of `sweep`: known figures in simulated time, and a command against its own records."""

from __future__ import annotations

import json
import os
import signal
from array import array
from collections import Counter
from heapq import heapreplace
from math import inf, isnan
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from study_process import check_code, harness, lines, load, started, wait_for

from harness import open_run
from harness.core.load import Users
from harness.core.states import Purpose, StopRule
from harness.diagnosis.audit import audit_sentence
from harness.load.workloads import workload
from harness.metrics.evidence import Window
from harness.metrics.ledger import Ledger
from harness.metrics.slo import Slo
from harness.metrics.statistics import mean_interval
from harness.records import names
from harness.records.folder_writer import RecordWriter, RunFolder
from harness.records.record_table import RecordTable
from harness.records.request_record import Outcome, RequestRecord
from harness.records.runinfo import run_info
from harness.report.write import write_reports
from harness.run.results import write_results
from harness.search.controller import KneeController
from harness.search.held_levels import in_turn
from harness.search.next_level import Hold, SearchPlan
from harness.senders.drive_options import DriveOptions
from harness.senders.driver import Driver
from harness.units import SECOND

if TYPE_CHECKING:
    from pathlib import Path

    from harness.load.plan import RequestSpec

T0 = 1_790_000_000 * SECOND
SLOTS = 8
PROMPT = 100
OUTPUT = 32
BATCH = 24


class Slots:
    """A server with eight slots; each request holds one for `took_ns`, the first token half way.

    It plays a whole batch when its users start, and hands out what has ended by each tick.
    """

    def __init__(self, *, counts: bool = True, fails: int = -1, most: float = inf) -> None:
        """`counts`: it reports prompt tokens; request `fails` fails, and from `most` users all."""
        self.ledger = Ledger()
        self.all = list[RequestRecord]()
        self.prompt_tokens = PROMPT if counts else -1
        self.fails = fails
        self.most = most
        self.told = self.users = 0

    def begin(self, now_ns: int, users: int, took_ns: int) -> None:
        """So many users share a batch, as fast as slots and answers allow."""
        self.users = users
        slots = [now_ns] * SLOTS
        free = [now_ns] * users
        for _ in range(BATCH if users else 0):
            sent = free[0]
            number = len(self.all)
            done = max(sent, slots[0]) + took_ns
            heapreplace(slots, done)
            heapreplace(free, done)
            is_bad = number == self.fails or users >= self.most
            if is_bad:
                self.all.append(self._failed(number, sent, done))
            else:
                self.all.append(self._answered(number, sent, done, took_ns))

    def _failed(self, number: int, sent_ns: int, done_ns: int) -> RequestRecord:
        return RequestRecord(
            0,
            number,
            0,
            sent_ns,
            done_ns,
            Outcome.status,
            error="503",
            prompt_tokens=self.prompt_tokens,
            planned_tokens=OUTPUT,
        )

    def _answered(self, number: int, sent_ns: int, done_ns: int, took_ns: int) -> RequestRecord:
        first_ns = done_ns - took_ns // 2
        others_ns = [done_ns] * (OUTPUT - 1)
        at = array("q", [first_ns, *others_ns])
        return RequestRecord(
            0,
            number,
            0,
            sent_ns,
            done_ns,
            Outcome.ok,
            prompt_tokens=self.prompt_tokens,
            planned_tokens=OUTPUT,
            at_ns=at,
            not_before_ns=at,
            tokens=array("q", [1] * OUTPUT),
            answer_index=0,
        )

    def put(self, now_ns: int) -> int:
        """Hand out; the users that still have a request."""
        ended = [r for r in self.all[self.told :] if r.done_ns <= now_ns]
        self.ledger.put(ended)
        self.told += len(ended)
        return min(self.users, len(self.all) - self.told)


def batch_plan(users: tuple[int, ...], repeats: int) -> list[Hold]:
    """Per repeat a batch one at a time, then one at each number of users."""
    one_at_a_time = Hold(Users(1), Purpose.sequential, StopRule.batch, 0, BATCH)
    at_once = [batch_at(n_users) for n_users in users]
    return [one_at_a_time, *at_once] * repeats


def batch_at(n_users: int) -> Hold:
    return Hold(Users(n_users), Purpose.batch, StopRule.batch, 0, BATCH)


def write_folder(path: Path, server: Slots, controller: KneeController, plan: SearchPlan) -> str:
    """The run folder of a sweep that has ended, and its reports; the status that they say."""
    assert controller.result is not None
    folder = RunFolder.create(path)
    config = {
        "kind": "sweep",
        "plan": plan.to_json(),
        "drive": {"batch": BATCH},
    }
    info = run_info(config, seeds={}, server={"model": "m"})
    folder.write_json(names.RUN, info)
    writer = RecordWriter(folder, 0)
    writer.put(server.all)
    writer.close()
    levels = folder.lines(names.LEVELS)
    for one in controller.levels:
        words = {"decision": one.judgement.decision, "reason": one.judgement.reason}
        levels.append(one.window.to_json() | words | {"invalid": "", "audited": False})
    levels.close()
    folder.write_json(names.ENDED, {"status": controller.result.status})
    run, result, gaps = write_results(path)
    write_reports(run, result, gaps)
    return result.status


def sweep(
    path: Path, server: Slots, users: tuple[int, ...], took_ns: tuple[int, ...], slo: str = ""
) -> str:
    """A sweep of batches to its run folder and reports; how it ended. A repeat for each time."""
    slos = [slo] if slo else []
    slos_read = tuple(map(Slo.parse, slos))
    plan = SearchPlan(slos_read, max_users=max(users))
    holds = batch_plan(users, repeats=len(took_ns))
    batches_a_repeat = len(holds) // len(took_ns)
    controller = KneeController(plan, server.ledger, choose=in_turn(holds))
    now_ns = T0
    target = 0
    while True:
        now_ns += SECOND
        answer = controller.tick(now_ns, server.put(now_ns - 1), None, now_ns - 1)
        if answer.done:
            break
        if answer.users != target:
            target = answer.users
            repeat = len(controller.levels) // batches_a_repeat
            server.begin(now_ns, target, took_ns[repeat])
    return write_folder(path, server, controller, plan)


def test_known_batches(tmp_path: Path) -> None:
    """24 requests of 1 s, then of 1.5 s, on eight slots.

    One at a time 24 s and 36 s, four 6 s and 9 s, eight and sixteen 3 s and 4.5 s: 1.25 times the
    first, give or take t(1) = 12.706 times 0.25 times. With sixteen the second eight wait, so 16 of
    24 requests take twice as long, and 16, 16 and 8 are in flight.
    """
    users = (1, 4, 8, 16)
    took_ns = (SECOND, SECOND * 3 // 2)
    assert sweep(tmp_path / "run", Slots(), users, took_ns) == "measured"
    rows = json.loads((tmp_path / "run" / names.BATCHING).read_text())
    assert list(rows[0])[:8] == [
        "n",
        "concurrency",
        "sequential_s",
        "concurrent_s",
        "sequential_qps",
        "concurrent_qps",
        "sequential_tok_s",
        "concurrent_tok_s",
    ]
    assert list(rows[0])[8:10] == ["sequential_output_tok_s", "concurrent_output_tok_s"]
    qps = {}
    for users, first in LENGTHS.items():
        qps[users] = fmean([BATCH / first, BATCH / first / 1.5])
    for row, (users, first) in zip(rows, LENGTHS.items(), strict=True):
        assert row["n"] == BATCH
        assert row["concurrency"] == users
        assert row["repeats"] == 2
        check_side(row, "sequential", 24, qps[1])
        check_side(row, "concurrent", first, qps[users])
        assert row["speedup"] == 24 / first
        slow = 2 if users == 16 else 1
        assert row["concurrent_p95_e2e_s"] == pytest.approx(1.25 * slow)
        in_flight = 40 / 3 if users == 16 else users
        assert row["concurrent_in_flight"] == pytest.approx(in_flight, rel=1e-3)
    check_csv(tmp_path / "run" / names.SWEEP_CSV, qps)
    check_words(tmp_path / "run" / names.BATCHING_MD)
    assert "Send 8 at once" in (tmp_path / "run" / names.REPORT_HTML).read_text()


def check_side(row: dict[str, Any], name: str, seconds: float, rate: float) -> None:
    """The figures of one side of a comparison, whose first repeat took so many seconds."""
    mean = 1.25 * seconds
    half = 12.706 * 0.25 * seconds
    assert row[f"{name}_s"] == pytest.approx(mean)
    assert row[f"{name}_s_ci95"] == pytest.approx([mean - half, mean + half])
    assert row[f"{name}_qps"] == pytest.approx(rate, abs=1e-3)
    assert row[f"{name}_output_tok_s"] == pytest.approx(rate * OUTPUT, rel=1e-4)
    assert row[f"{name}_tok_s"] == pytest.approx(rate * (PROMPT + OUTPUT), rel=1e-4)


def check_csv(path: Path, qps: dict[int, float]) -> None:
    """The table of a sweep of known batches."""
    csv = pd.read_csv(path)
    assert csv.columns[:6].tolist() == [
        "concurrency",
        "mean_e2e_s",
        "p95_e2e_s",
        "qps",
        "tok_s",
        "gpu_util_pct",
    ]
    assert csv.concurrency.tolist() == [1, 4, 8, 16]
    assert csv.measurements.tolist() == [4, 2, 2, 2]  # one at a time, and 1 at once
    assert csv.mean_e2e_s.tolist() == pytest.approx([1.25, 1.25, 1.25, 1.25 * 40 / 24])
    tok_s = [rate * (PROMPT + OUTPUT) for rate in qps.values()]
    assert csv.tok_s.tolist() == pytest.approx(tok_s, rel=1e-4)
    assert csv.gpu_util_pct.isna().all()


def check_words(path: Path) -> None:
    """What the report of known batches says."""
    said = path.read_text()
    for sentence in (
        "# 24 requests as one batch\n",
        "Send 8 at once: 24 requests take 3.75 s in place of 30.0 s one at a time (8.00 times as",
        "With 16 at once, 13.3 were in flight on average: fewer are left at the end",
        "With 1 at once the batch repeats one at a time and was 1.00 times as fast: what differs",
        "| Tokens/s | Output tokens/s | p95 e2e, s | In flight | Failed |",
        "| 1 | 30 (0 to 106) | 30 (0 to 106) | 1.00 |",  # 30 - 12.7 x 6 is below zero
        "Throughput levels off, within 10% of its peak, at 8 users.",
        "Sweet spot: 8 users; the levels next to it have less than 90% of the best throughput",
        "Latency blows up from 8 to 16 users: 2.00 times the p95 end-to-end latency",
        "Student's t over the repeats",
    ):
        assert sentence in said


LENGTHS = {1: 24, 4: 6, 8: 3, 16: 3}  # s of the first repeat


def test_a_request_that_fails(tmp_path: Path) -> None:
    """It ends its batch as any other, is counted, and its p95 is infinite only if it is in it."""
    assert sweep(tmp_path / "run", Slots(fails=BATCH + 3), (4,), (SECOND,)) == "measured"
    (row,) = json.loads((tmp_path / "run" / names.BATCHING).read_text())
    assert row["sequential_failed"] == 0
    assert row["concurrent_failed"] == 1
    assert row["concurrent_qps"] == pytest.approx(23 / 6, abs=1e-4)
    assert row["concurrent_output_tok_s"] == pytest.approx(23 * OUTPUT / 6, abs=1e-3)
    assert row["concurrent_s_ci95"] == [None, None]
    assert row["repeats"] == 1


def test_most_requests_fail(tmp_path: Path) -> None:
    """The sweep ends there; what was compared before is kept, the failed batch is not compared."""
    server = Slots(most=8)
    assert sweep(tmp_path / "run", server, (4, 8, 16), (SECOND,)) == "target_failed"
    rows = json.loads((tmp_path / "run" / names.BATCHING).read_text())
    (row,) = rows
    assert row["concurrency"] == 4
    assert row["concurrent_s"] == 6
    assert len(server.all) == 3 * BATCH


def test_an_slo_on_batches(tmp_path: Path) -> None:
    """Each batch is judged as a level: every request takes a second at least."""
    path = tmp_path / "run"
    assert sweep(path, Slots(), (4, 16), (SECOND,), "e2e_p95=900ms") == "missed"
    judged = [level["slos"][0] for level in load(path / names.RESULT)["levels"]]
    assert [one["users"] for one in judged] == [1, 4, 16]
    assert [one["n_over"] for one in judged] == [24, 24, 24]
    assert [one["n"] for one in judged] == [24, 24, 24]
    assert judged[0]["verdict"] == "missed"
    assert "e2e_p95=900ms missed at 1 concurrent request" in (path / "report.md").read_text()
    assert [row["concurrency"] for row in load_list(path / names.BATCHING)] == [4, 16]


def test_a_server_that_counts_no_tokens(tmp_path: Path) -> None:
    """tok_s is empty and says why; output tokens are there."""
    assert sweep(tmp_path / "run", Slots(counts=False), (4,), (SECOND,)) == "measured"
    (row,) = json.loads((tmp_path / "run" / names.BATCHING).read_text())
    assert row["concurrent_tok_s"] is None
    assert row["concurrent_output_tok_s"] == 4 * OUTPUT
    csv = pd.read_csv(tmp_path / "run" / names.SWEEP_CSV)
    assert csv.tok_s.isna().all()
    assert set(csv.notes) == {
        "the server counts no tokens: output tokens are events, tok_s is not known"
    }


@pytest.mark.parametrize(
    ("values", "want"),
    [
        ([5.0], (None, None)),
        ([1.0, 2.0, inf], (None, None)),  # requests of one failed
        ([1.0, 2.0], (-4.853, 7.853)),  # 1.5 -+ 12.706 x 0.7071 / 1.414
        ([1.0, 2.0, 3.0], (-0.484, 4.484)),  # 2 -+ 4.303 / 1.732
        ([1.0, 2.0, 3.0, 4.0, 5.0], (1.037, 4.963)),  # 3 -+ 2.776 x 1.581 / 2.236
    ],
)
def test_the_interval_of_repeats(
    values: list[float], want: tuple[float | None, float | None]
) -> None:
    """Student's t with one degree of freedom less than there are repeats."""
    got = tuple(None if isnan(x) else round(x, 3) for x in mean_interval(values))
    if want[0]:
        assert got == pytest.approx(want, abs=0.02)
    else:
        assert got == want


@pytest.mark.parametrize(("purpose", "accused"), [(Purpose.hold, True), (Purpose.batch, False)])
def test_the_end_of_a_batch_is_no_lack_of_load(purpose: Purpose, *, accused: bool) -> None:
    """12 requests by 12 users, of 1 to 12 s: 6.5 in flight on average."""
    records = []
    for user in range(12):
        done_ns = T0 + (user + 1) * SECOND
        records.append(RequestRecord(0, user, user, T0, done_ns, Outcome.ok, -1))
    end_ns = T0 + 12 * SECOND
    window = Window(0, Users(12), purpose, T0, T0, T0, end_ns, T0)
    said = audit_sentence(RecordTable.from_records(records), window, [])
    assert ("6.5 requests were in flight with 12 users" in said) is accused


def test_users_of_a_batch_share_its_requests() -> None:
    """Five requests, none more; after all have left the next batch, as long and in other words."""
    options = DriveOptions("http://127.0.0.1:9", "m", workload("chat"), batch=5, run_id="r")
    driver = Driver(options, 0)

    def batch(users: int) -> list[RequestSpec]:
        sent = []
        for _ in range(users):
            assert driver.stagger_s(driver.new_user()) < 0.1
        for turn in range(5 + users):  # each user asks in turn until it is sent home
            spec = driver.next_spec(0)
            assert (spec is None) == (turn >= 5)
            if spec is not None:
                sent.append(spec)
                driver.issued += 1
        return sent

    one = batch(1)
    three = batch(3)
    lengths_of_one = [(spec.prompt_tokens, spec.output_tokens) for spec in one]
    lengths_of_three = [(spec.prompt_tokens, spec.output_tokens) for spec in three]
    assert lengths_of_one == lengths_of_three
    assert len(set(lengths_of_one)) > 1
    assert len({s.text for s in one + three}) == 10


ARGUMENTS = ("--embedded", "--max-num-seqs", "4", "--prompt-tokens", "64", "--quiet")


def most_in_flight(batch: pd.DataFrame) -> int:
    """How many requests of a batch were in flight at once at most."""
    begun = [(at, 1) for at in batch.sent_at]
    ended = [(at, -1) for at in batch.done_at]
    in_flight = 0
    most = 0
    for _, change in sorted(begun + ended):
        in_flight += change
        most = max(most, in_flight)
    return most


def batch_figures(batch: pd.DataFrame) -> dict[str, float]:
    """The figures of a batch of 16 requests from its requests alone."""
    seconds = (batch.done_at.max() - batch.sent_at.min()).total_seconds()
    output_tokens = batch.output_tokens.sum()
    tokens = batch.prompt_tokens.sum() + output_tokens
    return {
        "s": seconds,
        "qps": 16 / seconds,
        "output_tok_s": output_tokens / seconds,
        "tok_s": tokens / seconds,
        "mean_e2e_s": batch.e2e_ms.mean() / 1e3,
    }


@pytest.mark.long
@pytest.mark.process
def test_a_command_and_its_records(tmp_path: Path) -> None:
    """Every figure follows from the requests alone; the server never has more than it should."""
    out = tmp_path / "run"
    done = harness(
        "sweep",
        "--users",
        "2,8",
        "--batch",
        "16",
        "--repeats",
        "2",
        "--output-tokens",
        "8",
        *ARGUMENTS,
        "--out",
        str(out),
    )
    check_code(done.returncode, done.stdout + done.stderr, 0)
    run = open_run(out)
    requests = run.requests.sort_values(["worker", "number"])
    assert requests.phase.eq("measured").all()
    assert requests.groupby("level").size().tolist() == [16] * 6
    lengths = [one.output_tokens.tolist() for _, one in requests.groupby("level")]
    assert lengths == [lengths[0]] * 6
    figures = []
    batches = [batch for _, batch in requests.groupby("level")]
    for users, batch in zip([1, 2, 8] * 2, batches, strict=True):
        assert most_in_flight(batch) == users
        figures.append(batch_figures(batch))
    for row, place in zip(load_list(out / names.BATCHING), (1, 2), strict=True):
        check_means(row, "sequential", figures[0], figures[3])
        check_means(row, "concurrent", figures[place], figures[3 + place])
        speedup = row["sequential_s"] / row["concurrent_s"]
        assert row["speedup"] == pytest.approx(speedup, abs=1e-4)
    kept = {}
    for name in (names.BATCHING, names.SWEEP_CSV):
        kept[name] = (out / name).read_bytes()
    assert harness("report", str(out)).returncode == 0
    assert {name: (out / name).read_bytes() for name in kept} == kept


def check_means(
    row: dict[str, float], side: str, first: dict[str, float], second: dict[str, float]
) -> None:
    """The figures of a side are the means of its two batches."""
    for name, figure in first.items():
        want = fmean([figure, second[name]])
        assert row[f"{side}_{name}"] == pytest.approx(want, rel=1e-4), name


def load_list(path: Path) -> list[dict[str, float]]:
    """A JSON file with a list."""
    found: list[dict[str, float]] = json.loads(path.read_text())
    return found


@pytest.mark.process
def test_ctrl_c_in_a_batch(tmp_path: Path) -> None:
    """The requests of the batch that was cut off are kept, and it is compared with nothing."""
    out = tmp_path / "run"
    command = ("sweep", "--users", "4", "--batch", "8", "--repeats", "50", "--output-tokens", "64")
    with started(*command, *ARGUMENTS, "--out", str(out)) as process:
        records = out / names.records(0)
        wait_for(lambda: lines(out / names.LEVELS) >= 2)
        known = records.stat().st_size
        wait_for(lambda: records.stat().st_size > known)
        os.kill(process.pid, signal.SIGINT)
        said, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Interrupted" in said
    levels = load(out / names.RESULT)["levels"]
    for level in levels:
        assert level["outcomes"] == {"ok": 8}
    assert [level["purpose"] for level in levels[:2]] == ["sequential", "batch"]
    (row,) = load_list(out / names.BATCHING)
    assert row["repeats"] == len(levels) // 2  # a last one at a time may be alone
    left = Counter(open_run(out).requests.outcome)
    assert left["ok"] + left["cancelled"] + left["open"] > 8 * len(levels)
