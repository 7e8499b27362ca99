"""Requests at a rate under the `locust` command: what locustfiles/rate.py imports.

Each start is a run like `vllm-harness run --rate`; Locust's users are the load processes.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import replace

from harness.core.run_kinds import LevelRun, RunKind
from harness.errors import ConfigError
from harness.load.lengths import FROM_DATA
from harness.locust.plain import LocustTestStudy
from harness.locust.plugin import register_study
from harness.run.option import declare_in_locusts_form
from harness.run.option_table import DURATION, OPEN_LOOP, RATE
from harness.run.study_options import Wanted, wanted_levels
from harness.search.held_levels import in_turn

OPTIONS = (RATE, DURATION, *OPEN_LOOP)


class LocustRateStudy(LocustTestStudy):
    """One level after another."""

    kind: type[RunKind] = LevelRun

    @staticmethod
    def add_arguments(parser: ArgumentParser) -> None:
        LocustTestStudy.add_arguments(parser)
        declare_in_locusts_form(parser, OPTIONS)

    def _wanted(self, form: Mapping[str, str]) -> Wanted:
        self.host.require_workers()
        test = super()._wanted(form)
        given = self.host.options
        values = {o.dest: o.read(str(getattr(given, o.dest))) for o in OPTIONS if o.read}
        if values["arrivals"] == FROM_DATA:
            raise ConfigError("--arrivals is data: expected constant, poisson or gamma:CV here.")
        work = test.load.workload
        if work.conversation or work.think_ms:
            raise ConfigError(
                f"--rate is given and the workload {work.name} has pauses or sessions: expected "
                "single requests; try --workload chat, without --think-time."
            )
        load = replace(
            test.load, arrivals=values["arrivals"], max_in_flight=values["max_in_flight"]
        )
        wanted = wanted_levels(
            self.kind,
            test.target,
            load,
            test.output,
            (values["rate"],),
            duration_ns=values["duration"],
            slos=test.plan.slos,
            max_errors=test.plan.max_errors,
        )
        self.choose = in_turn(wanted.holds)
        return wanted


register_study(LocustRateStudy)
