"""`python -m lab.true_knee`: the true knee of an engine, without a server."""

from __future__ import annotations

import pytest

from lab.true_knee import main


@pytest.mark.parametrize(
    ("slo", "code", "want"),
    # One request of 32 + 32 tokens alone: about 10 ms a step on an h100, so a TTFT of some 10 ms
    # and, with two slots, a third user waits for half a request: 160 ms. 5 ms is out of reach.
    [
        ("ttft_p95=60ms", 0, "True knee: 2 users within ttft_p95=60ms."),
        ("ttft_p95=5ms", 99, "True knee: 0 users within ttft_p95=5ms."),
    ],
)
def test_true_knee(slo: str, code: int, want: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Two slots hold two users, and the exit code tells when not even one is held."""
    line = f"--max-num-seqs 2 --workload fixed --prompt-tokens 32 --slo {slo}"
    got = main([*line.split(), "--output-tokens", "32", "--max-users", "8"])
    lines = capsys.readouterr().out.splitlines()
    assert got == code
    assert lines[0] == want
    assert lines[1].split() == ["users", "worst", "quantile", "/", "limit"]


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("", ("python -m lab.true_knee: no --slo was given", "try --slo ttft_p95=500ms")),
        ("--slo ttft_p95=1s --gpu b17", ("--gpu", "b17", "h100")),
        ("--slo ttft_p95=1s --port 1", ("python -m lab.true_knee has no option --port",)),
    ],
)
def test_refused(line: str, parts: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """With exit code 2, and a sentence like those of the command."""
    assert main(line.split()) == 2
    said = capsys.readouterr().err
    assert [part for part in parts if part not in said] == []


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    """It shows the engine's flags and the load's."""
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    options = ("--max-num-seqs", "--workload", "--slo", "--min-users", "--max-users")
    assert [option for option in options if option not in shown] == []
