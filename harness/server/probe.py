"""Probes a target before any load: a few reads and at most one tiny streamed request.

A problem with the target is reported here, once, in one sentence with an exit code. What the target
can do is returned as `Capabilities`, so that nothing downstream has to guess.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from harness.errors import ConfigError, ServerUnreachable, one_line
from harness.load.plan import RequestSpec
from harness.load.request_fields import DEFAULT_FIELDS, json_body
from harness.load.tokens import TOKEN_IDS
from harness.load.workloads import API_PATHS
from harness.server.address import addresses_of
from harness.server.api_versions import explained, version_of
from harness.server.http_exchange import (
    MAX_QUOTED_CHARS,
    TRY_PRINTED_PORT,
    HttpAnswer,
    fetch,
    quoted,
)
from harness.server.max_num_seqs import KNEE_FLAGS
from harness.server.probed_stream import read_stream
from harness.server.scraping import read_metrics, without_metrics
from harness.wire.kv_cache import cache_config, cache_summary, lacking

if TYPE_CHECKING:
    from harness.server.access import TargetAccess

TINY_REQUEST: Final = RequestSpec("Hi", 1, 2)
TINY_IDS: Final = TINY_REQUEST._replace(token_ids=(TOKEN_IDS[0], TOKEN_IDS[1]))


class Tier(NamedTuple):
    """What a request asks for beyond the bare API."""

    fixed_length: bool
    continuous_usage: bool
    final_usage: bool


# From everything that the harness can make use of down to the bare API: the first tier that the
# server accepts counts. A refused request costs the server nothing, so it generates only once.
# OpenAI's API knows the count at the end alone; others know none.
TIERS: Final = (
    Tier(fixed_length=True, continuous_usage=True, final_usage=True),
    Tier(fixed_length=False, continuous_usage=True, final_usage=True),
    Tier(fixed_length=False, continuous_usage=False, final_usage=True),
    Tier(fixed_length=False, continuous_usage=False, final_usage=False),
)
# Exists only with VLLM_SERVER_DEV_MODE=1 and in the embedded engine.
SERVER_INFO: Final = "/server_info?config_format=json"
REFUSED: Final = (400, 422)
SAME_SERVER: Final = "started_s", "requests_total", "prompt_tokens_total", "generation_tokens_total"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a target is and what it accepts."""

    url: str  # its root, without /v1
    api: str  # a key of API_PATHS
    model: str
    models: tuple[str, ...]
    max_model_len: int | None  # tokens, prompt and output together; None: unknown
    version: str  # vLLM's; "" where there is no /version
    fixed_length: bool  # accepts ignore_eos and min_tokens: outputs can have an exact length
    continuous_usage: bool  # each event has the number of tokens so far, if it is asked for
    final_usage: bool  # the last event has the number of tokens, if it is asked for
    tokenize: bool  # has /tokenize
    metrics: bool  # has /metrics with vLLM's names
    no_metrics: str = ""  # why not
    addresses: int = 1  # of its host name; connections are spread over them
    replicas: tuple[str, ...] = ()  # where each one's /metrics is; (): there is one
    flags: Mapping[str, Any] = field(default_factory=dict)  # if the server shows them
    cache: Mapping[str, Any] = field(default_factory=dict)  # of cache_summary
    lacking: tuple[str, ...] = ()  # what its metrics do not tell, although other servers' do
    # for a person: what is odd about its streams, and taken all the same
    notes: tuple[str, ...] = ()


def probe(
    access: TargetAccess,
    api: str,
    model: str | None = None,
    fields: Mapping[str, object] = DEFAULT_FIELDS,
    metrics_urls: Sequence[str] = (),
) -> Capabilities:
    """Probe the target; `fields` are --body's. Raises ServerUnreachable, ConfigError."""
    listed = _models(access)
    chosen = choose_model(access, model, tuple(listed))
    with explained(access, api):
        tier, notes = _stream(access, api, chosen, fields)
    version = version_of(access)
    addresses = addresses_of(access.address)
    pages, no_metrics = _read_pages(access, metrics_urls, addresses, chosen)
    cache = cache_summary(*(cache_config(page, chosen) for page in pages.values()))
    tokens = _optional(access, "/tokenize", {"model": chosen, "prompt": "Hi"})
    return Capabilities(
        url=str(access.address),
        api=api,
        model=chosen,
        models=tuple(listed),
        max_model_len=_length(listed[chosen].get("max_model_len")),
        version=version,
        fixed_length=tier.fixed_length and api != "messages",  # which would ignore it
        continuous_usage=tier.continuous_usage,
        final_usage=tier.final_usage,
        tokenize=tokens is not None,
        metrics=not no_metrics,
        no_metrics=no_metrics,
        addresses=max(len(addresses), 1),
        replicas=tuple(filter(None, pages)),
        flags=flags(access),
        cache=cache,
        lacking=() if no_metrics else lacking(next(iter(pages.values())), cache),
        notes=notes,
    )


def _read_pages(
    access: TargetAccess, urls: Sequence[str], addresses: Sequence[str], model: str
) -> tuple[dict[str, bytes], str]:
    """The /metrics of each replica, as TargetAccess.replicas calls it; and why one has none, or "".

    Raises ServerUnreachable for one of `urls` that has none.
    """
    where = list(urls or (addresses if len(addresses) > 1 else [""]))
    pages, seen, missing = {}, [], ""
    replicas = access.replicas(filter(None, where))
    for one, (name, replica) in zip(where, replicas.items(), strict=True):
        try:
            answer = fetch(replica, "/metrics")
        except ServerUnreachable as error:
            missing = f"{name}: {error}" if replica.via else str(error)
            continue
        found = answer.status == HTTPStatus.OK
        sample = read_metrics(replica, answer, 0, model=model) if found else None
        missing = missing if sample else without_metrics(name, answer, model)
        # A server that is idle and began at the same instant is the same, by another address.
        seen.append(repr([getattr(sample, key, "") for key in SAME_SERVER]))
        if urls or seen[-1] not in seen[:-1]:
            pages[one] = answer.body
    if missing and urls:
        raise ServerUnreachable(
            f"{missing.rstrip('.')}. Expected each --metrics-url to be a replica of vLLM; try "
            "`curl URL/metrics`."
        )
    return dict.fromkeys(where, b"") if missing else pages, missing


def _models(access: TargetAccess) -> dict[str, dict[str, object]]:
    answer = fetch(access, "/v1/models")
    if answer.status != 200:  # noqa: PLR2004 - HTTP
        raise _refused(access, "/v1/models", answer)
    body = answer.json()
    rows = body.get("data") if isinstance(body, dict) else None
    named = {str(row["id"]): row for row in rows or [] if isinstance(row, dict) and row.get("id")}
    if not named:
        raise ServerUnreachable(
            f"{access.address} answers HTTP, but its /v1/models lists no model: expected a vLLM "
            f"server; {TRY_PRINTED_PORT}"
        )
    return named


def _length(said: object) -> int | None:
    """A number of tokens; None for what is none."""
    if isinstance(said, bool) or not isinstance(said, int):
        return None
    return said if said > 0 else None


def choose_model(access: TargetAccess, model: str | None, listed: tuple[str, ...]) -> str:
    """Return `model`, or the only one if it is None. Raises ConfigError."""
    if model is None and len(listed) == 1:
        return listed[0]
    names = ", ".join(_quoted(name) for name in listed)
    if model is None:
        raise ConfigError(
            f"{access.address} serves {len(listed)} models and none was named: expected --model "
            f"with one of {names}; try --model {_quoted(listed[0])}."
        )
    if model not in listed:
        raise ConfigError(
            f"--model is {model!r}, which {access.address} does not serve: expected one of "
            f"{names}; try --model {_quoted(listed[0])}."
        )
    return model


def _stream(
    access: TargetAccess, api: str, model: str, fields: Mapping[str, object]
) -> tuple[Tier, tuple[str, ...]]:
    """Return what the server both accepts and does, and what is odd about its stream."""
    spec = TINY_IDS if api == "generate" else TINY_REQUEST
    for tier in TIERS:
        answer = fetch(
            access, API_PATHS[api], json_body(api, model, spec, fields, **tier._asdict())
        )
        if answer.status == 200:  # noqa: PLR2004 - HTTP
            seen = read_stream(access, answer)
            # A server may count unasked and refuse to be asked.
            continuous = tier.continuous_usage and seen.continuous_usage
            final = tier.final_usage and seen.final_usage
            return Tier(tier.fixed_length, continuous, final), seen.notes
        if answer.status not in REFUSED or tier == TIERS[-1]:
            raise _refused(access, API_PATHS[api], answer)
    raise AssertionError("unreachable: the last tier returns or raises")


def _optional(access: TargetAccess, path: str, body: object = None) -> HttpAnswer | None:
    """Return an answer with status 200, else None: the harness can do without it."""
    try:
        answer = fetch(access, path, body)
    except ServerUnreachable:
        return None
    return answer if answer.status == 200 else None  # noqa: PLR2004 - HTTP


def _refused(access: TargetAccess, path: str, answer: HttpAnswer) -> ServerUnreachable:
    status = answer.status
    if status == 401 or (status == 403 and b"--enable-" not in answer.body):  # noqa: PLR2004 - HTTP
        key = "no key was sent: neither VLLM_API_KEY nor OPENAI_API_KEY is set"
        key = f"the key in {access.key_source} was refused" if access.key_source else key
        said = (
            f" and {key}: expected the key that the server was started with; "
            "try `export VLLM_API_KEY=...`."
        )
    elif status == 404:  # noqa: PLR2004 - HTTP
        said = f": expected vLLM's API; {TRY_PRINTED_PORT[:-1]}, or another --api."
    elif status == 503:  # noqa: PLR2004 - HTTP
        said = (
            ": expected a server that is ready; try again when "
            f"`curl -f {access.address}/health` succeeds."
        )
    elif 300 <= status < 400 and "location" in answer.headers:  # noqa: PLR2004 - HTTP
        said = (
            f" and redirects to {_said(access, answer.headers['location'])}: expected the server "
            "itself; try the URL that it redirects to, without the path."
        )
    elif status == 429:  # noqa: PLR2004 - HTTP
        later = _quoted(answer.headers.get("retry-after", ""))
        said = (
            f" ({f'Retry-After: {later}' if later else 'no Retry-After'}): expected a server that "
            f"takes requests; try again {f'after {later} s' if later.isdecimal() else 'later'}, or "
            "without its rate limit."
        )
    else:
        words = _said(access, answer.body.decode(errors="replace"))
        said = f" ({words}): expected 200; try the same request with curl."
    return ServerUnreachable(f"{access.address}{path} answers {status}{said}")


def _said(access: TargetAccess, text: str) -> str:
    """A server's words, which may repeat what it was sent."""
    return quoted(access, text)


def _quoted(text: str) -> str:
    return one_line(text, MAX_QUOTED_CHARS)


def flags(access: TargetAccess) -> dict[str, Any]:
    """Return those of KNEE_FLAGS that the server shows; {} if it shows none."""
    answer = _optional(access, SERVER_INFO)
    body = answer.json() if answer else None
    config = body.get("vllm_config") if isinstance(body, dict) else None
    if not isinstance(config, dict):
        return {}
    return {
        name: part[name]
        for key, names in KNEE_FLAGS.items()
        if isinstance(part := config.get(key), dict)
        for name in names
        if isinstance(part.get(name), int | float | str)
    }
