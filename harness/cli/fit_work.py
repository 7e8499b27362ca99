"""`fit`: does a model fit on a GPU, and for how many users."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from harness.capacity.fit_answer import answer
from harness.capacity.fit_layouts import splits
from harness.capacity.fit_question import question
from harness.capacity.fit_words import gb, sentence
from harness.cli.json_output import write_json
from harness.errors import EXIT_INCONCLUSIVE, EXIT_OK, EXIT_SLO_MISSED, ConfigError
from harness.report.templates import render

if TYPE_CHECKING:
    import argparse

    from harness.capacity.fit_question import Question

# By whether it fits; None: not known.
EXIT_CODES: Final = {True: EXIT_OK, False: EXIT_SLO_MISSED, None: EXIT_INCONCLUSIVE}


def fit(args: argparse.Namespace) -> int:
    """Compute, say it, write it. Raises ConfigError, ServerUnreachable."""
    _check(args)
    asked = question(args)
    facts: dict[str, Any] = answer(asked)
    facts["splits"] = splits(args, asked)
    facts["prefill_apart"] = _prefill_apart(args, asked)
    page = render("fit.txt.j2", args=args, gb=gb, sentence=sentence(asked, facts), **facts)
    stream = sys.stderr if args.json == "-" else sys.stdout
    stream.write(page)
    if args.json:
        write_json(args.json, facts)
    return EXIT_CODES[facts["fits"]]


def _prefill_apart(args: argparse.Namespace, asked: Question) -> dict[str, Any] | None:
    """Return what prefill apart does, its choice in words and what measures it; None: not asked."""
    if not args.prefill_apart:
        return None
    # Only here: what is drawn needs NumPy, which takes longer to load than all else takes.
    from harness.capacity.fit_apart import prefill_apart  # noqa: PLC0415
    from harness.capacity.fit_apart_words import choice_words, measure_both  # noqa: PLC0415

    apart = prefill_apart(args, asked)
    return apart | {"sentence": choice_words(apart), "measure": measure_both(args, apart)}


def _check(args: argparse.Namespace) -> None:
    """Raise ConfigError for options that need others."""
    needs_shape = {
        "--gpus": args.gpus,
        "--prefill-apart": args.prefill_apart,
        "--draft": args.draft,
        "--quantization": args.quantization,
    }
    if args.slo and not args.prefill_apart:
        raise ConfigError(
            f"--slo {args.slo[0]} is given without --prefill-apart: expected both, as nothing else "
            "here knows an SLO; try --prefill-apart 3072:512."
        )
    for flag, given in needs_shape.items():
        if given and not args.config:
            raise ConfigError(
                f"{flag} is given without --config: expected the model's shape, too; try "
                "--config DIR."
            )
