"""What budgets bought in 200 simulated searches; written by `make docs`."""

from __future__ import annotations

from typing import Final, NamedTuple

from harness.units import SECOND


class Bought(NamedTuple):
    """How the searches with a budget ended (decision 21)."""

    budget_ns: int
    promised: float  # the share with a level that was shown to hold
    width: float  # within so much of it, in half of these, one was shown to fail; 0: in less


BOUGHT: Final = (
    Bought(60 * SECOND, 0.68, 2.38),
    Bought(150 * SECOND, 0.90, 0.37),
    Bought(600 * SECOND, 0.99, 0.12),
)
