"""The kinds of run, each a class of facts that plan, judge, report and live page look at.

A run folder names its kind, in run.json and as `command` of result.json; `kind_of` has the class of
that name. A new kind is a new class here: no other file compares kinds, or their names.
"""

from __future__ import annotations

from typing import ClassVar, Final

from harness.errors import RunFolderError


class RunKind:
    """A run that holds the levels it was given. A run.json that names no kind is read as one."""

    name: ClassVar[str] = ""  # in run folders, for Prometheus, and of the command that starts it
    title: ClassVar[str] = ""  # on the live page; "": the name

    # of the plan
    searches: ClassVar[bool] = False  # it chooses its levels, until the knee is known
    decides: ClassVar[bool] = True  # about the users; False: Locust's own form or command line does
    has_phases: ClassVar[bool] = False  # as levels; what is expected of them is judged, not SLOs
    load_option: ClassVar[str] = "--users"  # says how many users there are at most
    may_repeat: ClassVar[bool] = False  # `vary` may run its command several times

    # of what judges it
    judges_live: ClassVar[bool] = False  # meanwhile, so all tokens of a level stay in memory
    spans_loads: ClassVar[bool] = False  # its levels differ in nothing but their load
    servers_may_die: ClassVar[bool] = False  # as planned: such a server says nothing of its metrics


class KneeRun(RunKind):
    name = "knee"
    title = "search for the knee"
    searches = True
    load_option = "--max-users"
    may_repeat = True
    judges_live = True
    spans_loads = True


class LevelRun(RunKind):
    name = "run"
    may_repeat = True


class SweepRun(RunKind):
    name = "sweep"
    may_repeat = True
    spans_loads = True


class DrillRun(RunKind):
    name = "drill"
    has_phases = True
    judges_live = True
    servers_may_die = True


class LocustRun(RunKind):
    """A test by Locust's own form or command line, whose users may pause."""

    name = "locust"
    decides = False


RUN_KINDS: Final[dict[str, type[RunKind]]] = {
    kind.name: kind for kind in (KneeRun, LevelRun, SweepRun, DrillRun, LocustRun)
}


def kind_of(name: str, run: str = "the run") -> type[RunKind]:
    """The kind of that name; `run` says whose it is. Raises RunFolderError for an unknown one."""
    kind = RUN_KINDS.get(name) if name else RunKind
    if kind is None:
        raise RunFolderError(
            f"{run} is of the kind {name!r}: expected one of {', '.join(RUN_KINDS)}; try the "
            "version of vllm-harness that recorded it."
        )
    return kind
