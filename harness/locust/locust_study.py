"""Whole experiments under the `locust` command, one after another on the same processes.

Each is like one of `vllm-harness`: the same checks before any load, run folder and results. The
results are computed by `vllm-harness report` in a process of its own, so that the web UI answers
meanwhile. What is asked for is a subclass's: a search (locust_knee.py), or a test by Locust
(plain.py).
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from harness.errors import EXIT_INTERRUPTED, HarnessError, RunFolderError
from harness.export.live_state import state_facts
from harness.load.request_fields import DEFAULT_FIELDS, names_in
from harness.locust import arguments
from harness.metrics.result import read_result
from harness.reader.loop_lag import sweep
from harness.run import form as forms
from harness.run.experiment import Experiment
from harness.run.option import declare_outside_locusts_form
from harness.run.option_table import BODY, HEADER, METRICS_URL, THINK_TIME
from harness.run.preflight import checked_target
from harness.run.study_options import LoadOptions, TargetOptions, Wanted
from harness.search.cause_hold import searching

if TYPE_CHECKING:
    from harness.core.run_kinds import RunKind
    from harness.load.workloads import Workload
    from harness.locust.plugin import LocustHost
    from harness.metrics.result import Result
    from harness.run.run_page import RunPage
    from harness.search.level_state import ChooseNext

logger = logging.getLogger("locust.harness")
BUG: Final = 1
# lists, all of them: of several think times the last one counts
REQUESTS: Final = HEADER, METRICS_URL, THINK_TIME._replace(action="append"), BODY


class LocustStudy:
    """One run after another. Subclasses say `kind`, `given`, `check` and `_wanted`."""

    kind: type[RunKind]
    server_flags: Mapping[str, int | float | str] = {}  # that the server was started with
    gpu_metrics: str | None = None
    choose: ChooseNext | None = None  # levels that are given; None: the search does

    def __init__(self, host: LocustHost, view: RunPage, idle: str) -> None:
        """Serve the page, which says `idle`; nothing is sent."""
        self.host = host
        self.view = view
        # now: a form could name any of these later
        self.texts: dict[str, list[str]] = {}
        self._values: dict[str, list[Any]] = {}
        for option in REQUESTS:
            texts = list(getattr(host.options, option.dest))
            self.texts[option.dest] = texts
            if option.read:
                self._values[option.dest] = [option.read(text) for text in texts]
        self._experiment: Experiment | None = None
        self._stopped = False
        view.state.begin(**state_facts("idle", idle))
        view.install(host.load)

    @staticmethod
    def add_arguments(parser: ArgumentParser) -> None:
        """What `vllm-harness` has of requests too."""
        group = parser.add_argument_group("requests (command line only)")
        declare_outside_locusts_form(group, REQUESTS)

    def _wanted(self, form: Mapping[str, str]) -> Wanted:
        """Raises HarnessError."""
        raise NotImplementedError

    def _code(self, result: Result) -> int | None:
        """The exit code, None for Locust's own."""
        return result.exit_code

    def stop(self) -> None:
        """End the run; what was measured is kept."""
        self._stopped = True
        experiment = self._experiment
        session = experiment.session if experiment is not None else None
        if session is None or session.over:  # not begun, or at its own end: not interrupted
            return
        self.view.state.update_facts(**state_facts("stopping"))
        session.interrupt()

    def run(self, form: Mapping[str, str]) -> int | None:
        """One run; its exit code. Whatever happens, the page says so."""
        self._stopped = False
        self._experiment = None
        self._begin(form)
        try:
            return self._conduct(self._wanted(form))
        except HarnessError as error:
            if self.view.folder is None:
                return self._refused(str(error), error.exit_code)
            return self._failed(str(error), error.exit_code)
        except Exception as error:
            logger.exception("The run failed.")
            return self._failed(f"A bug of the harness ended the run: {error!r}.", BUG)
        finally:
            self._experiment = None

    def _begin(self, form: Mapping[str, str]) -> None:
        self.view.starting(form["host"])

    def _target(self, url: str, model: str) -> TargetOptions:
        """The server, with what only the command line may say of it."""
        fixed = self.host.fixed
        headers = self._values["header"]
        key_source = ""
        if arguments.is_named(fixed["host"], url):
            key_source = str(fixed["api_key_env"] or "")
        else:
            # No secret goes there: neither the key nor a header that the environment fills in.
            headers = [(name, text) for name, text in headers if not names_in(text)[0]]
        has_own_key = any(name.lower() == "authorization" for name, _ in headers)
        api_key = ""
        if key_source and not has_own_key:
            api_key = os.environ.get(key_source, "")
        return TargetOptions(
            url=url,
            model=model or None,
            api_key=api_key,
            key_source=key_source if api_key else "",
            ca_file=Path(fixed["ca_file"]) if fixed["ca_file"] else None,
            insecure=bool(fixed["insecure"]),
            headers=tuple(headers),
            metrics_urls=tuple(dict.fromkeys(self._values["metrics_url"])),
            server_flags=self.server_flags,
            gpu_metrics=self.gpu_metrics,
        )

    def _requests(self, work: Workload) -> LoadOptions:
        """What is sent of it, and by how many processes."""
        for think_ms in self._values["think_time"]:
            work = replace(work, think_ms=think_ms)
        n_processes = max(self.host.load.n_workers, 1)
        body = {**DEFAULT_FIELDS, **dict(self._values["body"])}
        seed = int(self.host.options.seed)
        return LoadOptions(work, seed, n_processes, body=body)

    def _conduct(self, wanted: Wanted) -> int | None:
        if not self._load(wanted):
            return self._refused("it was stopped before it began.", EXIT_INTERRUPTED)
        self._experiment = None
        sweep()  # the records: the results, computed beside us, need their room
        return self._code(self._results(wanted.output.out_dir))

    def _load(self, wanted: Wanted) -> bool:
        """From the checks to the end of the load; whether it began."""
        checks = checked_target(
            wanted.target, wanted.load, wanted.output, wanted.most_users, tell=logger.info
        )
        with checks as (url, known):
            # Stop was pressed during the checks, when there was no session to interrupt.
            if self._stopped:
                return False
            load = self.host.load
            choose = self.choose or searching(has_metrics=known.metrics)
            self._experiment = Experiment.begin(
                wanted, url, known, choose=choose, load=load, view=self.view
            )
            self._experiment.conduct()
        return True

    def _results(self, folder: Path) -> Result:
        """Computed by a process of its own, so that this one answers; then said on the page."""
        command = [sys.executable, "-m", "harness", "report", str(folder)]
        done = subprocess.run(  # noqa: S603 - our own
            command,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for us; what was measured gets its results
        )
        result = read_result(folder)
        if result is None or not done.stdout:
            errors = done.stderr.strip().splitlines()
            why = errors[-1] if errors else "no word why"
            raise RunFolderError(
                f"the results of {folder.name} cannot be computed ({why}): expected the records to "
                f"be readable; try `vllm-harness report {folder}`."
            )
        logger.info("%s", done.stdout.strip())
        self.view.answer(result, done.stdout)
        return result

    def _refused(self, sentence: str, code: int) -> int:
        logger.error("%s", sentence)
        words = forms.in_labels(sentence)
        self.view.state.update_facts(**state_facts("refused", words))
        return code

    def _failed(self, sentence: str, code: int) -> int:
        logger.error("%s", sentence)
        self.view.state.update_facts(**state_facts("failed", sentence))
        return code
