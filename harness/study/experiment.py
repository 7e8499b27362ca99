"""One run against a real target, from plain options to a finished run folder.

    check the machine -> start or probe the target -> create the folder -> hold levels -> results

The controller decides about the levels; this file gives it users, records and samples, and sees to
it that whatever happens the folder is readable and has a report.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from harness.drive.clock import CLOCK
from harness.drive.options import DriveOptions
from harness.drive.prepare import prepare
from harness.drive.session import Session
from harness.engine.process import EngineProcess, start_engine
from harness.measure.audit import audit_sentence
from harness.measure.ledger import Ledger
from harness.runfolder import names
from harness.runfolder.recordwriter import RecordWriter
from harness.runfolder.runinfo import run_info
from harness.runfolder.writer import RunFolder
from harness.study.controller import KneeController, Step, Target
from harness.study.preflight import check_machine, check_target

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.drive.session import Ended
    from harness.measure.evidence import Window
    from harness.measure.samples import ServerSample
    from harness.measure.search import SearchPlan
    from harness.measure.table import RecordTable
    from harness.server.probe import Capabilities
    from harness.study.controller import Choice
    from harness.study.options import LoadOptions, OutputOptions, TargetOptions

KEPT_SAMPLES: Final = 900  # seconds of the server's samples in memory; the folder has all
DRAIN_NS: Final = 60_000_000_000


@contextlib.contextmanager
def target_url(target: TargetOptions) -> Iterator[str]:
    """The server's address; without one, the embedded engine runs as long as this lasts."""
    if target.url is not None:
        yield target.url
        return
    assert target.engine is not None  # noqa: S101 - options promise it
    engine: EngineProcess = start_engine(target.engine)
    try:
        yield engine.url
    finally:
        engine.stop()


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one experiment is asked to do."""

    kind: str  # knee, run, sweep
    target: TargetOptions
    load: LoadOptions
    output: OutputOptions
    plan: SearchPlan
    most_users: int
    requests: int = -1  # stop after so many in all


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
    plan_users: int | None = None

    @classmethod
    def begin(
        cls,
        wanted: Wanted,
        url: str,
        known: Capabilities,
        choose: Choice | None = None,
        plan_users: int | None = None,
    ) -> Experiment:
        """Create the folder and write run.json. Raises RunFolderError, ServerUnreachable."""
        options = prepare(drive_options(wanted, url, known), known).options
        folder = RunFolder.create(wanted.output.out_dir, [wanted.target.api_key])
        ledger = Ledger()
        samples: list[ServerSample] = []
        lines = folder.lines(names.STEPS)
        shared = options.calibration.overhead + options.workload.system_tokens

        def audit(window: Window, table: RecordTable) -> str:
            return audit_sentence(table, window, samples, shared)

        def on_step(step: Step) -> None:
            lines.append(step_line(step))

        controller = KneeController(
            wanted.plan, ledger, choose=choose, audit=audit, on_step=on_step
        )
        begun = cls(wanted, url, known, folder, ledger, controller, samples, options, plan_users)
        folder.write_json(names.RUN, begun.info())
        return begun

    def info(self) -> dict[str, Any]:
        """run.json: enough to replay the search and to repeat the run."""
        plan = self.wanted.plan
        config = {
            "kind": self.wanted.kind,
            "plan": {**asdict(plan), "slos": [str(slo) for slo in plan.slos]},
            "slos": [str(slo) for slo in plan.slos],
            "plan_users": self.plan_users,
            "lag_ns": self.controller.lag_ns,
            "requests": self.wanted.requests,
            "drive": self.options.to_json(),
        }
        engine = self.wanted.target.engine
        server = asdict(self.known) | {
            "url": self.url,
            "embedded": self.wanted.target.url is None,
            "flags": asdict(engine) if engine is not None else {},
        }
        seeds = {"load": self.wanted.load.seed, "search": plan.seed}
        return run_info(config, seeds=seeds, server=server)

    def hold(self, view: Any = None) -> Ended:
        """Run the load until the controller is done, Ctrl-C, or a failure."""
        scrapes = self.folder.lines(names.SERVER)

        def on_sample(sample: ServerSample) -> None:
            scrapes.append(asdict(sample))
            self.samples.append(sample)
            del self.samples[:-KEPT_SAMPLES]

        session = Session(
            self.options,
            _Watched(self, view),
            [RecordWriter(self.folder, 0), self.ledger],
            ui_port=self.wanted.output.ui_port,
            on_sample=on_sample,
            drain_ns=DRAIN_NS,
            apart=True,
        )
        try:
            ended = session.run()
        finally:
            self._close(session.over_ns or CLOCK.now_ns())
            scrapes.close()
        return ended

    def _close(self, over_ns: int) -> None:
        """End the step under way: at `over_ns`, or where its last request was sent.

        After that one users become fewer. A run of so few requests that it never settled is
        measured as a whole; Little's law does not hold there.
        """
        now = self.controller.now
        if now is not None and now.hold.until == "requests":
            table = self.ledger.table(now.began_ns, over_ns)
            last_ns = int(table.sent_ns.max(initial=now.began_ns))
            if 0 <= now.settled_ns < last_ns:
                over_ns = last_ns
            else:
                now.settled_ns = int(table.sent_ns.min(initial=over_ns)) - 1
                over_ns = int(table.done_ns.max(initial=now.settled_ns))
                self.controller.audit = lambda _window, _table: ""
        self.controller.close(over_ns)


class Viewer(Protocol):
    """Sees each tick of a run."""

    def show(self, experiment: Experiment, now_ns: int, running_users: int) -> None:
        """Must be quick: the run waits for it."""


class _Watched:
    """The controller, with a view that sees each tick."""

    def __init__(self, experiment: Experiment, view: Any) -> None:
        self.experiment = experiment
        self.view = view

    def tick(self, now_ns: int, running_users: int, server: ServerSample | None) -> Target:
        target = self.experiment.controller.tick(now_ns, running_users, server)
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
        requests=wanted.requests,
        processes=load.processes,
    )


def step_line(step: Step) -> dict[str, Any]:
    """One line of steps.jsonl."""
    judged = step.judgement
    return asdict(step.window) | {
        "decision": judged.decision,
        "reason": judged.reason,
        "invalid": step.invalid,
    }


@contextlib.contextmanager
def ready(wanted: Wanted) -> Iterator[tuple[str, Capabilities]]:
    """Everything checked before any load: (url, what the server is). Raises what stops it."""
    check_machine(wanted.output, wanted.most_users)
    with target_url(wanted.target) as url:
        yield url, check_target(wanted.target, wanted.load, url)
