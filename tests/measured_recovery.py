"""Recovery of a real server after an overload: a drill with repeats, and what they say together.

    export PYTHONPATH=.
    python tests/measured_recovery.py drill URL KNEE [--repeats N] [...] > recovery.toml
    vllm-harness drill recovery.toml --out DIR
    python tests/measured_recovery.py figures NAME LIMIT:DIR ...

The last one writes data/recovery_NAME.json; docs/recovery.md has its table. LIMIT is the server's
--max-num-queued-reqs, 0 without one; several folders of one limit are put together.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from simulated_recovery import repeats_of, rounded, summary, tables

from harness.drill.recovery import Overload, Recovery, recovery
from harness.errors import ConfigError
from harness.metrics.result import read_result
from harness.metrics.slo import Slo
from harness.records.folder_reader import read_run

DATA: Final = Path(__file__).parent / "data"
FILE: Final = """title = "Recovery, repeated"
knee = {knee}
[servers]
urls = ["{url}"]
[load]
workload = "{workload}"
prompt-tokens = {prompt_tokens}
output-tokens = {output_tokens}
processes = {processes}
[[expect]]
lost = 0
[[expect]]
slo = "{slo}"
phase = "baseline 1"
"""
PHASE: Final = """[[phase]]
name = "{name}"
rate = "{share} x knee"
for = "{seconds:g}s"
"""


def measured(folder: Path) -> list[Recovery]:
    """Each overload of a run."""
    run = read_run(folder)
    result = read_result(folder)
    assert result is not None
    assert not result.interrupted, folder
    (slo,) = map(Slo.parse, run.info["config"]["slos"])
    found = []
    levels = result.levels
    for before, over, after in zip(levels, levels[1:], levels[2:], strict=False):
        spans = Overload(before.settled_ns, over.settled_ns, over.end_ns, after.end_ns)
        if over.load > before.load == after.load:
            try:
                found.append(recovery(run.table, slo, spans))
            except ConfigError as error:
                sys.stderr.write(f"{folder}, level {before.index}: {error}\n")
    return found


def drill(args: argparse.Namespace) -> str:
    """The file."""
    baseline, overload = args.shares
    names = ("baseline", "overload", "after")
    shares = (baseline, overload, baseline)
    text = FILE.format(**vars(args))
    for number in range(1, args.repeats + 1):
        for name, share, seconds in zip(names, shares, args.seconds, strict=True):
            text += PHASE.format(name=f"{name} {number}", share=share, seconds=seconds)
    return text


def figures(args: argparse.Namespace) -> str:
    """Put the folders of each limit together."""
    found: defaultdict[int, list[Recovery]] = defaultdict(list)
    for folder in args.folders:
        limit, _, path = folder.partition(":")
        found[int(limit)] += measured(Path(path))
    kept: list[dict[str, Any]] = []
    for limit, recoveries in found.items():
        each = [
            [rounded(r.seconds), rounded(r.former_ms), rounded(r.good_lost)] for r in recoveries
        ]
        entry = {"retry_factor": 0.0, "max_queued": limit}
        kept.append(entry | summary(repeats_of({"each": each})) | {"each": each})
    stored = DATA / f"recovery_{args.name}.json"
    stored.write_text(json.dumps({"recovery": kept}).replace('{"', '\n{"') + "\n")
    return "\n".join([*tables({"recovery": kept}), ""])


def numbers(text: str) -> list[float]:
    """Of `35,10,45`."""
    return [float(word) for word in text.split(",")]


def main() -> None:
    """Parse, and print."""
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(required=True)
    file = commands.add_parser("drill")
    file.set_defaults(call=drill)
    file.add_argument("url")
    file.add_argument("knee", help="requests per second")
    file.add_argument("--repeats", type=int, default=10)
    file.add_argument("--shares", type=numbers, default=[0.6, 2.0], help="of the knee")
    file.add_argument("--seconds", type=numbers, default=[35, 10, 45])
    file.add_argument("--slo", default="ttft_p95=500ms")
    file.add_argument("--workload", default="chat")
    file.add_argument("--prompt-tokens", type=int, default=64)
    file.add_argument("--output-tokens", type=int, default=64)
    file.add_argument("--processes", type=int, default=1)
    together = commands.add_parser("figures")
    together.set_defaults(call=figures)
    together.add_argument("name")
    together.add_argument("folders", nargs="+")
    args = parser.parse_args()
    sys.stdout.write(args.call(args))


if __name__ == "__main__":
    main()
