"""A URL that something is sent to."""

from __future__ import annotations

from typing import Final
from urllib.parse import SplitResult, urlsplit

SCHEMES: Final = ("http", "https")


def web_url(text: str) -> SplitResult | None:
    """Its parts; None: no http:// or https:// with a host, and a port that is a number if any."""
    try:
        parts = urlsplit(text)
        host = parts.hostname
        _ = parts.port  # urlsplit itself does not look whether it is a number
    except ValueError:
        return None
    return parts if host and parts.scheme in SCHEMES else None
