"""Cold and warm time to first token: a start, the first request, the second, and five more.

In: how vLLM is started. Out: plain data for coldstart.json: what each request took and what the
machine did meanwhile; the parts of the cold time (phases of the start, from the log, and the first
request), whose sum is compared with the time from the start of the process to the first token,
which is measured apart.
"""

from __future__ import annotations

import os
import platform
import time
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psutil

from harness.errors import ServerUnreachable, one_line
from harness.lifecycle.vllm_start import StartOptions, session_pids, started
from harness.load.tokens import TOKEN_IDS
from harness.server.access import TargetAccess
from harness.server.address import Address
from harness.server.gpu import local_gpus
from harness.server.http_exchange import MAX_QUOTED_CHARS, HttpConnection
from harness.units import SECOND
from harness.wire.openai import NotACompletion, read_event, read_json
from harness.wire.sse import EventTooLong, SseDecoder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from harness.server.gpu import GpuReadings
    from harness.server.http_exchange import HttpAnswer

    Figures = dict[str, Any]

NAMES: Final = ("cold_1", "warm_1", "run_1", "run_2", "run_3", "run_4", "run_5")
RUN_COLUMNS: Final = (
    "run",
    "ttft_s",
    "e2e_s",
    "tokens",
    "gpu_util_pct",
    "server_cpu_pct",
    "notes",
)
SERVER_CPU: Final = "CPU of the server, s"
OTHERS_CPU: Final = "CPU of others, s"
STABLE: Final = 0.2  # a warm TTFT that is further from the median is an outlier
MAJOR_FAULTS: Final = 9  # of /proc/PID/stat, after the name
ADDS_UP: Final = 0.1
PREVIEW_CHARS: Final = 60
NO_SESSION: Final = -1  # before the server is started: none of its processes exists


def measure_cold_start(
    options: StartOptions, log: Path, key: str, tokens: tuple[int, int]
) -> Figures:
    """Start, send requests of `tokens` in prompt and answer, end. Raises HarnessError."""
    random, cached = Random(1), psutil.virtual_memory().cached  # noqa: S311 - text of prompts
    gpus, before_start = local_gpus(), counters(NO_SESSION)
    gpu_memory_mib = {"before the start": memory_used_mib(gpus)}
    with (
        started(options, log=log) as server,
        closing(HttpConnection(TargetAccess(Address.parse(server.url), key))) as line,
    ):
        by_start, first_token_s = increase(before_start, counters(server.pid)), 0.0
        by_start["growth of the page cache, MB"] = (psutil.virtual_memory().cached - cached) / 1e6
        model: Any = line.fetch("/v1/models").json()
        body = {
            "model": model["data"][0]["id"],
            "max_tokens": tokens[1],
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        requests: list[Figures] = []
        gpu_memory_mib["before the requests"] = memory_used_mib(gpus)
        for name in NAMES:
            # Each prompt is another one, so that none is in the prefix cache.
            body["prompt"] = random.choices(TOKEN_IDS, k=tokens[0])
            before, sent_s = counters(server.pid), time.monotonic()
            request = {"name": name, **timed_stream(line, body)}
            first_token_s = first_token_s or sent_s + request["ttft_s"] - server.began_s
            meanwhile = increase(before, counters(server.pid))
            cpu_pct = 100 * meanwhile[SERVER_CPU] / request["wall_s"]
            request |= {"server_cpu_pct": cpu_pct, "gpu_util_pct": None}
            if gpus.source:
                seen = gpus.source.read(0)
                meanwhile["GPUs throttled"] = sum(bool(gpu.throttled) for gpu in seen)
                request["gpu_util_pct"] = fmean(gpu.util_pct for gpu in seen)
            requests.append({**request, "meanwhile": meanwhile})
        gpu_memory_mib["after the requests"] = memory_used_mib(gpus)
    return {
        **figures(requests, server.start_log.phases_s, first_token_s),
        "ready_s": server.wall_s,
        "notes": server.notes,
        "start_log": server.start_log,
        "gpus": [gpu.name for gpu in gpus.found],
        "by_start": by_start,
        "model": body["model"],
        "system": system_text(),
        "gpu_memory_mib": gpu_memory_mib,
    }


def figures(
    requests: Sequence[Figures], phases_s: Mapping[str, float], first_token_s: float
) -> Figures:
    """What follows from the requests, in NAMES' order."""
    cold, warm, *runs = requests
    usual_s = median(run["ttft_s"] for run in runs)
    at_once = sum(request["came_at_once"] for request in requests)
    outliers = {}
    for run in runs:
        if abs(run["ttft_s"] / usual_s - 1) > STABLE:
            rest = [other["meanwhile"] for other in runs if other is not run]
            is_slower = run["ttft_s"] > usual_s  # nothing that was more makes a run faster
            most = {k: v for k, v in run["meanwhile"].items() if v > max(r[k] for r in rest)}
            outliers[run["name"]] = most if is_slower else {}
    parts_s = {
        **phases_s,
        "first request: beyond a warm one": max(cold["ttft_s"] - usual_s, 0.0),
        "first request: as a warm one": min(cold["ttft_s"], usual_s),
    }
    return {
        "cold_wall_s": cold["wall_s"],
        "warm_wall_s": warm["wall_s"],
        "wall_s": first_token_s - cold["ttft_s"] + cold["wall_s"],  # with the start
        "total_tokens": cold["total_tokens"],
        "output_preview": cold["output_preview"],
        "first_token_s": first_token_s,
        "warm_ttft_s": usual_s,
        "cold_factor": cold["ttft_s"] / usual_s,
        "parts_s": parts_s,
        "came_at_once": at_once,  # so many answers had all tokens in one read: no TTFT is told
        "warm_runs": spread_of(runs),
        "outliers": outliers,  # -> of a slow one: what was more than in every other run
        "others_cores": others_cores(requests),
        "sanity": {
            "all requests have as many tokens": len({r["total_tokens"] for r in requests}) == 1,
            "TTFT is below e2e": all(0 < r["ttft_s"] <= r["wall_s"] for r in requests),
            "the first token came before the last": not at_once,
            "the first request is the slowest": cold["ttft_s"]
            == max(r["ttft_s"] for r in requests),
            "the parts add up within 10%": abs(sum(parts_s.values()) / first_token_s - 1)
            <= ADDS_UP,
        },
        "requests": requests,
    }


def others_cores(requests: Sequence[Figures]) -> float:
    """Cores that other programs used while requests were under way, on average."""
    used_s: float = sum(request["meanwhile"][OTHERS_CPU] for request in requests)
    passed_s: float = sum(request["wall_s"] for request in requests)
    return used_s / passed_s


def spread_of(runs: Sequence[Figures]) -> dict[str, Figures]:
    """The runs with the lowest, the middle and the highest TTFT, as `name` and `ttft_s`."""
    ordered = sorted(runs, key=lambda run: run["ttft_s"])
    chosen = {"min": ordered[0], "median": ordered[len(ordered) // 2], "max": ordered[-1]}
    return {what: {"name": run["name"], "ttft_s": run["ttft_s"]} for what, run in chosen.items()}


def run_rows(start: Figures) -> list[Figures]:
    """The table of runs, by RUN_COLUMNS."""
    return [
        {
            "run": request["name"],
            "ttft_s": round(request["ttft_s"], 4),
            "e2e_s": round(request["wall_s"], 4),
            "tokens": request["total_tokens"],
            "gpu_util_pct": request["gpu_util_pct"],
            "server_cpu_pct": round(request["server_cpu_pct"]),
            "notes": "; ".join(_notes(start, request)),
        }
        for request in start["requests"]
    ]


def _notes(start: Figures, request: Figures) -> Iterator[str]:
    if request["name"] == NAMES[0]:
        yield "the first request after the start"
    if request["came_at_once"]:
        yield "all tokens came at once: TTFT cannot be told"
    if request["name"] in start["outliers"]:
        off = request["ttft_s"] / start["warm_ttft_s"] - 1
        yield f"outlier: TTFT {abs(off):.0%} {'above' if off > 0 else 'below'} the median"
        if more := ", ".join(start["outliers"][request["name"]]):
            yield f"higher than in every other run: {more}"


def memory_used_mib(gpus: GpuReadings) -> float | None:
    """Of all GPUs together; None without one."""
    if not gpus.source:
        return None
    return sum(gpu.memory_used_mib for gpu in gpus.source.read(0))


def system_text() -> str:
    """`Debian GNU/Linux 12 (bookworm), Linux 6.1.0`."""
    try:
        name = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        name = ""
    return ", ".join(filter(None, [name, f"{platform.system()} {platform.release()}"]))


def timed_stream(line: HttpConnection, body: Figures) -> Figures:
    """One streamed request on an open connection. Raises ServerUnreachable."""
    answer = line.fetch("/v1/completions", body)
    try:
        seen = _read_stream(answer)
    except (NotACompletion, EventTooLong) as error:
        raise ServerUnreachable(
            f"a stream of /v1/completions cannot be read ({error}): expected OpenAI's chunks; see "
            "the server's log."
        ) from error
    if not seen.first_ns:
        said = one_line(answer.body.decode(errors="replace"), MAX_QUOTED_CHARS)
        raise ServerUnreachable(
            f"a request brought no token, but status {answer.status} ({said}): expected some; try "
            "other --prompt-tokens."
        )
    return {
        "ttft_s": (seen.first_ns - answer.sent_ns) / SECOND,
        "came_at_once": seen.first_ns == seen.last_ns and body["max_tokens"] > 1,
        "wall_s": (answer.pieces[-1][0] - answer.sent_ns) / SECOND,  # until its last byte
        "total_tokens": seen.tokens,
        "output_preview": seen.text[:PREVIEW_CHARS],
    }


class _Stream(NamedTuple):
    """What a stream had, and when; 0: no token."""

    text: str
    tokens: int  # prompt and output
    first_ns: int
    last_ns: int


def _read_stream(answer: HttpAnswer) -> _Stream:
    """Raises NotACompletion, EventTooLong."""
    decoder = SseDecoder()
    text, tokens, first_ns, last_ns = "", 0, 0, 0
    for at_ns, piece in answer.pieces:
        for event in decoder.feed(piece):
            chunk = read_event(event)
            tokens = max(tokens, chunk.prompt_tokens + chunk.completion_tokens)
            if chunk.carries_token:
                first_ns, last_ns = first_ns or at_ns, at_ns
                text += read_json(event)["choices"][0].get("text") or ""
    return _Stream(text, tokens, first_ns, last_ns)


def counters(session: int) -> dict[str, float]:
    """What the server's processes have done so far, and what all others have since the boot.

    Two readings and `increase` say what happened in between.
    """
    faults, read, server_cpu_s = 0, 0, 0.0
    machine = psutil.cpu_times()
    for pid in session_pids(session):
        with suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            faults += int(stat[MAJOR_FAULTS])
            read += process.io_counters().read_bytes
            own = process.cpu_times()
            # its children that have ended, compilers for example, are nobody else's either
            server_cpu_s += own.user + own.system + own.children_user + own.children_system
    others_s = machine.user + machine.nice + machine.system - server_cpu_s
    return {
        "major faults": faults,
        "disk reads, MB": read / 1e6,
        SERVER_CPU: server_cpu_s,
        OTHERS_CPU: others_s,
    }


def increase(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """From one reading of `counters` to the next; 0 where a process took its count with it."""
    return {what: max(count - before[what], 0.0) for what, count in after.items()}


def drop_caches(model: Path) -> str:
    """Drop all of the page cache, or the model's files where that is not permitted."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError as error:
        for path in filter(Path.is_file, model.rglob("*")):
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return f"the model's files were dropped (dropping all: {error.strerror})"
    return "all was dropped"
