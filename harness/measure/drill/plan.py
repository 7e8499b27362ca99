"""A drill as a TOML file says it: phases of load, events in them, and what is expected.

docs/drills.md has the form. Everything is checked here, before a server is started. Times are
offsets in ns from the start of the load, loads are users or, in an open loop, requests per second.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping  # noqa: TC003 - fields of a dataclass
from dataclasses import dataclass, field
from typing import Any, Final

from harness.errors import ConfigError, closest
from harness.measure.slo import Slo
from harness.units import duration_ns, exact_ns, percent

# What an event does: the keys that it needs, then those that it may have.
ACTIONS: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "kill": (("replica",), ()),
    "restart": (("replica",), ("for",)),  # `for`: how long it is away
    "pause": (("replica", "for"), ()),
    "slow": (("replica", "for", "factor"), ()),
    "cut": (("replica", "for"), ()),
    "delay": (("replica", "for", "by"), ()),
    "throttle": (("replica", "for", "bytes_per_s"), ()),
    "burst": (("for", "factor"), ()),
    "prompts": (("count", "tokens", "for"), ()),
    "disconnect": (("count", "for", "by"), ()),
}
EXPECTED: Final = ("slo", "errors", "lost", "waiting", "refused")
SERVERS: Final = ("engines", "vllm", "urls")
_LOAD = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(x\s*knee|/s)?\s*")


@dataclass(frozen=True, slots=True)
class Phase:
    """A load that is held for a time."""

    name: str
    load: float  # users, or requests per second
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens to a server, on the way to it, or to the load."""

    name: str
    do: str  # a key of ACTIONS
    at_ns: int
    end_ns: int  # when it is undone; `at_ns`: nothing is to be undone
    replica: int = -1  # its number from 0; -1: none
    factor: float = 1.0  # burst: times the load; slow: times as slow
    by_ns: int = 0  # delay of each piece of data; disconnect: from sending to hanging up
    bytes_per_s: int = 0
    count: int = 0  # requests that are sent besides the load
    tokens: int = 0  # prompt tokens of each

    @property
    def sentence(self) -> str:
        lasts = f" for {exact_ns(self.end_ns - self.at_ns)}" if self.end_ns > self.at_ns else ""
        who = f" replica {self.replica + 1}" if self.replica >= 0 else ""
        how = {
            "slow": f", {self.factor:g} times as slow", "burst": f" of {self.factor:g} x the load",
            "delay": f" by {exact_ns(self.by_ns)}", "throttle": f" to {self.bytes_per_s:,} bytes/s",
            "prompts": f": {self.count:,} of {self.tokens:,} tokens",
            "disconnect": f": {self.count:,} clients hang up after {exact_ns(self.by_ns)}",
        }.get(self.do, "")  # fmt: skip
        return f"{self.do}{who}{how}{lasts}"


@dataclass(frozen=True, slots=True)
class Expectation:
    """What has to be true of the requests that begin in a span, or of the server in it."""

    name: str
    kind: str  # of EXPECTED
    begin_ns: int
    end_ns: int
    since_ns: int  # what happened then; `begin_ns` unless it may take a time to come true
    slo: Slo | None = None
    limit: float = 0.0  # share of errors, waiting requests, or ns of a refusal


@dataclass(frozen=True, slots=True)
class Drill:
    """The whole plan."""

    title: str
    phases: tuple[Phase, ...]
    events: tuple[Event, ...]
    expectations: tuple[Expectation, ...]
    is_rate: bool
    retries: int = 0  # times that a client sends a failed request again, in an open loop
    servers: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)  # of `vllm-harness run`

    @property
    def length_ns(self) -> int:
        return self.phases[-1].end_ns

    def load_at(self, at_ns: int) -> float:
        """The load at that instant, bursts included; 0 after the last phase."""
        load = next((p.load for p in self.phases if p.begin_ns <= at_ns < p.end_ns), 0.0)
        for event in self.events:
            if event.do == "burst" and event.at_ns <= at_ns < event.end_ns:
                load *= event.factor
        return load

    @property
    def slos(self) -> tuple[Slo, ...]:
        """All that are expected."""
        return tuple(dict.fromkeys(e.slo for e in self.expectations if e.slo is not None))

    @property
    def most(self) -> float:
        """The highest load that is ever asked for."""
        edges = [one.begin_ns for one in self.phases] + [one.at_ns for one in self.events]
        return max(self.load_at(at_ns) for at_ns in edges)


def parse_drill(text: str, source: str, knee: float | None = None) -> Drill:
    """Read a file's text; `knee` is what loads like `2.0 x knee` refer to. Raises ConfigError."""
    try:
        top = _Table(tomllib.loads(text), source, source)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{source} is no TOML ({error}): expected a drill; try one of drills/ as a start."
        ) from None
    title = top.text("title", "")
    own_knee = top.number("knee", 0.0)
    knee = own_knee if knee is None else knee
    servers, clients = top.table("servers"), top.table("clients")
    options = top.table("load").values
    phases, is_rate = _phases(top.tables("phase"), knee)
    events = _events(top.tables("event"), servers, phases[-1].end_ns)
    expectations = _expectations(top.tables("expect"), phases, events)
    retries = int(clients.number("retries", 0))
    if retries and not is_rate:
        raise clients.wrong("retries", retries, "phases with a rate, as users wait", 'rate = "8/s"')
    for table in (clients, top):
        table.close()
    return Drill(title or source, phases, events, expectations, is_rate, retries, servers.values,
                 options)  # fmt: skip


class _Table:
    """One table of the file: reads its keys, then refuses those that nobody asked for."""

    def __init__(self, values: dict[str, Any], where: str, source: str) -> None:
        self.values, self.where, self.source = values, where, source
        self.asked: list[str] = []

    def wrong(self, key: str, found: object, expected: str, example: str) -> ConfigError:
        return ConfigError(f"{self.where}: {key} is {found!r}: expected {expected}; try {example}.")

    def get(self, key: str, kind: type | tuple[type, ...], expected: str, example: str) -> Any:
        self.asked.append(key)
        value = self.values.get(key)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise self.wrong(key, value, expected, f"{key} = {example}")
        return value

    def text(self, key: str, otherwise: str | None = None) -> str:
        value = self.get(key, str, "a text", '"..."')
        if value is None and otherwise is None:
            raise self.wrong(key, None, "a text", f'{key} = "..."')
        return otherwise or "" if value is None else str(value)

    def number(self, key: str, otherwise: float) -> float:
        value = self.get(key, (int, float), "a number above zero", "2")
        if value is not None and not 0 < value < 1e9:  # noqa: PLR2004 - a sane number
            raise self.wrong(key, value, "a number above zero", f"{key} = 2")
        return otherwise if value is None else float(value)

    def duration(self, key: str, otherwise: int | None = None, example: str = "10s") -> int:
        if key not in self.values and otherwise is not None:
            self.asked.append(key)
            return otherwise
        text = self.get(key, str, "a duration", f'"{example}"')
        if text is None:
            raise self.wrong(key, None, "a duration", f'{key} = "{example}"')
        zero = text.strip() in ("0", "0s")
        return 0 if zero else duration_ns(text, f"{self.where}: {key}", example)

    def table(self, key: str) -> _Table:
        found = self.get(key, dict, "a table", f"[{key}]")
        return _Table(found or {}, f"{self.source}, [{key}]", self.source)

    def tables(self, key: str) -> list[_Table]:
        found = self.get(key, list, "tables", f"[[{key}]]") or []
        if not all(isinstance(one, dict) for one in found):
            raise self.wrong(key, found, f"tables [[{key}]]", f"[[{key}]]")
        places = enumerate(found, 1)
        return [_Table(one, f"{self.source}, [[{key}]] {n}", self.source) for n, one in places]

    def close(self) -> None:
        if unknown := next((key for key in self.values if key not in self.asked), ""):
            meant = closest(unknown, self.asked, self.asked[0])
            raise ConfigError(
                f"{self.where} has {unknown!r}: expected {', '.join(self.asked)}; try {meant}."
            )


def _phases(tables: list[_Table], knee: float) -> tuple[tuple[Phase, ...], bool]:
    phases: list[Phase] = []
    kinds: list[str] = []
    for table in tables:
        name, lasts = table.text("name"), table.duration("for")
        key = "rate" if "rate" in table.values else "users"
        given = table.get(key, (str, int, float), "a load", "8")
        match = _LOAD.fullmatch(str(given))
        unit = (match[2] or "").replace(" ", "") if match else ""
        if match is None or (unit == "/s" and key == "users") or not lasts:
            raise table.wrong(
                key, given, f"{key}, or a multiple of the knee", f'{key} = "2 x knee"'
            )
        if unit == "xknee" and not knee:
            raise table.wrong(key, given, "the knee that it refers to", "--knee 16, or knee = 16")
        load = float(match[1]) * (knee if unit == "xknee" else 1)
        begin_ns = phases[-1].end_ns if phases else 0
        load = load if key == "rate" else max(round(load), 0)
        phases.append(Phase(name, load, begin_ns, begin_ns + lasts))
        kinds.append(key)
        table.close()
    if not phases or len(set(kinds)) > 1 or len({p.name for p in phases}) < len(phases):
        source = tables[0].source if tables else "the drill"
        raise ConfigError(
            f"{source} has {len(phases)} phases with {' and '.join(sorted(set(kinds))) or 'none'}: "
            "expected one or more with names of their own, all with users or all with a rate; "
            'try [[phase]] name = "before", users = 8, for = "20s".'
        )
    return tuple(phases), kinds[0] == "rate"


def _events(tables: list[_Table], servers: _Table, end_ns: int) -> tuple[Event, ...]:
    count, kind = _replicas(servers)
    events: list[Event] = []
    for table in tables:
        do = table.text("do")
        if do not in ACTIONS:
            known = ", ".join(ACTIONS)
            raise table.wrong("do", do, f"one of {known}", f'do = "{closest(do, ACTIONS, "kill")}"')
        needs, may = ACTIONS[do]
        at_ns = table.duration("at")
        replica = int(table.number("replica", 0)) - 1 if "replica" in needs else -1
        if "replica" in needs and not 0 <= replica < count:
            raise table.wrong("replica", table.values.get("replica"),
                              f"the number of one of {count} replicas", "replica = 1")  # fmt: skip
        lasts = (
            table.duration("for", None if "for" in needs else 0) if "for" in (*needs, *may) else 0
        )
        numbers = {key: table.number(key, 0.0) for key in
                   ("factor", "bytes_per_s", "count", "tokens") if key in needs}  # fmt: skip
        for key, value in numbers.items():
            if not value:
                raise table.wrong(key, None, "a number above zero", f"{key} = 2")
        by_ns = table.duration("by", None, "200ms") if "by" in needs else 0
        name = table.text("name", f"{do} {replica + 1}" if replica >= 0 else do)
        if do in ("restart", "kill", "pause", "slow") and kind == "urls":
            given = [key for key in ("pids", "containers") if key in servers.values]
            if not given or (do == "restart" and given != ["containers"]):
                need = "containers" if do == "restart" else "pids or containers"
                raise table.wrong("do", do, f"{need} of the replicas in [servers]",
                                  f"{need.split(maxsplit=1)[0]} = [...] beside urls")  # fmt: skip
        events.append(Event(name, do, at_ns, at_ns + lasts, replica, numbers.get("factor", 1.0),
                            by_ns, *(int(numbers.get(key, 0)) for key in
                                     ("bytes_per_s", "count", "tokens"))))  # fmt: skip
        if max(at_ns + lasts, at_ns) > end_ns:
            raise table.wrong("at", table.values["at"],
                              f"an event within the {exact_ns(end_ns)} of the phases",
                              'at = "10s"')  # fmt: skip
        table.close()
    return tuple(sorted(events, key=lambda event: event.at_ns))


def _replicas(servers: _Table) -> tuple[int, str]:
    """How many there are, and which key says so."""
    given = [key for key in SERVERS if key in servers.values]
    urls, size = servers.get("urls", list, "a list of URLs", '["http://127.0.0.1:8000"]'), 0
    for key in SERVERS[:2]:
        size = size or int(servers.number(key, 0))
    lists = [servers.get(key, list, "a list, one for each URL", "[...]") for key in
             ("pids", "containers")]  # fmt: skip
    own = servers.get("engine", dict, "flags of the embedded engine", "{max-num-seqs = 8}")
    args = servers.get("args", str, "flags of `vllm serve`", '"--max-num-seqs 8"')
    wrong = len(given) != 1 or any(one and len(one) != len(urls or ()) for one in lists)
    wrong = wrong or bool(own and given != ["engines"]) or bool(args and given != ["vllm"])
    if wrong:
        raise ConfigError(
            f"{servers.where} has {', '.join(servers.values) or 'nothing'}: expected engines = N "
            "(with engine = {...}), vllm = N (with args), or urls = [...], and a pid or container "
            "for each where events act on them; try engines = 2."
        )
    servers.close()
    return len(urls) if urls else size, given[0]


def _expectations(
    tables: list[_Table], phases: tuple[Phase, ...], events: tuple[Event, ...]
) -> tuple[Expectation, ...]:
    if not tables:
        raise ConfigError(
            "the drill expects nothing: expected one or more [[expect]], else no run of it could "
            'fail; try [[expect]] slo = "ttft_p95=1s", after = "kill 1", within = "30s".'
        )
    found = []
    # an event is over when it is undone, a phase when the next one begins
    over = {p.name: p.end_ns for p in phases} | {e.name: e.end_ns for e in events}
    for table in tables:
        kind = next((key for key in EXPECTED if key in table.values), "")
        within = table.duration("within", 0)
        after, phase = table.text("after", ""), table.text("phase", "")
        for key, name, known in (
            ("after", after, over),
            ("phase", phase, [p.name for p in phases]),
        ):
            if name and name not in known:
                example = closest(name, known, next(iter(known)))
                raise table.wrong(key, name, f"one of {', '.join(known)}", f'{key} = "{example}"')
        if not kind or (after and phase) or (within and not after):
            raise ConfigError(
                f"{table.where} has {', '.join(table.values)}: expected one of "
                f"{', '.join(EXPECTED)}, with phase = NAME, with after = NAME and within = TIME, "
                "or with none, for the whole drill; "
                'try slo = "ttft_p95=1s", phase = "after".'
            )
        begin_ns, end_ns = 0, phases[-1].end_ns
        if phase:
            begin_ns, end_ns = next((p.begin_ns, p.end_ns) for p in phases if p.name == phase)
        since_ns = over[after] if after else begin_ns
        if after:
            begin_ns = since_ns + within
            end_ns = _alike_until(begin_ns, phases, events)
            if not end_ns:
                raise table.wrong("within", table.values.get("within"),
                                  "a time before the drill's end", 'within = "10s"')  # fmt: skip
        slo, limit, what = _asked(table, kind)
        span = f" within {exact_ns(within)}" if within else ""
        where = f" after {after}" if after else f" in {phase}" if phase else ""
        name = table.text("name", f"{what}{span}{where}")
        found.append(Expectation(name, kind, begin_ns, end_ns, since_ns, slo, limit))
        table.close()
    return tuple(found)


def _alike_until(begin_ns: int, phases: tuple[Phase, ...], events: tuple[Event, ...]) -> int:
    """Until when nothing changes: neither the load nor a server. 0: the drill is over by then."""
    left = [p for p in phases if begin_ns < p.end_ns]
    if not left:
        return 0
    other = next((p.begin_ns for p in left if p.load != left[0].load), left[-1].end_ns)
    return min([other, *(e.at_ns for e in events if e.at_ns > begin_ns)])


def _asked(table: _Table, kind: str) -> tuple[Slo | None, float, str]:
    """The SLO, the limit, and what is expected in words."""
    if kind == "slo":
        slo = Slo.parse(table.text("slo"))
        return slo, 0.0, str(slo)
    if kind == "errors":
        text = table.text("errors")
        return None, percent(text, f"{table.where}: errors"), f"at most {text} of the requests fail"
    if kind == "refused":
        limit_ns = table.duration("refused", None, "100ms")
        return None, limit_ns, f"refusals come within {exact_ns(limit_ns)}"
    limit = table.get(kind, int, "a whole number", "0")
    if kind == "lost":
        return None, limit, f"at most {limit} requests lost without an error"
    return None, limit, f"at most {limit} requests wait at the servers"
