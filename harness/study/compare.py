"""Two run folders beside each other, from their records alone; both are judged by A's SLOs."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from harness.errors import ConfigError
from harness.measure import compare
from harness.measure.compare import ERRORS, KNEE, Comparison, Pair, latency
from harness.measure.evidence import FEWEST_BLOCKS, Judged, gather, lifetime_ns
from harness.measure.fit import crossing, levels_of
from harness.measure.gaps import Gaps, Span, count_gaps
from harness.measure.metrics import e2e, failed, tpot, ttft
from harness.measure.recorded import Known
from harness.measure.spread import bin_edges
from harness.measure.stats import MOST_BLOCKS
from harness.measure.table import OK, OPEN
from harness.runfolder.reader import read_run
from harness.study.counted import Counted, overlapping
from harness.study.outcome import ends_decided
from harness.study.results import logged_steps, plan_of
from harness.study.usable import shared_tokens, unusable
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from harness.measure.compare import Numbers, Side
    from harness.measure.evidence import Window
    from harness.measure.recorded import Recorded
    from harness.measure.search import SearchPlan
    from harness.measure.table import RecordTable
    from harness.measure.walk import Piece
    from harness.runfolder.reader import Run

    Sides = dict[int, dict[str, Side]]  # users (0: of the whole run) -> metric -> figure

QUANTILES: Final = {"p50": 0.5, "p95": 0.95}
OF_REQUESTS: Final = {"ttft": ttft, "tpot": tpot, "e2e": e2e}


class ByBlock(Gaps):
    """All holds of one level: their gaps, and their tokens, by blocks of a lifetime at least."""

    def __init__(self, recorded: Recorded, windows: Sequence[Window]) -> None:
        """`windows`: those holds."""
        holds = [(overlapping(recorded.table, w), w.settled_ns, w.end_ns) for w in windows]
        spans = [Span(start, end, _block_ns(t, end - start)) for t, start, end in holds]
        super().__init__(recorded.table, spans)
        edges = [np.append(np.arange(s, e + 1, block), e + 1) for s, e, block in spans]
        self.seconds = np.concatenate([np.diff(one) / SECOND for one in edges])
        self.tokens = np.zeros(len(self.seconds))

    def place(self, at_ns: Numbers) -> Numbers:
        """The block of each instant; -1: in no hold."""
        out = np.full(len(at_ns), -1)
        for first, (start, end, block_ns) in zip(self._first, self.spans, strict=False):
            here = (at_ns >= start) & (at_ns <= end)
            out[here] = first + (at_ns[here] - start) // block_ns
        return out

    def count(self, at_ns: Numbers, each: Numbers | int = 1) -> Numbers:
        """How much came in each block."""
        place = self.place(at_ns) + 1
        return np.bincount(place, np.broadcast_to(each, len(place)), len(self.seconds) + 1)[1:]

    def see(self, piece: Piece) -> None:
        """As Gaps."""
        super().see(piece)
        if not self._second:
            self.tokens += self.count(piece.chunk.at_ns, piece.chunk.tokens)

    def sides(self, table: RecordTable, users: int) -> dict[str, Side]:
        """Every figure of the level."""
        out = {}
        blocks, bins, counts = self._spreads["gap_ns"].cells
        lost = np.arange(len(self._lost))  # infinite gaps, one value for each block
        values = np.append(bin_edges(bins)[0], np.full(len(lost), np.inf))
        gaps = values, np.append(blocks, lost), np.append(counts, self._lost)
        for name, q in QUANTILES.items():
            for key, observe in OF_REQUESTS.items():
                seen = observe(table)
                place = self.place(table.sent_ns[seen.row])
                if (here := place >= 0).any():
                    out[f"{key}_{name}"] = latency(q, seen.ns[here], place[here])
            if self.n:
                out[f"itl_{name}"] = latency(q, *gaps, ns=self.quantile(q))
        done = self.count(table.done_ns[table.outcome == OK])
        for name, amounts in (("output_tokens_per_s", self.tokens), ("requests_per_s", done)):
            out[name] = compare.rate(amounts, self.seconds, users, len(self.spans))
        if ended := self.count(table.done_ns[table.outcome != OPEN]).sum():
            bad = self.count(table.done_ns[failed(table)]).sum()
            out[ERRORS] = compare.share(float(bad), float(ended))
        return out


def _block_ns(table: RecordTable, length_ns: int) -> int:
    """A lifetime at least: longer blocks would be too few for the small errors that Holm needs."""
    lifetimes = max(length_ns, 1) / max(lifetime_ns(table), 1)
    return -(-max(length_ns, 1) // int(np.clip(lifetimes, FEWEST_BLOCKS, MOST_BLOCKS))) + 1


def sides_of(
    recorded: Recorded, windows: Sequence[Window], plan: SearchPlan, *, searched: bool
) -> Sides:
    """Every level of these windows, all its holds together; the knee, where one was looked for."""
    ordered = sorted(windows, key=lambda w: (w.users, w.settled_ns))
    seen = {n: ByBlock(recorded, list(of)) for n, of in groupby(ordered, lambda w: w.users)}
    known = {w: Known(recorded, w.settled_ns, w.end_ns) for w in windows if searched}
    judged = {w: Judged(one.table, w, plan.slos) for w, one in known.items()}
    count_gaps(recorded, list(seen.values()), list(judged.values()))
    evidences = [gather(known[w], w, plan.slos, one) for w, one in judged.items()]
    sides: Sides = {users: one.sides(recorded.table, users) for users, one in seen.items()}
    if plan.slos and (levels := levels_of(evidences, plan.slos, plan.max_errors)):
        decided = ends_decided(plan, levels)
        cross = crossing(levels, plan.slos, plan.max_errors, plan.seed, decided=decided)
        sides[0] = {KNEE: compare.knee(cross)}
    return sides


def pairs_of(a: Sides, b: Sides) -> list[Pair]:
    """What both have: the knee first, then level by level."""
    common = sorted(a.keys() & b.keys())
    return [Pair(m, n, side, b[n][m]) for n in common for m, side in a[n].items() if m in b[n]]


def compare_folders(a: Path, b: Path, tolerance: float) -> Comparison:
    """B beside A, the baseline. Raises RunFolderError; ConfigError where nothing is common."""
    runs = read_run(a), read_run(b)
    plans = [plan_of(run) for run in runs]
    ours, theirs = (_read(run, plans[0]) for run in runs)
    pairs = pairs_of(ours, theirs)
    if not pairs:
        held = [sorted(n for n in found if n) for found in (ours, theirs)]
        raise ConfigError(
            f"{a} and {b} have no level in common: found usable ones of {held[0]} and {held[1]} "
            "users, expected one that both held, or two knees; try `vllm-harness run` with one."
        )
    one, other = (_settings(run) for run in runs)
    differing = [name for name in one | other if one.get(name) != other.get(name)]
    unlike = {name: (one.get(name, "?"), other.get(name, "?")) for name in differing}
    found = compare.compare(pairs, tolerance, plans[0].max_errors)
    return Comparison(str(a), str(b), tolerance, unlike, found)


def _read(run: Run, plan: SearchPlan) -> Sides:
    """A run folder without the steps that cannot be used."""
    config, logged = run.info["config"], logged_steps(run)
    why = {entry.window: entry.invalid for entry in logged}
    if left := [entry.window for entry in logged if not entry.audited]:
        shared = shared_tokens(config.get("drive") or {})
        for w, step in Counted(run, left, plan.slos, run.server).steps.items():
            known = step.known
            why[w] = unusable(w, known, run.server, plan.slos, shared=shared, counted=step)
    windows = [window for window, reason in why.items() if not reason]
    return sides_of(run, windows, plan, searched=config.get("kind") == "knee")


def _settings(run: Run) -> dict[str, str]:
    """What must be alike for the runs to differ in their servers' speed alone."""
    config, server = run.info["config"], run.info.get("server") or {}
    client, gpus = run.info.get("hardware") or {}, (run.info.get("gpu") or {}).get("gpus") or []
    names = ("model", "version", "embedded", "api", "flags")
    told: dict[str, Any] = {name: server.get(name) for name in names} | {
        "GPUs": [gpu.get("name") for gpu in gpus],
        "workload": (config.get("drive") or {}).get("workload"),
        "SLOs": config.get("slos"),
        "client": {name: client.get(name) for name in ("cpu", "usable_cores")},
    }
    flat = ((n, v if isinstance(v, dict) else {"": v}) for n, v in told.items())
    return {f"{name} {part}".strip(): str(v) for name, parts in flat for part, v in parts.items()}
