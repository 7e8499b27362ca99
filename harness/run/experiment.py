"""One run against a real target, from plain options to a finished run folder.

    check the machine -> start or probe the target -> create the folder -> hold levels -> results

The controller decides about the levels; this file gives it users, records and samples, and sees to
it that whatever happens the folder is readable and has a report. The load comes from children of
this process, or from a LoadRunner that the `locust` command has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from harness.core.load import Load, Rate, Users
from harness.core.states import StopRule
from harness.diagnosis.client_host import host_figures, with_load_processes
from harness.drill.controller import DrillController
from harness.load.arrivals import LoadTarget
from harness.load.plan import count_clipped
from harness.metrics.ledger import Ledger
from harness.reader.backends import code_in_use
from harness.reader.clock import CLOCK
from harness.records import names
from harness.records.folder_reader import Bounds, to_row
from harness.records.folder_writer import RunFolder
from harness.records.redact import redact
from harness.records.runinfo import run_info
from harness.records.samples import ClientSample, HostSample, ServerSample, without_buckets
from harness.run.option_table import AUTO
from harness.run.scenario import to_toml
from harness.run.seats import with_seats
from harness.search.controller import ALL_FAILED, KneeController
from harness.search.explain_knee import invalid_reason, shared_prompt_tokens
from harness.search.locust_levels import ASKED, AskedUsers
from harness.senders.children import child_processes
from harness.senders.drive_options import DriveOptions
from harness.senders.host_state import read_host
from harness.senders.prepare import prepare
from harness.senders.scraper import GpuSampler
from harness.senders.session import ASKS_PER_S, Ended, Session
from harness.server.address import Address
from harness.server.gpu import GpuReadings, open_gpus
from harness.server.max_num_seqs import merge_flags
from harness.units import SECOND

if TYPE_CHECKING:
    from harness.drill.stage import Stage
    from harness.metrics.evidence import Window
    from harness.metrics.record_source import RecordSource
    from harness.records.request_record import RecordSink
    from harness.run.ended_level import EndedLevel
    from harness.run.study_options import Wanted
    from harness.search.level_state import ChooseNext, HeldLevel
    from harness.search.next_level import Hold, SearchPlan
    from harness.senders.load_runner import LoadRunner
    from harness.server.probe import Capabilities

DATA_TOO_SHORT: Final = (
    "the data ended before the load had settled: expected more rows than requests that settle it, "
    "two per user; try --data-end repeat."
)
LATELY_NS: Final = 10 * SECOND
WORTH_SHOWING: Final = 0.01  # of the time
KEPT_CLIENTS: Final = 16_000  # what load processes with a CPU limit have said
KEPT_SAMPLES: Final = 900  # seconds of the server's samples in memory; the folder has all
TOKENS_NS: Final = 40_000_000_000  # as far back as the live view looks, and records come late
DRAIN_NS: Final = 60_000_000_000
SHOWN_NS: Final = 900_000_000  # viewers see about one tick a second, however many there are


class _SampleFiles:
    """The files of what is sampled each second."""

    def __init__(self, folder: RunFolder, *, with_replicas: bool) -> None:
        self.server = folder.lines(names.SERVER)
        self.replicas = folder.lines(names.REPLICAS) if with_replicas else None
        self.client = folder.lines(names.CLIENT)
        self.host = folder.lines(names.HOST)
        self._bounds: Bounds = {}  # of histograms, each written once

    def add_server(self, sample: ServerSample) -> None:
        self.server.append(to_row(sample, self._bounds))

    def add_replicas(self, sample: ServerSample) -> None:
        """A scrape that not all replicas answered."""
        if self.replicas is not None:
            self.replicas.append(to_row(sample, {}))

    def add_clients(self, samples: Sequence[ClientSample]) -> None:
        for sample in samples:
            self.client.append(asdict(sample))

    def add_host(self, sample: HostSample) -> None:
        self.host.append(asdict(sample))

    def close(self) -> None:
        files = (self.server, self.replicas, self.client, self.host)
        for file in files:
            if file is not None:
                file.close()


@dataclass(slots=True)
class Experiment:
    """A run under way. `conduct` blocks until it is over."""

    wanted: Wanted
    url: str
    known: Capabilities
    folder: RunFolder
    ledger: Ledger
    controller: KneeController
    samples: list[ServerSample]
    options: DriveOptions
    gpus: GpuReadings
    load: LoadRunner | None = None  # whose processes send; None: our own children
    view: Page | None = None  # in a browser, or for Prometheus
    session: Session | None = None  # while the load lasts
    target: Load = field(default_factory=lambda: Users(0))  # what was asked for last
    hosts: list[HostSample] = field(default_factory=list)  # readings of this machine
    clients: list[ClientSample] = field(default_factory=list)  # of processes with a CPU limit
    ended: list[EndedLevel] = field(default_factory=list)  # what a viewer has looked up

    @classmethod
    def begin(
        cls,
        wanted: Wanted,
        url: str,
        known: Capabilities,
        *,
        choose: ChooseNext | None = None,
        load: LoadRunner | None = None,
        view: Page | None = None,
        stage: Stage | None = None,
    ) -> Experiment:
        """Create the folder and write run.json; `stage`: of a drill.

        Raises RunFolderError, ServerUnreachable.
        """
        wanted = with_seats(wanted, known)
        servers = [] if wanted.target.url is None else _addresses(url, known)
        gpus = open_gpus(wanted.target.gpu_metrics, servers)
        with gpus.closed_if_refused():
            options = prepare(drive_options(wanted, url, known), known)
            secrets = (wanted.target.api_key, *options.access().secrets)
            folder = RunFolder.create(wanted.output.out_dir, secrets)
        # Absolute: load processes write their records there, whatever directory they run in.
        run_folder = str(folder.path.absolute())
        options = replace(options, run_folder=run_folder)
        # A search looks at all tokens of its step, the view of a given level at the last ones.
        ledger = Ledger(None if wanted.kind.judges_live else TOKENS_NS, folder.path)
        samples: list[ServerSample] = []
        hosts: list[HostSample] = []
        clients: list[ClientSample] = []
        controller = _controller(
            wanted,
            folder,
            ledger,
            samples=samples,
            hosts=hosts,
            clients=clients,
            options=options,
            choose=choose,
            load=load,
            stage=stage,
        )
        begun = cls(
            wanted,
            url,
            known,
            folder,
            ledger,
            controller,
            samples,
            options,
            gpus,
            load,
            view,
            hosts=hosts,
            clients=clients,
        )
        folder.write_json(names.RUN, begun.info())
        if stage is not None:
            folder.write(names.DRILL, wanted.drill["text"])
        else:
            _write_scenario(wanted, folder)
        return begun

    def info(self) -> dict[str, Any]:
        """run.json: enough to replay the search and to repeat the run."""
        seeds = {"load": self.wanted.load.seed, "search": self.wanted.plan.seed}
        config = self._config()
        server = self._server_info()
        info = run_info(config, seeds=seeds, server=server)
        return info | code_in_use() | {"gpu": self.gpus.to_json()}

    def _config(self) -> dict[str, Any]:
        """What was asked for."""
        wanted = self.wanted
        slos = [str(slo) for slo in wanted.plan.slos]
        return {
            "kind": wanted.kind.name,
            "plan": wanted.plan.to_json(),
            "slos": slos,
            "plan_users": wanted.plan_users,
            "at_least": wanted.at_least,
            "strict": wanted.strict,
            "baseline": wanted.baseline,
            "tolerance": wanted.tolerance,
            "compat": list(wanted.output.compat),
            "folder": self._folder_name(),
            **self._clipping(),
            "drill": {key: value for key, value in wanted.drill.items() if key != "text"},
            "drive": self.options.to_json() | {"run_folder": ""},  # `folder` says it
        }

    def _folder_name(self) -> str:
        """The folder as it was given, or below where the command was started."""
        folder = self.wanted.output.out_dir
        here = Path.cwd()
        if folder.is_relative_to(here):
            folder = folder.relative_to(here)
        return str(folder)

    def _clipping(self) -> dict[str, Any]:
        """How many requests are clipped to the model's context: planned ones, or own data."""
        work = self.options.workload
        data = self.wanted.load.data
        if data is None:
            n_clipped = count_clipped(work, self.wanted.load.seed)
            return {"clipped_of_1000": n_clipped, "data": None}
        n_clipped = data.n_clipped(work.max_model_len)
        rows = {"rows": len(data), "clipped": n_clipped}
        return {"clipped_of_1000": 0, "data": rows}

    def _server_info(self) -> dict[str, Any]:
        """What is known of the server, by itself and by the user."""
        engine = self.wanted.target.engine
        reported = dict(self.known.flags) if engine is None else asdict(engine)
        known = asdict(self.known)
        cache = known.pop("cache")
        flags = merge_flags(reported, self.wanted.target.server_flags)
        return {
            **cache,
            **known,
            "url": self.url,
            "embedded": engine is not None,
            "flags": flags,
            "read": sorted(reported),  # of these flags the server itself told
        }

    def conduct(self, viewer: Viewer | None = None) -> None:
        """Run the load until the controller is done, Ctrl-C, or a failure; write how it ended.

        `viewer` sees each second, as `view` does.
        """
        viewers = [watching for watching in (self.view, viewer) if watching is not None]
        with contextlib.ExitStack() as stack:
            load = self.load
            if load is None:
                load = stack.enter_context(child_processes(self.options))
                if self.view is not None and self.wanted.output.ui_port is not None:
                    self.view.serve(load, self.wanted.output.ui_port)
            ended = self._hold(load, viewers)
        ended = replace(ended, invalid=self._why_invalid(ended))
        for watching in viewers:
            watching.over(self)
        self.folder.write_json(names.ENDED, self._ended_row(ended))

    def _why_invalid(self, ended: Ended) -> str:
        """Why the run says nothing, or "": the session's own reason comes first."""
        if ended.invalid:
            return ended.invalid
        from_data = self.options.requests >= 0
        if from_data and not self.controller.levels and not ended.interrupted:
            return DATA_TOO_SHORT
        if isinstance(self.controller, DrillController):
            return self.controller.stage.failed
        return ""

    def _ended_row(self, ended: Ended) -> dict[str, Any]:
        """ended.json: how the live run ended."""
        done = self.controller.result
        row = asdict(ended) | {"status": done.status if done else ""}
        if isinstance(self.controller, Observer):
            row[ASKED] = [asdict(users) for users in self.controller.asked]
        return row

    @property
    def _has_several(self) -> bool:
        """Whether the metrics of more than one server are read."""
        return len(self.options.metrics) + len(self.options.prefill) > 1

    def _hold(self, load: LoadRunner, viewers: Sequence[Viewer]) -> Ended:
        """Send until the controller is done; what is sampled meanwhile goes to its files."""
        decides = self.wanted.kind.decides
        files = _SampleFiles(self.folder, with_replicas=self._has_several)
        watched = _Watched(self, viewers)
        session = Session(
            load,
            self.options,
            watched,
            self._sinks(decides=decides),
            on_sample=partial(self._take_sample, files),
            on_some=None if files.replicas is None else files.add_replicas,
            drain_ns=DRAIN_NS,
            decides=decides,
            asks_per_s=ASKS_PER_S if self.wanted.never_pauses else 1,
        )
        self.session = session
        watched.report = partial(self._report, session, files)
        try:
            with self._gpus_read():
                return session.run()
        finally:
            self.session = None
            all_ended = 0 <= self.options.requests <= self.ledger.total
            data_ended = all_ended and not session.interrupted
            over_ns = session.over_ns or CLOCK.now_ns()
            self.controller.close(over_ns, data_ended=data_ended)
            files.close()

    def _sinks(self, *, decides: bool) -> list[RecordSink]:
        """Where the records go besides the folder."""
        sinks: list[RecordSink] = []
        if decides:
            sinks.append(self.ledger)
        if self.view is not None:
            sinks += self.view.begin(self.wanted, self.url, self.known.model)
        return sinks

    def _take_sample(self, files: _SampleFiles, sample: ServerSample) -> None:
        """A scrape of the server has come."""
        sample = self.gpus.with_engine_cpu(sample)
        files.add_server(sample)
        self.samples.append(without_buckets(sample))  # a check of a level reads counts
        del self.samples[:-KEPT_SAMPLES]

    def throttled_lately(self, now_ns: int) -> str:
        """`throttled 12% of the time`, of the last ten seconds; "" where no CPU limit does that."""
        span = (now_ns - LATELY_NS, now_ns)
        host = with_load_processes(host_figures(self.hosts, *span), self.clients, *span)
        share = 0.0 if isnan(host.throttled) else host.throttled
        return f"throttled {share:.0%} of the time" if share >= WORTH_SHOWING else ""

    def _report(self, session: Session, files: _SampleFiles) -> None:
        """Write down the client's own state."""
        samples = session.client_samples()
        files.add_clients(samples)
        self.clients += [sample for sample in samples if not isnan(sample.throttled_s)]
        del self.clients[:-KEPT_CLIENTS]
        if self.view is not None:
            self.view.clients(samples)
        if self.load is None:  # else its processes may be on other machines
            host = read_host(CLOCK.now_ns())
            files.add_host(host)
            self.hosts.append(host)
            del self.hosts[:-KEPT_SAMPLES]

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


class Observer(KneeController):
    """Decides nothing: Locust's own form or command line says how many users there are."""

    def __init__(self, plan: SearchPlan, ledger: Ledger, load: LoadRunner) -> None:
        super().__init__(plan, ledger)
        self._load = load
        self.asked: list[AskedUsers] = []  # one after another

    def tick(
        self,
        now_ns: int,
        running_users: int,
        server: ServerSample | None = None,
        known_ns: int | None = None,  # noqa: ARG002 - as above
    ) -> LoadTarget:
        """What Locust was asked for."""
        self.server = server
        if self.began_ns < 0:
            self.began_ns = now_ns
        wanted = int(self._load.runner.target_user_count)
        if not self.asked or self.asked[-1].asked != wanted:
            self.asked.append(AskedUsers(wanted, now_ns, now_ns))
        now = self.asked[-1]
        now.until_ns = now_ns
        # Locust counts those who were told to leave as users until they have.
        if now.there_ns < 0 and running_users == wanted:
            now.there_ns = now_ns
            now.users = self._load.own_users()
        return LoadTarget(wanted, 1.0)


def _write_scenario(wanted: Wanted, folder: RunFolder) -> None:
    scenario = redact(wanted.output.scenario, folder.secrets)
    if scenario:
        folder.write(names.SCENARIO, to_toml(scenario, wanted.kind.name))


def _controller(
    wanted: Wanted,
    folder: RunFolder,
    ledger: Ledger,
    *,
    samples: list[ServerSample],
    hosts: list[HostSample],
    clients: list[ClientSample],
    options: DriveOptions,
    choose: ChooseNext | None,
    load: LoadRunner | None,
    stage: Stage | None,
) -> KneeController:
    """What asks for the levels: Locust's own test, a drill, or a search."""
    if not wanted.kind.decides and load is not None:
        return Observer(wanted.plan, ledger, load)
    lines = folder.lines(names.LEVELS)
    shared = shared_prompt_tokens(options.to_json())

    def audit(window: Window, records: RecordSource) -> str:
        span = (window.settled_ns, window.end_ns)
        host = with_load_processes(host_figures(hosts, *span), clients, *span)
        slos = wanted.plan.slos
        return invalid_reason(window, records, samples, slos, shared=shared, host=host)

    def on_level(step: HeldLevel) -> None:
        lines.append(_level_line(step))

    if stage is not None:
        stage.log = folder.lines(names.EVENTS).append
        return DrillController(stage, wanted.plan, ledger, audit=audit, on_level=on_level)
    return KneeController(wanted.plan, ledger, choose=choose, audit=audit, on_level=on_level)


def _level_line(step: HeldLevel) -> dict[str, Any]:
    """A line of levels.jsonl."""
    judged = step.judgement
    return step.window.to_json() | {
        "decision": judged.decision,
        "reason": judged.reason,
        "invalid": step.invalid,
        "audited": step.audited,
    }


class Viewer(Protocol):
    """Sees each tick of a run."""

    def show(self, experiment: Experiment, now_ns: int, running_users: int) -> None:
        """Must be quick: the run waits for it."""

    def over(self, experiment: Experiment) -> None:
        """The load has ended and every record is here."""


class Page(Viewer, Protocol):
    """A viewer that others reach by HTTP: in a browser, or Prometheus."""

    def serve(self, load: LoadRunner, port: int) -> None:
        """Be reachable at this port of the process that sends."""

    def begin(self, wanted: Wanted, url: str, model: str) -> list[RecordSink]:
        """A run begins; what it records goes to these sinks, too."""

    def clients(self, samples: list[ClientSample]) -> None:
        """Take what the load processes say of themselves."""


class _Watched:
    """The controller, with viewers that see each tick."""

    def __init__(self, experiment: Experiment, viewers: Sequence[Viewer]) -> None:
        self.experiment = experiment
        self.viewers = viewers
        self.report: Callable[[], None] = lambda: None  # writes down the client's own state
        self.shown_ns = 0

    def tick(
        self, now_ns: int, running_users: int, server: ServerSample | None, known_ns: int
    ) -> LoadTarget:
        target = self.experiment.controller.tick(now_ns, running_users, server, known_ns)
        if target.pace is not None:
            self.experiment.target = Rate(target.pace[1])
        elif not target.done:
            self.experiment.target = Users(target.users)
        if now_ns - self.shown_ns < SHOWN_NS and not target.done:
            return target
        self.shown_ns = now_ns
        self.report()
        if target.pace is not None:  # for people; Locust's users are the processes
            running_users = self.experiment.ledger.in_flight
        for viewer in self.viewers:
            viewer.show(self.experiment, now_ns, running_users)
        return target


def _addresses(url: str, known: Capabilities) -> list[Address]:
    """Of the servers: those behind a balancer, where it is known which they are."""
    places = (*known.replicas, *known.prefill)
    behind = [Address.parse(place) for place in places if "://" in place]
    return behind or [Address.parse(url)]


def most_failures(holds: Sequence[Hold]) -> int:
    """After how many failures one after another senders pause: of levels of so many requests."""
    requests = [hold.max_requests for hold in holds if hold.stop == StopRule.requests]
    return max(*requests, ALL_FAILED) if requests else 0


def drive_options(wanted: Wanted, url: str, known: Capabilities) -> DriveOptions:
    """What the load processes are told; the key stays in the environment."""
    target = wanted.target
    load = wanted.load
    data = load.data
    run_id = f"{CLOCK.now_ns():x}"
    if data is not None and data.salt == AUTO:
        data.salt = run_id
    return DriveOptions(
        url=url,
        model=known.model,
        workload=load.workload,
        seed=load.seed,
        metrics=known.replicas,
        prefill=known.prefill,
        run_id=run_id,
        salt=load.salt,
        data=data.to_json() if data else {},
        requests=len(data) if data and not data.repeat else -1,
        key_source=target.key_source,
        ca_file=str(target.ca_file or ""),
        insecure=target.insecure,
        timeouts=target.timeouts,
        processes=load.processes,
        body=load.body,
        headers=target.headers,
        batch=load.batch,
        most_failures=0 if load.unit.by_schedule else most_failures(wanted.holds),
        arrivals=load.arrivals,
        max_in_flight=load.max_in_flight,
        retries=load.retries,
    )
