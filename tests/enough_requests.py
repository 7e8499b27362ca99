"""A locustfile: that of chat, in a test that ends once all users have sent enough.

Locust's own --run-time begins before its workers have seen the server, for which a busy machine may
take all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import gevent
from locust import events
from locust.runners import WorkerRunner

from locustfiles.chat import Chat  # noqa: F401 - its users

if TYPE_CHECKING:
    from locust.env import Environment

ENOUGH: Final = 60  # requests since all users were there: they decide about a p95
HELD_S: Final = 5.0  # at least, as a level begins only once its load has settled
LOOK_S: Final = 0.1


@events.init.add_listener
def _begin(environment: Environment, **_: Any) -> None:
    if not isinstance(environment.runner, WorkerRunner):
        gevent.spawn(_end_after_enough, environment)


def _end_after_enough(environment: Environment) -> None:
    runner = environment.runner
    while runner.user_count < environment.parsed_options.num_users:
        gevent.sleep(LOOK_S)
    before = _requests(environment)
    gevent.sleep(HELD_S)
    while _requests(environment) < before + ENOUGH:
        gevent.sleep(LOOK_S)
    if environment.parsed_options.headless:
        runner.quit()
    else:
        runner.stop()


def _requests(environment: Environment) -> int:
    """Without our rows of TTFT."""
    rows = environment.stats.entries.values()
    return sum(row.num_requests for row in rows if row.method == "POST")
