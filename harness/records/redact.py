"""Removes secrets from everything that is written: by key name, by shape, and by known value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

HIDDEN: Final = "[redacted]"
MIN_SECRET: Final = 6  # characters; replacing a shorter value would hide ordinary words

# A key that ends in `token` is a secret; one that ends in `tokens` is a count.
SECRET_NAME = re.compile(
    r"authorization|api[-_]?key|secret|passw(or)?d|credential|cookie|(^|[-_])token$", re.IGNORECASE
)
_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s'\"<>]+", re.IGNORECASE)
_SHAPES: Final = (
    (re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=-]+", re.IGNORECASE), rf"\1 {HIDDEN}"),
    (re.compile(r"\b(sk|hf|ghp|xox[abp])[-_][\w-]{8,}"), HIDDEN),
    (
        re.compile(r"(?<!\w)(--?(?:[\w-]*api[-_]?key|[\w-]*token|password)[ =])\S+", re.IGNORECASE),
        rf"\1{HIDDEN}",
    ),
)


def redact(value: Any, secrets: Iterable[str] = ()) -> Any:
    """Return a copy of JSON-like data without secrets; `secrets` are known values of them."""
    return _walk(value, _worth_hiding(secrets))


def redact_text(text: str, secrets: Iterable[str] = ()) -> str:
    """Remove known secrets, bearer tokens, and the user, password and query of URLs from a text."""
    for secret in _worth_hiding(secrets):
        # media types are read in lower case
        text = re.sub(re.escape(secret), HIDDEN, text, flags=re.IGNORECASE)
        # sentences are shortened: the last words may be the beginning of one
        for n in range(len(secret), MIN_SECRET, -1):
            if text.endswith(secret[:n]):
                text = text[:-n] + HIDDEN
                break
    text = _URL.sub(lambda match: _url(match[0]), text)
    for shape, instead in _SHAPES:
        text = shape.sub(instead, text)
    return text


def _worth_hiding(secrets: Iterable[str]) -> list[str]:
    # The longest first, since one may contain another. Short ones are left out, the empty one above
    # all: it is in every text.
    long_enough = {secret for secret in secrets if len(secret) >= MIN_SECRET}
    return sorted(long_enough, key=len, reverse=True)


def _walk(value: Any, known: list[str]) -> Any:
    if isinstance(value, str):
        return redact_text(value, known)
    if isinstance(value, Mapping):
        named = {str(key): part for key, part in value.items()}
        return {name: _walk_named(name, part, known) for name, part in named.items()}
    if isinstance(value, list | tuple):
        return _sequence(value, known)
    return value


def _walk_named(name: str, value: Any, known: list[str]) -> Any:
    if value and _is_secret(name, value):
        return HIDDEN
    return _walk(value, known)


def _is_secret(name: str, value: Any) -> bool:
    # `j_per_output_token` ends in `token` but is a figure
    figure = isinstance(value, int | float) and re.search(r"_per_(\w+_)?token$", name)
    return bool(SECRET_NAME.search(name)) and not figure


def _sequence(values: list[Any] | tuple[Any, ...], known: list[str]) -> list[Any]:
    """Redact a list; in a command line, the element after a bare `--api-key` is its value."""
    redacted = []
    before: Any = None
    for value in values:
        redacted.append(HIDDEN if _is_secret_flag(before) else _walk(value, known))
        before = value
    return redacted


def _is_secret_flag(value: Any) -> bool:
    if not isinstance(value, str) or not value.startswith("-") or "=" in value:
        return False
    return bool(SECRET_NAME.search(value))


def _url(url: str) -> str:
    """Hide the user, password and query of a URL; the host stays."""
    try:
        parts = urlsplit(url)
    except ValueError:  # not a valid URL, but it may contain a secret
        return HIDDEN
    user, at, host = parts.netloc.rpartition("@")
    netloc = f"{HIDDEN}@{host}" if at and user else parts.netloc
    query = HIDDEN if parts.query else ""
    return urlunsplit((parts.scheme, netloc, parts.path, query, ""))
