"""How well a simulator calibrated on one run predicts other levels and other runs of a server.

    python bench/calibration.py FOLDER > table.md

FOLDER holds the run folders that CASES name, with their records. For each case the simulator is
calibrated on every other level of the first run, then judged on the rest of its levels and on all
levels of the other runs: p95 TTFT and p95 ITL below the knee, of levels with at least 20 requests,
and the knee. docs/calibration.md holds the table that this made of the H200 runs.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from harness.engine.config import EngineConfig
from harness.measure.records.record_table import concat_tables
from harness.runfolder.folder_reader import read_result, read_run
from harness.simulator.calibration import RecordedTraffic, calibrate, figures, repeat_levels
from harness.simulator.closed_loop import ClosedLoop
from harness.simulator.reference_knee import true_knee
from harness.study.results import logged_levels, search_plan
from harness.units import SECOND

if TYPE_CHECKING:
    from harness.measure.records.record_table import RecordTable
    from harness.measure.search.evidence import Window

MIN_REQUESTS: Final = 20  # of a level whose p95 is judged
SEEDS: Final = (1, 2, 3)
LONGEST_NS: Final = 240 * SECOND
Flags = dict[str, Any]
LARGE: Final[Flags] = {"max_num_seqs": 512, "max_num_batched_tokens": 16384}
KV: Final[Flags] = {"max_num_seqs": 256, "max_model_len": 4096}


def kv(blocks: int) -> Flags:
    return KV | {"num_gpu_blocks": blocks}


# calibrated on, its flags -> judged on, with what flags
CASES: Final[dict[str, tuple[Flags, dict[str, Flags]]]] = {
    "interf16384": (LARGE, {
        "interf16384": {}, "prefill2048": {}, "prefill4096": {},
        "interf2048": {"max_num_batched_tokens": 2048},
    }),
    "prefill2048": (LARGE, {"prefill2048": {}, "prefill4096": {}, "interf16384": {}}),
    "prefill4096": (LARGE, {"prefill4096": {}, "prefill2048": {}, "interf16384": {}}),
    "front1": (LARGE, {
        "front1": {}, "prefill2048": {}, "interf16384": {}, "front4": {"api_server_count": 4},
    }),
    "kv1500": (kv(1500), {"kv1500": {}, "kv3000": kv(3000), "kv6000": kv(6000)}),
    "kv3000": (kv(3000), {"kv3000": {}, "kv1500": kv(1500), "kv6000": kv(6000)}),
    "slots16": ({"max_num_seqs": 16}, {"slots16": {}, "slots32": {"max_num_seqs": 32}}),
}  # fmt: skip


@dataclass(frozen=True)
class Recorded:
    """A run folder: its requests with all tokens, its levels, and what it says of the knee."""

    name: str
    path: Path
    table: RecordTable
    windows: list[Window]
    blocks: int
    max_model_len: int

    @classmethod
    def read(cls, path: Path) -> Recorded:
        run = read_run(path)
        windows = [level.window for level in logged_levels(run) if not level.invalid]
        server = run.info["server"]
        return cls(
            path.name, path, concat_tables(list(run.chunks())), windows,
            server["kv_blocks"], min(server["max_model_len"], server["kv_tokens"]),
        )  # fmt: skip

    def engine(self, flags: Flags) -> EngineConfig:
        own = {"num_gpu_blocks": self.blocks, "max_model_len": self.max_model_len}
        return EngineConfig(**own | flags)


def per_users(windows: list[Window], rows: np.ndarray[Any, Any]) -> dict[int, np.ndarray[Any, Any]]:
    """Mean figures of all levels of so many users, by their requests."""
    out = {}
    for users in sorted({window.users for window in windows}):
        mine = np.array([w.users == users for w in windows]) & ~np.isnan(rows[:, 0])
        if mine.any():
            n = rows[mine, -1:]
            out[users] = np.append((rows[mine, :-1] * n).sum(0) / n.sum(), n.sum())
    return out


def judge(run: Recorded, config: EngineConfig, without: set[int], show: bool) -> list[str]:
    """Cells of the table: errors of p95 TTFT and ITL below the knee, and of the knee."""
    result = read_result(run.path)
    assert result is not None
    assert result.knee is not None
    estimate, (low, high) = result.knee.estimate, result.knee.ci95
    seen = per_users(run.windows, figures(run.table, run.windows))
    traffic = RecordedTraffic.of(run.table)
    simulated = [
        per_users(run.windows, figures(repeat_levels(config, traffic, run.windows, s), run.windows))
        for s in SEEDS
    ]
    errors = []
    for users, row in seen.items():
        got = [one[users] for one in simulated if users in one]
        if users in without or row[-1] < MIN_REQUESTS or users > (high or users) or not got:
            continue
        mean = np.exp(np.mean(np.log(got), 0))
        errors.append([users, mean[1] / row[1] - 1, mean[3] / row[3] - 1])
        if show:
            sys.stderr.write(
                f"    {run.name} {users} users, {row[-1]:.0f} requests: "
                + ", ".join(f"{a:.4g} ({b:.4g})" for a, b in zip(row[:-1], mean, strict=False))
                + "\n"
            )
    slos = search_plan(read_run(run.path)).slos
    knee = true_knee(
        config, traffic, slos, max_users=1024, longest_ns=LONGEST_NS,
        start=lambda seed: ClosedLoop(config, traffic, seed),
    ).users  # fmt: skip
    parts = np.abs(np.array(errors)[:, 1:]) if errors else np.full((1, 2), np.nan)
    off = knee / estimate - 1 if estimate else float("nan")
    cells = [f"{len(errors)}"]
    cells += [f"{100 * part.mean():.0f}% ({100 * np.median(part):.0f}%)" for part in parts.T]
    said = f"{estimate} ({low} to {high})"
    return [*cells, said, f"{knee}", f"{100 * off:+.0f}%" if isfinite(off) else "-"]


def main(folder: Path, only: list[str]) -> None:
    head = ["Calibrated on", "judged on", "levels", "p95 TTFT", "p95 ITL", "knee measured",
            "simulated", "error"]  # fmt: skip
    sys.stdout.write(f"| {' | '.join(head)} |\n|{' --- |' * len(head)}\n")
    for name, (flags, others) in CASES.items():
        if only and name not in only:
            continue
        run, began = Recorded.read(folder / name), time.monotonic()
        distinct = sorted({window.users for window in run.windows})
        used = set(distinct[1::2])
        scored = [i for i, window in enumerate(run.windows) if window.users in used]
        fitted = calibrate(run.engine(flags), run.table, run.windows, scored)
        sys.stderr.write(f"{name}: {time.monotonic() - began:.0f} s, {fitted}\n")
        for other, changed in others.items():
            judged = run if other == name else Recorded.read(folder / other)
            config = replace(
                fitted, **{"num_gpu_blocks": judged.blocks, **flags, **changed}
            )
            cells = judge(judged, config, used if other == name else set(), show=True)
            what = f"{other}, other levels" if other == name else other
            sys.stdout.write(f"| {name} | {what} | {' | '.join(cells)} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
