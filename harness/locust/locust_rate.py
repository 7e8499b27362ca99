"""Requests at a rate under the `locust` command: what locustfiles/rate.py imports.

Each start is a run like `vllm-harness run --rate`; Locust's users are the load processes.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import replace

from harness.errors import ConfigError
from harness.load.lengths import FROM_DATA
from harness.locust.plain import LocustTestStudy
from harness.locust.plugin import register_study
from harness.run.option import declare_in_locusts_form
from harness.run.option_table import DURATION, OPEN_LOOP, RATE
from harness.run.study_options import Wanted, wanted_levels
from harness.search.held_levels import in_turn

OPTIONS = RATE, DURATION, *OPEN_LOOP


class LocustRateStudy(LocustTestStudy):
    """One level after another."""

    decides = True
    kind = "run"

    @staticmethod
    def add_arguments(parser: ArgumentParser) -> None:
        LocustTestStudy.add_arguments(parser)
        declare_in_locusts_form(parser, OPTIONS)

    def _wanted(self, form: Mapping[str, str]) -> Wanted:
        self.host.require_workers()
        one, asked = super()._wanted(form), self.host.options
        value = {o.dest: o.read(str(getattr(asked, o.dest))) for o in OPTIONS if o.read}
        arrivals, most = value["arrivals"], value["max_in_flight"]
        if arrivals == FROM_DATA:
            raise ConfigError("--arrivals is data: expected constant, poisson or gamma:CV here.")
        if (work := one.load.workload).conversation or work.think_ms:
            raise ConfigError(
                f"--rate is given and the workload {work.name} has pauses or sessions: expected "
                "single requests; try --workload chat, without --think-time."
            )
        load, length = replace(one.load, arrivals=arrivals, max_in_flight=most), value["duration"]
        wanted = wanted_levels(
            self.kind,
            one.target,
            load,
            one.output,
            (value["rate"],),
            duration_ns=length,
            slos=one.plan.slos,
            max_errors=one.plan.max_errors,
        )
        self.choose = in_turn(wanted.holds)
        return wanted


register_study(LocustRateStudy)
