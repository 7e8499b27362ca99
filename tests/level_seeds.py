"""200 levels at a time in simulated time: when requests were sent, and how long each took.

Times are in lifetimes. `took` is standard normal for every request, so that the share over any
limit is known; what differs is how it is shared.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
SEEDS = 200


class Levels(NamedTuple):
    """`sent` is the same for all of them; a row of `took` is a seed."""

    sent: Floats
    took: Floats


def levels(kind: str, users: int, n: int, seed: int) -> Levels:
    """`independent`; waves of all users that share their `fate` entirely, or an `effect` by half.

    `serial`: requests of one lifetime resemble each other, wholly or by half (`serial half`).
    """
    draw = np.random.default_rng([seed, users, n])
    if kind in {"fate", "effect"}:
        wave = np.arange(n) // users
        sent = 1.1 * wave + 0.01 * draw.random(n)
        shared = draw.standard_normal((SEEDS, wave[-1] + 1))[:, wave]
    else:
        life = draw.gamma(10, 0.1, (users, int(1.6 * n / users) + 12))
        sent = np.sort((np.cumsum(life, axis=1) - draw.random((users, 1))).ravel())
        sent = sent[sent > 2][:n]
        shared = np.zeros((SEEDS, n)) if kind == "independent" else _slow(sent, draw)
    part = {"independent": 0.0, "fate": 1.0, "effect": 0.5, "serial": 1.0, "serial half": 0.5}[kind]
    own = draw.standard_normal((SEEDS, n))
    return Levels(np.sort(sent), part**0.5 * shared + (1 - part) ** 0.5 * own)


def _slow(sent: Floats, draw: np.random.Generator) -> Floats:
    """What is like itself a lifetime ago by 1 / e."""
    found = draw.standard_normal((len(sent), SEEDS))
    for i, memory in enumerate(np.exp(-np.diff(sent)).tolist(), 1):
        found[i] = memory * found[i - 1] + (1 - memory**2) ** 0.5 * found[i]
    return np.ascontiguousarray(found.T)
