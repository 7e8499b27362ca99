"""The search for the knee under the `locust` command: what locustfiles/knee.py imports.

    locust -f locustfiles/knee.py --host URL                   web UI, one process
    locust -f locustfiles/knee.py --host URL --processes 4     or --master and --worker

Each start, from our page, Locust's own or --headless, is a search like `vllm-harness knee`.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from harness.core.run_kinds import KneeRun, RunKind
from harness.errors import ConfigError
from harness.locust.locust_study import LocustStudy
from harness.locust.plugin import LocustHost, register_study
from harness.metrics.slo import check_slos
from harness.run import form as forms
from harness.run.run_page import RunPage
from harness.run.study_options import OutputOptions, Wanted
from harness.search.next_level import SearchPlan
from harness.server.max_num_seqs import parse_server_flag

FORM: Final = "Fill in the form and press Start."


class LocustKneeStudy(LocustStudy):
    """One search after another."""

    kind: type[RunKind] = KneeRun

    def __init__(self, host: LocustHost) -> None:
        given = host.options  # now: a form could name any of these later
        self.runs = Path(getattr(given, "runs", "") or "reports").absolute()
        self.gpu_metrics = given.gpu_metrics
        self.server_flags = dict(map(parse_server_flag, given.server_flag))
        self.host = host
        fields = {}
        for name, field in forms.FIELDS.items():
            shown = ("label", "hint", "placeholder", "choices")
            fields[name] = {part: getattr(field, part) for part in shown}
        view = RunPage(self.kind, fields=fields, form=self.given())
        view.page.start = host.start
        view.page.stop = host.stop
        super().__init__(host, view, FORM)

    @staticmethod
    def add_arguments(parser: ArgumentParser) -> None:
        LocustStudy.add_arguments(parser)
        forms.add_arguments(parser)

    def given(self) -> dict[str, str]:
        return forms.form_values(self.host.options, self.host.environment.host or "")

    def check(self, form: Mapping[str, str]) -> dict[str, str]:
        _, wrong = forms.read_form(form)
        return wrong

    def _begin(self, form: Mapping[str, str]) -> None:
        defaults = {name: field.default for name, field in forms.FIELDS.items()}
        filled = defaults | dict(form)
        self.view.starting(filled["host"], form=filled)

    def _wanted(self, form: Mapping[str, str]) -> Wanted:
        values: dict[str, Any]
        values, wrong = forms.read_form(form)
        if wrong:
            raise ConfigError(" ".join(wrong.values()))
        self.host.require_workers()
        prompt_tokens = values["prompt_tokens"] or None
        output_tokens = values["output_tokens"] or None
        work = values["workload"].sized(prompt_tokens, output_tokens)
        plan = SearchPlan(
            slos=values["slo"],
            min_users=values["min_users"],
            max_users=values["max_users"],
            budget_ns=values["budget"],
            precision=values["precision"],
            max_errors=values["max_errors"],
            seed=self._seed,
        )
        stamp = time.strftime("%Y%m%d-%H%M%S")
        scenario = self._scenario(form, values)
        output = OutputOptions(self.runs / f"knee-{stamp}", live=False, scenario=scenario)
        load = self._requests(work)
        target = self._target(values["host"], values["model"])
        check_slos(plan.slos, work.output.mean)
        return Wanted(self.kind, target, load, output, lambda: (plan, ()), plan.max_users)

    @property
    def _seed(self) -> int:
        return int(self.host.options.seed)

    def _scenario(self, form: Mapping[str, str], values: Mapping[str, Any]) -> dict[str, Any]:
        """What repeats the search: the form's part, and what only the command line says."""
        scenario = forms.scenario_of(form, values) | {"seed": self._seed}
        scenario["server-flag"] = [f"{name}={value}" for name, value in self.server_flags.items()]
        for name, texts in self.texts.items():
            if texts:
                scenario[name.replace("_", "-")] = texts
        return scenario


register_study(LocustKneeStudy)
