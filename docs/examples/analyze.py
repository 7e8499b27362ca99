"""A run folder in three tables: `python docs/examples/analyze.py DIR [LIMIT_MS]`.

Every column is described in docs/run-folder.md. LIMIT_MS is a limit on TTFT, by default 500.
"""  # noqa: INP001 - a script

from __future__ import annotations

import math
import sys

import pandas as pd

import harness

EDGES = [0, 10, 20, 50, 100, 200, 500, 1000, math.inf]


def main(folder: str, limit_ms: float = 500.0) -> str:
    """The three tables as text."""
    run = harness.open_run(folder)
    measured = run.requests.query('phase == "measured"')
    tokens = run.tokens.query('phase == "measured"')
    by_level = measured.groupby("level")
    # A request that was still open at the end of the run counts once its age is over the limit.
    over = measured.ttft_ms.fillna(measured.e2e_ms) > limit_ms
    levels = pd.DataFrame(
        {
            "users": by_level.users.first(),
            "requests": by_level.size(),
            "p95 TTFT, ms": by_level.ttft_ms.quantile(0.95, interpolation="higher"),
            f"over {limit_ms:g} ms": over.groupby(measured.level).mean().map("{:.1%}".format),
            "p95 ITL, ms": tokens.groupby("level").gap_ms.quantile(0.95, interpolation="higher"),
        }
    )
    # The gap before a token that never arrived is infinite, so it is in no bin.
    bins = pd.cut(tokens.gap_ms.dropna(), EDGES, right=False)
    counts = bins.value_counts(sort=False, dropna=False)
    bars = [f"{n:8,} {'#' * math.ceil(40 * n / max(counts.sum(), 1))}" for n in counts]
    lines = [f"{gap!s:>16} {bar}" for gap, bar in zip(counts.index, bars, strict=True)]
    return "\n\n".join(
        [
            levels.to_string(),
            run.requests.outcome.value_counts().to_string(),
            "\n".join(["Tokens by the gap before them, ms; nan: never arrived", *lines]),
        ]
    )


if __name__ == "__main__":
    print(main(sys.argv[1], *map(float, sys.argv[2:])))  # noqa: T201 - a script
