"""The array types of annotations: times and counts in int64, figures in float64, masks.

And what most files compute with them: a window of time as a mask, and running totals.
"""

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def between(values: Ints, low: int, high: int) -> Bools:
    """Which values lie in [low, high]."""
    return np.asarray((values >= low) & (values <= high))


def totals_before(counts: Ints | Bools) -> Ints:
    """The total of the counts before each place, and at the end that of all: n + 1."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
