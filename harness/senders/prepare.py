"""Before the load: what the target accepts, and how many words make a token there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from harness.load.conversations import planned_tools
from harness.load.plan import system_message
from harness.load.tokens import Calibration, calibrate
from harness.server.http_exchange import fetch
from harness.server.probe import Capabilities, probe

if TYPE_CHECKING:
    from harness.load.workloads import Workload
    from harness.senders.drive_options import DriveOptions
    from harness.server.access import TargetAccess


@dataclass(frozen=True, slots=True)
class Prepared:
    """Options as they will be used, and what is known of the target."""

    options: DriveOptions
    capabilities: Capabilities


def prepare(options: DriveOptions, capabilities: Capabilities | None = None) -> Prepared:
    """Fill in the model, its context, what the server accepts, and the calibration of prompts.

    Sends at most a few requests of one or two tokens. Raises ServerUnreachable or ConfigError.
    """
    access = options.access()
    api = options.workload.api
    known = capabilities or probe(access, api, options.model or None)
    ready = replace(
        options,
        url=known.url,
        model=known.model,
        workload=replace(options.workload, max_model_len=known.max_model_len or 0),
        fixed_length=known.fixed_length,
        continuous_usage=known.continuous_usage,
        final_usage=known.final_usage,
    )
    if not ready.workload.token_ids:
        ready = replace(ready, calibration=_calibrated(access, known, ready.workload))
    return Prepared(ready, known)


def _calibrated(access: TargetAccess, known: Capabilities, workload: Workload) -> Calibration:
    """By /tokenize, else by the usage of a few tiny requests; one word a token if neither says."""
    try:
        found = calibrate(lambda text: _count(access, known, _prompt(known.api, text)))
        tools = planned_tools(workload.conversation.tools if workload.conversation else 0)
        system = system_message(workload.system_tokens, found)
        if known.api != "chat" or not (system or tools):
            return found
        alone, whole = _prompt("chat", "about"), _prompt("chat", "about")
        whole["messages"][:0] = [{"role": "system", "content": system}] if system else []
        whole |= {"tools": tools} if tools else {}
        shared = _count(access, known, whole) - _count(access, known, alone)
        return replace(found, shared=max(shared, 0))
    except LookupError:
        return Calibration()


def _count(access: TargetAccess, known: Capabilities, prompt: dict[str, Any]) -> int:
    """Tokens of a prompt, chat template included. Raises LookupError if unknown."""
    if known.tokenize:
        answer = fetch(access, "/tokenize", {"model": known.model, **prompt})
        count = _field(answer.json(), "count")
        if answer.status == 200 and count is not None:  # noqa: PLR2004 - HTTP
            return count
    path = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}[known.api]
    body = {"model": known.model, "max_tokens": 1, **prompt}
    usage = _field(fetch(access, path, body).json(), "usage", "prompt_tokens")
    if usage is None:
        raise LookupError(path)
    return usage


def _prompt(api: str, text: str) -> dict[str, Any]:
    if api == "chat":
        return {"messages": [{"role": "user", "content": text}]}
    return {"prompt": text}


def _field(value: object, *keys: str) -> int | None:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, int) else None
