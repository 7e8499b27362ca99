"""`max_num_seqs`: given, read or inferred, and which; vLLM's metrics do not have it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from harness.errors import ConfigError
from harness.measure.seats import inferred_seats

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.measure.samples import ServerSample

GIVEN: Final = "given"  # with --server-flag
READ: Final = "read"  # the server said so, or we started it
INFERRED: Final = "inferred"  # from what ran while requests waited
NAME: Final = "max_num_seqs"


def flag_given(text: str) -> tuple[str, int | float | str]:
    """`max-num-seqs=256` of --server-flag as ("max_num_seqs", 256). Raises ConfigError."""
    name, equals, value = (part.strip() for part in text.partition("="))
    name = name.lstrip("-").replace("-", "_")
    if not (name.isidentifier() and equals and value):
        raise ConfigError(
            f"--server-flag is {text!r}: expected NAME=VALUE; try --server-flag max-num-seqs=256."
        )
    return name, _value(value)


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return {"true": True, "false": False}.get(text.lower(), text)


def flags_of(read: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The server's flags: what it says and what a person says. Raises ConfigError."""
    for name in read.keys() & given.keys():
        if read[name] != given[name]:
            spelt = name.replace("_", "-")
            raise ConfigError(
                f"--server-flag {spelt}={given[name]} contradicts the server, which says "
                f"{read[name]}: expected the flag that it was started with; leave it out."
            )
    return {**read, **given}


def max_num_seqs(server: Mapping[str, Any], samples: Sequence[ServerSample]) -> dict[str, Any]:
    """`{"value": 256, "from": "given"}` from run.json's server and the run's samples.

    A flag is per engine, as vLLM takes it, and so is what is inferred. None: not known.
    """
    flags, engines = server.get("flags") or {}, server.get("engines") or 1
    value = flags.get(NAME)
    if isinstance(value, int):
        return {"value": value, "from": READ if NAME in (server.get("read") or ()) else GIVEN}
    seats = inferred_seats(samples)
    if seats is None:
        return {"value": None, "from": ""}
    return {"value": round(seats / engines), "from": INFERRED}
