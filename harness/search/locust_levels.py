"""The levels of a test that Locust's own form, command line or LoadTestShape decides about.

In: when how many users were asked for (`AskedUsers`, in ended.json), and the records. Out: a window
for each number of users that was held, as levels.jsonl has them. All instants in ns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from harness.core.load import Users
from harness.core.states import Decision, Purpose
from harness.core.typed_json import from_json
from harness.metrics.evidence import Window
from harness.search.busy_users import BusyUsers
from harness.search.replay import LoggedLevel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.records.record_table import RecordTable

ASKED: Final = "asked_users"  # in ended.json
SHOWN: Final = 8  # numbers of users that a sentence names


@dataclass(slots=True)
class AskedUsers:
    """For a time Locust was asked for the same number of users."""

    asked: int  # of all classes in the locustfile
    since_ns: int
    until_ns: int  # when this was seen last
    there_ns: int = -1  # when they were all there; -1: never
    users: int = 0  # those of our classes, once all are there


def asked_users(ended: Mapping[str, Any]) -> list[AskedUsers]:
    """What ended.json says of them; [] where it says nothing, or nothing that can be read."""
    try:
        rows = [from_json(AskedUsers, row) for row in ended.get(ASKED) or ()]
    except ValueError:
        return []
    return [row for row in rows if row.asked]


def locust_levels(table: RecordTable, asked: Sequence[AskedUsers] = ()) -> list[LoggedLevel]:
    """The numbers of users that were held; without `asked` one, inferred from the records.

    A level begins when nearly all of its users are busy, has settled when two requests per user
    have ended since (as in our own controller), and ends when another number is asked for, or when
    the last request was sent. A number that was never reached, or of several one that never
    settled, is no level.
    """
    if not len(table):
        return []
    busy = BusyUsers(table)
    if not asked:
        return [_logged(_only_level(busy))]
    windows: list[Window] = []
    chosen = asked[0].since_ns
    for users in asked:
        window = _level(
            busy,
            len(windows),
            users,
            chosen,
            last=users is asked[-1],
            need_settled=len(asked) > 1,
        )
        if window is not None:
            windows.append(window)
        chosen = users.until_ns + 1  # the next was asked for between this look and the one after it
    return [_logged(window) for window in windows]


def level_line(level: LoggedLevel) -> dict[str, Any]:
    """The line of levels.jsonl."""
    judged = {"decision": level.decision, "invalid": level.invalid, "audited": level.audited}
    return level.window.to_json() | judged


def unheld_sentence(asked: Sequence[AskedUsers], n_levels: int) -> str:
    """Of users that changed: which numbers were no level; "" where each was one."""
    if len(asked) <= n_levels:
        return ""
    numbers = ", ".join(str(users.asked) for users in asked[:SHOWN])
    more = ", ..." if len(asked) > SHOWN else ""
    requested = f"Locust was asked for {numbers}{more} users, and"
    until = "held until two requests per user had ended"
    if not n_levels:
        return f"{requested} none was {until}; hold each number longer"
    were = "was" if n_levels == 1 else "were"
    return (
        f"{requested} only {n_levels} of these {len(asked)} numbers {were} {until}: "
        "the figures are of the levels that were held; hold each number longer"
    )


def users_pause(table: RecordTable, windows: Sequence[Window]) -> bool:
    """Whether fewer were ever busy than there were users: then a level is no concurrency."""
    if not len(table) or not windows:
        return False
    return int(BusyUsers(table).users.max()) < max(window.load.users for window in windows)


def _logged(window: Window) -> LoggedLevel:
    return LoggedLevel(window, "", Decision.held, audited=False)


def _only_level(busy: BusyUsers) -> Window:
    """As if the most users at once had been asked for from the start."""
    users = int(busy.users.max())
    first = int(busy.sent[0])
    ramped = busy.ramped(users, first)
    settled = busy.settled(ramped, users)
    if settled is None:
        settled = ramped
    last = max(int(busy.sent[-1]), settled)
    return _window(0, users, begun=first, ramped=ramped, settled=settled, end=last)


def _level(
    busy: BusyUsers, index: int, asked: AskedUsers, chosen: int, *, last: bool, need_settled: bool
) -> Window | None:
    """The level of this number of users, `chosen` then; None if it was not held."""
    users = asked.users
    if asked.there_ns < 0 or not users:
        return None
    end = int(busy.sent[-1]) if last else asked.until_ns
    ramped = busy.ramped(users, asked.since_ns, end)
    if ramped < 0:
        # Users who pause as their locustfile says are never all busy: then being there is enough.
        ramped = asked.there_ns
    settled = busy.settled(ramped, users)
    if settled is None or settled >= end:
        if need_settled:
            return None
        settled = ramped
    end = max(end, settled)
    return _window(index, users, begun=chosen, ramped=ramped, settled=settled, end=end)


def _window(index: int, users: int, *, begun: int, ramped: int, settled: int, end: int) -> Window:
    return Window(index, Users(users), Purpose.hold, begun, ramped, settled, end, end)
