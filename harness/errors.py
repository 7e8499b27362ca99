"""What stops the harness. What the server does wrong is data (`Outcome`), never an exception.

    HarnessError
    ├── ConfigError          2   the request makes no sense; nothing was sent
    ├── ServerUnreachable    3   no server, wrong port, TLS, 401, does not stream
    ├── RunFolderError       4   the output folder exists, cannot be written or read
    ├── MeasurementInvalid   5   the client was the bottleneck, or the run contradicts itself
    └── NoKnee               6   a run folder without the knee that was asked for

Beside the exceptions, results have exit codes too: 0, INCONCLUSIVE, SLO_MISSED, INTERRUPTED.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import ClassVar

EXIT_OK = 0
EXIT_INCONCLUSIVE = 6
EXIT_SLO_MISSED = 99
EXIT_INTERRUPTED = 130
LOOKED_AT = 4  # characters of a text for each of its line: white space may be most of it


class HarnessError(Exception):
    """One sentence for a person: what was found, what was expected, one thing to try."""

    exit_code: ClassVar[int] = 1


class ConfigError(HarnessError):
    """The options contradict each other or cannot be read."""

    exit_code = 2


class ServerUnreachable(HarnessError):  # noqa: N818 - the field's word; the tree above reads better
    """The target cannot be measured: no server, not HTTP, refused, no such model, no streaming."""

    exit_code = 3


class RunFolderError(HarnessError):
    """A run folder exists already, is not one, or cannot be written."""

    exit_code = 4


class MeasurementInvalid(HarnessError):  # noqa: N818 - as above
    """Figures were taken but must not be believed."""

    exit_code = 5


class NoKnee(HarnessError):  # noqa: N818 - as above
    """A run folder holds no knee to build on."""

    exit_code = EXIT_INCONCLUSIVE


def closest(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """The word of `known` that was probably meant; `otherwise` where none is like it."""
    return next(iter(get_close_matches(word, list(known), 1)), otherwise)


def one_line(text: str, longest: int | None = None) -> str:
    """Without line breaks (U+2028 too), escape sequences and other controls: servers send them.

    With `longest` only so much of the text is looked at as a line of this length may need: servers
    send megabytes, too.
    """
    if longest is not None:
        text = text[: LOOKED_AT * longest]
    line = " ".join(text.split())
    if not line.isprintable():  # rare, and a hundred times slower
        printable = "".join(letter if letter.isprintable() else " " for letter in line)
        line = " ".join(printable.split())
    if longest is not None and len(line) > longest:
        return line[:longest] + "..."
    return line
