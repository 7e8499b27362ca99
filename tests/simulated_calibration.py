"""The simulator calibrated on records of an engine whose times are known."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np

from harness.core.states import Purpose
from harness.engine.config import EngineConfig
from harness.metrics.evidence import Window
from harness.metrics.slo import Slo
from harness.simulator.calibration import calibrate, figures, repeat_levels
from harness.simulator.closed_loop import Traffic
from harness.simulator.reference_knee import true_knee
from harness.units import SECOND

SERVER = EngineConfig(max_num_seqs=64, num_gpu_blocks=1200)
TRUTH = replace(SERVER, jitter=0.05, front_request_ns=1_500_000, front_event_ns=30_000,
                front_token_ns=5_000)  # fmt: skip
SEEN, ASKED = Traffic(512, 64, 0.3), Traffic(1024, 64, 0.3)
SLOS = (Slo.parse("ttft_p95=1s"),)


def levels(*users: int, seconds: int = 6) -> list[Window]:
    """Levels of so many seconds each, the first of which is the warm-up."""
    ends = accumulate([seconds * SECOND] * len(users), initial=0)
    return [
        Window(i, n, Purpose.hold, begin, begin, begin + SECOND, end, end)
        for i, (n, (begin, end)) in enumerate(zip(users, pairwise(ends), strict=True))
    ]


def errors() -> dict[str, list[float]]:
    """What the calibrated engine says of twice the context: p95 TTFT and ITL off, both knees."""
    seen, asked = levels(1, 4, 16, 32), levels(2, 8, 16, 22, seconds=31)
    fitted = calibrate(SERVER, repeat_levels(TRUTH, SEEN, seen, 5), seen)
    want, got = (
        figures(repeat_levels(engine, ASKED, asked, seed), asked)
        for engine, seed in ((TRUTH, 6), (fitted, 7))
    )
    off = np.abs(got / want - 1)[:, [1, 3]].mean(0)
    knees = [true_knee(one, ASKED, SLOS, longest_ns=120 * SECOND).users for one in (TRUTH, fitted)]
    return {"off": off.tolist(), "knees": knees}


def cases() -> list[tuple[()]]:
    """One."""
    return [()]
