"""What a server's version tells: since which vLLM an API streams, and whether it is a simulator.

Nobody compares the version unless an API failed: other servers have versions of their own.
"""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from harness.errors import ServerUnreachable
from harness.load.workloads import API_PATHS
from harness.server.http_exchange import fetch

if TYPE_CHECKING:
    from harness.server.access import TargetAccess

# By vLLM's pull requests (#22627, #37171); `responses` breaks off in 0.11 and was tried on 0.15.
STREAMS_SINCE: Final = {"messages": "0.11.1", "responses": "0.15", "generate": "0.20"}
CUT_SHORT: Final = (ConnectionError, http.client.IncompleteRead)


@contextmanager
def explained(access: TargetAccess, api: str) -> Iterator[None]:
    """Raise ServerUnreachable with the likelier cause, where one is known.

    For what is asked of the API after the server has answered another question.
    """
    try:
        yield
    except ServerUnreachable as error:
        version = version_of(access)
        path = f"{access.address}{API_PATHS[api]}"
        if is_too_old(api, version):
            raise ServerUnreachable(
                f"{path} does not stream (vLLM {version}): expected vLLM {STREAMS_SINCE[api]} or "
                f"newer for --api {api}; try --api chat or --api completions."
            ) from error
        if isinstance(error.__cause__, CUT_SHORT):
            raise ServerUnreachable(
                f"{path} closes the connection early, and the server answers elsewhere: expected "
                "a stream; see the server's log, or try another --api."
            ) from error
        raise


def version_of(access: TargetAccess) -> str:
    """Return vLLM's version; "" if the server does not tell."""
    try:
        answer = fetch(access, "/version")
    except ServerUnreachable:
        return ""
    if answer.status != http.client.OK:
        return ""
    body = answer.json()
    return str(body.get("version", "")) if isinstance(body, dict) else ""


def is_simulator(version: str) -> bool:
    """Whether it is that of `vllm-harness engine`, which says so behind a URL, too."""
    return version.startswith("harness-")


def is_too_old(api: str, version: str) -> bool:
    """Whether vLLM of that version is known not to stream; False for a version in other words."""
    since = STREAMS_SINCE.get(api)
    here = _numbers(version)
    return since is not None and bool(here) and here < _numbers(since)


def _numbers(version: str) -> tuple[int, ...]:
    """`0.11.0+cpu` -> (0, 11, 0); () for what is none."""
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version)
    if match is None:
        return ()
    return tuple(int(number or 0) for number in match.groups())
