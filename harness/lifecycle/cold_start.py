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
    prompt_tokens, output_tokens = tokens
    cached_bytes = psutil.virtual_memory().cached
    gpus = local_gpus()
    before_start = counters(NO_SESSION)
    gpu_memory_mib = {"before the start": memory_used_mib(gpus)}
    with (
        started(options, log=log) as server,
        closing(HttpConnection(TargetAccess(Address.parse(server.url), key))) as line,
    ):
        by_start = increase(before_start, counters(server.pid))
        newly_cached_bytes = psutil.virtual_memory().cached - cached_bytes
        by_start["growth of the page cache, MB"] = newly_cached_bytes / 1e6
        models: Any = line.fetch("/v1/models").json()
        body = stream_body(models["data"][0]["id"], output_tokens)
        gpu_memory_mib["before the requests"] = memory_used_mib(gpus)
        requests, first_token_at_s = _send_requests(line, body, prompt_tokens, server.pid, gpus)
        gpu_memory_mib["after the requests"] = memory_used_mib(gpus)
    return {
        **figures(requests, server.start_log.phases_s, first_token_at_s - server.began_s),
        "ready_s": server.wall_s,
        "notes": server.notes,
        "start_log": server.start_log,
        "gpus": [gpu.name for gpu in gpus.found],
        "by_start": by_start,
        "model": body["model"],
        "system": system_text(),
        "gpu_memory_mib": gpu_memory_mib,
    }


def stream_body(model: str, output_tokens: int) -> Figures:
    """A streamed completion of exactly that length; its prompt is added."""
    return {
        "model": model,
        "max_tokens": output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _send_requests(
    line: HttpConnection, body: Figures, prompt_tokens: int, pid: int, gpus: GpuReadings
) -> tuple[list[Figures], float]:
    """One for each of NAMES, and when the first token of all came, by time.monotonic."""
    random = Random(1)  # noqa: S311 - text of prompts
    requests: list[Figures] = []
    first_token_at_s = 0.0
    for name in NAMES:
        # Each prompt is another one, so that none is in the prefix cache.
        body["prompt"] = random.choices(TOKEN_IDS, k=prompt_tokens)
        before = counters(pid)
        sent_s = time.monotonic()
        request = {"name": name, **timed_stream(line, body)}
        if not requests:
            first_token_at_s = sent_s + request["ttft_s"]
        meanwhile = increase(before, counters(pid))
        requests.append(request | _machine_use(meanwhile, request["wall_s"], gpus))
    return requests, first_token_at_s


def _machine_use(meanwhile: dict[str, float], wall_s: float, gpus: GpuReadings) -> Figures:
    """What a request that took `wall_s` adds to its figures: CPU, GPUs, and all of `meanwhile`."""
    gpu_util_pct = None
    if gpus.source:
        # The driver's utilization is of the last second or less before the request's end.
        readings = gpus.source.read(0)
        meanwhile["GPUs throttled"] = sum(bool(gpu.throttled) for gpu in readings)
        gpu_util_pct = fmean(gpu.util_pct for gpu in readings)
    return {
        "server_cpu_pct": 100 * meanwhile[SERVER_CPU] / wall_s,
        "gpu_util_pct": gpu_util_pct,
        "meanwhile": meanwhile,
    }


def figures(
    requests: Sequence[Figures], phases_s: Mapping[str, float], first_token_s: float
) -> Figures:
    """What follows from the requests, in NAMES' order."""
    cold, warm, *runs = requests
    usual_s = median(run["ttft_s"] for run in runs)
    parts_s = {
        **phases_s,
        "first request: beyond a warm one": max(cold["ttft_s"] - usual_s, 0.0),
        "first request: as a warm one": min(cold["ttft_s"], usual_s),
    }
    until_first_request_s = first_token_s - cold["ttft_s"]
    return {
        "cold_wall_s": cold["wall_s"],
        "warm_wall_s": warm["wall_s"],
        "wall_s": until_first_request_s + cold["wall_s"],  # with the start
        "total_tokens": cold["total_tokens"],
        "output_preview": cold["output_preview"],
        "first_token_s": first_token_s,
        "warm_ttft_s": usual_s,
        "cold_factor": cold["ttft_s"] / usual_s,
        "parts_s": parts_s,
        # so many answers had all tokens in one read: no TTFT is told
        "came_at_once": sum(request["came_at_once"] for request in requests),
        "warm_runs": spread_of(runs),
        "outliers": _outliers(runs, usual_s),
        "others_cores": others_cores(requests),
        "sanity": _sanity(requests, sum(parts_s.values()), first_token_s),
        "requests": requests,
    }


def _outliers(runs: Sequence[Figures], usual_s: float) -> dict[str, Figures]:
    """The runs far from the median, by name: of a slow one, what was more than in every other."""
    outliers: dict[str, Figures] = {}
    for run in runs:
        is_outlier = abs(run["ttft_s"] / usual_s - 1) > STABLE
        if not is_outlier:
            continue
        more: Figures = {}
        if run["ttft_s"] > usual_s:  # nothing that was more makes a run faster
            others = [other["meanwhile"] for other in runs if other is not run]
            for what, count in run["meanwhile"].items():
                if count > max(other[what] for other in others):
                    more[what] = count
        outliers[run["name"]] = more
    return outliers


def _sanity(
    requests: Sequence[Figures], parts_sum_s: float, first_token_s: float
) -> dict[str, bool]:
    """What must hold of figures that are to be believed, in words, and whether it does."""
    ttfts_s = [request["ttft_s"] for request in requests]
    lengths = {request["total_tokens"] for request in requests}
    in_order = [0 < request["ttft_s"] <= request["wall_s"] for request in requests]
    came_at_once = [request["came_at_once"] for request in requests]
    deviation = parts_sum_s / first_token_s - 1
    return {
        "all requests have as many tokens": len(lengths) == 1,
        "TTFT is below e2e": all(in_order),
        "the first token came before the last": not any(came_at_once),
        "the first request is the slowest": ttfts_s[0] == max(ttfts_s),
        "the parts add up within 10%": abs(deviation) <= ADDS_UP,
    }


def others_cores(requests: Sequence[Figures]) -> float:
    """Cores that other programs used while requests were under way, on average."""
    used_s: float = sum(request["meanwhile"][OTHERS_CPU] for request in requests)
    passed_s: float = sum(request["wall_s"] for request in requests)
    return used_s / passed_s


def spread_of(runs: Sequence[Figures]) -> dict[str, Figures]:
    """The runs with the lowest, the middle and the highest TTFT, as `name` and `ttft_s`."""
    ordered = sorted(runs, key=lambda run: run["ttft_s"])
    chosen = {
        "min": ordered[0],
        "median": ordered[len(ordered) // 2],
        "max": ordered[-1],
    }
    spread = {}
    for what, run in chosen.items():
        spread[what] = {"name": run["name"], "ttft_s": run["ttft_s"]}
    return spread


def run_rows(start: Figures) -> list[Figures]:
    """The table of runs, by RUN_COLUMNS."""
    return [_run_row(start, request) for request in start["requests"]]


def _run_row(start: Figures, request: Figures) -> Figures:
    return {
        "run": request["name"],
        "ttft_s": round(request["ttft_s"], 4),
        "e2e_s": round(request["wall_s"], 4),
        "tokens": request["total_tokens"],
        "gpu_util_pct": request["gpu_util_pct"],
        "server_cpu_pct": round(request["server_cpu_pct"]),
        "notes": "; ".join(_notes(start, request)),
    }


def _notes(start: Figures, request: Figures) -> Iterator[str]:
    if request["name"] == NAMES[0]:
        yield "the first request after the start"
    if request["came_at_once"]:
        yield "all tokens came at once: TTFT is not known"
    if request["name"] in start["outliers"]:
        deviation = request["ttft_s"] / start["warm_ttft_s"] - 1
        side = "above" if deviation > 0 else "below"
        yield f"outlier: TTFT {abs(deviation):.0%} {side} the median"
        more = ", ".join(start["outliers"][request["name"]])
        if more:
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
    kernel = f"{platform.system()} {platform.release()}"
    return f"{name}, {kernel}" if name else kernel


def timed_stream(line: HttpConnection, body: Figures) -> Figures:
    """One streamed request on an open connection. Raises ServerUnreachable."""
    answer = line.fetch("/v1/completions", body)
    try:
        stream = _read_stream(answer)
    except (NotACompletion, EventTooLong) as error:
        raise ServerUnreachable(
            f"a stream of /v1/completions cannot be read ({error}): expected OpenAI's chunks; see "
            "the server's log."
        ) from error
    if not stream.first_ns:
        text = one_line(answer.body.decode(errors="replace"), MAX_QUOTED_CHARS)
        raise ServerUnreachable(
            f"a request brought no token, but status {answer.status} ({text}): expected some; try "
            "other --prompt-tokens."
        )
    last_byte_ns, _ = answer.pieces[-1]
    return {
        "ttft_s": (stream.first_ns - answer.sent_ns) / SECOND,
        "came_at_once": body["max_tokens"] > 1 and stream.first_ns == stream.last_ns,
        "wall_s": (last_byte_ns - answer.sent_ns) / SECOND,
        "total_tokens": stream.tokens,
        "output_preview": stream.text[:PREVIEW_CHARS],
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
    text = ""
    tokens = 0
    first_ns = 0
    last_ns = 0
    for at_ns, piece in answer.pieces:
        for event in decoder.feed(piece):
            chunk = read_event(event)
            tokens = max(tokens, chunk.prompt_tokens + chunk.completion_tokens)
            if chunk.carries_token:
                if not first_ns:
                    first_ns = at_ns
                last_ns = at_ns
                choice = read_json(event)["choices"][0]
                text += choice.get("text") or ""
    return _Stream(text, tokens, first_ns, last_ns)


def counters(session: int) -> dict[str, float]:
    """What the server's processes have done so far, and what all others have since the boot.

    Two readings and `increase` say what happened in between.
    """
    faults = 0
    read_bytes = 0
    server_cpu_s = 0.0
    machine = psutil.cpu_times()
    for pid in session_pids(session):
        with suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            # The name of a process, in parentheses, may have blanks and parentheses itself.
            _, _, after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
            faults += int(after_name.split()[MAJOR_FAULTS])
            read_bytes += process.io_counters().read_bytes
            own = process.cpu_times()
            # its children that have ended, compilers for example, are nobody else's either
            server_cpu_s += own.user + own.system + own.children_user + own.children_system
    machine_s = machine.user + machine.nice + machine.system
    return {
        "major faults": faults,
        "disk reads, MB": read_bytes / 1e6,
        SERVER_CPU: server_cpu_s,
        OTHERS_CPU: machine_s - server_cpu_s,
    }


def increase(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """From one reading of `counters` to the next; 0 where a process took its count with it."""
    return {what: max(count - before[what], 0.0) for what, count in after.items()}


def drop_caches(model: Path) -> str:
    """Drop all of the page cache, or the model's files where that is not permitted."""
    # Only pages that are on the disk can be dropped.
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError as error:
        for path in filter(Path.is_file, model.rglob("*")):
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return f"the model's files were dropped (dropping all: {error.strerror})"
    return "all was dropped"
