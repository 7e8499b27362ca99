"""The search for the knee under the `locust` command: what locustfiles/knee.py imports.

    locust -f locustfiles/knee.py --host URL                   web UI, one process
    locust -f locustfiles/knee.py --host URL --processes 4     or --master and --worker

Each start, from our page, Locust's own or --headless, is a search like `vllm-harness knee`: the
same checks before any load, controller, run folder and results. The results are computed by
`vllm-harness report` in a process of its own, so that the web UI answers meanwhile.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import harness.drive.plugin  # noqa: F401 - options, records, the web UI
from harness.drive import arguments
from harness.drive.collecting import sweep
from harness.drive.hosted import conducts
from harness.drive.livepage import LivePage
from harness.drive.session import Ended
from harness.errors import EXIT_INTERRUPTED, HarnessError, RunFolderError
from harness.export.history import LiveState
from harness.export.live import LiveRun
from harness.export.states import facts_of
from harness.measure.recent import Recent
from harness.measure.search import SearchPlan
from harness.runfolder import names
from harness.runfolder.reader import read_result
from harness.server.address import Address
from harness.server.seats import flag_given
from harness.study import form as forms
from harness.study.experiment import Experiment, Wanted
from harness.study.livemetrics import RunMetrics
from harness.study.options import LoadOptions, OutputOptions, TargetOptions
from harness.study.preflight import ready
from harness.study.runpage import about, ending
from harness.study.watch import PageView

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Mapping

    from harness.drive.hosted import Host

logger = logging.getLogger("locust.harness")
BUG: Final = 1
FORM: Final = "Fill in the form and press Start."


class HostedKnee:
    """One search after another, on the same processes."""

    def __init__(self, host: Host) -> None:
        """Serve the page; nothing is sent."""
        self.host = host
        self.folder: Path | None = None
        given = host.options  # now: a form could name any of these later
        self.runs = Path(getattr(given, "runs", "") or "reports").absolute()
        self.gpu_metrics: str | None = given.gpu_metrics
        self.server_flags = dict(map(flag_given, given.server_flag))
        fields = {
            name: {"label": f.label, "hint": f.hint, "choices": f.choices}
            for name, f in forms.FIELDS.items()
        }
        always = {"kind": "knee", "fields": fields, "form": self.given()}
        self.state = LiveState(always)
        self.state.begin(**facts_of("idle", FORM))
        self._experiment: Experiment | None = None
        self._stopped = False
        page = LivePage(self.state, lambda: self.folder, self.host.start, self.host.stop)
        page.install(host.environment)

    @staticmethod
    def add_arguments(parser: ArgumentParser) -> None:
        """The search's options."""
        forms.add_arguments(parser)

    def given(self) -> dict[str, str]:
        """The form filled in."""
        return forms.given(self.host.options, self.host.environment.host or "")

    def check(self, form: Mapping[str, str]) -> dict[str, str]:
        """By field what is wrong."""
        return forms.read(form)[1]

    def stop(self) -> None:
        """End the run; what was measured is kept."""
        self._stopped = True
        session = self._experiment.session if self._experiment is not None else None
        if session is None or session.over_ns:  # not begun, or at its own end: not interrupted
            return
        self.state.tell(**facts_of("stopping"))
        session.interrupt()

    def run(self, form: Mapping[str, str]) -> int:
        """One search; its exit code. Whatever happens, the page says so."""
        self._begin(form)
        try:
            values, wrong = forms.read(form)
            if wrong:
                return self._refused(" ".join(wrong.values()), 2)
            return self._conduct(self._wanted(values))
        except HarnessError as error:
            if self.folder is None:
                return self._refused(str(error), error.exit_code)
            return self._failed(str(error), error.exit_code)
        except Exception as error:
            logger.exception("The search failed.")
            return self._failed(f"A bug of the harness ended the run: {error!r}.", BUG)
        finally:
            self._experiment = None

    def _begin(self, form: Mapping[str, str]) -> None:
        """Forget the run before."""
        self._stopped, self.folder, self._experiment = False, None, None
        filled = {name: field.default for name, field in forms.FIELDS.items()} | dict(form)
        self.state.begin(**facts_of("starting", filled["host"]), form=filled)

    def _wanted(self, values: Mapping[str, Any]) -> Wanted:
        self.host.require_workers()
        fixed = self.host.fixed
        source = arguments.key_source(self.host.environment, values["host"])
        key = os.environ.get(source, "") if source else ""
        target = TargetOptions(
            url=values["host"],
            model=values["model"] or None,
            api_key=key,
            key_source=source if key else "",
            ca_file=Path(fixed["ca_file"]) if fixed["ca_file"] else None,
            insecure=bool(fixed["insecure"]),
            server_flags=self.server_flags,
            gpu_metrics=self.gpu_metrics,
        )
        work = values["workload"].sized(
            values["prompt_tokens"] or None, values["output_tokens"] or None
        )
        seed = int(self.host.options.seed)
        plan = SearchPlan(
            slos=values["slo"],
            min_users=values["min_users"],
            max_users=values["max_users"],
            budget_ns=values["budget"],
            max_errors=values["max_errors"],
            seed=seed,
        )
        stamp = time.strftime("%Y%m%d-%H%M%S")
        output = OutputOptions(self.runs / f"knee-{stamp}", live=False)
        load = LoadOptions(work, seed, max(self.host.workers, 1))
        return Wanted("knee", target, load, output, plan, plan.max_users)

    def _conduct(self, wanted: Wanted) -> int:
        recent = Recent()
        live = LiveRun("knee", wanted.load.workload.name, wanted.plan.slos, recent)
        metrics = RunMetrics(live)
        ended = self._hold(wanted, live, recent, metrics)
        if ended is None:
            return self._refused("it was stopped before it began.", EXIT_INTERRUPTED)
        self.state.tell(**facts_of("computing"))
        self._experiment = None
        sweep()  # the records: the results, computed beside us, need their room
        folder = wanted.output.out_dir
        code = self._results(folder)
        metrics.result(read_result(folder))
        return code

    def _hold(
        self, wanted: Wanted, live: LiveRun, recent: Recent, metrics: RunMetrics
    ) -> Ended | None:
        """The load, from the checks to its end; None: stopped before it began."""
        output = wanted.output
        checked = ready(wanted.target, wanted.load, output, wanted.most_users, tell=logger.info)
        with checked as (url, known):
            if self._stopped:
                return None
            experiment = Experiment.begin(wanted, url, known, host=self.host)
            self._experiment, self.folder = experiment, output.out_dir
            experiment.metrics = metrics
            live.known(output.out_dir.name, known.model, Address.parse(url).authority)
            self.state.tell(**about(wanted, url, known.model))
            view = PageView(self.state, live.counts, recent)
            ended = Ended(True, "") if self._stopped else experiment.hold(view, live)
            done = experiment.controller.result
            view.over(experiment)
            status = done.status if done else ""
            experiment.folder.write_json(names.ENDED, asdict(ended) | {"status": status})
        return ended

    def _results(self, folder: Path) -> int:
        """Computed by a process of its own, so that this one answers; then said on the page."""
        command = [sys.executable, "-m", "harness", "report", str(folder)]
        done = subprocess.run(  # noqa: S603 - our own
            command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
        result = read_result(folder)
        if result is None or not done.stdout:
            told = done.stderr.strip().splitlines()
            raise RunFolderError(
                f"the results of {folder.name} cannot be computed "
                f"({told[-1] if told else 'no word why'}): expected the records to be readable; "
                f"try `vllm-harness report {folder}`."
            )
        logger.info("%s", done.stdout.strip())
        self.state.tell(**ending(result, done.stdout))
        return done.returncode

    def _refused(self, sentence: str, code: int) -> int:
        logger.error("%s", sentence)
        self.state.tell(**facts_of("refused", forms.in_labels(sentence)))
        return code

    def _failed(self, sentence: str, code: int) -> int:
        logger.error("%s", sentence)
        self.state.tell(**facts_of("failed", sentence))
        return code


conducts(HostedKnee)
