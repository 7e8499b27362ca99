"""`--upload`: where a run folder goes, with a query that is a secret.

A presigned URL of S3 is a key to the bucket in its query: no message, file or log has more of it
than scheme, host and path.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Final

from harness.errors import ConfigError
from harness.export.web_url import web_url

EXAMPLE: Final = "try --upload '$UPLOAD_URL', with the URL in that environment variable."
_VARIABLE: Final = re.compile(r"\$(\w+)|\$\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class UploadUrl:
    """`text` has the secret; everything that is shown has `shown`."""

    text: str = field(repr=False)
    shown: str

    def __str__(self) -> str:
        return self.shown

    @classmethod
    def parse(cls, given: str) -> UploadUrl:
        """A URL, or `$NAME` of an environment variable that holds one. Raises ConfigError."""
        what = "--upload"
        text = given.strip()
        if variable := _VARIABLE.fullmatch(text):
            name = variable[1] or variable[2]
            text = os.environ.get(name, "").strip()
            what = f"--upload, environment variable {name},"
            if not text:
                raise ConfigError(
                    f"{what} is not set: expected a URL in it; try export {name}=URL."
                )
        parts = web_url(text)
        if parts is None or not text.isascii() or " " in text:
            # Not quoted: what is no URL may still have the secret in it.
            raise ConfigError(
                f"{what} is no URL that can be used: expected http:// or https:// with a host, "
                f"without spaces; {EXAMPLE}"
            )
        if parts.username or parts.password:
            raise ConfigError(
                f"{what} holds a user: expected a URL without one, a presigned one for example; "
                f"{EXAMPLE}"
            )
        authority = parts.netloc
        return cls(text, f"{parts.scheme}://{authority}{parts.path}")
