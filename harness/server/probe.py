"""Ask a target what it is, before any load: a few reads and at most one tiny streamed request.

What is wrong with a target is said here, once, in one sentence with an exit code. What it can do
is returned as `Capabilities`, so that nothing downstream has to guess.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from harness.errors import ConfigError, ServerUnreachable
from harness.load.workloads import API_PATHS
from harness.server import why
from harness.server.exchange import Answer, ask
from harness.server.says import cache_summary, flags
from harness.server.stream import Streamed, read_stream
from harness.wire.vllm_metrics import cache_config, server_sample

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.server.access import Access

ASK: Final[dict[str, dict[str, object]]] = {
    "chat": {"messages": [{"role": "user", "content": "Hi"}]},
    "completions": {"prompt": "Hi"},
}
LENGTH: Final[dict[str, object]] = {"ignore_eos": True, "min_tokens": 2}
COUNTS: Final[dict[str, object]] = {
    "stream_options": {"include_usage": True, "continuous_usage_stats": True}
}
# From all that the harness would like to ask for down to the bare API: the first that is accepted
# counts. A refused one costs the server nothing: it generates only once.
TIERS: Final[tuple[Mapping[str, object], ...]] = (LENGTH | COUNTS, COUNTS, {})
REFUSED: Final = (400, 422)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a target is and accepts."""

    url: str  # its root, without /v1
    api: str  # `chat` or `completions`
    model: str
    models: tuple[str, ...]
    max_model_len: int | None  # tokens, prompt and output together; None: not said
    version: str  # vLLM's; "" where there is no /version
    fixed_length: bool  # takes ignore_eos and min_tokens: outputs can be of exact length
    continuous_usage: bool  # says in each event how many tokens came so far
    final_usage: bool  # says at the end how many tokens there were
    tokenize: bool  # has /tokenize
    metrics: bool  # has /metrics with vLLM's names
    flags: Mapping[str, Any] = field(default_factory=dict)  # as the server shows them, if it does
    cache: Mapping[str, Any] = field(default_factory=dict)  # says.cache_summary


def probe(access: Access, api: str, model: str | None = None) -> Capabilities:
    """Find out what the target is. Raises ServerUnreachable, or ConfigError for `model`."""
    listed = _models(access)
    chosen = _choose(access, model, tuple(listed))
    tier, streamed = _stream(access, api, chosen)
    limit = listed[chosen].get("max_model_len")
    version = _optional(access, "/version")
    metrics = _optional(access, "/metrics")
    tokens = _optional(access, "/tokenize", {"model": chosen, "prompt": "Hi"})
    said = version.json() if version else None
    return Capabilities(
        url=str(access.address),
        api=api,
        model=chosen,
        models=tuple(listed),
        max_model_len=limit if isinstance(limit, int) else None,
        version=str(said.get("version", "")) if isinstance(said, dict) else "",
        fixed_length="ignore_eos" in TIERS[tier],
        continuous_usage=streamed.continuous_usage,
        final_usage=streamed.final_usage,
        tokenize=tokens is not None,
        metrics=metrics is not None and server_sample(metrics.body, 0) is not None,
        flags=flags(access),
        cache=cache_summary(cache_config(metrics.body)) if metrics else {},
    )


def _models(access: Access) -> dict[str, dict[str, object]]:
    """The rows of /v1/models by name."""
    answer = ask(access, "/v1/models")
    if answer.status != 200:  # noqa: PLR2004 - HTTP
        raise why.refused(access, "/v1/models", answer)
    body = answer.json()
    rows = body.get("data") if isinstance(body, dict) else None
    named = {str(row["id"]): row for row in rows or [] if isinstance(row, dict) and row.get("id")}
    if not named:
        raise ServerUnreachable(
            f"{access.address} answers HTTP, but its /v1/models lists no model: expected a vLLM "
            "server; try the port that `vllm serve` printed."
        )
    return named


def _choose(access: Access, model: str | None, listed: tuple[str, ...]) -> str:
    if model is None and len(listed) == 1:
        return listed[0]
    names = ", ".join(why.clean(name) for name in listed)
    if model is None:
        raise ConfigError(
            f"{access.address} serves {len(listed)} models and none was named: expected --model "
            f"with one of {names}; try --model {why.clean(listed[0])}."
        )
    if model not in listed:
        raise ConfigError(
            f"--model is {model!r}, which {access.address} does not serve: expected one of "
            f"{names}; try --model {why.clean(listed[0])}."
        )
    return model


def _stream(access: Access, api: str, model: str) -> tuple[int, Streamed]:
    """The first tier that the server accepts, and what its stream held."""
    for tier, extra in enumerate(TIERS):
        body = {"model": model, "stream": True, "max_tokens": 2, **ASK[api], **extra}
        answer = ask(access, API_PATHS[api], body)
        if answer.status == 200:  # noqa: PLR2004 - HTTP
            return tier, read_stream(access, answer)
        if answer.status not in REFUSED or tier == len(TIERS) - 1:
            raise why.refused(access, API_PATHS[api], answer)
    raise AssertionError("unreachable: the last tier returns or raises")


def _optional(access: Access, path: str, body: object = None) -> Answer | None:
    """An answer of 200, else None: the harness can do without."""
    try:
        answer = ask(access, path, body)
    except ServerUnreachable:
        return None
    return answer if answer.status == 200 else None  # noqa: PLR2004 - HTTP
