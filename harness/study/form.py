"""FIELDS: what a person asks for before a search starts, on our page, Locust's or its command line.

Each row reads its own text or raises ConfigError with the sentence that the page shows beside it.
Where files are written, and whose key is sent, are no fields: a browser must not choose them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from harness.errors import ConfigError
from harness.load.workloads import AS_USERS, WORKLOADS, workload
from harness.measure.slo import Slo
from harness.server.address import Address
from harness.study.options import budget_ns
from harness.units import percent

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Callable, Mapping

MOST: Final = 1_000_000


class Field(NamedTuple):
    """One row."""

    label: str
    hint: str
    read: Callable[[str], Any]
    default: str = ""
    choices: tuple[str, ...] = ()


def _url(text: str) -> str:
    if not text.strip():
        raise ConfigError("no target was given: expected a URL; try http://127.0.0.1:8000.")
    return str(Address.parse(text))


def _slos(text: str) -> tuple[Slo, ...]:
    return tuple(Slo.parse(one) for one in re.split(r"[\s,]+", text.strip()) if one)


def _count(what: str, least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        text = text.strip() or str(least)
        if not (text.isascii() and text.isdecimal()) or not least <= int(text) <= MOST:
            raise ConfigError(
                f"{what} is {text!r}: expected a whole number from {least} to {MOST:,}; "
                f"try {max(least, 1)}."
            )
        return int(text)

    return read


FIELDS: Final[dict[str, Field]] = {
    "host": Field("Target", "the server's URL", _url),
    "model": Field(
        "Model", "as the server names it; empty: the only one that it serves", str.strip
    ),
    "slo": Field(
        "SLO",
        "several are separated by spaces; empty: find the power knee",
        _slos,
        "ttft_p95=500ms itl_p95=50ms",
    ),
    "workload": Field("Workload", "what is sent", workload, "chat", tuple(WORKLOADS)),
    "prompt_tokens": Field(
        "Prompt tokens", "mean; 0: the workload's own", _count("prompt tokens", 0), "0"
    ),
    "output_tokens": Field(
        "Output tokens", "mean; 0: the workload's own", _count("output tokens", 0), "0"
    ),
    "min_users": Field("Lowest level", "users at the start", _count("the lowest level", 1), "1"),
    "max_users": Field(
        "Highest level", "the most users to try", _count("the highest level", 1), "512"
    ),
    "budget": Field("Budget", "the load ends within this time", budget_ns, "10m"),
    "max_errors": Field(
        "Failures allowed",
        "a level with a larger share of failed requests fails",
        lambda text: percent(text, "the share of failures"),
        "1%",
    ),
}
ON_THE_LINE: Final = ("min_users", "max_users", "budget")  # chat.py has the others


def read(form: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """(values by field, by field what is wrong); one of the two is whole."""
    values: dict[str, Any] = {}
    wrong: dict[str, str] = {}
    for name, field in FIELDS.items():
        try:
            values[name] = field.read(form.get(name, field.default))
        except ConfigError as error:
            wrong[name] = in_labels(str(error))
    if not wrong and values["min_users"] > values["max_users"]:
        wrong["min_users"] = (
            f"the lowest level is {values['min_users']} and the highest {values['max_users']}: "
            "expected the first to be at most the second; try 1."
        )
    return values, wrong


def in_labels(sentence: str) -> str:
    """A sentence about options as the page says it: it has fields instead."""
    for name, field in FIELDS.items():
        sentence = sentence.replace(f"--{name.replace('_', '-')}", field.label)
    return sentence


def add_arguments(parser: ArgumentParser) -> None:
    """The search's own options on Locust's command line; its form shows their help as it is."""
    for name in ON_THE_LINE:
        field = FIELDS[name]
        parser.add_argument(f"--{name.replace('_', '-')}", default=field.default, help=field.hint)
    group = parser.add_argument_group("the search, from the command line only")
    group.add_argument(
        "--runs", default="reports", help="folder in which each search makes its run folder"
    )
    group.add_argument(
        "--server-flag",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a flag that the server was started with, such as max-num-seqs=256; repeatable",
    )
    group.add_argument(
        "--gpu-metrics",
        metavar="WHERE",
        help="local, none, or the URL of `vllm-harness exporter` or a dcgm-exporter",
    )


def given(options: Any, host: str) -> dict[str, str]:
    """The form as the command line, or Locust's own form, has it."""
    form = {"host": host}
    for name, field in FIELDS.items():
        value = getattr(options, name, None)
        if name != "host" and value not in (None, "", [], AS_USERS):
            form[name] = " ".join(map(str, value)) if isinstance(value, list) else str(value)
        form.setdefault(name, field.default)
    return form
