"""`max_num_seqs`: given, read or inferred, and which; vLLM's metrics do not have it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from harness.errors import ConfigError
from harness.measure.seats import MaxNumSeqs, Source, inferred_seats

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.measure.samples import ServerSample

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


def max_num_seqs(server: Mapping[str, Any], samples: Sequence[ServerSample]) -> MaxNumSeqs:
    """From run.json's server and the run's samples; what is inferred is of all engines."""
    flags, engines = server.get("flags") or {}, server.get("engines") or 1
    value = flags.get(NAME)
    if isinstance(value, int):
        read = NAME in (server.get("read") or ())
        return MaxNumSeqs(value, Source.READ if read else Source.GIVEN, engines)
    slots = inferred_seats(samples)
    if slots is None:
        return MaxNumSeqs(engines=engines)
    return MaxNumSeqs(round(slots / engines), Source.INFERRED, engines)
