"""The bytes that ask for one planned completion, streamed and of the wanted length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.load.workloads import API_PATHS
from harness.wire.http import post

if TYPE_CHECKING:
    from harness.load.plan import RequestSpec
    from harness.senders.drive_options import DriveOptions
    from harness.server.access import TargetAccess


def request_bytes(
    options: DriveOptions, access: TargetAccess, api: str, spec: RequestSpec, request_id: str = ""
) -> bytes:
    """The whole request, head and body; the server's traces carry `request_id`."""
    address, body = access.address, request_body(options, api, spec)
    headers = {"X-Request-Id": request_id} if request_id else None
    return post(address.authority, address.path + API_PATHS[api], body, access.api_key, headers)


def request_body(options: DriveOptions, api: str, spec: RequestSpec) -> dict[str, Any]:
    """The body for `api`, with what the server was found to accept.

    `ignore_eos` and `min_tokens` are vLLM's: without them a model ends where it likes.
    """
    tokens = spec.output_tokens
    body: dict[str, Any] = {"model": options.model, "stream": True, "max_tokens": tokens}
    if options.fixed_length:
        body |= {"ignore_eos": True, "min_tokens": tokens}
    usage = {"include_usage": options.final_usage or options.continuous_usage}
    if options.continuous_usage:
        usage["continuous_usage_stats"] = True
    if usage["include_usage"]:
        body["stream_options"] = usage
    return body | (_messages(spec) if api == "chat" else _prompt(spec))


def _messages(spec: RequestSpec) -> dict[str, Any]:
    tools = {"tools": spec.tools} if spec.tools else {}
    if spec.messages:
        return {"messages": spec.messages, **tools}
    system = [{"role": "system", "content": spec.system}] if spec.system else []
    return {"messages": [*system, {"role": "user", "content": spec.text}], **tools}


def _prompt(spec: RequestSpec) -> dict[str, Any]:
    if spec.token_ids:
        return {"prompt": list(spec.token_ids)}
    return {"prompt": f"{spec.system}\n\n{spec.text}" if spec.system else spec.text}
