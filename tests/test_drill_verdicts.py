"""Drills: what a file says, what is refused, and what is judged from records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from measure_tables import MS, SECOND, record, table

from harness.core.load import REQUESTS_PER_S, Rate
from harness.core.states import Purpose, Verdict
from harness.diagnosis.client_host import UNKNOWN_HOST
from harness.drill.drill_file import parse_drill
from harness.drill.phases import late_phases, phase_reason, slos_in
from harness.drill.verdicts import judge_drill
from harness.errors import ConfigError
from harness.metrics.evidence import Window
from harness.metrics.window_summary import WindowTokens
from harness.records.request_record import Outcome
from harness.records.samples import ServerSample

if TYPE_CHECKING:
    from harness.drill.plan import Drill
    from harness.records.request_record import RequestRecord

SHIPPED = sorted((Path(__file__).parents[1] / "drills").glob("*.toml"))
SERVERS = "[servers]\nengines = 2\n"
PHASES = """
[[phase]]
name = "before"
rate = "10/s"
for = "20s"
[[phase]]
name = "over"
rate = "2 x knee"
for = "10s"
[[phase]]
name = "after"
rate = "10/s"
for = "30s"
[[phase]]
name = "last"
rate = "10/s"
for = "10s"
"""
EXPECT = '[[expect]]\nslo = "ttft_p95=100ms"\n'
EVENT = '[[event]]\ndo = "kill"\nat = "35s"\nreplica = 1\n'


def drill(*parts: str, knee: float | None = 20) -> Drill:
    """A plan of these parts."""
    return parse_drill("\n".join(parts), "x.toml", knee)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_what_ships_is_read(path: Path) -> None:
    """Six drills, each with phases, what happens, and what is expected; eight minutes in all."""
    found = parse_drill(path.read_text(), path.name)
    assert len(SHIPPED) == 6
    assert found.unit == REQUESTS_PER_S
    assert found.servers["engines"] == 2
    assert [expected.kind for expected in found.expectations].count("lost") == 1
    assert found.load_at(0) > 0
    assert sum(parse_drill(p.read_text(), "").length_ns for p in SHIPPED) <= 435 * SECOND


def test_loads_and_bursts() -> None:
    """A multiple of the knee, a burst on top; nothing after the end."""
    burst = '[[event]]\ndo = "burst"\nat = "35s"\nfor = "5s"\nfactor = 3\n'
    found = drill(SERVERS, PHASES, burst, EXPECT)
    want = {0: 10, 19: 10, 20: 40, 29: 40, 30: 10, 35: 30, 39: 30, 40: 10, 69: 10, 70: 0}
    assert {second: found.load_at(second * SECOND) for second in want} == want
    assert found.most == 40
    assert found.length_ns == 70 * SECOND


@pytest.mark.parametrize(
    ("where", "events", "want"),
    [
        ("", "", (0, 70, 0)),
        ('phase = "after"', "", (30, 60, 30)),
        ('after = "over"', "", (30, 70, 30)),  # two phases of the same load
        ('after = "over"\nwithin = "10s"', "", (40, 70, 30)),
        ('after = "over"\nwithin = "2s"', EVENT, (32, 35, 30)),  # until something else happens
        ('after = "kill 1"\nwithin = "5s"', EVENT, (40, 70, 35)),
    ],
)
def test_spans(where: str, events: str, want: tuple[int, int, int]) -> None:
    """(begin, end, since) in seconds of what is expected where."""
    (one,) = drill(SERVERS, PHASES, events, EXPECT + where).expectations
    assert tuple(ns // SECOND for ns in (one.begin_ns, one.end_ns, one.since_ns)) == want


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (("[[phase",), "is no TOML"),
        ((SERVERS, EXPECT), "has 0 phases"),
        (("", PHASES, EXPECT), "expected engines = N"),
        (("[servers]\nengines = 2\nvllm = 1\n", PHASES, EXPECT), "expected engines = N"),
        (("[servers]\nurls = ['http://a']\npids = [1, 2]\n", PHASES, EXPECT), "containers, one"),
        ((SERVERS, PHASES), "expects nothing"),
        ((SERVERS, PHASES.replace("2 x knee", "2 x knie"), EXPECT), 'rate = "2 x knee"'),
        ((SERVERS, PHASES.replace('rate = "2 x knee"', "users = 4"), EXPECT), "rate and users"),
        ((SERVERS, PHASES.replace("after", "over"), EXPECT), "names of their own"),
        ((SERVERS, PHASES.replace('"20s"', "20"), EXPECT), "for is '20'"),
        ((SERVERS, PHASES, EVENT.replace("kill", "kil"), EXPECT), 'try do = "kill"'),
        ((SERVERS, PHASES, EVENT.replace("replica = 1", "replica = 3"), EXPECT), "one of 2 rep"),
        ((SERVERS, PHASES, EVENT.replace("35s", "75s"), EXPECT), "within the 70s"),
        ((SERVERS, PHASES, EVENT + "factor = 2", EXPECT), "has 'factor'"),
        ((SERVERS, PHASES, EVENT + '"" = 2', EXPECT), "has ''"),
        ((SERVERS, PHASES, EVENT.replace("kill", "pause"), EXPECT), "for is ''"),
        (
            ("[servers]\nurls = ['http://a', 'http://b']\n", PHASES, EVENT, EXPECT),
            "pids or containers of the replicas",
        ),
        (
            (
                "[servers]\nurls = ['http://a']\npids = [7]\n",
                PHASES,
                EVENT.replace("kill", "restart"),
                EXPECT,
            ),
            "containers of the replicas",
        ),
        (
            (
                "[servers]\nurls = ['http://a']\ncontainers = ['a']\n",
                PHASES,
                EVENT.replace("kill", "slow") + 'for = "2s"\nfactor = 2',
                EXPECT,
            ),
            "pids of the rep",
        ),
        (
            ("[servers]\nurls = ['http://a']\npids = [2]\ncontainers = ['a']\n", PHASES, EXPECT),
            "has urls, pids, containers",
        ),
        ((SERVERS, PHASES, EVENT.replace("= 1", '= "a"'), EXPECT), "try replica = 1"),
        ((SERVERS.replace("2", "0"), PHASES, EXPECT), "try engines = 1"),
        (("[servers]\nengines = 2\nengine = 4\n", PHASES, EXPECT), "expected a table"),
        ((SERVERS, PHASES.replace('name = "over"', ""), EXPECT), "name is None"),
        ((SERVERS, PHASES, EXPECT + 'phase = "aftre"'), 'try phase = "after"'),
        ((SERVERS, PHASES, EXPECT + 'within = "5s"'), "with after = NAME"),
        ((SERVERS, PHASES, EXPECT + 'after = "over"\nwithin = "90s"'), "before the drill's end"),
        ((SERVERS, PHASES, EXPECT.replace("ttft", "tft")), "--slo is 'tft_p95"),
        ((SERVERS, PHASES, '[[expect]]\nerrors = "5"'), "with its sign"),
        ((SERVERS, PHASES, "[[expect]]\nfast = true"), "expected one of slo, errors"),
        (
            (
                SERVERS,
                "[clients]\nretries = 2\n",
                PHASES.replace("rate", "users").replace("10/s", "10"),
                EXPECT,
            ),
            "phases with a rate",
        ),
        (("wobble = 1", SERVERS, PHASES, EXPECT), "has 'wobble'"),
        ((SERVERS, PHASES.replace('"20s"', '"0s"'), EXPECT), "for is '0s'"),
        (
            (
                SERVERS,
                PHASES.replace('rate = "10/s"', "users = 2.5").replace(
                    'rate = "2 x knee"', "users = 4"
                ),
                EXPECT,
            ),
            "users is 2.5",
        ),
        (
            (SERVERS, PHASES, EVENT.replace("kill", "slow") + 'for = "2s"\nfactor = 0.5', EXPECT),
            "factor is 0.5",
        ),
        (
            (SERVERS, PHASES, EVENT, EVENT.replace("35s", "36s"), EXPECT + 'after = "kill 1"'),
            "only one phase or event",
        ),
        ((SERVERS, PHASES, '[[expect]]\nlost = 0\nphase = "after"'), "as lost always is"),
    ],
)
def test_what_is_refused(parts: tuple[str, ...], said: str) -> None:
    """One sentence: what was found, what was expected, what to try."""
    with pytest.raises(ConfigError) as refused:
        drill(*parts)
    assert said in str(refused.value)
    assert "; try " in str(refused.value)


def test_a_multiple_of_no_knee() -> None:
    """The file, or --knee, has to say it."""
    with pytest.raises(ConfigError, match="--knee 16"):
        drill(SERVERS, PHASES, EXPECT, knee=None)


# Records: ten requests each second for 70 s; from 20 s to 40 s TTFTs are 300 ms, else 50 ms.
def made(
    slow: tuple[float, float] = (20, 40), failed: tuple[float, float] = (0, 0), status: int = 0
) -> list[RequestRecord]:
    """The requests of that run."""
    requests = []
    for number in range(700):
        at_ms = number * 100
        if failed[0] <= at_ms / 1000 < failed[1]:
            request = record(number, at_ms, [], at_ms + 80, Outcome.status)
            code = status
        else:
            first_ms = at_ms + (300 if slow[0] <= at_ms / 1000 < slow[1] else 50)
            last_ms = first_ms + 10
            request = record(number, at_ms, [first_ms, last_ms], last_ms, Outcome.ok)
            code = 200
        requests.append(replace(request, status=code, scheduled_ns=at_ms * MS))
    return requests


def waiting_samples() -> list[ServerSample]:
    """What the server said in each of 75 s: eight requests wait from 22 s to 42 s."""
    samples = []
    for second in range(75):
        waiting = 8 if 22 <= second < 42 else 0
        samples.append(ServerSample(second * SECOND, running=1, waiting=waiting))
    return samples


LATER = 'after = "over"\nwithin = '


@pytest.mark.parametrize(
    ("expect", "given", "want"),
    [
        ('slo = "ttft_p95=100ms"\nphase = "before"', {}, (Verdict.met, 20.0)),
        ('slo = "ttft_p95=100ms"\nphase = "over"', {}, (Verdict.missed, 30.0)),
        (
            f'slo = "ttft_p95=100ms"\n{LATER}"15s"',
            {},
            (Verdict.met, 39.9),
        ),  # back: one in 21 is over
        (f'slo = "ttft_p95=100ms"\n{LATER}"15s"', {"slow": (20, 70)}, (Verdict.missed, 70.0)),
        # six requests say nothing of a p95
        (f'slo = "ttft_p95=100ms"\n{LATER}"39.5s"', {}, (Verdict.inconclusive, 39.9)),
        ('slo = "itl_p95=20ms"\nphase = "after"', {}, (Verdict.met, 60.0)),
        ('errors = "5%"\nphase = "after"', {}, (Verdict.met, None)),
        ('errors = "5%"\nphase = "after"', {"failed": (40, 50)}, (Verdict.missed, None)),
        ('errors = "0%"', {"failed": (40, 40.1)}, (Verdict.missed, None)),
        ("lost = 0", {}, (Verdict.met, None)),
        ("lost = 0", {"missing": 1}, (Verdict.missed, None)),
        ('refused = "100ms"', {"failed": (30, 40), "status": 503}, (Verdict.met, None)),
        ('refused = "50ms"', {"failed": (30, 40), "status": 503}, (Verdict.missed, None)),
        ('refused = "100ms"', {}, (Verdict.inconclusive, None)),
        (f'waiting = 0\n{LATER}"15s"', {}, (Verdict.met, 42.0)),
        (f'waiting = 0\n{LATER}"5s"', {}, (Verdict.missed, 35.0)),
        (f'waiting = 0\n{LATER}"5s"', {"silent": True}, (Verdict.inconclusive, None)),
        ('slo = "ttft_p95=100ms"', {"until": 50}, (Verdict.inconclusive, None)),  # not over yet
    ],
)
def test_what_is_judged(
    expect: str, given: dict[str, object], want: tuple[Verdict, float | None]
) -> None:
    """True, false or inconclusive, and when that showed."""
    plan = drill(SERVERS, PHASES, f"[[expect]]\n{expect}")
    missing = int(str(given.pop("missing", 0)))
    until = int(str(given.pop("until", 75)))
    samples = [] if given.pop("silent", False) else waiting_samples()
    rows = table(*made(**given))  # type: ignore[arg-type]
    (found,) = judge_drill(plan, 0, rows, samples, missing=missing, until_ns=until * SECOND)
    at_s = None if found.at_s != found.at_s else round(found.at_s, 1)
    assert (found.verdict, at_s) == want, found.sentence


SHORT = """
[[phase]]
name = "calm"
rate = "10/s"
for = "20s"
[[phase]]
name = "over"
rate = "10/s"
for = "20s"
"""
CUT = '[[event]]\ndo = "cut"\nat = "25s"\nfor = "5s"\nreplica = 1\n'
IN_CALM = '[[expect]]\nslo = "ttft_p50=1s"\nphase = "calm"\n'
IN_OVER = '[[expect]]\nslo = "ttft_p95=500ms"\nphase = "over"\n'


def test_a_phase_is_judged_by_what_is_expected_of_it() -> None:
    """The stall of two seconds is in the second phase, of which a p95 is expected."""
    plan = drill(SERVERS, SHORT, IN_CALM, IN_OVER)
    calm, over = plan.phases
    assert [str(slo) for slo in slos_in(plan, calm)] == ["ttft_p50=1s"]
    assert [str(slo) for slo in slos_in(plan, over)] == ["ttft_p95=500ms"]
    rows = []
    for number in range(400):
        due_ms = 100 * number
        sent_ms = 27_000 if 25_000 <= due_ms < 27_000 else due_ms
        one = record(number, sent_ms, [sent_ms + 50])
        rows.append(replace(one, scheduled_ns=due_ms * MS))
    late = late_phases(plan, 0, table(*rows))
    assert [phase.name for phase in late] == ["over"]
    verdicts = judge_drill(plan, 0, table(*rows), [], missing=0, until_ns=80 * SECOND, invalid=late)
    assert [one.verdict for one in verdicts] == [Verdict.met, Verdict.inconclusive]


@pytest.mark.parametrize(
    ("event", "unsure_ms", "said"),
    [
        ("", 0, ""),
        ("", 100, "this client can only place p95 TTFT between 100 and 200 ms"),  # 20% of 500 ms
        (CUT, 100, ""),  # what was cut off comes at once, and the limit is far from it
        (CUT, 400, "this client can only place p95 TTFT between 200 and 600 ms"),
    ],
)
def test_a_phase_of_unsure_stamps(event: str, unsure_ms: int, said: str) -> None:
    """As in `run`; where the drill itself joins pieces of data, only if the verdict is unsure."""
    plan = drill(SERVERS, SHORT, event, IN_OVER)
    came_ms = 600 if unsure_ms > 100 else 200
    rows = []
    for number in range(400):
        due_ms = 100 * number
        low = due_ms + came_ms - unsure_ms
        one = record(number, due_ms, [due_ms + came_ms], lows=[low])
        rows.append(replace(one, scheduled_ns=due_ms * MS))
    at = (20 * SECOND, 20 * SECOND, 20 * SECOND, 40 * SECOND, 41 * SECOND)
    window = Window(1, Rate(10.0), Purpose.hold, *at)
    seen = table(*rows)
    gaps = WindowTokens.of(seen, (window.settled_ns, window.end_ns)).gaps
    got = phase_reason(plan, window, seen, seen, gaps=gaps, host=UNKNOWN_HOST)
    assert got.startswith(said) if said else got == ""
