"""What people and Prometheus see of a run while it lasts, and the answer after it.

One `RunPage` for either door: our page and the metrics in Locust's web server, the metrics also on
a port of their own. Under the `locust` command it shows one run after another.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import inf, isinf, isnan, nan
from typing import TYPE_CHECKING, Any, Final, Self

from harness.core.states import WORST_FIRST, Decision, Status
from harness.core.typed_json import to_json
from harness.drill.controller import DrillController
from harness.export.live_charts import SERVER_LINES
from harness.export.live_state import DRILLED, LiveState, slo_facts, state_facts
from harness.export.live_tables import LiveTables
from harness.export.run_series import RunSeries
from harness.export.tiles import tiles
from harness.metrics.metrics import HEADLINES
from harness.metrics.numbers import as_sentence
from harness.metrics.recent_latencies import RecentLatencies
from harness.metrics.result import Target
from harness.metrics.slo import Slo
from harness.records.request_record import Outcome
from harness.run.page_viewer import ended_levels
from harness.search.knee_estimate import bracket_users
from harness.search.level_words import (
    AFTERWARDS,
    bracket_text,
    headline_so_far,
    outlook,
    phase_text,
    purpose_text,
    reported_result_text,
    result_text,
)
from harness.server.address import LOOPBACK, Address
from harness.units import SECOND
from harness.webpage import login
from harness.webpage.live_page import LivePage
from harness.webpage.metrics_port import MetricsPort

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from harness.core.load import Number
    from harness.core.run_kinds import RunKind
    from harness.metrics.evidence import Window
    from harness.metrics.result import Level, Result
    from harness.records.request_record import RecordSink
    from harness.records.samples import ClientSample, ServerSample
    from harness.run.ended_level import EndedLevel
    from harness.run.experiment import Experiment
    from harness.run.study_options import OutputOptions, Wanted
    from harness.search.controller import KneeController
    from harness.search.next_level import Hold
    from harness.senders.load_runner import LoadRunner

LINGER_S: Final = 30.0  # twice Prometheus' usual interval


class RunPage:
    """Sees each second of a run (a Viewer), and is told of its beginning, end and answer."""

    def __init__(self, kind: type[RunKind], slos: tuple[Slo, ...] = (), **facts: Any) -> None:
        """`slos`: shown and counted before a run begins; `facts`: what the page is told, always."""
        self.folder: Path | None = None
        self.recent = RecentLatencies()
        self.state = LiveState(kind_facts(kind) | facts)
        self.live = RunSeries(kind.name, "", slos)
        self.tables = LiveTables(self.live.counts)
        self.page = LivePage(self.state, lambda: self.folder, self.tables, self._metrics)
        self._port: MetricsPort | None = None
        self._n_steps = -1
        self._rows: list[dict[str, Any]] = []  # of the levels that ended
        self._bracket: list[Number | None] = [None, None]  # that the search has shown
        self._tokens = 0  # of the second before
        self._at_ns = -1  # as above
        self._served = False
        self._looked_at = False
        self._argv = sys.argv

    def install(self, load: LoadRunner) -> None:
        """Serve everything beside the environment's web UI, if it has one. Raises ConfigError."""
        web_ui = load.environment.web_ui
        if web_ui is not None and web_ui.app is not None:
            login.protect(web_ui, web_ui.app)
            login.keep_out(web_ui, web_ui.app)
            self.page.install(web_ui, web_ui.app)
            self._served = True

    def _metrics(self) -> bytes:
        return self.live.page()

    def serve(self, load: LoadRunner, port: int) -> None:
        """Serve it on a port of this machine, until the block of this view ends."""
        # Locust's page asks its own parser about sys.argv, and one that does not know our options
        # ends the process: as long as the page is served there are none.
        sys.argv = sys.argv[:1]
        web_ui = load.environment.create_web_ui(LOOPBACK, port, delayed_start=True)
        self.install(load)
        self.page.stop = load.interrupt
        self.page.close = web_ui.stop
        web_ui.start()  # type: ignore[no-untyped-call]
        sys.stderr.write(f"Live page: http://{LOOPBACK}:{port}/harness\n")

    def open_port(self, output: OutputOptions) -> None:
        """Serve the metrics on a port of their own, where one is asked for. Raises ConfigError."""
        if output.metrics_port is not None:
            self._port = MetricsPort(output.metrics_host, output.metrics_port)
            self._port.start()
            sys.stderr.write(f"Metrics at http://{self._port.host}:{self._port.port}/metrics\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let an open page see the answer, then end: nobody is served any more."""
        with suppress(KeyboardInterrupt):
            if self._looked_at:
                self.page.linger()
        self.page.close()
        sys.argv = self._argv
        if self._port is not None:
            self._port.close()

    def starting(self, url: str, **facts: Any) -> None:
        """A run may begin: nothing of the one before stays."""
        self.folder = None
        self.tables.clear()
        self.state.begin(**state_facts("starting", url), **facts)

    def begin(self, wanted: Wanted, url: str, model: str) -> list[RecordSink]:
        """This run begins; where its records go, to be shown."""
        self.folder = wanted.output.out_dir
        self.recent.clear()
        workload = wanted.load.workload.name
        on_latencies = self._latencies if self._served else None
        self.live = RunSeries(wanted.kind.name, workload, wanted.plan.slos, on_latencies)
        self.live.set_run_info(self.folder.name, model, Address.parse(url).authority)
        self.state.update_facts(**about(wanted, url, model))
        self._n_steps = -1
        self._rows = []
        self._bracket = [None, None]
        self._tokens = 0
        self._at_ns = -1
        self.tables.begin(self.live.counts, with_slos=not wanted.kind.searches)
        self._show_metrics()
        return [self.live.counts]

    def _latencies(self, key: str, ns: NDArray[Any]) -> None:
        self.recent.take(key, ns)
        self.tables.take(key, ns)

    def clients(self, samples: list[ClientSample]) -> None:
        """What the load processes say of themselves."""
        self.live.set_client_samples(samples)

    def show(self, experiment: Experiment, now_ns: int, running_users: int) -> None:
        """A second has passed."""
        controller = experiment.controller
        now = controller.now
        self.live.set_load(experiment.target, running_users)
        n_levels = len(controller.levels)
        if now is None:
            self.live.set_level(n_levels, "", "")
        else:
            self.live.set_level(n_levels + 1, now.phase, now.hold.purpose)
        point = self._point(controller, now_ns, running_users)
        level = _level_in_progress(controller, now_ns, running_users, experiment.wanted)
        engines = engines_text(controller.server)
        self.state.add(point, **self._ended(), **level, engines=engines)
        self.state.update_facts(throttled=experiment.throttled_lately(now_ns))
        if isinstance(controller, DrillController):
            self._drill(controller, experiment.samples)
        if n_levels != self._n_steps or len(self._rows) < self._n_steps:
            self._past(experiment)
        if self.state.facts["state"] == "starting":
            self.state.update_facts(**state_facts("running", experiment.url))
        if experiment.wanted.kind.searches and now is not None:
            self.state.update_facts(**self._so_far(controller, now.hold))
        self._show_metrics()

    def _so_far(self, controller: KneeController, hold: Hold) -> dict[str, Any]:
        """The page's headline while a search runs, and what comes next."""
        plan = controller.plan
        holds, fails_at = self._bracket
        next_step = outlook(plan, hold.purpose, hold.load, holds, fails_at)
        is_searching = hold.purpose not in AFTERWARDS
        if is_searching and holds and fails_at:  # of one end alone, the headline says as much
            next_step = f"{as_sentence(bracket_text(holds, fails_at))} {next_step}"
        sentence = headline_so_far(plan.unit, holds, fails_at)
        if not plan.slos:
            sentence = "Looking for the level at which throughput divided by latency peaks."
        return {"sentence": sentence, "answer": [next_step]}

    def _drill(self, controller: DrillController, samples: list[ServerSample]) -> None:
        """Show what has happened and which expectations have come true."""
        controller.judge(samples)
        drill = controller.stage.drill
        done = controller.stage.done
        begun = Counter(row["name"] for row in done if row["what"] == "begins")
        self.live.set_drill({event.name: begun[event.name] for event in drill.events})
        self.live.set_expectations({gate.name: gate.verdict for gate in controller.verdicts})
        number = len(controller.levels)
        phase = drill.phases[number].name if number < len(drill.phases) else ""
        events = [row | {"t_s": _since_s(row["at_ns"], controller)} for row in done]
        expectations = to_json(controller.verdicts)
        self.state.update_facts(phase=phase, expectations=expectations, events=events)

    def _point(self, controller: KneeController, now_ns: int, running_users: int) -> list[Any]:
        """A second in the page's charts."""
        n_tokens = self.live.counts.output_tokens
        # Tokens per second since the previous call; 0 on the first one.
        seconds = inf
        if self._at_ns >= 0:
            seconds = (now_ns - self._at_ns) / SECOND
        tokens_per_s = round((n_tokens - self._tokens) / seconds, 1)
        self._at_ns = now_ns
        self._tokens = n_tokens
        return [
            _since_s(now_ns, controller),
            running_users,
            tokens_per_s,
            *requests_at(controller.server),
            kv_pct(controller.server),
            *self.recent.look(),
        ]

    def _ended(self) -> dict[str, Any]:
        outcomes = self.live.counts.outcomes
        ended = sum(outcomes.values())
        return {"ended": ended, "failed": ended - outcomes[Outcome.ok]}

    def over(self, experiment: Experiment) -> None:
        """The load has ended and every record is here."""
        self.live.set_load(experiment.target.of_count(0), 0)
        self.live.set_level(len(experiment.controller.levels), "", "")
        self._past(experiment, over=True)
        self._show_metrics()
        self.state.now = self._ended()
        self._looked_at = self.page.open
        self.state.update_facts(**state_facts("computing"))

    def _past(self, experiment: Experiment, *, over: bool = False) -> None:
        """Tell of the levels that ended, and publish those new to the page with their brackets."""
        controller = experiment.controller
        levels = controller.levels
        self._n_steps = len(levels)
        ended = ended_levels(experiment, over=over)
        searches = experiment.wanted.kind.searches
        for number in range(len(self._rows), len(ended)):
            bracket = bracket_users(controller.plan, levels[: number + 1])
            row = _row(controller, number, ended[number], searches=searches)
            self._rows.append(row | {"bracket": bracket})
            # The page's script knows the levels by this name.
            self.state.update_facts(steps=list(self._rows), bracket=bracket)
        self._bracket = bracket_users(controller.plan, levels)
        low, high = self._bracket
        decisions = ["invalid" if level.invalid else level.judgement.decision for level in levels]
        low_or_nan = nan if low is None else low
        high_or_nan = nan if high is None else high
        self.live.set_progress(decisions, low_or_nan, high_or_nan)

    def answer(self, result: Result, words: str) -> None:
        """The results, and the report's words about them."""
        rows = zip(self.state.facts.get("steps", ()), result.levels, strict=False)
        slos = [Slo.parse(slo.slo) for slo in result.slos]
        steps = [row | _row_of_result(level, slos) for row, level in rows]
        self.state.update_facts(**ending(result, words), steps=steps)
        if result.knee is not None and result.status in (Status.found, Status.holds):
            self.live.set_knee(result)
        if result.kind.has_phases:  # some are over only with the load
            self.live.set_expectations({gate.name: gate.verdict for gate in result.gates})
        self._show_metrics()

    def linger(self) -> None:
        """Wait for the scrape that sees the answer."""
        if self._port is not None:
            with suppress(KeyboardInterrupt):  # everything is written: only the wait ends
                self._port.linger(LINGER_S)

    def _show_metrics(self) -> None:
        """From now on a scrape of the port sees what is known now."""
        if self._port is not None:
            self._port.body = self.live.page()


def _since_s(at_ns: int, controller: KneeController) -> float:
    """Seconds since the run began, as the page has them."""
    return round((at_ns - controller.began_ns) / SECOND, 1)


def requests_at(sample: ServerSample | None) -> list[int | None]:
    """The figures of SERVER_LINES; None: not known."""
    if sample is None:
        return [None for _ in SERVER_LINES]
    gauges = [getattr(sample, name) for name in SERVER_LINES]
    return [None if isnan(requests) else int(requests) for requests in gauges]


def engines_text(sample: ServerSample | None) -> str:
    """`engine 0: 5 + 1, engine 1: 3 + 0`, running and waiting; "": there is one."""
    if sample is None:
        return ""
    parts = []
    for name, engine in sample.replicas.items():
        gauges = ["?" if count is None else f"{count}" for count in requests_at(engine)]
        parts.append(f"{name}: {' + '.join(gauges)}")
    return ", ".join(parts)


def kv_pct(sample: ServerSample | None) -> float | None:
    """The share of the KV cache in use, in percent; None: not known."""
    if sample is None or isnan(sample.kv_usage):
        return None
    return round(100 * sample.kv_usage, 2)


def _level_in_progress(
    controller: KneeController, now_ns: int, running_users: int, wanted: Wanted
) -> dict[str, Any]:
    """The page's facts of the level that is held now."""
    now = controller.now
    if now is None:
        return {}
    # --confirm needs a quarter more, to get to the level from either side.
    most_ns = controller.plan.budget_ns + wanted.confirm_ns * 5 // 4
    left_ns = most_ns - (now_ns - controller.began_ns)
    return {
        "step": len(controller.levels) + 1,
        "users": now.hold.load.number,
        "purpose": _purpose(controller, len(controller.levels), now.hold, wanted.kind.searches),
        "phase": phase_text(now.phase, running_users, now.hold.load.users),
        "left_s": max(left_ns, 0) // SECOND,
    }


def _purpose(controller: KneeController, number: int, hold: Hold | Window, searches: bool) -> str:
    """Why the level of that number is held, in words."""
    before = [level.window.load for level in controller.levels[:number]]
    return purpose_text(hold.purpose, hold.load, before, searches=searches)


def _row(
    controller: KneeController, number: int, ended: EndedLevel, *, searches: bool
) -> dict[str, Any]:
    """What the page says of a level that has ended."""
    level = controller.levels[number]
    window = level.window
    return {
        "users": window.load.number,
        "purpose": _purpose(controller, number, window, searches),
        "result": result_text(level),
        "decision": Decision.invalid if level.invalid else level.judgement.decision,
        "why": level.invalid or level.judgement.reason,
        "from_s": _since_s(window.settled_ns, controller),
        "to_s": _since_s(window.end_ns, controller),
        **_p95_columns(ended.p95_ms),
    }


def _row_of_result(level: Level, slos: Sequence[Slo]) -> dict[str, Any]:
    """What the report says of a level: the page says the same."""
    p95_ms = {key: level.latency(key).at("p95") for key in HEADLINES}
    return {
        "decision": level.result,
        "result": reported_result_text(level, slos),
        "why": level.reason,
        **_p95_columns(p95_ms),
    }


def _p95_columns(p95_ms: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """The p95 of each headline with its interval, as JSON."""
    return {f"{key}_p95_ms": [_json(ms) for ms in interval] for key, interval in p95_ms.items()}


def _json(ms: float) -> float | str | None:
    if isnan(ms):
        return None
    return "inf" if isinf(ms) else round(ms, 2)


def kind_facts(kind: type[RunKind]) -> dict[str, Any]:
    """The page's facts of a kind of run."""
    return {
        "kind": kind.name,
        "title": kind.title or kind.name,
        "searches": kind.searches,
        "decides": kind.decides,
    }


def about(wanted: Wanted, url: str, model: str) -> dict[str, Any]:
    """The page's facts of what is asked for."""
    engine = wanted.target.engine
    unit = wanted.load.unit
    simulated = Target()
    if engine is not None:
        simulated = Target(model=model, simulated=True, gpu=engine.gpu)
    return {
        "target": url,
        "model": model,
        "simulated": simulated.label,
        "folder": wanted.output.out_dir.name,
        "slos": slo_facts(wanted.plan.slos),
        "processes": wanted.load.processes,
        "unit": unit.short_many if unit.by_schedule else "",  # of a level, where it is not users
    }


def ending(result: Result, answer: str) -> dict[str, Any]:
    """The page's facts of a run that has its results; `answer`: the report's, in words."""
    lines = [line for line in answer.strip().splitlines() if not line.startswith("The run folder")]
    if result.target.simulated:  # the first line says so, and on the page a badge
        lines = lines[1:]
    facts = state_facts(result.status)
    if result.kind.has_phases and result.gates:
        verdicts = [gate.verdict for gate in result.gates]
        worst = next(verdict for verdict in WORST_FIRST if verdict in verdicts)
        badge, tone = DRILLED[worst]
        facts |= {"badge": badge, "tone": tone, "expectations": to_json(result.gates)}
        # A table has what these lines say.
        lines = [line for line in lines if not line.startswith(("True", "False", "Inconclusive"))]
    level = result.at_knee
    if level is not None:  # the tiles have what this line says
        at_knee = f"At {level.load:,}: p95"
        lines = [line for line in lines if not line.startswith(at_knee)]
    knee = result.knee
    return facts | {
        "simulated": result.target.label,
        "sentence": lines[0] if lines else "",
        "answer": lines[1:],
        "knee": [knee.estimate, *result.knee_band] if knee else [None, None, None],
        "holds": knee.holds if knee else None,
        "tiles": [to_json(tile._asdict()) for tile in tiles(result)],
    }
