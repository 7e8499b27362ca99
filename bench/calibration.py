"""How well a simulator that is calibrated on one run predicts other levels and other runs.

    python bench/calibration.py FOLDER [CASE ...] > table.md

FOLDER holds the run folders that CASES name, with their records. The simulator is calibrated on
every other level of a run, then judged on the rest of its levels and on all levels of other runs:
p95 TTFT and p95 ITL, up to the knee, of levels with at least 20 requests (mean error, the median in
parentheses; for ITL also how many simulated values lie in the measured 95% interval), and the knee.
docs/calibration.md has the table that this made of runs on an H200.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from math import inf, isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from harness.engine.config import EngineConfig
from harness.metrics.result import Result, read_result
from harness.records.folder_reader import read_run
from harness.records.record_table import RecordTable, concat_tables
from harness.search.recorded_plan import logged_levels, search_plan
from harness.simulator.calibration import calibrate, figures, recorded_traffic, repeat_levels
from harness.simulator.reference_knee import true_knee
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from harness.metrics.evidence import Window
    from harness.metrics.slo import Slo

MIN_REQUESTS: Final = 20  # of a level whose p95 is judged
SEEDS: Final = (1, 2)
LONGEST_NS: Final = 180 * SECOND
HEAD: Final = (
    "Calibrated on", "judged on", "levels", "p95 TTFT off by", "p95 ITL off by",
    "ITL in its interval", "knee measured", "knee simulated", "off by",
)  # fmt: skip
Flags = dict[str, Any]
LARGE: Final[Flags] = {"max_num_seqs": 512, "max_num_batched_tokens": 16384}
KV: Final[Flags] = {"max_num_seqs": 256, "max_model_len": 4096}
# calibrated on -> the server's flags, and what it is judged on with the flags that differ there
CASES: Final[dict[str, tuple[Flags, dict[str, Flags]]]] = {
    "interf16384": (LARGE, {
        "interf16384": {}, "prefill2048": {}, "prefill4096": {},
        "interf2048": {"max_num_batched_tokens": 2048},
    }),
    "prefill4096": (LARGE, {"prefill4096": {}, "prefill2048": {}, "interf16384": {}}),
    "prefill2048": (LARGE, {"prefill2048": {}, "prefill4096": {}, "interf16384": {}}),
    "front1": (LARGE, {
        "front1": {}, "prefill2048": {}, "interf16384": {}, "front4": {"api_server_count": 4},
    }),
    "kv1500": (KV, {"kv1500": {}, "kv3000": {}, "kv6000": {}}),
    "kv3000": (KV, {"kv3000": {}, "kv1500": {}, "kv6000": {}}),
    "slots16": ({"max_num_seqs": 16}, {"slots16": {}, "slots32": {"max_num_seqs": 32}}),
}  # fmt: skip


@dataclass(frozen=True)
class Recorded:
    """A run folder: its requests with all tokens, its levels, and what it found."""

    table: RecordTable
    windows: list[Window]
    size: Flags  # of its KV cache
    result: Result
    slos: tuple[Slo, ...]

    @classmethod
    def read(cls, path: Path) -> Recorded:
        """With every token in memory."""
        run, server = read_run(path), read_run(path).info["server"]
        windows = [level.window for level in logged_levels(run) if not level.invalid]
        longest = min(server["max_model_len"], server["kv_tokens"])
        size = {"num_gpu_blocks": server["kv_blocks"], "max_model_len": longest}
        table, result = concat_tables(list(run.chunks())), read_result(path) or Result()
        return cls(table, windows, size, result, search_plan(run).slos)


def per_users(run: Recorded, rows: NDArray[np.float64]) -> dict[int, NDArray[np.float64]]:
    """Mean figures of all levels of so many users, by their requests."""
    out = {}
    for users in sorted({window.users for window in run.windows}):
        mine = np.array([w.users == users for w in run.windows]) & ~np.isnan(rows[:, 0])
        if mine.any():
            n = rows[mine, -1:]
            out[users] = np.append((rows[mine, :-1] * n).sum(0) / n.sum(), n.sum())
    return out


def judge(run: Recorded, config: EngineConfig, without: Collection[int]) -> list[str]:
    """Cells of the table."""
    knee, traffic = run.result.knee, recorded_traffic(run.table)
    estimate, (low, high) = (knee.estimate, knee.ci95) if knee else (None, (None, None))
    tables = (repeat_levels(config, traffic, run.windows, seed) for seed in SEEDS)
    simulated = [per_users(run, figures(table, run.windows)) for table in tables]
    off, inside = [], 0
    for users, row in per_users(run, figures(run.table, run.windows)).items():
        got = [one[users] for one in simulated if users in one]
        if users in without or row[-1] < MIN_REQUESTS or users > (high or users) or not got:
            continue
        mean = np.exp(np.mean(np.log(got), 0))
        off.append(abs(mean[[1, 3]] / row[[1, 3]] - 1))
        held = max((x for x in run.result.levels if x.users == users), key=lambda x: x.itl_ms.n)
        least, most = held.itl_ms.p95_ci95
        inside += least <= mean[3] <= (inf if isnan(most) else most)
        pairs = ", ".join(f"{a:.4g} ({b:.4g})" for a, b in zip(row[:-1], mean, strict=False))
        sys.stderr.write(f"    {users} users, {row[-1]:.0f} requests: {pairs}\n")
    found = true_knee(config, traffic, run.slos, max_users=1024, longest_ns=LONGEST_NS).users
    errors = [f"{100 * x.mean():.0f}% ({100 * np.median(x):.0f}%)" for x in np.array(off).T]
    said = f"{estimate} ({low} to {high})"
    share = f"{100 * (found / estimate - 1):+.0f}%" if estimate else "-"
    return [f"{len(off)}", *errors, f"{inside} of {len(off)}", said, f"{found}", share]


def main(folder: Path, wanted: Collection[str]) -> None:
    """Print the table; figures of each level go to stderr: measured, and simulated."""
    sys.stdout.write(f"| {' | '.join(HEAD)} |\n|{' --- |' * len(HEAD)}\n")
    for name, (flags, others) in CASES.items():
        if wanted and name not in wanted:
            continue
        run, began = Recorded.read(folder / name), time.monotonic()
        used = sorted({window.users for window in run.windows})[1::2]
        unused = np.zeros(len(run.table), bool)  # requests of the other levels: not shown to it
        for window in run.windows:
            if window.users not in used:
                sent = run.table.sent_ns
                unused |= (sent >= window.settled_ns) & (sent <= window.end_ns)
        shown = run.table.select(~unused)
        fitted = calibrate(EngineConfig(**run.size | flags), shown, run.windows)
        sys.stderr.write(f"{name}: {time.monotonic() - began:.0f} s, {fitted}\n")
        for other, changed in others.items():
            judged = run if other == name else Recorded.read(folder / other)
            config = replace(fitted, **judged.size | flags | changed)
            sys.stderr.write(f"  {other}\n")
            cells = judge(judged, config, used if other == name else ())
            what = f"{other}, other levels" if other == name else other
            sys.stdout.write(f"| {' | '.join([name, what, *cells])} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
