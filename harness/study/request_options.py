"""Parsers of what users add to requests: `--header`, `--body`, and `--prompt-cv`."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any, Final

from harness.errors import ConfigError
from harness.load.request_fields import OWN_FIELDS, PLACEHOLDERS, names_in
from harness.runfolder.redact import SECRET_NAME

if TYPE_CHECKING:
    from collections.abc import Callable

HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
OWN_HEADERS: Final = ("accept", "connection", "content-length", "content-type", "host",
                      "transfer-encoding", "x-request-id")  # fmt: skip


def parse_header(text: str) -> tuple[str, str]:
    """`X-Session-ID: {session}` as a pair. Raises ConfigError, which never quotes the value."""
    name, _, value = (piece.strip() for piece in text.partition(":"))
    variables, placeholders = names_in(value)
    sent = [value, *(os.environ.get(variable, "") for variable in variables)]
    unknown = [f"{{{one}}}" for one in placeholders if one not in PLACEHOLDERS]
    wrong = ""
    if not value or not HEADER_NAME.fullmatch(name):
        name, wrong = "", "is no header: expected NAME: VALUE"
    elif name.lower() in OWN_HEADERS:
        wrong = "is the harness's own: expected another header"
    elif unknown:
        wrong = f"has {unknown[0]}: expected {{session}}, {{user}} or {{request}}"
    elif SECRET_NAME.search(name) and not variables:
        wrong = "holds a secret, which others see: expected it in the environment"
    elif not all(part and part.isascii() and part.isprintable() for part in sent):
        wrong = (
            "has a character that HTTP cannot carry, or a variable that is not set: expected ASCII"
        )
    if wrong:
        raise ConfigError(
            f"{f'--header {name}'.strip()} {wrong}; try --header 'X-Session-ID: {{session}}', or "
            "'X-Key: $KEY' with KEY in the environment."
        )
    return name, value


def parse_body_field(text: str) -> tuple[str, Any]:
    """`top_p=0.9` as a pair. Raises ConfigError."""
    name, _, value = text.partition("=")
    if name in OWN_FIELDS:
        raise ConfigError(
            f"--body sets {name!r}, which the harness decides: expected another field; try "
            "--model, --workload, --prompt-tokens or --output-tokens."
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
        if not re.fullmatch(r"[0-4](\.\d{1,9})?", text, re.ASCII):
            raise ConfigError(
                f"{option} is {text!r}: expected a deviation from 0 to 5 times the mean; "
                f"try {option} 0.5."
            )
        return float(text)

    return read
