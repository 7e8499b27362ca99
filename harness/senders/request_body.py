"""The bytes that ask for one planned completion, streamed and of the wanted length."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from harness.load.request_fields import fill_headers, json_body
from harness.load.workloads import API_PATHS
from harness.wire.http import post

if TYPE_CHECKING:
    from harness.load.plan import RequestSpec
    from harness.senders.drive_options import DriveOptions
    from harness.server.access import TargetAccess


def request_bytes(
    options: DriveOptions, access: TargetAccess, api: str, spec: RequestSpec, *,
    request_id: str = "", user: str = "", session: str = "",
) -> bytes:  # fmt: skip
    """The whole request, head and body. Ids are for the user's headers and the server's traces."""
    address, body = access.address, request_body(options, api, spec)
    headers = {"X-Request-Id": request_id} if options.request_ids and request_id else {}
    if options.headers:
        names = {"request": request_id, "user": user, "session": f"{options.run_id}-{session}"}
        headers |= fill_headers(options.headers, names, os.environ)
    return post(address.authority, address.path + API_PATHS[api], body, access.api_key, headers)


def request_body(options: DriveOptions, api: str, spec: RequestSpec) -> dict[str, Any]:
    """The body for `api`, with what the server was found to accept."""
    return json_body(
        api, options.model, spec, options.body,
        fixed_length=options.fixed_length,
        final_usage=options.final_usage,
        continuous_usage=options.continuous_usage,
    )  # fmt: skip
