"""Whether a target takes requests that offer tools: vLLM does so only with two flags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.errors import ServerUnreachable, one_line
from harness.load.request_fields import json_body
from harness.load.workloads import API_PATHS
from harness.records.redact import redact_text
from harness.server.http_exchange import MAX_QUOTED_CHARS, fetch
from harness.server.probe import TINY_REQUEST

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.server.access import TargetAccess
    from harness.server.probe import Capabilities


def check_tools(
    access: TargetAccess,
    known: Capabilities,
    tools: Sequence[Mapping[str, Any]],
    fields: Mapping[str, object],
) -> None:
    """One tiny request with the tools that the load will offer. Raises ServerUnreachable.

    Under load each request would be refused, and the server blamed for it.
    """
    if not tools:
        return
    spec = TINY_REQUEST._replace(tools=tuple(dict(tool) for tool in tools))
    path = API_PATHS[known.api]
    body = json_body(known.api, known.model, spec, fields)
    answer = fetch(access, path, body)
    if answer.status == 200:  # noqa: PLR2004 - HTTP
        return
    words = redact_text(answer.body.decode(errors="replace"), access.secrets)
    raise ServerUnreachable(
        f"{access.address}{path} takes requests, but answers {answer.status} to one with tools "
        f"({one_line(words, MAX_QUOTED_CHARS)}): expected a server that takes them; try `vllm "
        "serve ... --enable-auto-tool-choice --tool-call-parser NAME`, or --tools 0."
    )
