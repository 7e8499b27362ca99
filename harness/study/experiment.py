"""One run against a real target, from plain options to a finished run folder.

    check the machine -> start or probe the target -> create the folder -> hold levels -> results

The controller decides about the levels; this file gives it users, records and samples, and sees to
it that whatever happens the folder is readable and has a report.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from harness.drive.clock import CLOCK
from harness.drive.gpus import GpuSampler
from harness.drive.options import DriveOptions
from harness.drive.prepare import prepare
from harness.drive.reading import which
from harness.drive.session import Session
from harness.drive.traces import TraceReceiver
from harness.load.planner import clipped
from harness.measure.ledger import Ledger
from harness.measure.records import key_of
from harness.measure.slo import check_slos
from harness.runfolder import names
from harness.runfolder.recordwriter import RecordWriter
from harness.runfolder.runinfo import run_info
from harness.runfolder.serverlines import to_row
from harness.runfolder.writer import RunFolder
from harness.server.address import Address
from harness.server.gpu import open_gpus
from harness.server.seats import flags_of
from harness.study.controller import KneeController, Step, Target
from harness.study.usable import shared_tokens, unusable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.drive.hosted import Host
    from harness.drive.livepage import LivePage
    from harness.drive.session import Ended
    from harness.export.live import LiveRun
    from harness.measure.evidence import Window
    from harness.measure.recorded import Recorded
    from harness.measure.records import RecordSink
    from harness.measure.samples import ServerSample
    from harness.measure.search import SearchPlan
    from harness.measure.traces import Trace
    from harness.runfolder.serverlines import Bounds
    from harness.server.gpu import Gpus
    from harness.server.probe import Capabilities
    from harness.study.choosing import Choice
    from harness.study.livemetrics import RunMetrics
    from harness.study.options import LoadOptions, OutputOptions, TargetOptions
    from harness.study.watch import Ended as EndedLevel

KEPT_SAMPLES: Final = 900  # seconds of the server's samples in memory; the folder has all
TOKENS_NS: Final = 40_000_000_000  # as far back as the live view looks, and records come late
DRAIN_NS: Final = 60_000_000_000


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one experiment is asked to do."""

    kind: str  # knee, run, sweep
    target: TargetOptions
    load: LoadOptions
    output: OutputOptions
    plan: SearchPlan
    most_users: int
    levels: int = 0  # that were given; 0: a search chooses them
    plan_users: int | None = None  # as KneeOptions has them
    at_least: int | None = None
    baseline: str = ""
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        """Refuse SLOs that could not be judged."""
        check_slos(self.plan.slos, self.load.workload.output.mean)


@dataclass(slots=True)
class Experiment:
    """A run under way. `hold` blocks until it is over."""

    wanted: Wanted
    url: str
    known: Capabilities
    folder: RunFolder
    ledger: Ledger
    controller: KneeController
    samples: list[ServerSample]
    options: DriveOptions
    gpus: Gpus
    host: Host | None = None  # whose processes send; None: our own children
    metrics: RunMetrics | None = None
    page: LivePage | None = None
    session: Session | None = None  # while `hold` lasts
    ended: list[EndedLevel] = field(default_factory=list)  # what watch.py has looked up

    @classmethod
    def begin(
        cls,
        wanted: Wanted,
        url: str,
        known: Capabilities,
        *,
        choose: Choice | None = None,
        host: Host | None = None,
    ) -> Experiment:
        """Create the folder and write run.json. Raises RunFolderError, ServerUnreachable."""
        gpus = open_gpus(
            wanted.target.gpu_metrics, None if wanted.target.url is None else Address.parse(url)
        )
        options = prepare(drive_options(wanted, url, known), known).options
        options = replace(options, fresh=host is not None)
        folder = RunFolder.create(wanted.output.out_dir, [wanted.target.api_key])
        # a search looks at all tokens of its step, the view of a given level at the last ones
        ledger = Ledger(None if wanted.kind == "knee" else TOKENS_NS)
        samples: list[ServerSample] = []
        lines = folder.lines(names.STEPS)
        shared = shared_tokens(options.to_json())

        def audit(window: Window, seen: Recorded) -> str:
            return unusable(window, seen, samples, wanted.plan.slos, shared=shared)

        def on_step(step: Step) -> None:
            lines.append(step_line(step))

        controller = KneeController(
            wanted.plan, ledger, choose=choose, audit=audit, on_step=on_step
        )
        begun = cls(wanted, url, known, folder, ledger, controller, samples, options, gpus, host)
        folder.write_json(names.RUN, begun.info())
        return begun

    def info(self) -> dict[str, Any]:
        """run.json: enough to replay the search and to repeat the run."""
        plan = self.wanted.plan
        config = {
            "kind": self.wanted.kind,
            "plan": {**asdict(plan), "slos": [str(slo) for slo in plan.slos]},
            "slos": [str(slo) for slo in plan.slos],
            "plan_users": self.wanted.plan_users,
            "at_least": self.wanted.at_least,
            "baseline": self.wanted.baseline,
            "tolerance": self.wanted.tolerance,
            "compat": list(self.wanted.output.compat),
            "folder": str(self._folder_from_here()),
            "clipped_of_1000": clipped(self.options.workload, self.wanted.load.seed),
            "drive": self.options.to_json(),
        }
        engine = self.wanted.target.engine
        read = asdict(engine) if engine is not None else dict(self.known.flags)
        known = asdict(self.known)
        server = {
            **known.pop("cache"),
            **known,
            "url": self.url,
            "embedded": engine is not None,
            "flags": flags_of(read, self.wanted.target.server_flags),
            "read": sorted(read),  # of these flags the server itself told
        }
        seeds = {"load": self.wanted.load.seed, "search": plan.seed}
        told = {"reader": which(), "gpu": self.gpus.to_json()}
        return run_info(config, seeds=seeds, server=server) | told

    def _folder_from_here(self) -> Path:
        """The run folder as it was given, or below where the command was started."""
        given, here = self.wanted.output.out_dir, Path.cwd()
        return given.relative_to(here) if given.is_relative_to(here) else given

    def hold(self, view: Any = None, live: LiveRun | None = None) -> Ended:
        """Run the load until the controller is done, Ctrl-C, or a failure.

        `live`: what a host's own metrics page shows meanwhile.
        """
        scrapes = self.folder.lines(names.SERVER)

        bounds: Bounds = {}

        def on_sample(sample: ServerSample) -> None:
            sample = self.gpus.told(sample)
            scrapes.append(to_row(sample, bounds))
            self.samples.append(sample)
            del self.samples[:-KEPT_SAMPLES]

        watched = _Watched(self, view)
        sinks: list[RecordSink] = [RecordWriter(self.folder, 0), self.ledger]
        if self.metrics is not None and self.host is None:  # a host counts itself
            sinks.append(self.metrics.counts)
        if self.host is not None and live is not None:
            self.host.begin(self.options, sinks, live)
        session = self.session = Session(
            self.options,
            watched,
            sinks,
            ui_port=self.wanted.output.ui_port,
            on_sample=on_sample,
            drain_ns=DRAIN_NS,
            host=self.host,
            page=self.page,
        )
        own = self.folder.lines(names.CLIENT)

        def report() -> None:
            said = session.client_samples()
            for one in said:
                own.append(asdict(one))
            if self.metrics is not None:
                self.metrics.clients(said)

        watched.report = report
        try:
            with self._gpus_read(), self._traces_taken():
                ended = session.run()
        finally:
            self.session = None
            self.controller.close(session.over_ns or CLOCK.now_ns())
            scrapes.close()
            own.close()
        if self.metrics is not None:
            self.metrics.over(self.controller)
        return ended

    @contextlib.contextmanager
    def _traces_taken(self) -> Iterator[None]:
        """The server's traces go to their file meanwhile, where they are asked for."""
        port = self.wanted.output.otlp_port
        if port is None:
            yield
            return
        lines = self.folder.lines(names.TRACES)

        def on_traces(traces: list[Trace]) -> int:
            for trace in traces:
                lines.append(asdict(trace))
            return sum(key_of(self.options.run_id, one.request_id) is not None for one in traces)

        receiver = TraceReceiver(port, on_traces)
        try:
            yield
        finally:
            with contextlib.suppress(KeyboardInterrupt):  # waits for the last ones; they can wait
                receiver.close(expected=self.ledger.total)
            lines.close()

    @contextlib.contextmanager
    def _gpus_read(self) -> Iterator[None]:
        """Readings of the GPUs go to their file meanwhile, where there are any."""
        if self.gpus.source is None:
            yield
            return
        lines = self.folder.lines(names.GPU)
        sampler = GpuSampler(self.gpus.source, lambda sample: lines.append(asdict(sample)))
        try:
            yield
        finally:
            sampler.stop()
            lines.close()


class Viewer(Protocol):
    """Sees each tick of a run."""

    def show(self, experiment: Experiment, now_ns: int, running_users: int) -> None:
        """Must be quick: the run waits for it."""

    def over(self, experiment: Experiment) -> None:
        """The load has ended and every record is here."""


class _Watched:
    """The controller, with a view that sees each tick."""

    def __init__(self, experiment: Experiment, view: Any) -> None:
        self.experiment = experiment
        self.view = view
        self.report: Callable[[], None] = lambda: None  # writes down the client's own state

    def tick(
        self, now_ns: int, running_users: int, server: ServerSample | None, known_ns: int
    ) -> Target:
        target = self.experiment.controller.tick(now_ns, running_users, server, known_ns)
        self.report()
        if self.experiment.metrics is not None:
            self.experiment.metrics.tick(self.experiment.controller, target, running_users)
        self.view.show(self.experiment, now_ns, running_users)
        return target


def drive_options(wanted: Wanted, url: str, known: Capabilities) -> DriveOptions:
    """What the load processes are told; the key stays in the environment."""
    target, load, limits = wanted.target, wanted.load, wanted.target.timeouts
    return DriveOptions(
        url=url,
        model=known.model,
        workload=load.workload,
        seed=load.seed,
        run_id=f"{CLOCK.now_ns():x}",
        key_source=target.key_source,
        ca_file=str(target.ca_file or ""),
        insecure=target.insecure,
        connect_ns=limits.connect_ns,
        first_token_ns=limits.first_token_ns,
        idle_ns=limits.idle_ns,
        total_ns=limits.total_ns,
        processes=load.processes,
        request_ids=wanted.output.otlp_port is not None,
    )


def step_line(step: Step) -> dict[str, Any]:
    """One line of steps.jsonl."""
    judged = step.judgement
    return asdict(step.window) | {
        "decision": judged.decision,
        "reason": judged.reason,
        "invalid": step.invalid,
        "audited": step.audited,
    }
