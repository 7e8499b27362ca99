"""report.html: one self-contained file, the answer first."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from harness.measure.result import Bottleneck
from harness.report.cells import cards, table_row
from harness.report.compat import COLUMNS, beside
from harness.report.curves import curves
from harness.report.distributions import distributions
from harness.report.facts import mapping
from harness.report.instrument import clients, quantiles
from harness.report.notes import instrument, settings, target, unknown
from harness.report.say import count
from harness.report.timeline import timeline
from harness.report.traced import traced_rows
from harness.report.waterfall import bucket_rows, in_words, table_rows, waterfall
from harness.report.words import sentence

if TYPE_CHECKING:
    from harness.report.answer import Answer
    from harness.report.facts import Facts

TEXTS: Final = ("Purpose", "Result", "Why")  # columns that are words


def html(facts: Facts, answer: Answer) -> str:
    """The page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - only here

    environment = Environment(
        loader=PackageLoader("harness.report"), autoescape=True, undefined=StrictUndefined
    )
    environment.filters["sentence"] = sentence
    command = facts.run.info.get("command")
    rows = [table_row(facts, step) for step in facts.steps]
    return environment.get_template("report.html.j2").render(
        title=f"vllm-harness: {answer.headline}",
        answer=answer,
        cards=cards(facts),
        curves=curves(facts),
        distributions=distributions(facts),
        waterfall=waterfall(facts),
        split=table_rows(facts),
        buckets=bucket_rows(facts),
        split_words=in_words(facts),
        traced=traced_rows(facts),
        timeline=timeline(facts),
        verdict=facts.result.bottleneck or Bottleneck(),
        searched=facts.searched,
        knee=facts.knee.estimate is not None,
        simulated=facts.result.target.label,
        columns=list(rows[0]) if rows else [],
        texts=TEXTS,
        rows=rows,
        beside=beside(facts),
        beside_columns=COLUMNS,
        instrument=instrument(facts),
        quantiles=quantiles(facts),
        at_users=count(facts.measured_at, "user") if facts.measured_at else "",
        clients=clients(facts),
        unknown=unknown(facts),
        settings=settings(facts),
        command=shlex.join(map(str, command if isinstance(command, list) else [])),
        started=str(mapping(facts.run.info.get("clock")).get("started", "")),
        target=target(facts),
        folder=shlex.quote(str(facts.config.get("folder") or facts.run.path)),
    )
