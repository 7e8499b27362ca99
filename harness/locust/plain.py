"""A test by Locust's own form or command line, as a run: what locustfiles/chat.py imports.

Import it in a locustfile whose users are of harness/senders/users.py, and nothing else is needed:
each test has a run folder with a report. `vllm-harness run` judges it: at one level, with one look
when all is over.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from harness.core.run_kinds import LocustRun, RunKind
from harness.core.states import Status
from harness.locust import arguments
from harness.locust.locust_study import LocustStudy
from harness.locust.plugin import LocustHost, register_study
from harness.metrics.slo import check_slos
from harness.records.new_folder import check_new
from harness.run import form as forms
from harness.run.run_page import RunPage
from harness.run.study_options import OutputOptions, Wanted

if TYPE_CHECKING:
    from harness.metrics.result import Result

START: Final = "Start the test on Locust's own page."


class LocustTestStudy(LocustStudy):
    """One test after another, each in a folder of its own."""

    kind: type[RunKind] = LocustRun

    def __init__(self, host: LocustHost) -> None:
        given: str = host.fixed["run_folder"]
        self._folder = Path(given).absolute() if given else None
        self._n_tests = 0
        plan = arguments.plan(host.environment)
        check_slos(plan.slos, arguments.chosen_workload(host.environment).output.mean)
        if self._folder is not None:
            check_new(self._folder, "--run-folder")
        super().__init__(host, RunPage(self.kind, plan.slos), START)

    def given(self) -> dict[str, str]:
        """What Locust's own form, or its command line, says that a sentence needs."""
        return {"host": self.host.environment.host or ""}

    def check(self, form: Mapping[str, str]) -> dict[str, str]:  # noqa: ARG002 - Study's signature
        """Nothing: Locust has begun."""
        return {}

    def _wanted(self, form: Mapping[str, str]) -> Wanted:
        environment = self.host.environment
        runner = self.host.load.runner
        self.view.page.stop = runner.stop
        url = forms.FIELDS["host"].read(form["host"])
        load = self._requests(arguments.chosen_workload(environment))
        plan = arguments.plan(environment)
        users = int(runner.target_user_count)
        target = self._target(url, self.host.options.model)
        output = OutputOptions(self._new_folder(), live=False)
        return Wanted(self.kind, target, load, output, lambda: (plan, ()), users)

    def _new_folder(self) -> Path:
        """As --run-folder says, with a number for each test after the first."""
        self._n_tests += 1
        if self._folder is None:
            stamp = time.strftime("%Y%m%d-%H%M%S")
            return Path(f"reports/locust-{stamp}").absolute()
        if self._n_tests == 1:
            return self._folder
        return self._folder.with_name(f"{self._folder.name}-{self._n_tests}")

    def _code(self, result: Result) -> int | None:
        """That of the result; where nothing was to be judged, Locust's own rule holds."""
        return None if result.status == Status.measured else result.exit_code

    def run(self, form: Mapping[str, str]) -> int | None:
        try:
            return super().run(form)
        finally:
            self.view.page.stop = None


register_study(LocustTestStudy)
