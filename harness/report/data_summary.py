"""What a file of own data holds, in words and bars: lengths, arrivals, shared prefixes."""

from __future__ import annotations

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
    n, shared = len(data), list(data.shared_tokens())
    prompts, answers = zip(*map(data.planned, range(n)), strict=True)
    lines = [f"{data.path}: {count_of(n, 'row')}, {data.n_messages:,} of them with messages"]
    lines[0] += f", {data.n_hashed:,} of a Mooncake trace"
    if lengths := data.n_traces - data.n_hashed:
        lines[0] += f", {lengths:,} with lengths alone"
    lines.append(f"{'tokens':>14} {'mean':>9}" + "".join(f" {name:>9}" for name in QUANTILES))
    for name, tokens in ("prompt", sorted(prompts)), ("answer", sorted(answers)):
        cells = "".join(f" {tokens[ceil(q * (n - 1))]:>9,}" for q in QUANTILES.values())
        lines.append(f"{name:>14} {fmean(tokens):>9,.0f}{cells}")
    if data.n_traces < n:
        lines.append("Text is taken for a token per 4 bytes; a run asks the server's /tokenize.")
    if data.n_unsized:
        lines.append(
            f"{count_of(data.n_unsized, 'row')} with pictures or other parts that are no text: "
            "only their text is counted here, and they are never clipped."
        )
    if missing := data.outputs.count(0):
        lines.append(f"{missing:,} rows without output_tokens: answers as long as the workload's.")
    lines += ["", _arrivals(data), ""]
    lines.append("Shared prefixes: rows whose first tokens an earlier row had")
    at = CACHE_BLOCK
    while at <= max(shared):
        share = sum(tokens >= at for tokens in shared) / n
        lines.append(f"{at:>14,} {'█' * ceil(BAR * share):<{BAR}} {share:>4.0%}")
        at *= 2
    lines.append(
        f"Expected prefix-cache hits: {sum(shared) / sum(prompts):.1%} of the prompt tokens when "
        f"the rows are sent once, at most (blocks of {CACHE_BLOCK} tokens, none evicted, each row "
        f"done before the next; the first {REMEMBERED_BLOCKS:,} blocks are compared)."
    )
    return "\n".join(lines) + "\n"


def _arrivals(data: DataSource) -> str:
    if not data.rate_per_s:
        return "Arrivals: no timestamps, or all at once"
    at_s = [data.offset_ns(k) / SECOND for k in range(len(data))]
    span = at_s[-1]
    gaps, bins = [b - a for a, b in pairwise(at_s)], [0] * BAR
    for at in at_s:
        bins[min(int(at / span * BAR), BAR - 1)] += 1
    graph = "".join(EIGHTHS[ceil(8 * some / max(bins))] for some in bins)
    return (
        f"Arrivals: {format_number(data.rate_per_s)}/s over {say_ns(span * SECOND)}; deviation / "
        f"mean of the gaps {pstdev(gaps) / fmean(gaps):.2f} (Poisson: 1)\n"
        f"{'over time':>14} {graph} at most {format_number(max(bins) * BAR / span)}/s"
    )
