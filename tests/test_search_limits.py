"""The knee at other limits: `report DIR --slo`, the curves in result.json, cliff or slope."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import isnan
from typing import TYPE_CHECKING

import numpy as np
import pytest
from measure_tables import record, table, window
from report_folder import LEVELS, make
from simulated_knee import search

from harness.cli.app import main
from harness.errors import EXIT_OK, EXIT_SLO_MISSED, ConfigError
from harness.metrics.evidence import EvidenceCounter, gather_evidence
from harness.metrics.result import read_result
from harness.metrics.scan import scan
from harness.metrics.slo import Slo
from harness.records.request_record import Outcome
from harness.search.knee_curve import at_limit, evidence_at, steepness
from lab.engine_configurations import configuration

if TYPE_CHECKING:
    from pathlib import Path

TTFT = Slo.parse("ttft_p95=500ms")
ITL = Slo.parse("itl_p95=50ms")
ONE_WORKER = pytest.mark.xdist_group("limits")  # has `folder` for all


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search for ttft_p95=500ms and itl_p95=50ms, on 40 slots."""
    path = tmp_path_factory.mktemp("limits") / "run"
    make(path, seconds=32)  # a level passes after 14 lifetimes
    return path


@pytest.mark.parametrize("slo", [TTFT, ITL])
@pytest.mark.parametrize("steps", [-150, -56, -1, 0, 1, 56, 150])
def test_evidence_at_another_limit(slo: Slo, steps: int) -> None:
    """The counts are those of an SLO with that limit, of open and failed requests too."""
    rows = []
    for s in range(90):
        sent = 100 * s
        rows.append(record(s, sent, [sent + 7 * s, sent + 11 * s]))
    for s in range(90):
        done = 9000 + 5 * s
        rows.append(record(90 + s, 9000, [], done=done, outcome=Outcome.open))
    rows.append(record(200, 500, [], done=600, outcome=Outcome.connect, planned=3))
    seen = table(*rows)
    hold = window(1, 0, 10)
    counted = EvidenceCounter(seen, hold, (slo,))
    scan(seen, [counted])
    got = evidence_at(seen, hold, counted, slo, steps)
    want = gather_evidence(seen, hold, (at_limit(slo, steps),))
    for got_over, want_over in zip(got.over(0), want.over(0), strict=True):
        assert got_over.tolist() == want_over.tolist()


@ONE_WORKER
@pytest.mark.parametrize(
    ("slos", "code", "said"),
    [
        # its levels of 52 and 56 decide it
        ("ttft_p95=600ms", EXIT_OK, "Holds 52 concurrent requests: p95 TTFT 500 ms"),
        ("ttft_p95=300ms", EXIT_OK, "Fails at 48; best estimate 44"),
        ("itl_p95=20ms", EXIT_OK, "nearby: the next one fails at 16; best estimate 11"),
        ("ttft_p95=300ms itl_p95=20ms", EXIT_OK, "best estimate 10"),
        ("ttft_p95=20s", EXIT_OK, "No failing level nearby."),
        ("ttft_p95=1ms", EXIT_SLO_MISSED, "No level passes"),
        ("ttft_p95=1s ttft_p95=2s", ConfigError.exit_code, ""),
    ],
)  # fmt: skip
def test_another_slo_from_old_records(
    folder: Path, capsys: pytest.CaptureFixture[str], slos: str, code: int, said: str
) -> None:
    """As far as the levels reach; else what is missing. The folder stays as it was."""
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    words = [word for slo in slos.split() for word in ("--slo", slo)]
    assert main(["report", str(folder), *words]) == code
    shown = capsys.readouterr().out
    assert said in shown
    assert ("held for ttft_p95=500ms and itl_p95=50ms" in shown) == (code != ConfigError.exit_code)
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


@ONE_WORKER
def test_the_curves_of_a_result(folder: Path) -> None:
    """One for each SLO alone, by limit, within the levels held; TTFT's has the knee itself."""
    result = read_result(folder)
    assert result is not None
    assert result.knee is not None
    curves = {curve.slo: curve for curve in result.knee.curves}
    assert set(curves) == {"ttft_p95", "itl_p95"}
    assert curves["ttft_p95"].limit == 500
    assert curves["itl_p95"].limit == 50
    for curve in curves.values():
        for left, right in pairwise(curve.points):
            assert left[0] < right[0]
        for _, knee, low, high in curve.points:
            assert 0 <= low <= knee <= high < max(LEVELS)
    own = [point[1:3] for point in curves["ttft_p95"].points if point[0] == 500]
    assert own == [(result.knee.estimate, result.knee.holds)]


@pytest.mark.parametrize(
    ("seed", "want"),
    [(252, ("cliff", "ttft_p95", 120)), (246, ("slope", "ttft_p95", 60))],
)  # long runs: 143 and 59 ms per user
def test_cliff_or_slope(seed: int, want: tuple[str, str, float]) -> None:
    """From 41 to 44 users of 41 slots each costs 36% of the limit; of prefill, 11 to 13, 25%."""
    found, plan, held, _ = search(configuration(seed), seed)
    assert (got := steepness(plan, found, held))
    assert (got["steepness"], got["rise_of"], round(got["rise_ms"])) == want
    for place, said in ((-1, True), (0, False)):  # none at all came, or faster than at the promise
        moved = []
        for level in held:
            grid = np.zeros_like(level.evidence.grids[0])
            grid[:, place] = level.evidence.grids[0].sum(axis=1)
            other = replace(level.evidence, grids=(grid, *level.evidence.grids[1:]))
            if level.window.load.count == found.fails_by:
                level = replace(level, evidence=other)  # noqa: PLW2901 - the one that fails
            moved.append(level)
        got = steepness(replace(plan, slos=plan.slos[:1]), found, moved)
        assert (got.get("steepness") == "cliff" and isnan(got["rise_ms"])) == said, got
