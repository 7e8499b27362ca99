"""Recovery of a real server after an overload: repeats from run folders, and their figures.

`python tests/measured_recovery.py LIMIT:DIR ...` writes data/recovery_vllm.json; docs/recovery.md
has its table, and the commands. LIMIT is vLLM's --max-num-queued-reqs, 0 without one; several
folders of one limit are put together. Each is of a drill whose phases are a baseline, an overload
and the baseline's load again, in turn.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from simulated_recovery import repeats_of, rounded, summary

from harness.measure.drill.recovery import Overload, Recovery, recovery
from harness.measure.slo import Slo
from harness.runfolder.folder_reader import read_result, read_run

STORED: Final = Path(__file__).parent / "data" / "recovery_vllm.json"


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


def main(arguments: list[str]) -> None:
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
        sys.stdout.write(f"{kept[-1]}\n")
    STORED.write_text(json.dumps({"recovery": kept}).replace('{"', '\n{"') + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
