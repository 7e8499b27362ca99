"""Truth by intervention: plant what limits a real vLLM, turn every knob, see which moves the knee.

    python bench/truth.py --model DIR --out DIR [--cases NAME,...] [--cores 0,1,...]   one lane
    python bench/truth.py --table DIR...               results/truth.md, of all lanes' truth.jsonl

A case is a server with one scarce resource. Its knee is searched as it is, and with each resource
doubled: the knob that moves the knee most is the truth, and what the harness named at the knee of
the server as it is, is judged by it. Cases on a GPU have their servers side by side, started
together and measured one after the other; cases on the CPU have one at a time, and a process that
is to be slow is stopped for a part of each 4 ms. What runs on one thread cannot be given two
cores: it is slowed down to half instead. That says less, as whatever is slow enough becomes the
limit: it counts only where no knob that was doubled raised the knee. A knee has moved if it did by
20% and its intervals do not overlap. As client and server share their cores, the client has the
higher priority, where that is allowed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from harness.server.address import free_port
from harness.server.scraping import API_SERVER, ENGINE, family_of, processes_named

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RESULTS: Final = Path(__file__).parent / "results"
HARNESS: Final = (sys.executable, "-m", "harness")
READY_S: Final = 420
CPU_ENV: Final = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1", "VLLM_SERVER_DEV_MODE": "1",
}  # fmt: skip
Server = tuple[subprocess.Popen[bytes], str]  # and its URL
PERIOD_S: Final = 0.004  # short beside a step of the engine
CLIENT_S: Final = 4.0
# The shape of `small`, whose compute counts on a CPU: `tiny` is bound by Python.
SMALL: Final = {
    "hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8,
    "num_key_value_heads": 2, "intermediate_size": 2048,
}  # fmt: skip
LEAST_CHANGE: Final = math.log(1.2)  # no smaller: a found knee is within 20%
# What turns a knob: a flag and its factor, or another share of a core for a process.
FLAGS: Final[dict[str, tuple[str, float]]] = {
    "slots": ("max-num-seqs", 2), "KV cache": ("num-gpu-blocks-override", 2),
    "batched tokens": ("max-num-batched-tokens", 0.25), "API servers": ("api-server-count", 2),
}  # fmt: skip
PARTS: Final = {
    "API server": "api",
    "engine process": "engine",
    "compute": "worker",
    "client": "client",
}
WORKER: Final = "VLLM::Worker"  # computes; beside the engine's process on a CPU


WHOLE: Final[dict[str, float]] = {"api": 1, "engine": 1, "worker": 1, "client": 1}


@dataclass(frozen=True, slots=True)
class Case:
    """One planted server, and how it is asked."""

    name: str
    planted: str  # a cause of the diagnosis
    slo: str  # a metric of one request alone, times `slo_times`; or a whole SLO
    slo_times: float = 0.0
    load: str = ""  # of `vllm-harness knee`
    flags: dict[str, int | str] = field(default_factory=dict)
    knobs: tuple[str, ...] = ()  # "": all that the place has
    model: str = "tiny"
    # How much of a core each process has. 0.5: it is stopped for half of the time.
    cores: dict[str, float] = field(default_factory=lambda: dict(WHOLE))

    def flag(self, name: str, times: float) -> Case:
        """This case with a flag that is times as large."""
        return replace(self, flags={**self.flags, name: int(int(self.flags[name]) * times)})

    def core(self, name: str, share: float) -> Case:
        """This case with another share of a core for a process."""
        return replace(self, cores={**self.cores, name: share})

    def turned(self, knob: str) -> tuple[Case, float]:
        """With that resource doubled (2), or halved (0.5) where it cannot be."""
        if knob in FLAGS:
            return self.flag(*FLAGS[knob]), 2
        if knob == "prompts":  # half as long: as if prompts were computed twice as fast
            words = shlex.split(self.load)
            where = words.index("--prompt-tokens") + 1
            words[where] = str(int(words[where]) // 2)
            return replace(self, load=shlex.join(words)), 2
        part = PARTS[knob]
        if self.cores[part] >= 1:  # a single thread cannot use two cores
            return self.core(part, 0.5), 0.5
        return self.core(part, 2 * self.cores[part]), 2


KNOBS: Final = {  # knob -> the causes that it is the remedy of
    "slots": ("batch slots",),
    "KV cache": ("KV cache capacity",),
    "batched tokens": ("prefill-decode interference",),
    "API servers": ("front end",),
    "API server": ("front end",),
    "engine process": ("engine process",),
    "compute": ("prefill compute", "decode bandwidth"),
    "prompts": ("prefill compute", "prefill-decode interference"),
    "client": ("client",),
}
ON_CPU: Final = ("slots", "KV cache", "API server", "engine process", "compute")
PLENTY: Final = {
    "max-num-seqs": 128,
    "num-gpu-blocks-override": 512,
    "block-size": 32,
    "max-num-batched-tokens": 2048,
    "api-server-count": 1,
}
SHORT: Final = "--workload fixed --prompt-tokens 32 --output-tokens 64"
CPU: Final = tuple(
    replace(case, flags=PLENTY | case.flags, knobs=case.knobs or ON_CPU)
    for case in (
        Case("slots", "batch slots", "ttft_p95", 8, SHORT, {"max-num-seqs": 8}),
        Case(
            "kv",
            "KV cache capacity",
            "ttft_p95",
            8,
            "--workload fixed --prompt-tokens 128 --output-tokens 64",
            {"num-gpu-blocks-override": 61, "max-model-len": 512},
        ),
        Case(
            "prefill",
            "prefill compute",
            "ttft_p95",
            8,
            "--workload fixed --prompt-tokens 256 --output-tokens 2",
            model="small",
        ),
        Case(
            "front-end",
            "front end",
            "ttft_p95",
            8,
            "--workload chat --prompt-tokens 32 --output-tokens 64",
        ),
        Case(
            "decode",
            "decode bandwidth",
            "tpot_p95",
            1.6,
            "--workload fixed --prompt-tokens 16 --output-tokens 64",
            model="small",
        ),
        # A prompt in one step, of 20 gaps' length, and 47 gaps an answer: from four users on, more
        # than 5% of the gaps have the prompt of another user in them.
        Case(
            "interference",
            "prefill-decode interference",
            "itl_p95",
            10,
            "--workload fixed --prompt-tokens 512 --output-tokens 48",
            {"max-num-batched-tokens": 512},
            (*ON_CPU, "batched tokens"),
            model="small",
        ),
        Case(
            "client",
            "client",
            "ttft_p95",
            8,
            SHORT,
            knobs=("slots", "compute", "client"),
            cores=WHOLE | {"client": 0.06},
        ),
        Case(
            "slots-long",
            "batch slots",
            "ttft_p95",
            8,
            "--workload fixed --prompt-tokens 16 --output-tokens 128",
            {"max-num-seqs": 16},
        ),
        Case(
            "kv-long",
            "KV cache capacity",
            "ttft_p95",
            8,
            "--workload fixed --prompt-tokens 32 --output-tokens 192",
            {"num-gpu-blocks-override": 85},
        ),
    )
)
# The size of the KV cache is given: servers that start side by side cannot take it from each other.
# Cases have what they can in common, because servers with the same flags are one server. A level
# passes after 14 request lifetimes at the earliest, so answers are short, what is scarce is very
# scarce, and 45 s find a knee.
GPU_PLENTY: Final = {
    "max-num-seqs": 512,
    "max-model-len": 8192,
    "max-num-batched-tokens": 8192,
    "gpu-memory-utilization": 0.05,
    "kv-cache-memory-bytes": 10_000_000_000,
    "api-server-count": 2,
}
GPU_LOAD: Final = "--processes 3 --precision 10% --workload"
FEW: Final = f"{GPU_LOAD} fixed --prompt-tokens 128 --output-tokens 64 --min-users 8 --max-users 64"
MANY: Final = f"{GPU_LOAD} chat --prompt-tokens 64 --output-tokens 32 --min-users 32"
LONG: Final = f"{GPU_LOAD} fixed --prompt-tokens 4096 --min-users 4 --max-users 64 --output-tokens"
GPU: Final = tuple(
    replace(case, flags=GPU_PLENTY | case.flags, model="")
    for case in (
        Case(
            "h200-slots-12",
            "batch slots",
            "ttft_p95=100ms itl_p95=50ms",
            0,
            FEW,
            {"max-num-seqs": 12, "kv-cache-memory-bytes": 2_000_000_000},
            ("slots", "engine process"),
        ),
        # 10 blocks a request in the mean: 16 requests.
        Case(
            "h200-kv-160",
            "KV cache capacity",
            "ttft_p95=100ms itl_p95=50ms",
            0,
            FEW,
            {"num-gpu-blocks-override": 160, "max-model-len": 512},
            ("KV cache", "engine process"),
        ),
        Case(
            "h200-prefill",
            "prefill compute",
            "ttft_p95=250ms",
            0,
            f"{LONG} 4",
            {},
            ("prompts", "batched tokens", "engine process"),
        ),
        Case(
            "h200-steps",
            "prefill-decode interference",
            "itl_p95=30ms",
            0,
            f"{LONG} 128",
            {},
            ("batched tokens", "prompts", "engine process"),
        ),
        Case(
            "h200-front",
            "front end",
            "ttft_p95=200ms itl_p95=50ms",
            0,
            MANY,
            {"api-server-count": 1},
            ("API servers", "engine process"),
        ),
        Case(
            "h200-engine",
            "engine process",
            "ttft_p95=200ms itl_p95=50ms",
            0,
            MANY,
            {"api-server-count": 4},
            ("engine process", "API server"),
        ),
    )
)


@contextlib.contextmanager
def served(case: Case, model: Path, at: Sequence[int], log: Path) -> Iterator[str]:
    """A server of that case, with its processes where they belong; its URL once it is ready."""
    process, url = begin(case, model, at, log)
    try:
        yield ready(process, url)
    finally:
        end(process)


def begin(case: Case, model: Path, at: Sequence[int], log: Path) -> Server:
    """Start `vllm-harness serve` for it; (process, URL)."""
    port = free_port()
    words = shlex.join(f"--{name}={value}" for name, value in case.flags.items())
    env = dict(os.environ)
    if at:
        env |= CPU_ENV | {"VLLM_CPU_OMP_THREADS_BIND": f"{at[0]}"}
    command = [
        *HARNESS,
        "serve",
        "--model-dir",
        str(model),
        "--port",
        str(port),
        f"--start-args={words}",
        "--log",
        f"{log}",
    ]
    with log.with_suffix(".out").open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=env, start_new_session=True)
    return process, f"http://127.0.0.1:{port}"


def ready(process: subprocess.Popen[bytes], url: str) -> str:
    """The URL, once /health answers. Raises RuntimeError when the server ends before."""
    until = time.monotonic() + READY_S
    while process.poll() is None and time.monotonic() < until:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
            return url
        time.sleep(0.5)
    raise RuntimeError(f"the server did not become ready: see its log ({process.poll()})")


def end(process: subprocess.Popen[bytes]) -> None:
    """End a server and all of its processes."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    process.wait(120)


@contextlib.contextmanager
def throttled(pids: Sequence[int], share: float) -> Iterator[None]:
    """Let processes run for this share of each 4 ms only: a slower core for them alone."""
    over = threading.Event()

    def send(number: signal.Signals) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def loop() -> None:
        with contextlib.suppress(PermissionError):  # late by nothing, where that is allowed
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        while not over.is_set():
            send(signal.SIGSTOP)
            time.sleep(PERIOD_S * (1 - share))
            send(signal.SIGCONT)
            time.sleep(PERIOD_S * share)

    thread = threading.Thread(target=loop)
    if share < 1:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if share < 1:
            thread.join()


def parts_of(url: str) -> dict[str, list[int]]:
    """The pids of the API servers and of the engine."""
    family = family_of(int(url.rpartition(":")[2]))
    engines = processes_named(family, ENGINE)
    servers = processes_named(family, API_SERVER) or family[:1]
    workers = processes_named(family, WORKER)
    return {
        "api": [p.pid for p in servers],
        "engine": [p.pid for p in engines],
        "worker": [p.pid for p in workers],
    }


def measure(words: Sequence[str], out: Path, case: Case, url: str) -> dict[str, Any]:
    """The result.json of `vllm-harness WORDS`, with every process as fast as the case has it."""
    first = ["nice", "-n", "-10"] if case.planted != "client" else []
    command = [*first, *HARNESS, *words, "--out", str(out), "--quiet"]
    with contextlib.ExitStack() as stack:
        said = stack.enter_context(out.with_suffix(".txt").open("wb"))
        parts = parts_of(url) if min(case.cores.values()) < 1 else {}
        for part, pids in parts.items():
            stack.enter_context(throttled(pids, case.cores[part]))
        client = subprocess.Popen(command, stdout=said, stderr=said)
        if case.cores["client"] < 1:
            time.sleep(CLIENT_S)  # until its processes are there
            below = psutil.Process(client.pid).children(recursive=True)
            pids = [client.pid, *(process.pid for process in below)]
            stack.enter_context(throttled(pids, case.cores["client"]))
        client.wait()
    path = out / "result.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def slos_of(case: Case, url: str, out: Path) -> list[str]:
    """The SLOs: given, or a multiple of what a request alone takes on this machine."""
    if not case.slo_times:
        return case.slo.split()
    words = ["run", url, *shlex.split(case.load), "--users", "1", "--requests", "12"]
    level = measure(words, out, case, url)["levels"][0]
    metric = case.slo.partition("_")[0]
    return [f"{case.slo}={max(level[f'{metric}_ms']['p50'] * case.slo_times, 10):.0f}ms"]


def knee_of(result: dict[str, Any]) -> float:
    """The knee in users: the estimate, or the middle of what is known; NaN without any."""
    knee = result.get("knee") or {}
    low, high = knee.get("ci95") or (None, None)
    if knee.get("estimate"):
        return float(knee["estimate"])
    passed = [one["users"] for one in result.get("levels", []) if one["decision"] == "passed"]
    failed = [one["users"] for one in result.get("levels", []) if one["decision"] == "failed"]
    low = low or max(passed, default=0) or 0.5
    high = high or min(failed, default=0) or low
    return math.sqrt(low * high)


def brief(result: dict[str, Any]) -> dict[str, Any]:
    """What the table needs of a result."""
    found = result.get("bottleneck") or {}
    named = [[one["name"], one["probability"]] for one in found.get("causes") or []]
    if str(result.get("invalid_reason") or "").lower().find("client") >= 0:
        named = [["client", 1.0], *named]
    return {
        "status": result.get("status"),
        "knee": knee_of(result) if result else math.nan,
        "ci95": (result.get("knee") or {}).get("ci95"),
        "named": found.get("bound_by"),
        "causes": named,
        "slos": [one["slo"] for one in result.get("slos") or []],
        "invalid": result.get("invalid_reason") or "",
    }


@contextlib.contextmanager
def side_by_side(cases: Sequence[Case], model: Path, out: Path) -> Iterator[dict[str, Server]]:
    """All servers that the cases need, by their flags."""
    begun: dict[str, Server] = {}
    out.mkdir(parents=True, exist_ok=True)
    try:
        for case in cases:
            for which in (case, *(case.turned(knob)[0] for knob in case.knobs)):
                key = json.dumps(which.flags)
                if key not in begun:
                    begun[key] = begin(which, model, (), out / f"server{len(begun)}.log")
        for server in begun.values():
            with contextlib.suppress(RuntimeError):  # said when it is measured
                ready(*server)
        yield begun
    finally:
        for process, _ in begun.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process, _ in begun.values():
            end(process)


def try_case(
    case: Case, models: Path, out: Path, at: Sequence[int], budget: str, begun: dict[str, Server]
) -> dict[str, Any]:
    """Measure a case and each knob of it; one row of truth.jsonl."""
    out.mkdir(parents=True, exist_ok=True)
    model = models / case.model if case.model else models
    variants = {"": (case, 1.0)}
    variants |= {knob: case.turned(knob) for knob in case.knobs}
    rows: dict[str, Any] = {}
    slos: list[str] = []

    def run(knob: str, which: Case, url: str) -> None:
        nonlocal slos
        name = (knob or "as-it-is").replace(" ", "-")
        slos = slos or slos_of(replace(case, cores=WHOLE), url, out / "alone")
        words = ["knee", url, "--max-users", "1024", *shlex.split(which.load), "--budget", budget]
        words += [word for slo in slos for word in ("--slo", slo)]
        result = measure(words, out / name, which, url)
        rows[knob] = brief(result) | {"times": variants[knob][1]}
        print(f"{case.name} {name}: {rows[knob]}", flush=True)

    if at:  # one after the other; what only shares a core needs no start
        by_server: dict[str, list[str]] = {}
        for knob, (which, _) in variants.items():
            by_server.setdefault(json.dumps(which.flags), []).append(knob)
        for number, knobs in enumerate(by_server.values()):
            try:
                with served(variants[knobs[0]][0], model, at, out / f"server{number}.log") as url:
                    for knob in knobs:
                        run(knob, variants[knob][0], url)
            except (RuntimeError, LookupError) as error:
                rows |= {knob: {"invalid": str(error), "knee": math.nan} for knob in knobs}
    else:
        for knob, (which, _) in variants.items():
            try:
                run(knob, which, ready(*begun[json.dumps(which.flags)]))
            except (RuntimeError, LookupError) as error:
                rows[knob] = {"invalid": str(error), "knee": math.nan}
    row = {
        "name": case.name,
        "planted": case.planted,
        "load": case.load,
        "flags": case.flags,
        "cores": case.cores if at else None,
        "slos": slos,
        "runs": rows,
    }
    with (out.parent / "truth.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    return row


def bounds(one: dict[str, Any]) -> tuple[float, float]:
    """The interval of a knee; from 0 and to infinity where nobody knows."""
    low, high = one.get("ci95") or (None, None)
    return low or 0, high or math.inf


def moved(row: dict[str, Any]) -> list[tuple[str, float, bool]]:
    """(knob, knee over the knee as it is, whether that counts), what counts most first."""
    base = row["runs"].get("", {})
    found = []
    for knob, one in row["runs"].items():
        if knob and one["knee"] > 0 and base.get("knee", math.nan) > 0:
            times = one["knee"] / base["knee"]
            (low, high), (least, most) = bounds(base), bounds(one)
            apart = least > high if one["times"] > 1 else most < low
            counts = apart and math.log(times) * math.log(one["times"]) > 0
            found.append((knob, times, counts and abs(math.log(times)) >= LEAST_CHANGE))
    doubled = {knob for knob, one in row["runs"].items() if one.get("times", 0) > 1}
    return sorted(found, key=lambda x: (-x[2], x[0] not in doubled, -abs(math.log(x[1]))))


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The page."""
    heads = (
        "Case",
        "Planted",
        "Knee",
        "Named (probability)",
        "Runner-up",
        "The knee when a resource is doubled, or halved",
        "Moved it most",
        "Right",
    )
    lines = [f"| {' | '.join(heads)} |", "|---|---|--:|---|---|---|---|---|"]
    right = wrong_sure = judged = 0
    for row in rows:
        base, most = row["runs"].get("", {}), moved(row)
        causes = [one for one in base.get("causes", []) if one[0] != "unknown"]
        named, rival = [*[f"{n} ({p:.2f})" for n, p in causes], "none", "none"][:2]
        truth, _, known = most[0] if most else ("", 1.0, False)
        good = bool(causes) and causes[0][0] in KNOBS.get(truth, ())
        verdict = "no knob moved it" if not known else "yes" if good else "no"
        judged, right = judged + known, right + (known and good)
        wrong_sure += known and not good and bool(causes) and causes[0][1] >= 0.8  # noqa: PLR2004
        slowed = {knob for knob, one in row["runs"].items() if one.get("times", 2) < 1}
        each = ", ".join(f"{k} x{t:.2f}" + " (halved)" * (k in slowed) for k, t, _ in most)
        lines.append(
            f"| {row['name']} | {row['planted']} | {base.get('knee', math.nan):.0f} | {named} | "
            f"{rival} | {each} | {truth if known else '-'} | {verdict} |"
        )
    said = f"{right} of {judged} cases where a knob moved the knee: what is named"
    lines += ["", f"{said} is what that knob cures. Wrong with 0.8 or more: {wrong_sure}."]
    return "\n".join(lines) + "\n"


def make_models(folder: Path, like: Path) -> None:
    """`tiny` as it is given, and `small`: the same tokenizer, more to compute."""
    for name, shape in (("tiny", {}), ("small", SMALL)):
        to = folder / name
        to.mkdir(parents=True, exist_ok=True)
        for file in like.iterdir():
            (to / file.name).write_bytes(file.read_bytes())
        config = json.loads((like / "config.json").read_text())
        (to / "config.json").write_text(json.dumps(config | shape))


def main() -> None:
    """Parse, and run a lane or make the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", type=Path, help="a model's folder; on a CPU of the shape `tiny`")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cases", default="")
    parser.add_argument("--cores", default="0,1", help="of this lane; '' on a GPU")
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--table", type=Path, nargs="+")
    args = parser.parse_args()
    if args.table:
        rows = [
            json.loads(line)
            for folder in args.table
            for path in sorted(folder.rglob("truth.jsonl"))
            for line in path.read_text().splitlines()
        ]
        print(table(rows))
        return
    at = [int(core) for core in args.cores.split(",") if core]
    cases = [c for c in (CPU if at else GPU) if not args.cases or c.name in args.cases.split(",")]
    models = args.model
    if at:
        models = args.out / "models"
        make_models(models, args.model)
    with contextlib.ExitStack() as stack:
        begun = {} if at else stack.enter_context(side_by_side(cases, models, args.out))
        for case in cases:
            row = try_case(case, models, args.out / case.name, at, args.budget, begun)
            print(table([row]), flush=True)


if __name__ == "__main__":
    main()
