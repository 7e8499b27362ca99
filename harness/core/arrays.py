"""The array types of annotations: times and counts in int64, figures in float64, masks.

And `between`, the mask that most windows of time need.
"""

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def between(values: Ints, low: int, high: int) -> Bools:
    """Which values lie in [low, high]."""
    return np.asarray((values >= low) & (values <= high))
