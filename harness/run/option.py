"""What an option is: a row for the command line and the form, and parsers of values."""

from __future__ import annotations

import json
import os
import re
from argparse import _ActionsContainer
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from harness.core.load import Rate
from harness.core.value_parsers import whole_number
from harness.errors import ConfigError
from harness.load.lengths import SHAPES, Lengths
from harness.load.request_fields import OWN_FIELDS, PLACEHOLDERS, names_in, unsendable
from harness.records.redact import SECRET_NAME

MAX_FORM_NUMBER: Final = 1_000_000  # of tokens or users: a browser must not ask for more


class Field(NamedTuple):
    """A field of the form. Its default and parser are those of the option unless it has its own."""

    label: str
    hint: str
    default: str = ""
    choices: tuple[str, ...] = ()
    placeholder: str = ""  # what an empty field stands for
    read: Callable[[str], Any] = str  # str: as the option


class InLocust(NamedTuple):
    """What an option has of its own on Locust's command line; "" and (): as elsewhere."""

    default: str = ""
    help: str = ""
    choices: tuple[str, ...] = ()
    type: Callable[[str], Any] = str  # int: Locust itself refuses what is no number


AS_ELSEWHERE: Final = InLocust()


class Option(NamedTuple):
    """`read` None: a switch. `default` is text as a user would write it; the help shows it."""

    flag: str
    help: str = ""
    read: Callable[[str], Any] | None = str
    metavar: str | None = None
    default: str | None = None
    action: str = "store"  # append, extend: may be repeated
    choices: Sequence[str] | None = None
    field: Field | None = None  # of the form
    in_locust: InLocust = AS_ELSEWHERE

    @property
    def dest(self) -> str:
        """The name in parsed arguments and in the form."""
        return self.flag.strip("-").replace("-", "_")

    @property
    def form_field(self) -> Field:
        """Its field of a form; what the field leaves out is the option's."""
        field = self.field or Field("", self.help)
        default = field.default or self.default or ""
        read = field.read
        if read is str and self.read is not None:
            read = self.read
        return field._replace(default=default, read=read)

    def declare(self, group: _ActionsContainer) -> None:
        if self.read is None:
            group.add_argument(self.flag, action="store_true", help=self.help)
            return
        help_texts = []
        if self.help:
            help_texts.append(self.help)
        if self.default:
            shown = self.default.replace("%", "%%")
            help_texts.append(f"Default: {shown}.")
        group.add_argument(
            self.flag,
            help=" ".join(help_texts),
            type=self.read,
            metavar=self.metavar,
            default=self.default if self.action == "store" else [],
            action=self.action,
            choices=self.choices,
        )

    def declare_in_locusts_form(self, parser: _ActionsContainer) -> None:
        """As an option of Locust's parser: a text, which is read when a run begins.

        Locust's start form shows what is added to the parser itself, with its help as a label.
        """
        own = self.in_locust
        field = self.form_field
        parser.add_argument(
            self.flag,
            help=own.help or field.hint,
            type=own.type,
            default=own.default or field.default,
            choices=own.choices or None,
        )

    def declare_outside_locusts_form(self, group: _ActionsContainer) -> None:
        """As an option of a group of Locust's parser, of which its form knows nothing.

        The value stays a text here too. An option that may be repeated is a list, which the form
        could not post: it would read its texts as numbers.
        """
        if self.read is None:
            group.add_argument(self.flag, action="store_true", help=self.help)
        elif self.action != "store":
            group.add_argument(
                self.flag, help=self.help, metavar=self.metavar, action="append", default=[]
            )
        else:
            group.add_argument(
                self.flag,
                help=self.help,
                metavar=self.metavar,
                type=self.in_locust.type,
                default=self.default,
            )


def declare(group: _ActionsContainer, options: Iterable[Option]) -> None:
    for option in options:
        option.declare(group)


def declare_in_locusts_form(parser: _ActionsContainer, options: Iterable[Option]) -> None:
    for option in options:
        option.declare_in_locusts_form(parser)


def declare_outside_locusts_form(group: _ActionsContainer, options: Iterable[Option]) -> None:
    for option in options:
        option.declare_outside_locusts_form(group)


def level_list(option: str) -> Callable[[str], tuple[int, ...]]:
    """A parser of `1,2,4` into (1, 2, 4)."""
    read_level = whole_number(option)

    def read(text: str) -> tuple[int, ...]:
        try:
            return tuple(map(read_level, text.split(",")))
        except ConfigError:
            raise ConfigError(
                f"{option} is {text!r}: expected whole numbers from 1 up, separated by commas; "
                f"try {option} 1,2,4,8."
            ) from None

    return read


def one_level(option: str) -> Callable[[str], int]:
    """A parser of a whole number from 1, which says which command holds several in turn."""
    read_level = whole_number(option)

    def read(text: str) -> int:
        if re.fullmatch(r"[0-9]+(,[0-9]+)+", text.strip(), re.ASCII):
            raise ConfigError(
                f"{option} is {text!r}: expected one whole number, as `run` holds one level; try "
                f"`vllm-harness sweep ... {option} {text.strip()}`."
            )
        return read_level(text)

    return read


def distribution(
    option: str, read_mean: Callable[[str], int], example: str
) -> Callable[[str], Lengths]:
    """A parser of `8` or `lognormal:8:0.5`: a mean, as `read_mean` has it, and its variation."""

    def read(text: str) -> Lengths:
        words = text.split(":") if ":" in text else ["fixed", text, "0"]
        try:
            shape, mean, cv = words
            lengths = Lengths(shape, read_mean(mean), float(cv))
            if shape in SHAPES and 0 <= lengths.cv <= 1:
                return lengths
        except (ConfigError, ValueError):
            pass
        raise ConfigError(
            f"{option} is {text!r}: expected a mean, or SHAPE:MEAN:CV with one of "
            f"{', '.join(SHAPES)} and a coefficient of variation from 0 to 1; try "
            f"{option} {example}."
        )

    return read


def rate_list(option: str) -> Callable[[str], tuple[int, ...]]:
    """A parser of `5,10,20/s`, as of each of them."""
    read_rate = Rate.parser(option)
    return lambda text: tuple(map(read_rate, text.split(",")))


def writable(option: str, path: str, example: str = "result.json") -> str:
    """`path`, a file that can be written; "-" is standard output. Raises ConfigError."""
    where = Path(path)
    try:
        if path != "-" and not where.exists():
            where.open("xb").close()
            where.unlink()
        elif where.is_file() or where.is_dir():  # not a pipe: opening it would end its reader
            where.open("ab").close()
    except OSError as error:
        raise ConfigError(
            f"{option} is {path!r} ({error.strerror}): expected a file that can be written, in a "
            f"folder that exists; try {option} {example}."
        ) from None
    return path


def number_option(
    flag: str,
    text: str = "",
    default: int | None = None,
    *,
    min_value: int = 1,
    max_value: int | None = None,
    example: int = 1,
    metavar: str = "N",
    field: Field | None = None,
    in_locust: InLocust = AS_ELSEWHERE,
) -> Option:
    """An option that takes a whole number."""
    shown = None if default is None else str(default)
    read = whole_number(flag, min_value, example, max_value)
    return Option(flag, text, read, metavar, shown, field=field, in_locust=in_locust)


HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
OWN_HEADERS: Final = (
    "accept",
    "connection",
    "content-length",
    "content-type",
    "host",
    "transfer-encoding",
    "x-request-id",
)


def parse_header(text: str) -> tuple[str, str]:
    """`X-Session-ID: {session}` as a pair. Raises ConfigError, which never quotes the value."""
    name, _, value = text.partition(":")
    name = name.strip()
    value = value.strip()
    variables, placeholders = names_in(value)
    unknown = [word for word in placeholders if word not in PLACEHOLDERS]
    wrong = ""
    if not value or not HEADER_NAME.fullmatch(name):
        name = ""  # it may hold the value
        wrong = "is no header: expected NAME: VALUE"
    elif name.lower() in OWN_HEADERS:
        wrong = "is the harness's own: expected another header"
    elif unknown:
        wrong = f"has {{{unknown[0]}}}: expected {{session}}, {{user}} or {{request}}"
    elif SECRET_NAME.search(name) and not variables:
        wrong = "holds a secret, which others see: expected it in the environment"
    else:
        wrong = unsendable(value, os.environ)
    if wrong:
        header = f"--header {name}".strip()
        raise ConfigError(
            f"{header} {wrong}; try --header 'X-Session-ID: {{session}}', or "
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
