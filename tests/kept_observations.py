"""Kept observations of real servers, judged again by today's rules, without a server.

`python tests/kept_observations.py FILE...` prints what the rules name for each. A file is a
result.json, or a case of data/observations: the levels of such a result, its SLOs and its knee, and
what doubling a resource did to it. `python tests/kept_observations.py --keep RESULT NAME CAUSE
SOURCE` prints such a case: CAUSE is the knob that moved the knee most, or "" if nobody tried.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core.typed_json import from_json
from harness.metrics.level_figures import MaxNumSeqs
from harness.metrics.result import KneeCurve, Level
from harness.metrics.slo import Slo
from harness.search.explain_knee import bottleneck

if TYPE_CHECKING:
    from harness.metrics.result import Bottleneck

KEPT = Path(__file__).parent / "data" / "observations"
# What rules read of a level; the rest would be most of the file.
READ = (
    "index",
    "users",
    "decision",
    "settled_ns",
    "end_ns",
    "output_tokens_per_s",
    "over_share",
    "ttft_ms",
    "server",
    "gpu",
    "client",
    "gaps",
    "arrivals",
    "late",
    "prefill",
    "ttft_split",
)
LATENCY = ("n", "mean")


@dataclass(frozen=True, slots=True)
class Kept:
    """One case."""

    name: str
    slos: tuple[Slo, ...]
    knee: int
    max_num_seqs: MaxNumSeqs
    levels: list[Level]
    curves: tuple[KneeCurve, ...] = ()  # the knee of each SLO, at its own limit
    truth: str = ""  # the knob that moved the knee most; "": nobody tried
    chosen_on: bool = False  # whether the rules were chosen with it in view
    source: str = ""  # server, and what was done to it

    @classmethod
    def read(cls, path: Path) -> Kept:
        """Of a case, or of a result.json."""
        data = json.loads(path.read_text())
        if "target" in data:
            data = kept_form(data)
        slos = tuple(Slo.parse(text) for text in data["slos"])
        levels = [from_json(Level, level) for level in data["levels"]]
        return cls(
            name=str(data.get("name") or path.stem),
            slos=slos,
            knee=data["knee"],
            max_num_seqs=from_json(MaxNumSeqs, data["max_num_seqs"]),
            levels=levels,
            curves=tuple(from_json(KneeCurve, curve) for curve in data.get("curves", ())),
            truth=data.get("truth", ""),
            chosen_on=data.get("chosen_on", False),
            source=data.get("source", ""),
        )

    def judge(self) -> Bottleneck:
        """By the rules of today."""
        return bottleneck(self.slos, self.knee, self.levels, self.max_num_seqs, curves=self.curves)


def kept_form(result: dict[str, Any]) -> dict[str, Any]:
    """What the rules need of a result.json."""
    levels = []
    for level in result["levels"]:
        kept = {key: level[key] for key in READ if key in level}
        kept["ttft_ms"] = {key: level["ttft_ms"].get(key) for key in LATENCY}
        levels.append(known(kept))
    return {
        "slos": [slo["slo"] for slo in result["slos"]],
        "knee": knee_users(result["knee"] or {}),
        "max_num_seqs": known(result["target"]["max_num_seqs"]),
        "levels": levels,
        "curves": own_limits((result["knee"] or {}).get("curves") or []),
    }


def own_limits(curves: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each SLO that was asked for, the knee at its own limit."""
    kept = []
    for curve in curves:
        points = [point for point in curve["points"] if point[0] == curve["limit"]]
        if points:
            kept.append(curve | {"points": points})
    return kept


def knee_users(knee: dict[str, Any]) -> int:
    """The estimate; without one the lower end of the interval, and 0 where nothing is known."""
    estimate: int | None = knee.get("estimate")
    if estimate is not None:
        return estimate
    ci95 = knee.get("ci95") or [0]
    return ci95[0] or 0


def known(block: dict[str, Any]) -> dict[str, Any]:
    """Without what is null: that is the default of every field."""
    kept = {}
    for key, value in block.items():
        inner = known(value) if isinstance(value, dict) else value
        if inner is not None and inner != {}:
            kept[key] = inner
    return kept


def cases() -> list[Kept]:
    """Those of data/observations, by name."""
    return [Kept.read(path) for path in sorted(KEPT.glob("*.json"))]


def main() -> None:
    """Judge the files, or print a case to keep."""
    if sys.argv[1:2] == ["--keep"]:
        path, name, truth, source = sys.argv[2:]
        about = {"name": name, "truth": truth, "chosen_on": False, "source": source}
        result = json.loads(Path(path).read_text())
        sys.stdout.write(json.dumps(about | kept_form(result)) + "\n")
        return
    judged = [Kept.read(Path(path)) for path in sys.argv[1:]] or cases()
    for case in judged:
        found = case.judge()
        causes = ", ".join(f"{cause.name} {cause.probability:.2f}" for cause in found.causes)
        sys.stdout.write(f"{case.name}: {found.bound_by} ({causes})\n  truth: {case.truth}\n")
        sys.stdout.writelines(f"  {line}\n" for line in (*found.evidence, *found.ruled_out))


if __name__ == "__main__":
    main()
