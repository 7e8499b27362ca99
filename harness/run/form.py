"""The form that starts a search: on our page, in Locust's web UI or on its command line.

Its fields come from the options in `option_table` that have a `field`.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any, Final

from harness.errors import ConfigError
from harness.load.workloads import AS_USERS
from harness.run.option import Field, declare_in_locusts_form, declare_outside_locusts_form
from harness.run.option_table import (
    ASKED_IN_FORM,
    BUDGET,
    PRECISION,
    RUNS,
    SERVER,
    USER_RANGE,
)
from harness.server.address import Address


def _url(text: str) -> str:
    if not text.strip():
        raise ConfigError("no target was given: expected a URL; try http://127.0.0.1:8000.")
    return str(Address.parse(text))


FIELDS: Final[dict[str, Field]] = {
    "host": Field("Target", "the server's URL", read=_url),
    **{option.dest: option.form_field for option in ASKED_IN_FORM},
}


def read_form(form: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """(values by field, errors by field); the values are complete if there are no errors."""
    values: dict[str, Any] = {}
    wrong: dict[str, str] = {}
    for name, field in FIELDS.items():
        text = form.get(name, field.default)
        if not text.strip() and field.default.isdecimal():
            text = field.default  # a number field that was cleared
        try:
            values[name] = field.read(text)
        except ConfigError as error:
            wrong[name] = in_labels(str(error))
    if not wrong and values["min_users"] > values["max_users"]:
        wrong["min_users"] = (
            f"the lowest level is {values['min_users']} and the highest {values['max_users']}: "
            "expected the first to be at most the second; try 1."
        )
    return values, wrong


def scenario_of(form: Mapping[str, str], values: Mapping[str, Any]) -> dict[str, Any]:
    """The options of `knee` that a form asks for, as a scenario has them."""
    defaults = {name: field.default for name, field in FIELDS.items()}
    texts = defaults | dict(form)
    given = {name.replace("_", "-"): text for name, text in texts.items() if text not in ("", "0")}
    url = given.pop("host")
    return {"url": url, **given, "slo": [str(slo) for slo in values["slo"]]}


def in_labels(sentence: str) -> str:
    """An error message with the labels of the form instead of option names."""
    for name, field in FIELDS.items():
        sentence = sentence.replace(f"--{name.replace('_', '-')}", field.label)
    return sentence


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the search to Locust's; harness/locust/arguments.py has the others."""
    declare_in_locusts_form(parser, (*USER_RANGE, BUDGET, PRECISION))
    group = parser.add_argument_group("search (command line only)")
    declare_outside_locusts_form(group, (RUNS, *SERVER))


def form_values(options: Any, host: str) -> dict[str, str]:
    """The form's values from Locust's command line or its web UI."""
    form = {"host": host}
    for name, field in FIELDS.items():
        value = getattr(options, name, None)
        if name == "host":
            continue
        if not value or value == AS_USERS:
            form[name] = field.default
        elif isinstance(value, list):
            form[name] = " ".join(map(str, value))
        else:
            form[name] = str(value)
    return form
