"""A drill's file, as docs/drills.md has it. Everything is checked before a server is started."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from harness.core.load import UNIT_OF_OPTION, LoadUnit, Rate, Users
from harness.core.value_parsers import duration_or_zero, positive_number, share, whole_number
from harness.drill.events import AT, EVENTS
from harness.drill.plan import Drill, Expectation, Phase
from harness.errors import ConfigError, closest
from harness.metrics.slo import Slo
from harness.units import exact_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from harness.drill.events import Event

    # What a key may hold: a type of TOML, or a parser of texts and numbers by the key's name.
    Kind = type | Callable[[str], Callable[[str], Any]]


def _whole(key: str) -> Callable[[str], int]:
    return whole_number(key, 0)


TOP: Final[dict[str, Kind]] = {
    "title": str, "knee": positive_number, "servers": dict, "load": dict, "clients": dict,
    "phase": list, "event": list, "expect": list,
}  # fmt: skip
SERVERS: Final[dict[str, Kind]] = {
    "engines": whole_number, "vllm": whole_number, "urls": list, "pids": list, "containers": list,
    "engine": dict, "args": str, "context": str, "namespace": str,
}  # fmt: skip
# What may be expected, and how it is said.
EXPECTED: Final[dict[str, tuple[Kind, str]]] = {
    "slo": (lambda _: Slo.parse, "{}"),
    "errors": (share, "at most {} of the requests fail"),
    "lost": (_whole, "at most {} requests lost without an error"),
    "waiting": (_whole, "at most {} requests wait at the servers"),
    "refused": (lambda key: duration_or_zero(key, "100ms"), "refusals come within {}"),
}
TYPES: Final[dict[type, tuple[str, str]]] = {
    str: ("a text", '"..."'),
    dict: ("a table", "{max-num-seqs = 8}"),
    list: ("a list", "[...]"),
}
_LOAD: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(x\s*knee|/s)?\s*")


class _Table(NamedTuple):
    """One table of the file."""

    values: Mapping[str, Any]
    where: str

    def wrong(self, key: str, expected: str, example: str) -> ConfigError:
        found = self.values.get(key)
        return ConfigError(f"{self.where}: {key} is {found!r}: expected {expected}; try {example}.")

    def read(self, needs: Mapping[str, Kind], may: Mapping[str, Kind]) -> dict[str, Any]:
        """What its keys mean; those that it may have and lacks are left out."""
        known = {**needs, **may}
        for key in self.values:
            if key not in known:
                meant = closest(key, known, next(iter(known)))
                raise ConfigError(
                    f"{self.where} has {key!r}: expected {', '.join(known)}; try {meant}."
                )
        found = {}
        for key, kind in known.items():
            if key in needs or key in self.values:
                found[key] = self._value(key, kind, needed=key in needs)
        return found

    def _value(self, key: str, kind: Kind, *, needed: bool) -> Any:
        value = self.values.get(key, "")
        if isinstance(kind, type):
            is_missing = needed and value == ""
            if is_missing or not isinstance(value, kind):
                expected, example = TYPES[kind]
                raise self.wrong(key, expected, f"{key} = {example}")
            return value
        try:
            return kind(key)(str(value).strip())
        except ConfigError as error:
            # parsers speak of the command line, where an option has no "="
            sentence = str(error).replace(f"try {key} ", f"try {key} = ")
            raise ConfigError(f"{self.where}: {sentence}") from None

    def name_of(self, key: str, known: Sequence[str]) -> str:
        """A name that is one of these."""
        name = self.values.get(key)
        if name not in known:
            example = closest(str(name), known, known[0])
            raise self.wrong(key, f"one of {', '.join(known)}", f'{key} = "{example}"')
        return str(name)


def parse_drill(text: str, source: str, knee: float | None = None) -> Drill:
    """Read a file's text; `knee` is what loads like `2.0 x knee` refer to. Raises ConfigError."""
    try:
        top = _Table(tomllib.loads(text), source)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{source} is no TOML ({error}): expected a drill; try `vllm-harness drill "
            f"replica-death --print > mine.toml` as a start."
        ) from None
    found = top.read({}, TOP)
    phase_tables = _tables(top, "phase")
    event_tables = _tables(top, "event")
    expect_tables = _tables(top, "expect")
    servers = _Table(found.get("servers", {}), f"{source}, [servers]")
    clients = _Table(found.get("clients", {}), f"{source}, [clients]")
    replicas, count = _replicas(servers)
    if knee is None:
        knee = found.get("knee")
    phases, unit = _phases(phase_tables, source, knee)
    drill_end_ns = phases[-1].end_ns
    events = [_event(table, servers, count, drill_end_ns) for table in event_tables]
    events.sort(key=lambda event: event.at_ns)
    return Drill(
        title=found.get("title", source),
        phases=phases,
        events=tuple(events),
        expectations=_expectations(expect_tables, phases, events),
        unit=unit,
        retries=_retries(clients, unit),
        servers=replicas,
        options=found.get("load", {}),
    )


def _tables(top: _Table, key: str) -> list[_Table]:
    """Those of [[key]], in the file's order."""
    tables = []
    for number, values in enumerate(top.values.get(key, []), 1):
        if not isinstance(values, dict):
            raise top.wrong(key, f"tables [[{key}]]", f"[[{key}]]")
        tables.append(_Table(values, f"{top.where}, [[{key}]] {number}"))
    return tables


def _phases(
    tables: Sequence[_Table], source: str, knee: float | None
) -> tuple[tuple[Phase, ...], LoadUnit]:
    """The phases, one after another, and what their loads count."""
    phases: dict[str, Phase] = {}
    kinds = set()
    end_ns = 0
    for table in tables:
        kind = Rate.option if Rate.option in table.values else Users.option
        kinds.add(kind)
        phase = _phase(table, kind, end_ns, knee)
        phases[phase.name] = phase
        end_ns = phase.end_ns
    if len(kinds) != 1 or len(phases) < len(tables):
        raise ConfigError(
            f"{source} has {len(tables)} phases with {' and '.join(sorted(kinds)) or 'none'}: "
            "expected one or more with names of their own, all with users or all with a rate; "
            'try [[phase]] name = "before", users = 8, for = "20s".'
        )
    return tuple(phases.values()), UNIT_OF_OPTION[kinds.pop()]


def _phase(table: _Table, kind: str, begin_ns: int, knee: float | None) -> Phase:
    """`kind`: the key of its load, users or rate."""
    keys: dict[str, Kind] = {
        "name": str,
        "for": duration_or_zero,
        kind: lambda _: _LOAD.fullmatch,
    }
    found = table.read(keys, {})
    if not found["for"]:
        raise table.wrong("for", "how long it lasts", 'for = "20s"')
    match = found[kind]
    counts_users = kind == Users.option
    if match is None or (counts_users and not _may_be_users(match)):
        raise table.wrong(kind, f"{kind}, or a multiple of the knee", f'{kind} = "2 x knee"')
    load = float(match[1])
    if _is_of_knee(match):
        if not knee:
            raise table.wrong(kind, "the knee that it refers to", "--knee 16, or knee = 16")
        load *= knee
    if counts_users:
        load = max(round(load), 0)
    return Phase(found["name"], load, begin_ns, begin_ns + found["for"])


def _is_of_knee(match: re.Match[str]) -> bool:
    return (match[2] or "").startswith("x")


def _may_be_users(match: re.Match[str]) -> bool:
    """A whole number, or a multiple of the knee, which is rounded."""
    return _is_of_knee(match) or (not match[2] and "." not in match[1])


def _replicas(servers: _Table) -> tuple[dict[str, Any], int]:
    """What the table means, and how many there are."""
    found = servers.read({}, SERVERS)
    given = [key for key in ("engines", "vllm", "urls") if key in found]
    urls = found.get("urls", [])
    owners = [key for key in ("pids", "containers") if key in found]
    owners_fit = all(len(found[key]) == len(urls) for key in owners)
    wrong_owners = len(owners) > 1 or not owners_fit
    wrong_engine = "engine" in found and given != ["engines"]
    wrong_args = "args" in found and given != ["vllm"]
    if len(given) != 1 or wrong_owners or wrong_engine or wrong_args:
        raise ConfigError(
            f"{servers.where} has {', '.join(found) or 'nothing'}: expected engines = N "
            "(with engine = {...}), vllm = N (with args), or urls = [...], and pids or "
            "containers, one for each, where events act on them; try engines = 2."
        )
    return found, len(urls) or found[given[0]]


def _retries(clients: _Table, unit: LoadUnit) -> int:
    found = clients.read({}, {"retries": _whole})
    retries: int = found.get("retries", 0)
    if retries and not unit.by_schedule:
        raise clients.wrong("retries", "phases with a rate, as users wait", 'rate = "8/s"')
    return retries


def _event(table: _Table, servers: _Table, count: int, drill_end_ns: int) -> Event:
    """`count`: replicas that there are."""
    kind = EVENTS[table.name_of("do", tuple(EVENTS))]
    needs = {key.name: key.parser for key in (AT, *kind.needs)}
    may = {key.name: key.parser for key in kind.may}
    values = table.read({"do": str, **needs}, {"name": str, **may})
    event = kind.from_keys(values)
    if event.replica >= count:
        raise table.wrong("replica", f"the number of one of {count} replicas", "replica = 1")
    refusal = event.refusal
    if refusal is not None:
        raise table.wrong(refusal.key, refusal.expected, refusal.example)
    _check_within_reach(table, event, servers)
    if event.end_ns > drill_end_ns:
        expected = f"an event within the {exact_ns(drill_end_ns)} of the phases"
        raise table.wrong("at", expected, 'at = "10s"')
    return event


def _check_within_reach(table: _Table, event: Event, servers: _Table) -> None:
    """Of a server that only a URL names, an event needs the pid or the container."""
    keys = event.acts_by
    if not keys or ("urls" not in servers.values and not event.commands):
        return
    if not any(key in servers.values for key in keys):
        if event.commands:
            expected = "the context of kubectl that it acts in, in [servers]"
            raise table.wrong("do", expected, 'context = "staging" beside urls')
        expected = f"{' or '.join(keys)} of the replicas in [servers]"
        raise table.wrong("do", expected, f"{keys[0]} = [...] beside urls")


def _expectations(
    tables: Sequence[_Table], phases: Sequence[Phase], events: Sequence[Event]
) -> tuple[Expectation, ...]:
    names = [phase.name for phase in phases]
    names += [event.name for event in events]
    for table in tables:
        after = str(table.values.get("after"))
        if names.count(after) > 1:
            raise table.wrong("after", "a name that only one phase or event has", 'name = "first"')
    if not tables:
        raise ConfigError(
            "the drill expects nothing: expected one or more [[expect]], else no run of it could "
            'fail; try [[expect]] slo = "ttft_p95=1s", after = "kill 1", within = "30s".'
        )
    return tuple(_expectation(table, phases, events) for table in tables)


def _expectation(table: _Table, phases: Sequence[Phase], events: Sequence[Event]) -> Expectation:
    kind = _kind(table)
    parser, words = EXPECTED[kind]
    may: dict[str, Kind] = {"name": str, "phase": str, "after": str, "within": duration_or_zero}
    found = table.read({kind: parser}, may)
    if "phase" in found:
        span = _span_of_phase(table, phases)
    elif "after" in found:
        span = _span_after(table, found.get("within", 0), phases, events)
    else:
        span = _Span("", 0, 0, phases[-1].end_ns)
    sentence = words.format(table.values[kind]) + span.words
    return Expectation(
        name=found.get("name", sentence),
        kind=kind,
        begin_ns=span.begin_ns,
        end_ns=span.end_ns,
        since_ns=span.since_ns,
        slo=found[kind] if kind == "slo" else None,
        limit=0.0 if kind == "slo" else found[kind],
    )


def _kind(table: _Table) -> str:
    """What is expected, if its keys go together. Raises ConfigError."""
    given = table.values
    kind = next((key for key in EXPECTED if key in given), "")
    places = {"after", "phase"} & given.keys()
    within_alone = "within" in given and "after" not in given
    lost_in_part = kind == "lost" and bool(places)  # counted when all is over
    if not kind or len(places) > 1 or within_alone or lost_in_part:
        raise ConfigError(
            f"{table.where} has {', '.join(given)}: expected one of {', '.join(EXPECTED)}, with "
            "phase = NAME, with after = NAME and within = TIME, or with none, for the whole drill "
            "(as lost always is); "
            'try slo = "ttft_p95=1s", phase = "after".'
        )
    return kind


class _Span(NamedTuple):
    """When an expectation has to be true."""

    words: str
    since_ns: int  # what happened then; `begin_ns` unless it may take a time to come true
    begin_ns: int
    end_ns: int


def _span_of_phase(table: _Table, phases: Sequence[Phase]) -> _Span:
    by_name = {phase.name: phase for phase in phases}
    name = table.name_of("phase", tuple(by_name))
    phase = by_name[name]
    return _Span(f" in phase {name!r}", phase.begin_ns, phase.begin_ns, phase.end_ns)


def _span_after(
    table: _Table, within_ns: int, phases: Sequence[Phase], events: Sequence[Event]
) -> _Span:
    # an event is over when it is undone, a phase when the next one begins
    over_ns = {phase.name: phase.end_ns for phase in phases}
    over_ns |= {event.name: event.end_ns for event in events}
    name = table.name_of("after", tuple(over_ns))
    words = f" after {name}"
    if within_ns:
        words = f" within {exact_ns(within_ns)} after {name}"
    begin_ns = over_ns[name] + within_ns
    end_ns = _alike_until(begin_ns, phases, events)
    if not end_ns:
        raise table.wrong("within", "a time before the drill's end", 'within = "10s"')
    return _Span(words, over_ns[name], begin_ns, end_ns)


def _alike_until(begin_ns: int, phases: Sequence[Phase], events: Sequence[Event]) -> int:
    """Until when nothing changes: neither the load nor a server. 0: the drill is over by then."""
    left = [phase for phase in phases if begin_ns < phase.end_ns]
    if not left:
        return 0
    end_ns = left[-1].end_ns
    other_loads = [phase.begin_ns for phase in left if phase.load != left[0].load]
    later_events = [event.at_ns for event in events if event.at_ns > begin_ns]
    return min([*other_loads[:1], *later_events, end_ns])
