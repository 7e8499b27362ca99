"""Converts a measured knee to the load per replica at which another replica should be added."""

# The knee counts concurrent users, while a server counts requests that run or wait in it. The rest
# of the users is between two requests, in the front end or on the network. So the threshold is the
# lower end of the knee times the share of users that the server saw at the knee's own level.

from __future__ import annotations

from dataclasses import dataclass
from math import floor, isnan, nan
from typing import TYPE_CHECKING

from harness.errors import NoKnee, RunFolderError
from harness.measure.result import Knee, Level
from harness.measure.slo import Slo
from harness.measure.states import Status
from harness.runfolder import names
from harness.runfolder.folder_reader import read_result

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Threshold:
    """The limit of requests that run or wait on one replica, and the knee that it comes from."""

    requests: int  # the SLOs are met up to this number
    users: int  # the knee's lower end
    knee: int
    slos: tuple[Slo, ...]  # none: the power knee
    share: float  # of the users, counted by the server; NaN: unknown, taken as 1
    model: str  # the server's name for it; "": unknown
    simulated: str = ""  # what was simulated; "": a real server was measured

    @property
    def sentence(self) -> str:
        seen = (
            "the server's own count of them is not known"
            if self.share != self.share
            else f"the server counts {self.share:.0%} of them"
        )
        promise = " and ".join(map(str, self.slos)) or "the best throughput for the waiting time"
        where = f"Measured on a server that was {self.simulated}" if self.simulated else "Measured"
        return (
            f"{where}: {promise} holds up to {self.users} concurrent users at least (the knee is "
            f"{self.knee}); {seen}."
        )


def threshold(folder: Path) -> Threshold:
    """Compute the threshold from a run folder's result.json. Raises RunFolderError, NoKnee."""
    result = read_result(folder)
    if result is None:
        raise RunFolderError(
            f"{folder} has no {names.RESULT} that can be read: expected a run folder of "
            f"`vllm-harness knee`; try `vllm-harness report {folder}`, which writes it."
        )
    knee = result.knee or Knee()
    if knee.unit != Knee().unit:
        raise NoKnee(
            f"{folder} has a knee in {knee.unit}: expected one in users, by which replicas are "
            "counted; try `vllm-harness knee` without --load rate."
        )
    low, estimate = int(knee.holds or knee.ci95[0] or 0), int(knee.estimate or 0)
    if result.status != Status.found or low < 1:
        found = result.status == Status.found
        why = "its interval reaches 0" if found else f"its status is {result.status}"
        raise NoKnee(
            f"{folder} has no knee to use ({why}): expected one that was found; try "
            "`vllm-harness knee` with a longer --budget, or another --max-users."
        )
    share = seen_share(result.used, knee.measured_at_users)
    counted = low if isnan(share) else floor(low * share)
    slos = tuple(Slo.parse(one.slo) for one in result.slos)
    target = result.target
    return Threshold(max(counted, 1), low, estimate, slos, share, target.model, target.label)


def seen_share(levels: Sequence[Level], users: int | None) -> float:
    """Return the mean share of a level's users that ran or waited, at most 1; NaN: unknown."""
    seen = seconds = 0.0
    for level in levels:
        server = level.server
        in_server = server.running_mean + server.waiting_mean
        if level.users == users and in_server >= 0:
            seen, seconds = seen + in_server / users * level.seconds, seconds + level.seconds
    return min(seen / seconds, 1.0) if seen else nan
