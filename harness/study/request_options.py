"""Parsers of what users add to requests: `--header`, `--body`, and `--prompt-cv`."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any, Final

from harness.errors import ConfigError
from harness.load.request_fields import OWN_FIELDS, PLACEHOLDERS, parts_of_header
from harness.load.workloads import NUMBER
from harness.runfolder.redact import SECRET_NAME

if TYPE_CHECKING:
    from collections.abc import Callable

HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
OWN_HEADERS: Final = ("accept", "connection", "content-length", "content-type", "host",
                      "transfer-encoding", "x-request-id")  # fmt: skip
MAX_CV: Final = 5


def parse_header(text: str) -> tuple[str, str]:
    """`X-Session-ID: {session}` as a pair. Raises ConfigError, which never quotes the value."""
    name, _, value = (piece.strip() for piece in text.partition(":"))
    variables, placeholders = parts_of_header(value)
    sent = [os.environ.get(variable, "") for variable in variables]
    unset = [variable for variable in variables if not os.environ.get(variable)]
    unknown = [one for one in placeholders if one not in PLACEHOLDERS]
    known = ", ".join(f"{{{one}}}" for one in PLACEHOLDERS)
    for wrong, found in (
        (not value or not HEADER_NAME.fullmatch(name), "is no header: expected NAME: VALUE"),
        (name.lower() in OWN_HEADERS, f"{name} is the harness's own: expected another header"),
        (unknown, f"{name} names {{{''.join(unknown[:1])}}}: expected one of {known}"),
        (unset, f"{name} names ${''.join(unset[:1])}, which is not set: expected a value for it"),
        (SECRET_NAME.search(name) and not variables,
         f"{name} holds a secret, which others see: expected it in the environment"),
        (not all(part.isascii() and part.isprintable() for part in (value, *sent)),
         f"{name} has a line break or a character outside ASCII: expected what HTTP can carry"),
    ):  # fmt: skip
        if wrong:
            raise ConfigError(
                f"--header {found}; try --header 'X-Session-ID: {{session}}', or 'X-Key: $KEY' for "
                "a variable."
            )
    return name, value


def parse_body_field(text: str) -> tuple[str, Any]:
    """`top_p=0.9` as a pair. Raises ConfigError."""
    name, _, value = text.partition("=")
    if name in OWN_FIELDS:
        instead = OWN_FIELDS[name]
        raise ConfigError(
            f"--body sets {name!r}, which the harness decides: expected another field; try "
            f"{instead or 'the command without it'}."
        )
    try:
        return name, json.loads(value if name else "")
    except ValueError:
        raise ConfigError(
            f"--body is {text!r}: expected NAME=JSON, texts in quotation marks; "
            "try --body temperature=0.7."
        ) from None


def deviation(option: str) -> Callable[[str], float]:
    """A parser of a standard deviation in means; `option` is named in errors."""

    def read(text: str) -> float:
        if not NUMBER.fullmatch(text) or float(text) > MAX_CV:
            raise ConfigError(
                f"{option} is {text!r}: expected a deviation from 0 to {MAX_CV} times the mean; "
                f"try {option} 0.5."
            )
        return float(text)

    return read
