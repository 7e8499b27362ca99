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
        said = []
        means = f"{_say(self.came_tokens)} where {_say(self.asked_tokens)} were asked for, on "
        means += f"average{self._why}"
        if self.longer:
            share = f"{self.longer:,} of {self.n:,}"
            said.append(f"{share} answers had more tokens than asked for ({means})")
        if self.shorter:
            share = f"{self.shorter:,} of {self.n:,}"
            though = "" if self.exact else "; the server does not take ignore_eos and min_tokens"
            said.append(f"{share} answers had fewer tokens than asked for ({means}{though})")
        if self.prompts_differ:
            said.append(
                f"prompts had {_say(self.came_prompt_tokens)} tokens where "
                f"{_say(self.asked_prompt_tokens)} were planned, on average over "
                f"{self.n_prompts:,}, as the server counts them"
            )
        return said

    @property
    def _why(self) -> str:
        most = Counter(self.finishes).most_common(MOST_FINISHES)
        named = ", ".join(f"{reason} {n:,}" for reason, n in most)
        return f"; finish_reason {named}" if named else ""


def delivery(
    table: RecordTable, finishes: Sequence[str], start_ns: int, end_ns: int, *, exact: bool
) -> Delivery:
    """Compare the requests sent in a window. `finishes`: of each request of the table, or [].

    `exact`: the server takes ignore_eos and min_tokens. A count is the server's, else that of the
    events, which can only be too low.
    """
    here = (table.sent_ns >= start_ns) & (table.sent_ns <= end_ns) & (table.outcome == OK)
    asked, came = table.planned_tokens, np.maximum(table.output_tokens, delivered_tokens(table))
    told = here & (asked > 0) & ((table.output_tokens >= 0) | (came > asked))
    shorter, longer = told & (came < asked), told & (came > asked)
    others = np.flatnonzero(shorter | longer).tolist() if finishes else []
    reasons = Counter(finishes[i] for i in others)
    prompts = here & (table.planned_prompt > 0) & (table.prompt_tokens >= 0)
    return Delivery(
        n=int(told.sum()),
        exact=exact,
        shorter=int(shorter.sum()),
        longer=int(longer.sum()),
        asked_tokens=_mean(asked, told),
        came_tokens=_mean(came, told),
        finishes={reason: n for reason, n in reasons.most_common() if reason},
        n_prompts=int(prompts.sum()),
        asked_prompt_tokens=_mean(table.planned_prompt, prompts),
        came_prompt_tokens=_mean(table.prompt_tokens, prompts),
    )


def _mean(values: Ints, rows: Bools) -> float:
    return round(float(values[rows].mean()), 3) if rows.any() else nan


def _say(tokens: float) -> str:
    return f"{float(f'{tokens:.3g}'):,g}"
