"""What vLLM's log says of its start: version, flags, device, KV cache, and where the time went.

The log's own times are whole seconds, so each line comes with the moment at which it was seen. A
phase ends with the last line that matches; from the start of the process to readiness the phases
add up to the wall time. The time of a phase without a line is in the next one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from harness.records.redact import redact

# phase -> the line that ends it; the last one ends with the first answer of /health
PHASES: Final = {
    "process start and imports": r"non-default args:",
    "configuration, engine process": r"Initializing a V\d LLM engine",
    "device and workers": r"Starting to load model|Loading model from scratch",
    "weights": r"Initializing model took|Loading weights took|Model loading took",
    # not "disabling torch.compile and CUDAGraphs", which an --enforce-eager start also writes last
    "compile": r"Dynamo bytecode|Compiling a graph|compiled graph|torch\.compile .*(?:akes|ook) \d",
    "memory profiling, KV cache": r"KV cache size:",
    "graph capture": r"Graph capturing finished",
    "warm-up": r"init engine \(.*took",
    "API server": r"",
}
REPORTED: Final = {  # by vLLM itself
    "weights read and copied, s": r"Loading weights took ([\d.]+) s",
    "model loaded, s": r"Model loading took .* and ([\d.]+) s",
    "model loaded, GiB": r"Model loading took ([\d.]+) GiB",
    "compilation, s": r"(?:torch\.compile .*(?:takes|took)|init engine .*compilation:) ([\d.]+) s",
    "graphs captured, s": r"Graph capturing finished in ([\d.]+) s",
    "graphs captured, GiB": r"Graph capturing finished .*took (-?[\d.]+) GiB",
    "engine initialized, s": r"init engine .*took ([\d.]+) s",
    "KV cache, GiB": r"(?:Available KV cache memory: |(?:Explicitly|Auto) set \()([\d.]+)[ /]",
}
KV_TOKENS: Final = r"KV cache size: ([\d,]+) tokens"
CONCURRENCY: Final = r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x"
# what Compose, and vLLM itself, write before a line
_PREFIX: Final = r"^(?:[\w.-]+ +\| )?(?:\(\w+ pid=\d+\) )*(?:ERROR [^\]]*\] ?)?"
# the root cause comes first, "Engine core initialization failed" last; without its module
CAUSE: Final = re.compile(_PREFIX + r"(?:\w+\.)*(\w+(?:Error|Exception): .*)$", re.MULTILINE)
# pydantic says only how many errors there are; what is wrong follows, with the input in brackets
COUNT_OF_ERRORS: Final = re.compile(r"\d+ validation errors? for ")
DETAIL: Final = re.compile(_PREFIX + r"(.*?)(?: \[type=.*)?$")
MAX_DETAIL_LINES: Final = 4
# vLLM 0.11 to 0.15 color the name of the process even where nobody sees it
COLOR: Final = re.compile(r"\x1b\[[\d;]*m")


class SeenLine(NamedTuple):
    """A line of the log."""

    at_s: float  # since the start of the process
    text: str
    gpu_mib: float = 0.0  # memory in use on all GPUs then


@dataclass(frozen=True, slots=True)
class StartLog:
    """What could be read; None: the log does not say."""

    version: str = ""
    flags: Mapping[str, Any] = field(default_factory=dict)  # other than vLLM's defaults
    device: str = ""  # cpu, cuda
    phases_s: Mapping[str, float] = field(default_factory=dict)  # they add up to the wall time
    # more than before, when the phase ended
    gpu_mib: Mapping[str, float] = field(default_factory=dict)
    kv_tokens: float | None = None
    max_concurrency: float | None = None  # requests of the full context, as vLLM computes it
    reported: Mapping[str, float] = field(default_factory=dict)


def read_start_log(lines: Sequence[SeenLine], before_mib: float = 0.0) -> StartLog:
    """Read the lines of a start; the last one was seen when the server was ready."""
    text = COLOR.sub("", "\n".join(line.text for line in lines))
    phases_s = {}
    gpu_mib = {}
    phase_began_s = 0.0
    for name, pattern in PHASES.items():
        # Several processes of a server write the same line: the phase is over with the last of
        # them.
        ends = [line for line in lines if re.search(pattern, line.text)]
        end = max(ends, default=SeenLine(0.0, ""))
        if end.at_s > phase_began_s:
            phases_s[name] = end.at_s - phase_began_s
            gpu_mib[name] = end.gpu_mib - before_mib
            phase_began_s = end.at_s
    reported = {}
    for name, pattern in REPORTED.items():
        number = _number(pattern, text)
        if number is not None:
            reported[name] = number
    return StartLog(
        version=_last(r"engine \(v([^)]+)\)", text) or _last(r" version (\S+)$", text),
        flags=_flags(text),
        device=_last(r"device_config=(\w+)", text),
        phases_s=phases_s,
        gpu_mib=gpu_mib,
        kv_tokens=_number(KV_TOKENS, text),
        max_concurrency=_number(CONCURRENCY, text),
        reported=reported,
    )


def _flags(text: str) -> Mapping[str, Any]:
    with suppress(ValueError, SyntaxError):  # a value that is no literal
        given = ast.literal_eval(_last(r"non-default args: (\{.*\})$", text))
        flags: Mapping[str, Any] = redact(given)
        return flags
    return {}


def why_it_failed(text: str) -> str:
    """Return the first error of a log, with what pydantic says of it; "" for none."""
    text = COLOR.sub("", text)
    match = CAUSE.search(text)
    if match is None:
        return ""
    error = match[1]
    if not COUNT_OF_ERRORS.search(error):
        return error
    lines_after = text[match.end() + 1 :].split("\n")
    return ": ".join([error, *_details(lines_after)])


def _details(lines: Sequence[str]) -> list[str]:
    """The first of a list of errors: the field, if it has one, and what is wrong with it."""
    details = []
    for line in lines[:MAX_DETAIL_LINES]:
        detail = DETAIL.match(line)
        if detail:
            details.append(detail[1].strip())
        if " [type=" in line:
            break
    return [text for text in details if text]


def _last(pattern: str, text: str) -> str:
    return next(reversed(re.findall(pattern, text, re.MULTILINE)), "")


def _number(pattern: str, text: str) -> float | None:
    digits = _last(pattern, text).replace(",", "")
    if not digits:
        return None
    if digits.isdigit():
        return int(digits)
    return float(digits)
