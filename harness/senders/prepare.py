"""Before the load: what the target accepts, and how many words make a token there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from harness.load.plan import RequestSpec
from harness.load.request_fields import json_body
from harness.load.tokens import Calibration, calibrate
from harness.load.workloads import API_PATHS
from harness.server.http_exchange import fetch
from harness.server.probe import Capabilities, probe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.senders.drive_options import DriveOptions
    from harness.server.access import TargetAccess

TOKENIZED: Final = ("model", "messages", "prompt")  # fields of /tokenize


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
    known = capabilities or probe(access, api, options.model or None, options.body)
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
        ready = replace(ready, calibration=_calibrated(access, known, options.body))
    return Prepared(ready, known)


def _calibrated(
    access: TargetAccess, known: Capabilities, fields: Mapping[str, Any]
) -> Calibration:
    """By /tokenize, else by the usage of two tiny requests; one word a token if neither says."""
    try:
        return calibrate(lambda text: _count(access, known, fields, text))
    except LookupError:
        return Calibration()


def _count(access: TargetAccess, known: Capabilities, fields: Mapping[str, Any], text: str) -> int:
    """Tokens of a prompt of `text`, chat template included. Raises LookupError if unknown."""
    spec = RequestSpec(text, 0, 1)
    if known.tokenize:
        # it takes the forms of two APIs, and the others' prompts become as many tokens as a chat's
        body = json_body("completions" if known.api == "completions" else "chat", known.model, spec)
        answer = fetch(access, "/tokenize", {k: body[k] for k in body if k in TOKENIZED})
        count = _field(answer.json(), "count")
        if answer.status == 200 and count is not None:  # noqa: PLR2004 - HTTP
            return count
    body = json_body(known.api, known.model, spec, fields) | {"stream": False}
    told = fetch(access, API_PATHS[known.api], body).json()
    for name in ("prompt_tokens", "input_tokens"):
        if (usage := _field(told, "usage", name)) is not None:
            return usage
    raise LookupError(API_PATHS[known.api])


def _field(value: object, *keys: str) -> int | None:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, int) else None
