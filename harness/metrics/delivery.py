"""What was asked for against what came: the lengths of answers and prompts, and why answers ended.

A server may end answers early or late whatever was asked for, and a proxy may change prompts. The
figures are true then, but of another workload than the one that was planned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import nan
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.core.arrays import between
from harness.metrics.metrics import delivered_tokens
from harness.records.record_table import OK, RecordTable

if TYPE_CHECKING:
    from harness.core.arrays import Bools, Ints

# Tokens of a text are planned by a calibration, which is off by some percent.
PROMPT_SHARE: Final = 0.1
PROMPT_TOKENS: Final = 16
MOST_FINISHES: Final = 3  # reasons in a sentence


@dataclass(frozen=True, slots=True)
class Delivery:
    """What was asked for against what came, of the requests of the window that ended well."""

    n: int = 0  # requests whose output tokens are known
    exact: bool = False  # the server had agreed to give exactly as many tokens as asked for
    shorter: int = 0  # answers with fewer tokens than asked for
    longer: int = 0  # answers with more
    asked_tokens: float = nan  # output tokens asked for, mean
    came_tokens: float = nan  # output tokens that came, mean
    finishes: dict[str, int] = field(default_factory=dict)  # finish_reason of the shorter, longer
    n_prompts: int = 0  # requests whose prompt was planned and counted by the server
    asked_prompt_tokens: float = nan  # prompt tokens asked for, mean
    came_prompt_tokens: float = nan  # prompt tokens as the server counted them, mean

    @property
    def prompts_differ(self) -> bool:
        """Whether prompts were others than planned by more than a calibration is off."""
        off = abs(self.came_prompt_tokens - self.asked_prompt_tokens)
        return off > max(PROMPT_TOKENS, PROMPT_SHARE * self.asked_prompt_tokens)

    @property
    def sentences(self) -> list[str]:
        """For a person; [] where all came as it was asked for."""
        sentences = []
        came = _say(self.came_tokens)
        asked = _say(self.asked_tokens)
        means = f"{came} where {asked} were asked for, on average{self._finishes_text}"
        if self.longer:
            share = f"{self.longer:,} of {self.n:,}"
            sentences.append(f"{share} answers had more tokens than asked for ({means})")
        if self.shorter:
            share = f"{self.shorter:,} of {self.n:,}"
            though = "" if self.exact else "; the server does not take ignore_eos and min_tokens"
            sentences.append(f"{share} answers had fewer tokens than asked for ({means}{though})")
        if self.prompts_differ:
            sentences.append(
                f"prompts had {_say(self.came_prompt_tokens)} tokens where "
                f"{_say(self.asked_prompt_tokens)} were planned, on average over "
                f"{self.n_prompts:,}, as the server counts them"
            )
        return sentences

    @property
    def _finishes_text(self) -> str:
        """`; finish_reason stop 12, length 3`, or ""."""
        commonest = Counter(self.finishes).most_common(MOST_FINISHES)
        if not commonest:
            return ""
        return "; finish_reason " + ", ".join(f"{reason} {n:,}" for reason, n in commonest)


def delivery(
    table: RecordTable, finishes: Sequence[str], start_ns: int, end_ns: int, *, exact: bool
) -> Delivery:
    """Compare the requests sent in a window. `finishes`: of each request of the table, or [].

    `exact`: the server takes ignore_eos and min_tokens. A count is the server's, else that of the
    events, which can only be too low.
    """
    succeeded = between(table.sent_ns, start_ns, end_ns) & (table.outcome == OK)
    asked = table.planned_tokens
    # A count that the server did not give is -1, below any number of events.
    came = np.maximum(table.output_tokens, delivered_tokens(table))
    # Where the server does not count, only that too many came is certain.
    is_counted = table.output_tokens >= 0
    known = succeeded & (asked > 0) & (is_counted | (came > asked))
    shorter = known & (came < asked)
    longer = known & (came > asked)
    prompts = succeeded & (table.planned_prompt > 0) & (table.prompt_tokens >= 0)
    return Delivery(
        n=int(known.sum()),
        exact=exact,
        shorter=int(shorter.sum()),
        longer=int(longer.sum()),
        asked_tokens=_mean(asked, known),
        came_tokens=_mean(came, known),
        finishes=_finishes(finishes, shorter | longer),
        n_prompts=int(prompts.sum()),
        asked_prompt_tokens=_mean(table.planned_prompt, prompts),
        came_prompt_tokens=_mean(table.prompt_tokens, prompts),
    )


def _finishes(finishes: Sequence[str], rows: Bools) -> dict[str, int]:
    """How often each finish_reason is among these requests, the commonest first."""
    if not finishes:
        return {}
    indices = np.flatnonzero(rows).tolist()
    reasons = Counter(finishes[row] for row in indices)
    return {reason: n for reason, n in reasons.most_common() if reason}


def _mean(values: Ints, rows: Bools) -> float:
    if not rows.any():
        return nan
    return round(float(values[rows].mean()), 3)


def _say(tokens: float) -> str:
    three_digits = float(f"{tokens:.3g}")
    return f"{three_digits:,g}"
