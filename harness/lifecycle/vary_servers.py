"""The servers of the settings of `vary`: one deployment after another, or all side by side."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Self, TextIO

from harness.errors import HarnessError
from harness.lifecycle.deployments import (
    Deployment,
    Endpoint,
    launches,
    same_server,
    serving,
)
from harness.lifecycle.vllm_start import launched

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from harness.lifecycle.vllm_start import Launch, LaunchedServer, StartOptions
    from harness.search.comparison import Setting

    Key = tuple[str, tuple[str, ...]]  # a deployment, arguments of its servers


class VariedServers:
    """As a context manager it ends what it has started."""

    def __init__(
        self, start: StartOptions, stream: TextIO, deployments: Mapping[str, Deployment] = {}
    ) -> None:
        """`deployments` by name; where a setting names none, `start` is of its only server."""
        self._deployments = {"": Deployment("", start), **deployments}
        self._stream = stream
        self._running = ExitStack()
        self._endpoints: dict[Key, Endpoint] = {}
        self._failures: dict[Key, str] = {}
        self._keeps = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._endpoints.clear()
        self._running.close()

    def keep(self, settings: Sequence[Setting], folder: Path) -> None:
        """Start what all settings need, at once, until the end; logs go to `folder`."""
        self._keeps = True
        first_of: dict[Key, Setting] = {}  # the others with its servers find them running
        for setting in settings:
            first_of.setdefault(_key(setting), setting)
        wanted = []
        for number, setting in enumerate(first_of.values(), start=1):
            log = folder / f"{number}-{setting.deployment or 'server'}.server.log"
            deployment = self._deployments[setting.deployment]
            wanted.append((setting, launches(deployment, setting.server, log)))
        # What several settings want is started once.
        everything: dict[tuple[object, ...], Launch] = {}
        for _, of_one in wanted:
            for launch in of_one:
                everything.setdefault(same_server(launch), launch)
        self._stream.write(f"Starting {len(everything)} servers at once\n")
        self._stream.flush()
        begun = self._running.enter_context(launched([*everything.values()]))
        server_of = dict(zip(everything, begun, strict=True))
        for setting, of_one in wanted:
            self._serve(setting, [server_of[same_server(launch)] for launch in of_one])

    def endpoint(self, setting: Setting, log: Path) -> Endpoint | None:
        """Where the setting is measured; None, and why in its `failure`, if it does not start."""
        key = _key(setting)
        if key not in self._endpoints and not self._keeps:
            self._replace(setting, log)
        endpoint = self._endpoints.get(key)
        if endpoint is None:
            setting.failure = self._failures[key]
            return None
        setting.flags = endpoint.flags
        return endpoint

    def _replace(self, setting: Setting, log: Path) -> None:
        """End what runs, and start what the setting needs."""
        self._endpoints.clear()
        wanted = launches(self._deployments[setting.deployment], setting.server, log)
        # What is left of a server holds memory that the next one is measured without, so nothing
        # more is measured; it is no fault of the next setting's.
        self._running.close()
        try:
            servers = self._running.enter_context(launched(wanted))
        except HarnessError as error:
            self._leave_out(setting, error)
            return
        self._serve(setting, servers)

    def _serve(self, setting: Setting, servers: Sequence[LaunchedServer]) -> None:
        try:
            ready = [server.ready() for server in servers]
            deployment = self._deployments[setting.deployment]
            endpoint = self._running.enter_context(serving(deployment, ready))
        except HarnessError as error:
            self._leave_out(setting, error)
            return
        self._endpoints[_key(setting)] = endpoint
        setting.starts_s.append(endpoint.start_s)

    def _leave_out(self, setting: Setting, error: HarnessError) -> None:
        self._stream.write(f"{setting.name} is left out: {error}\n")
        self._failures[_key(setting)] = _first_and_last_line(str(error))


def _key(setting: Setting) -> Key:
    return setting.deployment, setting.server


def _first_and_last_line(text: str) -> str:
    """Of an error: what failed, and the server's own last word, once where they are the same."""
    lines = text.splitlines()
    if lines[0] == lines[-1]:
        return lines[0]
    return f"{lines[0]} {lines[-1]}"
