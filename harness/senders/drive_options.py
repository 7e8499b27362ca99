"""What a load-sending process must know: plain data that travels as JSON and holds no secret.

And the bytes that ask for one planned completion, streamed and of the wanted length.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from harness.core.timeouts import Timeouts
from harness.core.typed_json import from_json
from harness.load.request_fields import DEFAULT_FIELDS, fill_headers, json_body
from harness.load.tokens import Calibration
from harness.load.workloads import API_PATHS, Workload
from harness.server.access import TargetAccess
from harness.server.address import Address
from harness.wire.http import post

if TYPE_CHECKING:
    from harness.load.plan import RequestSpec

TIMEOUT_KEYS: Final = tuple(timeout.name for timeout in fields(Timeouts))


@dataclass(frozen=True, slots=True)
class DriveOptions:
    """One target and what is sent to it.

    The API key is named, not held: each process reads the environment variable `key_source`.
    """

    url: str  # the server's root, without /v1
    model: str
    workload: Workload
    seed: int = 1
    calibration: Calibration = field(default_factory=Calibration)
    fixed_length: bool = True  # send ignore_eos and min_tokens: outputs of exactly the length
    continuous_usage: bool = True  # ask for token counts in every event
    final_usage: bool = True  # ask for token counts at the end
    key_source: str = ""  # environment variable; "": no key
    ca_file: str = ""
    insecure: bool = False
    timeouts: Timeouts = field(default_factory=Timeouts)
    batch: int = 0  # users that start together share so many requests; 0: no limit
    requests: int = -1  # send so many in all, over all processes; -1: no limit
    most_failures: int = 0  # a process pauses after so many one after another; 0: never
    processes: int = 1
    run_folder: str = ""  # where run.json lies: each process appends its own records; "": none
    metrics: tuple[str, ...] = ()  # where replicas have /metrics, as TargetAccess.replicas has it
    prefill: tuple[str, ...] = ()  # the same of servers that only prefill
    arrivals: str = ""  # of load.arrivals: requests go out on schedule; "": closed loop
    max_in_flight: int = 0  # open loop: what is due beyond it, over all processes, is dropped
    retries: int = 0  # open loop: a request that failed is sent again, at once, so many times
    run_id: str = ""  # makes this run's prompts its own; "": those of the seed
    body: Mapping[str, Any] = field(default_factory=lambda: dict(DEFAULT_FIELDS))  # further fields
    headers: tuple[tuple[str, str], ...] = ()  # as they were given: `$NAME` is filled in when sent
    salt: str = ""  # in place of `run_id`, so that other runs send the same prompts
    data: dict[str, Any] = field(default_factory=dict)  # arguments of the DataSource that is sent

    def access(self) -> TargetAccess:
        """The same target, for single questions to it. Raises ConfigError for a bad URL."""
        return TargetAccess(
            address=Address.parse(self.url),
            api_key=os.environ.get(self.key_source, ""),
            key_source=self.key_source,
            ca_file=Path(self.ca_file) if self.ca_file else None,
            insecure=self.insecure,
            connect_ns=self.timeouts.connect_ns,
            answer_ns=self.timeouts.first_token_ns,
            headers=self.headers,
        )

    def quota(self, worker: int) -> int:
        """How many of `requests` are this worker's; -1: no limit."""
        if self.requests < 0:
            return -1
        return self.share(self.requests, worker)

    def share(self, total: int, worker: int) -> int:
        """This worker's part of a number that all of them share."""
        share, rest = divmod(total, self.processes)
        return share + 1 if worker < rest else share

    def to_json(self) -> dict[str, Any]:
        """Flat: the timeouts are keys among the others, as in every run folder so far."""
        flat = asdict(self)
        flat.update(flat.pop("timeouts"))
        return flat

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> DriveOptions:
        """What `to_json` wrote, now or before. Raises ValueError for a value that does not fit."""
        timeouts = {key: data[key] for key in TIMEOUT_KEYS if key in data}
        return from_json(cls, data | {"timeouts": timeouts})


def request_bytes(
    options: DriveOptions,
    access: TargetAccess,
    api: str,
    spec: RequestSpec,
    *,
    request_id: str = "",
    user: str = "",
    session: str = "",
) -> bytes:
    """The whole request, head and body. Ids are for the user's headers."""
    address = access.address
    path = address.path + API_PATHS[api]
    body = request_body(options, api, spec)
    headers: dict[str, str] = {}
    if options.headers:
        names = {"request": request_id, "user": user, "session": f"{options.run_id}-{session}"}
        headers = fill_headers(options.headers, names, os.environ)
    return post(address.authority, path, body, access.api_key, headers)


def request_body(options: DriveOptions, api: str, spec: RequestSpec) -> dict[str, Any]:
    """The body for `api`, with what the server was found to accept."""
    return json_body(
        api,
        options.model,
        spec,
        options.body,
        fixed_length=options.fixed_length,
        final_usage=options.final_usage,
        continuous_usage=options.continuous_usage,
    )
