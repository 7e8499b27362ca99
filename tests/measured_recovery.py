"""Recovery of a real server after an overload: a drill with repeats, and what they say together.

    python tests/measured_recovery.py drill URL KNEE REPEATS AFTER_S > recovery.toml
    vllm-harness drill recovery.toml --out DIR
    python tests/measured_recovery.py figures LIMIT:DIR ...

The last one writes data/recovery_vllm.json; docs/recovery.md has its table. LIMIT is the server's
--max-num-queued-reqs, 0 without one; several folders of one limit are put together.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from simulated_recovery import repeats_of, rounded, summary, tables

from harness.measure.drill.recovery import Overload, Recovery, recovery
from harness.measure.slo import Slo
from harness.runfolder.folder_reader import read_result, read_run

STORED: Final = Path(__file__).parent / "data" / "recovery_vllm.json"
BASELINE_S, OVERLOAD_S = 35, 10
BASELINE, OVERLOAD = 0.6, 2  # of the knee
FILE: Final = """title = "Recovery, repeated"
knee = {knee}
[servers]
urls = ["{url}"]
[load]
workload = "chat"
prompt-tokens = 64
output-tokens = 64
[[expect]]
lost = 0
[[expect]]
slo = "ttft_p95=500ms"
phase = "baseline 1"
"""
PHASE: Final = """[[phase]]
name = "{name} {number}"
rate = "{share} x knee"
for = "{seconds}s"
"""


def measured(folder: Path) -> list[Recovery]:
    """Each overload of a run."""
    run, result = read_run(folder), read_result(folder)
    assert result is not None
    assert not result.interrupted, folder
    (slo,) = map(Slo.parse, run.info["config"]["slos"])
    levels = iter(result.levels)
    return [
        recovery(
            run.table, slo, Overload(before.settled_ns, over.settled_ns, over.end_ns, after.end_ns)
        )
        for before, over, after in zip(levels, levels, levels, strict=True)
    ]


def drill(url: str, knee: str, repeats: int, after_s: int) -> str:
    """The file."""
    each = (("baseline", BASELINE, BASELINE_S), ("overload", OVERLOAD, OVERLOAD_S),
            ("after", BASELINE, after_s))  # fmt: skip
    phases = [
        PHASE.format(name=name, number=number, share=share, seconds=seconds)
        for number in range(1, repeats + 1)
        for name, share, seconds in each
    ]
    return FILE.format(url=url, knee=knee) + "".join(phases)


def figures(arguments: list[str]) -> None:
    """Put the folders of each limit together."""
    found: defaultdict[int, list[Recovery]] = defaultdict(list)
    for argument in arguments:
        limit, _, folder = argument.partition(":")
        found[int(limit)] += measured(Path(folder))
    kept: list[dict[str, Any]] = []
    for limit, some in found.items():
        each = [[rounded(r.seconds), rounded(r.former_ms), rounded(r.good_lost)] for r in some]
        entry = {"retry_factor": 0.0, "max_queued": limit}
        kept.append(entry | summary(repeats_of({"each": each})) | {"each": each})
    STORED.write_text(json.dumps({"recovery": kept}).replace('{"', '\n{"') + "\n")
    sys.stdout.write("\n".join([*tables({"recovery": kept}), ""]))


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "drill":
        sys.stdout.write(drill(rest[0], rest[1], int(rest[2]), int(rest[3])))
    else:
        figures(rest)
