"""What a file of own data holds, in words and bars: lengths, arrivals, shared prefixes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import ceil
from statistics import fmean, pstdev
from typing import Final

from harness.load.own_data import CACHE_BLOCK, REMEMBERED_BLOCKS, DataSource
from harness.metrics.numbers import count_of, format_number
from harness.units import SECOND, say_ns

QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
BAR: Final = 40  # characters
EIGHTHS: Final = " ▁▂▃▄▅▆▇█"


def data_summary(data: DataSource) -> str:
    rows = range(len(data))
    lengths = [data.planned(row) for row in rows]
    prompts, answers = zip(*lengths, strict=True)
    lines = [_contents(data)]
    lines += _length_lines({"prompt": sorted(prompts), "answer": sorted(answers)})
    lines += _notes(data)
    lines += ["", *_arrival_lines(data), ""]
    lines += _shared_prefix_lines(data, sum(prompts))
    return "\n".join(lines) + "\n"


def _contents(data: DataSource) -> str:
    """How many rows of each kind."""
    rows = count_of(len(data), "row")
    text = f"{data.path}: {rows}, {data.n_messages:,} of them with messages"
    text += f", {data.n_hashed:,} of a Mooncake trace"
    if lengths_alone := data.n_traces - data.n_hashed:
        text += f", {lengths_alone:,} with lengths alone"
    return text


def _length_lines(sorted_tokens: Mapping[str, Sequence[int]]) -> list[str]:
    """A table: the quantiles of the tokens of prompts and of answers."""
    heads = [f" {name:>9}" for name in QUANTILES]
    lines = [f"{'tokens':>14} {'mean':>9}{''.join(heads)}"]
    for name, tokens in sorted_tokens.items():
        last = len(tokens) - 1
        cells = [f" {tokens[ceil(q * last)]:>9,}" for q in QUANTILES.values()]
        lines.append(f"{name:>14} {fmean(tokens):>9,.0f}{''.join(cells)}")
    return lines


def _notes(data: DataSource) -> list[str]:
    """What the lengths leave out."""
    lines = []
    if data.n_traces < len(data):
        lines.append("Text is taken for a token per 4 bytes; a run asks the server's /tokenize.")
    if data.n_unsized:
        lines.append(
            f"{count_of(data.n_unsized, 'row')} with pictures or other parts that are no text: "
            "only their text is counted here, and they are never clipped."
        )
    if missing := data.outputs.count(0):
        lines.append(f"{missing:,} rows without output_tokens: answers as long as the workload's.")
    return lines


def _arrival_lines(data: DataSource) -> list[str]:
    if not data.rate_per_s:
        return ["Arrivals: no timestamps, or all at once"]
    rows = range(len(data))
    at_s = [data.offset_ns(row) / SECOND for row in rows]
    span_s = at_s[-1]
    gaps_s = [later - earlier for earlier, later in pairwise(at_s)]
    arrivals = [0] * BAR  # in equal parts of the time
    for instant_s in at_s:
        part = min(int(instant_s / span_s * BAR), BAR - 1)
        arrivals[part] += 1
    most = max(arrivals)
    heights = [ceil(8 * n / most) for n in arrivals]
    graph = "".join(EIGHTHS[height] for height in heights)
    variation = pstdev(gaps_s) / fmean(gaps_s)
    rate = f"{format_number(data.rate_per_s)}/s over {say_ns(span_s * SECOND)}"
    highest_rate = format_number(most * BAR / span_s)
    return [
        f"Arrivals: {rate}; deviation / mean of the gaps {variation:.2f} (Poisson: 1)",
        f"{'over time':>14} {graph} at most {highest_rate}/s",
    ]


def _shared_prefix_lines(data: DataSource, prompt_tokens: int) -> list[str]:
    """A bar for each power of two of tokens: how many rows share as many, and what a cache hits."""
    shared = list(data.shared_tokens())
    lines = ["Shared prefixes: rows whose first tokens an earlier row had"]
    at_least = CACHE_BLOCK
    while at_least <= max(shared):
        share = sum(tokens >= at_least for tokens in shared) / len(data)
        bar = "█" * ceil(BAR * share)
        lines.append(f"{at_least:>14,} {bar:<{BAR}} {share:>4.0%}")
        at_least *= 2
    hits = sum(shared) / prompt_tokens
    lines.append(
        f"Expected prefix-cache hits: {hits:.1%} of the prompt tokens when the rows are sent once, "
        f"at most (blocks of {CACHE_BLOCK} tokens, none evicted, each row done before the next; "
        f"the first {REMEMBERED_BLOCKS:,} blocks are compared)."
    )
    return lines
