"""The harness's own options on Locust's command line, and DriveOptions made of them."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from harness.errors import ConfigError
from harness.load.workloads import AS_USERS, Workload, workload
from harness.metrics.slo import Slo
from harness.metrics.slo_presets import slo_texts
from harness.run.option import declare_in_locusts_form, declare_outside_locusts_form
from harness.run.option_table import (
    API_KEY_ENV,
    CA_FILE,
    INSECURE,
    LENGTHS,
    MAX_ERRORS,
    MODEL,
    RUN_FOLDER,
    SEED,
    SLO,
    UPLOAD,
)
from harness.server.address import Address
from harness.units import percent

if TYPE_CHECKING:
    from locust.env import Environment

    from harness.search.next_level import SearchPlan

# What a browser must not choose: whose secret is sent, what is trusted, where files are written.
# Locust's form shows none of them, but would take them from whoever posts one.
FIXED = tuple(option.dest for option in (API_KEY_ENV, CA_FILE, INSECURE, RUN_FOLDER, UPLOAD))


def add_arguments(parser: ArgumentParser, **_: Any) -> None:
    """Listener of Locust's `init_command_line_parser`."""
    declare_in_locusts_form(parser, (MODEL, *LENGTHS, MAX_ERRORS))
    group = parser.add_argument_group("vllm-harness, from the command line only")
    options = (SLO, SEED, API_KEY_ENV, RUN_FOLDER, UPLOAD, CA_FILE, INSECURE)
    declare_outside_locusts_form(group, options)


def fixed(environment: Environment) -> dict[str, Any]:
    """FIXED and `host` as the command line has them: asked before any form can say otherwise."""
    given = vars(environment.parsed_options or Namespace())
    return {key: given.get(key) for key in FIXED} | {"host": environment.host or ""}


def is_named(host: str, url: str) -> bool:
    """Whether `host`, the command line's, is this server. No secret goes to one of a form's."""
    try:
        here = Address.parse(url)
        named = Address.parse(host)
    except ConfigError:  # which is said where the URL is used
        return False
    return (here.scheme, here.authority.lower()) == (named.scheme, named.authority.lower())


def chosen_workload(environment: Environment) -> Workload:
    """What the command line, or Locust's own form, asks for."""
    given: Any = environment.parsed_options
    sized = workload(workload_name(environment)).sized(
        given.prompt_tokens or None, given.output_tokens or None
    )
    return sized.through(_api(environment))


def workload_name(environment: Environment) -> str:
    """The workload asked for, else the users' own, else the one that is called like their API."""
    name: str = environment.parsed_options.workload  # type: ignore[union-attr]
    if name not in ("", AS_USERS):
        return name
    return _of_user_classes(environment, "workload") or _api(environment)


def _api(environment: Environment) -> str:
    return _of_user_classes(environment, "api") or "chat"


def _of_user_classes(environment: Environment, attribute: str) -> str:
    """What all user classes that say it agree on; "" if they do not."""
    values = {getattr(user_class, attribute, "") for user_class in environment.user_classes}
    values.discard("")
    return values.pop() if len(values) == 1 else ""


def plan(environment: Environment) -> SearchPlan:
    """What a headless run is judged by. Raises ConfigError."""
    from harness.search.next_level import SearchPlan  # noqa: PLC0415 - numpy: the CLI asks us too

    given: Any = environment.parsed_options
    slos = tuple(Slo.parse(text) for option in given.slo for text in slo_texts(option))
    return SearchPlan(slos, max_errors=percent(given.max_errors, "--max-errors"), seed=given.seed)
