"""What a run says of servers whose streams go wrong as clients have reported it."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest
from stream_server import CAME, StreamServer, stream_server
from study_process import check_code, harness, load

from harness.records import names
from harness.run.run_frames import open_run
from harness.server.probe import TIERS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# one worker has `runs`, a quarter of a minute, for all
pytestmark = [pytest.mark.process, pytest.mark.xdist_group("streams")]
RUN: Final = (
    "--workload",
    "fixed",
    "--users",
    "4",
    "--requests",
    "40",
    "--prompt-tokens",
    "16",
    "--output-tokens",
    "8",
    "--quiet",
)
ASKED: Final = 8
# the model: (exit code, how its measured requests ended)
ENDS: Final = {
    "counts-at-end": (0, {"ok"}),
    "sheds": (99, {"ok", "truncated"}),
    "fails": (99, {"status"}),
}
SLO: Final = {"sheds": ("--slo", "ttft_p95=5s"), "fails": ("--slo", "ttft_p95=5s")}


@dataclass(frozen=True)
class Ran:
    """A run that has ended."""

    code: int
    said: str
    folder: Path

    @property
    def level(self) -> dict[str, Any]:
        """Its only level in result.json."""
        [level] = load(self.folder / names.RESULT)["levels"]
        assert isinstance(level, dict)
        return level


@pytest.fixture(scope="module")
def server() -> Iterator[StreamServer]:
    """One for all models."""
    with stream_server() as made:
        yield made


@pytest.fixture(scope="module")
def runs(server: StreamServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """A run against each model; they wait about as long as they compute."""
    top = tmp_path_factory.mktemp("streams")

    def run(model: str) -> Ran:
        more = ("--model", model, *SLO.get(model, ()), "--out", str(top / model))
        done = harness("run", server.url, *RUN, *more)
        return Ran(done.returncode, done.stdout + done.stderr, top / model)

    with ThreadPoolExecutor(len(ENDS)) as pool:
        return dict(zip(ENDS, pool.map(run, ENDS), strict=True))


@pytest.mark.parametrize("model", ENDS)
def test_outcomes(runs: dict[str, Ran], model: str) -> None:
    """Failures alone never make a run invalid, and none is taken for a success."""
    code, outcomes = ENDS[model]
    run = runs[model]
    check_code(run.code, run.said, code)
    seen = open_run(run.folder).requests
    measured = seen[seen["phase"] == "measured"]
    assert set(measured["outcome"]) - {"open"} == outcomes
    assert load(run.folder / names.RESULT)["damage"] == []


def test_what_was_not_accepted_is_not_sent(runs: dict[str, Ran], server: StreamServer) -> None:
    """The probe finds the tier that the server takes; none of the load is refused."""
    seen = open_run(runs["counts-at-end"].folder).requests
    assert set(seen["status"].dropna()) == {200}
    assert server.did["counts-at-end", "refused"] == len(TIERS) - 1


def test_a_final_count_is_reconciled_with_the_events(runs: dict[str, Ran]) -> None:
    """Eight events have 24 tokens: three each."""
    seen = open_run(runs["counts-at-end"].folder).requests
    good = seen[seen["outcome"] == "ok"]
    assert {tuple(tokens) for tokens in good["tokens"]} == {(3,) * 8}
    assert runs["counts-at-end"].level["tokens_per_event"] == pytest.approx(3)


def test_answers_of_another_length_are_said(runs: dict[str, Ran]) -> None:
    """In line, report and result, whether or not the level may be used."""
    run = runs["counts-at-end"]
    delivery = run.level["delivery"]
    assert delivery["longer"] == delivery["n"]
    assert delivery["shorter"] == 0
    assert delivery["asked_tokens"] == ASKED
    assert delivery["came_tokens"] == CAME
    for text in (run.said, (run.folder / names.REPORT_MD).read_text()):
        assert "answers had more tokens than asked for (24 where 8 were asked for" in text
    assert "has no empty line behind it" in run.said


def test_each_request_that_was_shed_is_a_failure(
    runs: dict[str, Ran], server: StreamServer
) -> None:
    """As many as the server counted, and none of them was sent again."""
    seen = Counter(open_run(runs["sheds"].folder).requests["outcome"])
    assert seen["truncated"] == server.did["sheds", "shed"]
    assert not load(runs["sheds"].folder / names.RESULT)["client"]["resent"]


def test_the_servers_words_are_kept(runs: dict[str, Ran]) -> None:
    """Of a status, of an object without the word, and of a reason."""
    seen = open_run(runs["fails"].folder).requests
    said = {text.split(" you said")[0] for text in seen["error"].dropna()}
    broken_off = "the server broke the answer off (finish_reason abort)"
    assert said == {"HTTP 400:", "overloaded", broken_off}
