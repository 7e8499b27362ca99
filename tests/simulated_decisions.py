"""How often a held level is wrongly met or missed, of 200 seeds whose true share is known."""

from statistics import NormalDist

import numpy as np
from level_seeds import levels

from harness.search.decide import ALPHA, count_in_order, p_met, p_missed

SHARES = (0.2, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0)  # of the share allowed
KINDS = [
    *(("independent", users) for users in (1, 4, 20, 64)),
    *((kind, users) for kind in ("fate", "effect") for users in (4, 20, 64)),
    *((kind, users) for kind in ("serial", "serial half") for users in (4, 20, 64)),
]


def seeds(kind, users, n, allowed, shares, seed=1):
    """Counts of 200 seeds, for each of these shares over the limit (in those allowed)."""
    sent, took = levels(kind, users, n, seed)
    limits = np.array([NormalDist().inv_cdf(1 - times * allowed) for times in shares])
    over = took > limits[:, None, None]
    # who shares one fate entirely is well or not, and nothing between
    seen = None if kind == "fate" else took
    return count_in_order("x", allowed, over, sent, users=users, values=seen)


def wrong_verdicts(kind, users):
    """How many of 200 are wrong, by verdict, share allowed, requests, and its part that is over."""
    wrong = {}
    for allowed in (0.05, 0.01):
        for n in (60, 200, 600, 2000):
            counts = seeds(kind, users, n, allowed, SHARES)
            for times, below, above in zip(SHARES, p_met(counts), p_missed(counts), strict=True):
                cell = f"{allowed} {n} {times}"
                if times >= 1:
                    wrong[f"met {cell}"] = int((below <= ALPHA).sum())
                if times <= 1:
                    wrong[f"missed {cell}"] = int((above <= ALPHA).sum())
    return wrong


def cases():
    """Each of KINDS."""
    return KINDS
