"""What vLLM's log says of its start: version, flags, device, KV cache, and where the time went.

The log's own times are whole seconds, so each line comes with the moment at which it was seen. A
phase ends with the last line that its pattern matches; the phases follow each other from the start
of the process to readiness, and so add up to the wall time. A phase that left no line (there is no
graph capture with --enforce-eager) is absent, and its time is in the next one.
"""

from __future__ import annotations

import ast
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from harness.runfolder.redact import redact

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    SeenLine = tuple[float, str]  # seconds since the start of the process, text

API_SERVER: Final = "API server start"  # from the engine's last line to the first answer of /health
# phase -> the line that ends it
PHASES: Final = {
    "process start and imports": r"non-default args:",
    "configuration, engine process": r"Initializing a V\d LLM engine",
    "device and workers": r"Starting to load model",
    "weights": r"Initializing model took|Loading weights took|Model loading took",
    "compile": r"Dynamo bytecode|Compiling a graph|compiled graph|torch\.compile (and|took)",
    "memory profiling, KV cache": r"KV cache size:",
    "graph capture": r"Graph capturing finished",
    "warm-up": r"init engine \(.*took",
}  # fmt: skip
# durations and sizes that vLLM itself reports; the last line that says one counts
REPORTED_S: Final = {
    "weights read and copied": r"Loading weights took ([\d.]+) s",
    "model loaded": r"Model loading took .* and ([\d.]+) s",
    "compilation": r"(?:torch\.compile took|init engine .*compilation:) ([\d.]+) s",
    "graphs captured": r"Graph capturing finished in ([\d.]+) s",
    "engine initialized": r"init engine .*took ([\d.]+) s",
}
WEIGHTS_GIB: Final = r"Model loading took ([\d.]+) GiB"
GRAPHS_GIB: Final = r"Graph capturing finished .*took (-?[\d.]+) GiB"
KV_GIB: Final = r"Available KV cache memory: ([\d.]+) GiB|\(([\d.]+)/[\d.]+\) GiB for KV cache"
KV_TOKENS: Final = r"KV cache size: ([\d,]+) tokens"
CONCURRENCY: Final = r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x"


@dataclass(frozen=True, slots=True)
class StartLog:
    """What could be read; None: the log does not say."""

    version: str = ""
    flags: Mapping[str, Any] = field(default_factory=dict)  # other than vLLM's defaults
    device: str = ""  # cpu, cuda
    kv_tokens: int | None = None
    max_concurrency: float | None = None  # of requests of the full context, as vLLM computes it
    kv_gib: float | None = None
    weights_gib: float | None = None
    graphs_gib: float | None = None
    phases_s: Mapping[str, float] = field(default_factory=dict)  # they add up to the wall time
    reported_s: Mapping[str, float] = field(default_factory=dict)  # by vLLM itself


def read_start_log(lines: Sequence[SeenLine], ready_s: float) -> StartLog:
    """Read the lines of a start that was ready after `ready_s`."""
    text = "\n".join(line for _, line in lines)
    kv_tokens = _last(KV_TOKENS, text)
    return StartLog(
        version=_last(r"engine \(v([^)]+)\)", text) or _last(r" version (\S+)$", text),
        flags=_flags(_last(r"non-default args: (\{.*\})$", text)),
        device=_last(r"device_config=(?:device\()?(?:type=)?'?(\w+)", text),
        kv_tokens=int(kv_tokens.replace(",", "")) if kv_tokens else None,
        max_concurrency=_number(CONCURRENCY, text),
        kv_gib=_number(KV_GIB, text),
        weights_gib=_number(WEIGHTS_GIB, text),
        graphs_gib=_number(GRAPHS_GIB, text),
        phases_s=_phases(lines, ready_s),
        reported_s={
            name: seconds
            for name, pattern in REPORTED_S.items()
            if (seconds := _number(pattern, text)) is not None
        },
    )


def _phases(lines: Sequence[SeenLine], ready_s: float) -> dict[str, float]:
    phases, before_s = {}, 0.0
    for name, pattern in PHASES.items():
        end_s = max((at_s for at_s, line in lines if re.search(pattern, line)), default=before_s)
        if end_s > before_s:
            phases[name] = end_s - before_s
            before_s = end_s
    return {**phases, API_SERVER: ready_s - before_s}


def _last(pattern: str, text: str) -> str:
    """Return what the pattern's last match found, "" for none."""
    found = re.findall(pattern, text, re.MULTILINE)
    return next(filter(None, found[-1]), "") if found and isinstance(found[-1], tuple) else (
        found[-1] if found else ""
    )  # fmt: skip


def _number(pattern: str, text: str) -> float | None:
    found = _last(pattern, text)
    return float(found) if found else None


def _flags(shown: str) -> dict[str, Any]:
    with suppress(ValueError, SyntaxError):  # a value that is no literal
        return dict(redact(ast.literal_eval(shown)))
    return {}
