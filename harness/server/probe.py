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
    prefill: tuple[str, ...] = ()  # where the /metrics of servers that only prefill are
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
    metrics = _read_metrics_pages(access, metrics_urls, addresses, chosen)
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
        metrics=not metrics.missing,
        no_metrics=metrics.missing,
        addresses=max(len(addresses), 1),
        replicas=metrics.replicas,
        flags=flags(access),
        cache=metrics.cache,
        lacking=metrics.lacking,
        notes=notes,
    )


class MetricsPages(NamedTuple):
    """What the /metrics of all replicas say."""

    replicas: tuple[str, ...]  # as TargetAccess.replicas takes them; (): there is one
    cache: Mapping[str, Any]  # of cache_summary
    lacking: tuple[str, ...]  # what they do not tell
    missing: str = ""  # why one of them has no metrics of vLLM's


def _read_metrics_pages(
    access: TargetAccess, urls: Sequence[str], addresses: Sequence[str], model: str
) -> MetricsPages:
    """Read the page of each of `urls`, else of each address, else of the target.

    Raises ServerUnreachable for one of `urls` that has none.
    """
    places = _places(urls, addresses)
    pages: dict[str, bytes] = {}
    servers: set[str] = set()
    missing = ""
    replicas = access.replicas(filter(None, places))
    for place, (url, replica) in zip(places, replicas.items(), strict=True):
        page, server, problem = _read_page(url, replica, model)
        missing = problem or missing
        # Several addresses may lead to one server, which counts once. URLs were given one for each.
        if urls or server not in servers:
            pages[place] = page
        servers.add(server)
    if missing and urls:
        raise _no_replica(missing, "--metrics-url")
    if missing:
        all_places = tuple(filter(None, places))
        return MetricsPages(all_places, cache={}, lacking=(), missing=missing)
    caches = [cache_config(page, model) for page in pages.values()]
    cache = cache_summary(*caches)
    known_places = tuple(filter(None, pages))
    first_page = next(iter(pages.values()))
    return MetricsPages(known_places, cache, lacking(first_page, cache))


def _no_replica(problem: str, option: str) -> ServerUnreachable:
    return ServerUnreachable(
        f"{problem.rstrip('.')}. Expected each {option} to be a replica of vLLM; try "
        "`curl URL/metrics`."
    )


def check_prefill(access: TargetAccess, urls: Sequence[str], model: str) -> tuple[str, ...]:
    """The servers that only prefill, which have metrics. Raises ServerUnreachable."""
    for url, replica in access.replicas(urls).items():
        _, _, problem = _read_page(url, replica, model)
        if problem:
            raise _no_replica(problem, "--prefill-url")
    return tuple(urls)


def _places(urls: Sequence[str], addresses: Sequence[str]) -> list[str]:
    """Where pages are, as TargetAccess.replicas takes it; "": at the target."""
    if urls:
        return list(urls)
    if len(addresses) > 1:
        return list(addresses)
    return [""]


def _read_page(url: str, replica: TargetAccess, model: str) -> tuple[bytes, str, str]:
    """Return the page, which server it is of, and why it has no metrics of vLLM's, or ""."""
    try:
        answer = fetch(replica, "/metrics")
    except ServerUnreachable as error:
        return b"", "", f"{url}: {error}" if replica.via else str(error)
    sample = None
    if answer.status == HTTPStatus.OK:
        sample = read_metrics(replica, answer, 0, model=model)
    problem = "" if sample else without_metrics(url, answer, model)
    # A server that is idle and began at the same instant is the same, by another address.
    server = repr([getattr(sample, key, "") for key in SAME_SERVER])
    return answer.body, server, problem


def _models(access: TargetAccess) -> dict[str, dict[str, object]]:
    answer = fetch(access, "/v1/models")
    if answer.status != 200:  # noqa: PLR2004 - HTTP
        raise _refused(access, "/v1/models", answer)
    body = answer.json()
    rows = body.get("data") if isinstance(body, dict) else None
    models = {}
    for row in rows or []:
        if isinstance(row, dict) and row.get("id"):
            models[str(row["id"])] = row
    if not models:
        raise ServerUnreachable(
            f"{access.address} answers HTTP, but its /v1/models lists no model: expected a vLLM "
            f"server; {TRY_PRINTED_PORT}"
        )
    return models


def _length(value: object) -> int | None:
    """A number of tokens; None for what is none."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if value > 0 else None


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
        body = json_body(api, model, spec, fields, **tier._asdict())
        answer = fetch(access, API_PATHS[api], body)
        if answer.status == 200:  # noqa: PLR2004 - HTTP
            stream = read_stream(access, answer)
            # A server may count unasked and refuse to be asked.
            continuous = tier.continuous_usage and stream.continuous_usage
            final = tier.final_usage and stream.final_usage
            return Tier(tier.fixed_length, continuous, final), stream.notes
        if answer.status not in REFUSED or tier == TIERS[-1]:
            raise _refused(access, API_PATHS[api], answer)
    raise AssertionError("unreachable: the last tier returns or raises")


def _optional(access: TargetAccess, path: str, body: object = None) -> HttpAnswer | None:
    """Return an answer with status 200, else None: the harness can do without it."""
    try:
        answer = fetch(access, path, body)
    except ServerUnreachable:
        return None
    if answer.status != HTTPStatus.OK:
        return None
    return answer


def _refused(access: TargetAccess, path: str, answer: HttpAnswer) -> ServerUnreachable:
    status = answer.status
    # A 403 whose words name a flag is about what that would switch on, not about a key.
    is_switched_off = b"--enable-" in answer.body
    if status == 401 or (status == 403 and not is_switched_off):  # noqa: PLR2004 - HTTP
        key = "no key was sent: neither VLLM_API_KEY nor OPENAI_API_KEY is set"
        if access.key_source:
            key = f"the key in {access.key_source} was refused"
        rest = (
            f" and {key}: expected the key that the server was started with; "
            "try `export VLLM_API_KEY=...`."
        )
    elif status == 404:  # noqa: PLR2004 - HTTP
        rest = f": expected vLLM's API; {TRY_PRINTED_PORT[:-1]}, or another --api."
    elif status == 503:  # noqa: PLR2004 - HTTP
        rest = (
            ": expected a server that is ready; try again when "
            f"`curl -f {access.address}/health` succeeds."
        )
    elif 300 <= status < 400 and "location" in answer.headers:  # noqa: PLR2004 - HTTP
        rest = (
            f" and redirects to {quoted(access, answer.headers['location'])}: expected the server "
            "itself; try the URL that it redirects to, without the path."
        )
    elif status == 429:  # noqa: PLR2004 - HTTP
        retry_after = _quoted(answer.headers.get("retry-after", ""))
        header = f"Retry-After: {retry_after}" if retry_after else "no Retry-After"
        when = f"after {retry_after} s" if retry_after.isdecimal() else "later"
        rest = (
            f" ({header}): expected a server that takes requests; try again {when}, or without "
            "its rate limit."
        )
    else:
        words = quoted(access, answer.body.decode(errors="replace"))
        rest = f" ({words}): expected 200; try the same request with curl."
    return ServerUnreachable(f"{access.address}{path} answers {status}{rest}")


def _quoted(text: str) -> str:
    return one_line(text, MAX_QUOTED_CHARS)


def flags(access: TargetAccess) -> dict[str, Any]:
    """Return those of KNEE_FLAGS that the server shows; {} if it shows none."""
    answer = _optional(access, SERVER_INFO)
    body = answer.json() if answer else None
    config = body.get("vllm_config") if isinstance(body, dict) else None
    if not isinstance(config, dict):
        return {}
    shown = {}
    for section, names in KNEE_FLAGS.items():
        part = config.get(section)
        if not isinstance(part, dict):
            continue
        for name in names:
            if isinstance(part.get(name), int | float | str):
                shown[name] = part[name]
    return shown
