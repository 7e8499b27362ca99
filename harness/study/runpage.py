"""The live page of one run of the `vllm-harness` command (`--ui`), to its answer.

The web server ends with the command, a moment after an open page has seen the answer.
"""

from __future__ import annotations

from contextlib import suppress
from math import nan
from typing import TYPE_CHECKING, Any, Self

from harness.drive.livepage import LivePage
from harness.export.history import LiveState
from harness.export.states import facts_of
from harness.measure.recent import Recent
from harness.measure.slo import Slo
from harness.measure.typed import to_json
from harness.study.watch import PageView
from harness.units import MS

if TYPE_CHECKING:
    from harness.measure.counts import RunCounts
    from harness.measure.result import Result
    from harness.study.experiment import Viewer, Wanted


class RunPage:
    """A context manager: at its end nobody is served any more."""

    def __init__(self, wanted: Wanted, url: str, model: str) -> None:
        """Nothing is served yet: the session does it."""
        self.recent = Recent()
        self.state = LiveState({"kind": wanted.kind})
        self.state.begin(**facts_of("starting", url), **about(wanted, url, model))
        self.page = LivePage(self.state, lambda: wanted.output.out_dir)
        self._looked_at = False

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let an open page see the answer, then end."""
        with suppress(KeyboardInterrupt):
            if self._looked_at:
                self.page.linger()
        self.page.close()

    def view(self, counts: RunCounts, beside: Viewer) -> PageView:
        """What sees each tick."""
        return PageView(self.state, counts, self.recent, beside)

    def over(self) -> None:
        """The load has ended."""
        self._looked_at = self.page.open
        self.page.stop = None
        self.state.tell(**facts_of("computing"))

    def answer(self, result: Result, words: str) -> None:
        """The results, and the report's words about them."""
        rows = zip(self.state.facts.get("steps", ()), result.levels, strict=False)
        steps = [row | {"decision": level.result} for row, level in rows]
        self.state.tell(**ending(result, words), steps=steps)


def about(wanted: Wanted, url: str, model: str) -> dict[str, Any]:
    """The page's facts of what is asked for."""
    return {
        "target": url,
        "model": model,
        "folder": wanted.output.out_dir.name,
        "slos": [{"name": s.name, "limit_ms": s.limit_ns / 1e6} for s in wanted.plan.slos],
        "processes": wanted.load.processes,
    }


def ending(result: Result, answer: str) -> dict[str, Any]:
    """The page's facts of a run that has its results; `answer`: the report's, in words."""
    lines = [line for line in answer.strip().splitlines() if not line.startswith("The run folder")]
    knee, facts = result.knee, facts_of(result.status)
    if result.target.simulated:  # the first line says so, and on the page a badge
        lines = lines[1:]
    return facts | {
        "simulated": result.target.label,
        "sentence": lines[0] if lines else "",
        "answer": lines[1:],
        "knee": [knee.estimate, *knee.ci95] if knee else [None, None, None],
        "holds": knee.holds if knee else None,
        "tiles": to_json(tiles(result)),
    }


def tiles(result: Result) -> list[dict[str, Any]]:
    """The result in a few figures: [value, low, high] where there is an interval."""
    knee, level = result.knee, result.at_knee
    out: list[tuple[str, Any, str, str, float]] = []
    if knee and knee.holds:
        fails = f"fails by {knee.fails_by}" if knee.fails_by else "the most that was tried"
        out.append(("Holds", str(knee.holds), "users", fails, nan))
    if knee and knee.estimate is not None:
        note = f"95%: {knee.ci95[0]} to {knee.ci95[1]}"
        out.append(("Best estimate", str(knee.estimate), "users", note, nan))
    if knee is None:
        out += [(one.slo, one.verdict, "", f"at {one.users} users", nan) for one in result.slos]
    if level is not None and (knee or len(result.used) == 1):
        limits = {s.name: s.limit_ns / MS for s in (Slo.parse(one.slo) for one in result.slos)}
        for key, name in (("ttft", "p95 TTFT"), ("itl", "p95 ITL")):
            p95 = level.latency(key).at("p95")
            if knee:
                p95 = getattr(knee, f"{key}_p95_ms"), *getattr(knee, f"{key}_p95_ms_ci95")
            out.append((name, p95, "ms", f"at {level.users} users", limits.get(f"{key}_p95", nan)))
        rate = (knee or level).output_tokens_per_s
        out.append(("Output tokens/s", [rate, nan, nan], "", f"at {level.users} users", nan))
    return [dict(zip(("name", "value", "unit", "note", "limit"), one, strict=True)) for one in out]
