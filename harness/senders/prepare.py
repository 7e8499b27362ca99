"""Before the load: what the target accepts, and how many words make a token there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from harness.load.conversations import planned_tools
from harness.load.plan import RequestSpec, system_message
from harness.load.request_fields import json_body
from harness.load.tokens import Calibration, calibrate
from harness.load.workloads import API_PATHS, Workload
from harness.server.http_exchange import fetch
from harness.server.probe import Capabilities, probe

if TYPE_CHECKING:
    from harness.senders.drive_options import DriveOptions
    from harness.server.access import TargetAccess

ALONE: Final = "about"  # a prompt of one word
TO_TOKENIZE: Final = ("model", "prompt", "messages", "tools")  # fields that /tokenize takes


def prepare(options: DriveOptions, known: Capabilities | None = None) -> DriveOptions:
    """Fill in the model, its context, what the server accepts, and the calibration of prompts.

    Sends at most a few requests of one or two tokens. Raises ServerUnreachable or ConfigError.
    """
    access = options.access()
    workload = options.workload
    if known is None:
        known = probe(access, workload.api, options.model or None, options.body)
    ready = replace(
        options,
        url=known.url,
        model=known.model,
        workload=replace(workload, max_model_len=known.max_model_len or 0),
        fixed_length=known.fixed_length,
        continuous_usage=known.continuous_usage,
        final_usage=known.final_usage,
    )
    if workload.token_ids:
        return ready
    return replace(ready, calibration=_calibrated(access, known, ready.workload))


def _calibrated(access: TargetAccess, known: Capabilities, workload: Workload) -> Calibration:
    """By /tokenize, else by the usage of a few tiny requests; one word a token if neither says."""
    try:
        calibration = calibrate(lambda text: count_tokens(access, known, text))
        tools = planned_tools(workload.conversation.tools if workload.conversation else 0)
        system = system_message(workload.system_tokens, calibration)
        if known.api != "chat" or not (system or tools):
            return calibration
        with_both = count_tokens(access, known, ALONE, system=system, tools=tools)
        alone = count_tokens(access, known, ALONE)
        return replace(calibration, shared=max(with_both - alone, 0))
    except LookupError:
        return Calibration()


def count_tokens(access: TargetAccess, known: Capabilities, text: str, **more: Any) -> int:
    """Tokens of a prompt of `text`, chat template included. Raises LookupError if unknown.

    `more`: the system message and the tools before it, as RequestSpec has them.
    """
    spec = RequestSpec(text, 0, 1, **more)
    if known.tokenize:  # all APIs but one have a template
        api = "completions" if known.api == "completions" else "chat"
        whole_body = json_body(api, known.model, spec, {})
        question = {name: whole_body[name] for name in TO_TOKENIZE if name in whole_body}
        answer = fetch(access, "/tokenize", question)
        count = _field(answer.json(), "count")
        if answer.status == 200 and count is not None:  # noqa: PLR2004 - HTTP
            return count
    path = API_PATHS[known.api]
    body = json_body(known.api, known.model, spec, {}) | {"stream": False}
    completion = fetch(access, path, body).json()
    usage = _field(completion, "usage", "prompt_tokens")
    if not usage:
        usage = _field(completion, "usage", "input_tokens")
    if usage is None:
        raise LookupError(path)
    return usage


def _field(value: object, *keys: str) -> int | None:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, int) else None
