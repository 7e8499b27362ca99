"""How many requests a server can run at once, as far as it is known before any load."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from harness.server.max_num_seqs import MAX_NUM_SEQS, merge_flags

if TYPE_CHECKING:
    from harness.run.study_options import Wanted
    from harness.search.next_level import Hold, SearchPlan
    from harness.server.probe import Capabilities


def with_seats(wanted: Wanted, known: Capabilities) -> Wanted:
    """The same experiment, whose search knows how many the server can run at once.

    Not where users pause, as more of them than it has seats may then be few.
    """
    if not wanted.never_pauses:
        return wanted
    plan = replace(wanted.plan, seats=known_seats(wanted, known))
    holds = wanted.holds

    def planned() -> tuple[SearchPlan, tuple[Hold, ...]]:
        return plan, holds

    return replace(wanted, planned=planned)


def known_seats(wanted: Wanted, known: Capabilities) -> int:
    """The fewer of its slots and of the mean requests that its KV cache holds; 0: unknown."""
    seats = [_slots(wanted, known), _in_kv_cache(wanted, known)]
    return min((count for count in seats if count), default=0)


def _slots(wanted: Wanted, known: Capabilities) -> int:
    """Of all engines."""
    target = wanted.target
    reported = known.flags if target.engine is None else asdict(target.engine)
    slots = merge_flags(reported, target.server_flags).get(MAX_NUM_SEQS)
    engines = known.cache.get("engines") or len(known.replicas) or 1
    return slots * engines if isinstance(slots, int) else 0


def _in_kv_cache(wanted: Wanted, known: Capabilities) -> int:
    workload = wanted.load.workload
    if wanted.load.data is not None:  # of lengths that nobody has added up
        return 0
    tokens = workload.prompt_tokens + workload.output.mean
    return int(known.cache.get("kv_tokens") or 0) // max(tokens, 1)
