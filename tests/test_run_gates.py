"""What a pipeline asks of a knee: by what was shown, and it decides the exit code."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
from report_folder import make

from harness.cli.app import main
from harness.core.states import Status, Verdict
from harness.metrics.result import Gate, Knee, Result
from harness.records import names
from harness.records.folder_writer import RunFolder
from harness.records.json_files import read_json
from harness.run.results import (
    at_least_gate,
    evaluate_gates,
    exit_code,
    precision_gate,
    write_results,
)


@pytest.mark.parametrize(
    ("knee", "users", "want"),
    [
        (Knee(holds=34, estimate=36, fails_by=38), 34, Verdict.met),
        (Knee(holds=34, estimate=36, fails_by=38), 35, Verdict.inconclusive),  # not shown
        (Knee(holds=34, estimate=36, fails_by=38), 37, Verdict.inconclusive),
        (Knee(holds=34, estimate=36, fails_by=38), 38, Verdict.missed),
        (Knee(holds=64), 64, Verdict.met),  # not reached
        (Knee(fails_by=1), 1, Verdict.missed),  # the lowest level failed
        (Knee(estimate=40), 8, Verdict.inconclusive),
    ],
)
def test_at_least(knee: Knee, users: int, want: Verdict) -> None:
    """A level that passed there or above, or one that failed there or below."""
    assert at_least_gate(knee, users).verdict == want


@pytest.mark.parametrize(
    ("knee", "want"),
    [
        (Knee(holds=100, fails_by=106, precision=0.05), Verdict.met),  # 100 to 105
        (Knee(holds=100, fails_by=107, precision=0.05), Verdict.inconclusive),
        (Knee(holds=3, fails_by=5, precision=0.05), Verdict.met),  # one user between them
        (Knee(holds=3, fails_by=6, precision=0.05), Verdict.inconclusive),
        (Knee(holds=2.0, fails_by=2.1, precision=0.05, unit="requests/s"), Verdict.met),
        (Knee(holds=2.0, fails_by=2.2, precision=0.05, unit="requests/s"), Verdict.inconclusive),
        (Knee(holds=100, precision=0.05), Verdict.inconclusive),  # no level failed
    ],
)
def test_strict(knee: Knee, want: Verdict) -> None:
    """The precision that was asked for, between the ends that were shown."""
    assert precision_gate(knee).verdict == want


@pytest.mark.parametrize(
    ("status", "asked", "want"),
    [
        (Status.found, {"strict": True}, [Verdict.inconclusive]),
        (Status.holds, {"strict": True}, [Verdict.inconclusive]),
        (Status.found, {}, []),
        (Status.slo_failed_at_min, {"strict": True}, []),  # it has a code of its own
        (Status.not_reached, {"strict": True}, []),
        (Status.holds, {"at_least": 100}, [Verdict.met]),
        (Status.holds, {"at_least": 100, "strict": True}, [Verdict.met, Verdict.inconclusive]),
    ],
)
def test_what_is_asked_of_a_wide_promise(
    status: Status, asked: dict[str, object], want: list[Verdict]
) -> None:
    """It decides by itself; only --strict asks for the precision."""
    knee = Knee(holds=100, fails_by=160, precision=0.05)
    result = Result(status=status, knee=knee)
    got = [gate.verdict for gate in evaluate_gates(result, Path(), asked)]
    assert got == want


SEARCHED = Knee(holds=100)


@pytest.mark.parametrize(
    ("status", "knee", "verdicts", "want"),
    [
        (Status.met, None, ["met"], 0),
        (Status.met, None, ["inconclusive"], 6),
        (Status.met, None, ["missed"], 99),
        (Status.missed, None, ["met"], 99),  # as good as the baseline, and too slow
        (Status.inconclusive, None, ["met"], 6),  # that says nothing of the SLO
        (Status.measured, None, ["missed"], 99),
        (Status.invalid, None, ["met"], 5),
        (Status.found, SEARCHED, [], 0),
        (Status.holds, SEARCHED, [], 0),
        (Status.holds, SEARCHED, ["inconclusive"], 6),
        (Status.found, SEARCHED, ["met"], 0),
        (Status.inconclusive, SEARCHED, ["met"], 0),  # what was asked is answered
        (Status.found, SEARCHED, ["met", "inconclusive"], 6),
        (Status.not_reached, SEARCHED, ["missed", "inconclusive"], 99),
        (Status.invalid, SEARCHED, ["met"], 5),
        (Status.interrupted, SEARCHED, ["met"], 130),
        (Status.target_failed, SEARCHED, ["met"], 99),
    ],
)
def test_the_exit_code(status: Status, knee: Knee | None, verdicts: list[str], want: int) -> None:
    """The worst gate's, where there is an answer at all; of given levels the SLOs' too."""
    gates = [Gate(one, Verdict(one), "") for one in verdicts]
    assert exit_code(Result(status=status, knee=knee), gates) == want


def test_a_baseline_has_one_of_the_levels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run is compared at a level that both held: else it is refused, and nothing is sent."""
    baseline = tmp_path / "main"
    make(baseline, seconds=1)
    run = ["run", "http://127.0.0.1:1", "--baseline", str(baseline), "--duration", "1s"]
    assert main([*run, "--users", "3"]) == 2
    said = capsys.readouterr().err
    assert f"--baseline is {baseline}, which held " in said
    assert "expected one of the levels asked for (3 users)" in said
    assert main([*run, "--users", "16", "--dry-run"]) == 0
    assert main(["run", "http://127.0.0.1:1", "--users", "3", "--tolerance", "5%"]) == 2
    assert "--tolerance is given without --baseline" in capsys.readouterr().err


def test_a_baseline_of_itself_is_no_worse(tmp_path: Path) -> None:
    """The same records twice: nothing is worse; run.json asks, and so does a later `report`."""
    path = tmp_path / "run"
    result = make(path, seconds=1)
    assert result is not None
    (gate,) = evaluate_gates(result, path, {"baseline": str(path), "tolerance": 0.05})
    assert gate.verdict == Verdict.met
    assert "worse by more" not in gate.sentence
    info = read_json(path / names.RUN) or {}
    asked = info["config"] | {"at_least": 10**6}
    RunFolder(path).write_json(names.RUN, info | {"config": asked})
    again: Result = write_results(path)[1]
    told = [asdict(one)["name"] for one in again.gates]
    assert told == ["holds at least 1000000"] * (again.status != Status.invalid)
