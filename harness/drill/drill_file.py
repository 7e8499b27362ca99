"""A drill's file, as docs/drills.md has it. Everything is checked before a server is started."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from harness.core.value_parsers import positive_number, share, whole_number
from harness.drill.plan import Drill, Event, Expectation, Phase
from harness.errors import ConfigError, closest
from harness.metrics.slo import Slo
from harness.units import duration_ns, exact_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    # What a key may hold: a type of TOML, or a parser of texts and numbers by the key's name.
    Kind = type | Callable[[str], Callable[[str], Any]]


def _time(key: str, example: str = "10s") -> Callable[[str], int]:
    return lambda text: 0 if text in ("0", "0s") else duration_ns(text, key, example)


def _whole(key: str) -> Callable[[str], int]:
    return whole_number(key, 0)


TOP: Final[dict[str, Kind]] = {
    "title": str, "knee": positive_number, "servers": dict, "load": dict, "clients": dict,
    "phase": list, "event": list, "expect": list,
}  # fmt: skip
SERVERS: Final[dict[str, Kind]] = {
    "engines": whole_number, "vllm": whole_number, "urls": list, "pids": list, "containers": list,
    "engine": dict, "args": str,
}  # fmt: skip
# What an event does: the keys that it needs besides `at`; a restart may have `for`, too.
ACTIONS: Final = {
    "kill": "replica", "restart": "replica", "pause": "replica for", "slow": "replica for factor",
    "cut": "replica for", "delay": "replica for by", "throttle": "replica for bytes_per_s",
    "burst": "for factor", "prompts": "count tokens for", "disconnect": "count for by",
}  # fmt: skip
OF_EVENTS: Final[dict[str, Kind]] = {
    "replica": whole_number,
    "for": _time,
    "factor": positive_number,
    "by": lambda key: _time(key, "200ms"),
    "bytes_per_s": whole_number,
    "count": whole_number,
    "tokens": whole_number,
}
# What may be expected, and how it is said.
EXPECTED: Final[dict[str, tuple[Kind, str]]] = {
    "slo": (lambda _: Slo.parse, "{}"),
    "errors": (share, "at most {} of the requests fail"),
    "lost": (_whole, "at most {} requests lost without an error"),
    "waiting": (_whole, "at most {} requests wait at the servers"),
    "refused": (lambda key: _time(key, "100ms"), "refusals come within {}"),
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
        known, found = {**needs, **may}, {}
        if unknown := next((key for key in self.values if key not in known), ""):
            meant = closest(unknown, known, next(iter(known)))
            raise ConfigError(
                f"{self.where} has {unknown!r}: expected {', '.join(known)}; try {meant}."
            )
        for key, kind in known.items():
            value = self.values.get(key, "")
            if key not in self.values and key not in needs:
                continue
            if isinstance(kind, type):
                if not isinstance(value, kind) or (value == "" and key in needs):
                    expected, example = TYPES[kind]
                    raise self.wrong(key, expected, f"{key} = {example}")
                found[key] = value
                continue
            try:
                found[key] = kind(key)(str(value).strip())
            except ConfigError as error:
                said = str(error).replace(f"try {key} ", f"try {key} = ")
                raise ConfigError(f"{self.where}: {said}") from None
        return found

    def name_of(self, key: str, known: Sequence[str]) -> str:
        """A name that is one of these."""
        if (name := self.values.get(key)) not in known:
            example = closest(str(name), known, known[0])
            raise self.wrong(key, f"one of {', '.join(known)}", f'{key} = "{example}"')
        return str(name)


def parse_drill(text: str, source: str, knee: float | None = None) -> Drill:
    """Read a file's text; `knee` is what loads like `2.0 x knee` refer to. Raises ConfigError."""
    try:
        top = _Table(tomllib.loads(text), source)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{source} is no TOML ({error}): expected a drill; try one of drills/ as a start."
        ) from None
    found = top.read({}, TOP)
    parts: dict[str, list[_Table]] = {}
    for key in ("phase", "event", "expect"):
        tables = found.get(key, [])
        if not all(isinstance(one, dict) for one in tables):
            raise top.wrong(key, f"tables [[{key}]]", f"[[{key}]]")
        parts[key] = [_Table(one, f"{source}, [[{key}]] {n}") for n, one in enumerate(tables, 1)]
    servers, clients = (
        _Table(found.get(k, {}), f"{source}, [{k}]") for k in ("servers", "clients")
    )
    replicas, count = _replicas(servers)
    knee = found.get("knee") if knee is None else knee
    phases, is_rate = _phases(parts["phase"], source, knee)
    some = [_event(one, servers, count, phases[-1].end_ns) for one in parts["event"]]
    events = tuple(sorted(some, key=lambda event: event.at_ns))
    names = [phase.name for phase in phases] + [event.name for event in events]
    for one in parts["expect"]:
        if names.count(str(one.values.get("after"))) > 1:
            raise one.wrong("after", "a name that only one phase or event has", 'name = "first"')
    if not parts["expect"]:
        raise ConfigError(
            "the drill expects nothing: expected one or more [[expect]], else no run of it could "
            'fail; try [[expect]] slo = "ttft_p95=1s", after = "kill 1", within = "30s".'
        )
    expected = tuple(_expectation(one, phases, events) for one in parts["expect"])
    retries = clients.read({}, {"retries": _whole}).get("retries", 0)
    if retries and not is_rate:
        raise clients.wrong("retries", "phases with a rate, as users wait", 'rate = "8/s"')
    return Drill(
        found.get("title", source),
        phases,
        events,
        expected,
        is_rate,
        retries,
        replicas,
        found.get("load", {}),
    )


def _phases(
    tables: Sequence[_Table], source: str, knee: float | None
) -> tuple[tuple[Phase, ...], bool]:
    phases: dict[str, Phase] = {}
    kinds, end_ns = set(), 0
    for table in tables:
        key = "rate" if "rate" in table.values else "users"
        one = table.read({"name": str, "for": _time, key: lambda _: _LOAD.fullmatch}, {})
        match, begin_ns, end_ns = one[key], end_ns, end_ns + one["for"]
        if end_ns == begin_ns:
            raise table.wrong("for", "how long it lasts", 'for = "20s"')
        if match is None or (
            key == "users" and (match[2] == "/s" or (not match[2] and "." in match[1]))
        ):
            raise table.wrong(key, f"{key}, or a multiple of the knee", f'{key} = "2 x knee"')
        times = knee if (match[2] or "").startswith("x") else 1
        if not times:
            raise table.wrong(key, "the knee that it refers to", "--knee 16, or knee = 16")
        load = float(match[1]) * times
        load = load if key == "rate" else max(round(load), 0)
        phases[one["name"]] = Phase(one["name"], load, begin_ns, end_ns)
        kinds.add(key)
    if len(kinds) != 1 or len(phases) < len(tables):
        raise ConfigError(
            f"{source} has {len(tables)} phases with {' and '.join(sorted(kinds)) or 'none'}: "
            "expected one or more with names of their own, all with users or all with a rate; "
            'try [[phase]] name = "before", users = 8, for = "20s".'
        )
    return tuple(phases.values()), "rate" in kinds


def _replicas(servers: _Table) -> tuple[dict[str, Any], int]:
    """What the table means, and how many there are."""
    found = servers.read({}, SERVERS)
    given = [key for key in ("engines", "vllm", "urls") if key in found]
    urls = found.get("urls", [])
    wrong = any(len(found[key]) != len(urls) for key in ("pids", "containers") if key in found)
    wrong |= {"pids", "containers"} <= found.keys()
    wrong |= "engine" in found and given != ["engines"]
    if wrong or len(given) != 1 or ("args" in found and given != ["vllm"]):
        raise ConfigError(
            f"{servers.where} has {', '.join(found) or 'nothing'}: expected engines = N "
            "(with engine = {...}), vllm = N (with args), or urls = [...], and pids or "
            "containers, one for each, where events act on them; try engines = 2."
        )
    return found, len(urls) or found[given[0]]


def _event(table: _Table, servers: _Table, count: int, end_ns: int) -> Event:
    do = table.name_of("do", tuple(ACTIONS))
    needs = {key: OF_EVENTS[key] for key in ACTIONS[do].split()}
    may: dict[str, Kind] = {"name": str, **({"for": _time} if do == "restart" else {})}
    found = table.read({"do": str, "at": _time, **needs}, may)
    at_ns, replica = found.pop("at"), found.pop("replica", 0) - 1
    over_ns, by_ns = at_ns + found.pop("for", 0), found.pop("by", 0)
    if replica >= count:
        raise table.wrong("replica", f"the number of one of {count} replicas", "replica = 1")
    named = {"restart": ("containers",), "slow": ("pids",)}.get(do, ("pids", "containers"))
    if do == "slow" and found["factor"] <= 1:
        raise table.wrong("factor", "more than 1", "factor = 3, a third as fast")
    on_server = do in ("restart", "kill", "pause", "slow") and "urls" in servers.values
    if on_server and not any(key in servers.values for key in named):
        what = f"{' or '.join(named)} of the replicas in [servers]"
        raise table.wrong("do", what, f"{named[0]} = [...] beside urls")
    if over_ns > end_ns:
        what = f"an event within the {exact_ns(end_ns)} of the phases"
        raise table.wrong("at", what, 'at = "10s"')
    found.setdefault("name", f"{do} {replica + 1}" if replica >= 0 else do)
    return Event(at_ns=at_ns, end_ns=over_ns, replica=replica, by_ns=by_ns, **found)


def _expectation(
    table: _Table, phases: tuple[Phase, ...], events: tuple[Event, ...]
) -> Expectation:
    given = table.values
    kind = next((key for key in EXPECTED if key in given), "")
    # an event is over when it is undone, a phase when the next one begins
    over = {p.name: p.end_ns for p in phases} | {e.name: e.end_ns for e in events}
    spans = {p.name: (p.begin_ns, p.end_ns) for p in phases}
    lost = "within" in given and "after" not in given
    lost |= kind == "lost" and bool({"after", "phase"} & given.keys())  # counted when all is over
    if not kind or lost or {"after", "phase"} <= given.keys():
        raise ConfigError(
            f"{table.where} has {', '.join(given)}: expected one of {', '.join(EXPECTED)}, with "
            "phase = NAME, with after = NAME and within = TIME, or with none, for the whole drill "
            "(as lost always is); "
            'try slo = "ttft_p95=1s", phase = "after".'
        )
    value, said = EXPECTED[kind]
    places: dict[str, Kind] = {"name": str, "phase": str, "after": str, "within": _time}
    found = table.read({kind: value}, places)
    what, limit = said.format(given[kind]), found[kind]
    begin_ns = since_ns = 0
    end_ns = phases[-1].end_ns
    if "phase" in given:
        what += f" in {(phase := table.name_of('phase', tuple(spans)))}"
        begin_ns, end_ns = spans[phase]
        since_ns = begin_ns
    if "after" in given:
        within_ns, after = found.get("within", 0), table.name_of("after", tuple(over))
        what += f" within {exact_ns(within_ns)}" * bool(within_ns) + f" after {after}"
        since_ns = over[after]
        begin_ns = since_ns + within_ns
        end_ns = _alike_until(begin_ns, phases, events)
        if not end_ns:
            raise table.wrong("within", "a time before the drill's end", 'within = "10s"')
    slo, limit = (limit, 0.0) if kind == "slo" else (None, limit)
    return Expectation(found.get("name", what), kind, begin_ns, end_ns, since_ns, slo, limit)


def _alike_until(begin_ns: int, phases: tuple[Phase, ...], events: tuple[Event, ...]) -> int:
    """Until when nothing changes: neither the load nor a server. 0: the drill is over by then."""
    left = [p for p in phases if begin_ns < p.end_ns]
    if not left:
        return 0
    other = next((p.begin_ns for p in left if p.load != left[0].load), left[-1].end_ns)
    return min([other, *(e.at_ns for e in events if e.at_ns > begin_ns)])
