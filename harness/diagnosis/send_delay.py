"""Were requests sent when they were due? A client that stood still sends its backlog at once.

The server then meets a burst that nobody asked for, and what it does with it is no finding about
the server. In an open loop a request is due by its schedule, in a closed one as soon as its user's
last answer has ended and the planned pause is over. Times are in ns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.metrics.metrics import WHOLE
from harness.records.record_table import CONNECT, DROPPED, OK
from harness.units import MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.core.arrays import Floats, Ints
    from harness.metrics.slo import Slo
    from harness.records.record_table import RecordTable

# A backlog matters once it is about as long as the latency that is judged, ...
LATE_SHARE: Final = 0.5  # of an SLO's limit
MIN_LATE_NS: Final = 50 * MS  # a shorter backlog is no burst worth a name, however strict the limit
# ... and others wait behind it: so fewer requests may be late than may be over the limit.
ALLOWED_SHARE: Final = 0.5  # of the share that the SLO allows
DEFAULT_LIMIT_NS: Final = 500 * MS  # where no SLO limits a latency of whole requests
DEFAULT_ALLOWED: Final = 0.05
MIN_REQUESTS: Final = 20  # fewer have no share worth a name


@dataclass(frozen=True, slots=True)
class LateSends:
    """How many of a window's requests were sent so late that the verdict may be the client's."""

    n: int
    n_late: int
    late_ns: float  # later than this is late
    allowed: float  # share that may be
    p95_ns: float
    max_ns: float

    @property
    def excess(self) -> float:
        """How many times as many are late as may be."""
        return self.n_late / max(self.allowed * self.n, 1e-9)

    @property
    def too_many(self) -> bool:
        return self.n >= MIN_REQUESTS and self.n_late > self.allowed * self.n


def send_delays(table: RecordTable, start_ns: int, end_ns: int) -> Floats:
    """The delay of each request that was due or sent in the window; none is below 0.

    `table`: all requests of the run. Requests that could not be sent are the server's failures.
    """
    due = np.where(table.scheduled_ns >= 0, table.scheduled_ns, _ready_ns(table))
    sent = ~np.isin(table.outcome, (CONNECT, DROPPED))
    in_window = (due <= end_ns) & (table.sent_ns >= start_ns)
    counted = sent & in_window & (due >= 0)
    delays_ns = (table.sent_ns - due)[counted]
    return np.asarray(delays_ns.clip(min=0), np.float64)


def consecutive_requests(table: RecordTable) -> tuple[Ints, Ints]:
    """(row of a user's request, row of the user's next one), for each that has a next one."""
    # Sorted by worker, then user, then time: neighbors of one user are consecutive requests.
    order = np.lexsort((table.sent_ns, table.user, table.worker))
    before = order[:-1]
    after = order[1:]
    same_worker = table.worker[before] == table.worker[after]
    same_user = same_worker & (table.user[before] == table.user[after])
    return before[same_user], after[same_user]


def _ready_ns(table: RecordTable) -> Ints:
    """When the user of each request was ready to send it; -1: not known.

    After a failure users of a closed loop wait before they try again, and that is meant.
    """
    ready = np.full(len(table), -1, np.int64)
    before, after = consecutive_requests(table)
    follows = table.outcome[before] == OK
    thought_ns = table.done_ns + table.think_ns.clip(min=0)  # when the pause after it is over
    ready[after[follows]] = thought_ns[before[follows]]
    return ready


def late_sends(
    table: RecordTable, start_ns: int, end_ns: int, slos: Sequence[Slo]
) -> LateSends | None:
    """By the strictest of the SLOs on whole requests; None without a request in the window."""
    delays_ns = send_delays(table, start_ns, end_ns)
    if not len(delays_ns):
        return None
    of_requests = [slo for slo in slos if slo.metric in WHOLE]
    if not of_requests:
        return _late_by(delays_ns, float(DEFAULT_LIMIT_NS), DEFAULT_ALLOWED)
    by_slo = [_late_by(delays_ns, float(slo.limit_ns), slo.allowed) for slo in of_requests]
    return max(by_slo, key=lambda late: late.excess)


def _late_by(delays_ns: Floats, limit_ns: float, allowed: float) -> LateSends:
    """By one SLO, of which a share of `allowed` may be over the limit."""
    late_ns = max(LATE_SHARE * limit_ns, float(MIN_LATE_NS))
    is_late = delays_ns > late_ns
    p95_ns = np.quantile(delays_ns, 0.95, method="higher")
    return LateSends(
        n=len(delays_ns),
        n_late=int(is_late.sum()),
        late_ns=late_ns,
        allowed=ALLOWED_SHARE * allowed,
        p95_ns=float(p95_ns),
        max_ns=float(delays_ns.max()),
    )


def send_delay_sentence(table: RecordTable, start_ns: int, end_ns: int, slos: Sequence[Slo]) -> str:
    """Why the window must not be used; "" if it may. A remedy is the caller's to add."""
    late = late_sends(table, start_ns, end_ns, slos)
    if late is None or not late.too_many:
        return ""
    return (
        f"{late.n_late:,} of {late.n:,} requests were sent more than {late.late_ns / MS:,.4g} "
        f"ms later than they were due (p95 {late.p95_ns / MS:,.0f} ms, at most "
        f"{late.max_ns / MS:,.0f} ms): expected at most {late.allowed:.1%}, because a "
        "backlog reaches the server as an unplanned burst"
    )
