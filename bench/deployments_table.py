"""The answer of `deployments.py` as Markdown, with what `fit` predicts beside what was measured.

Several studies stand in one table, but what is best is of one study: only its own deployments were
compared with one another.

`fit` knows an SLO only for prefill apart: there its users are those who meet it. For all others
they are those whose KV caches fit, and its tokens/s are a bound.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from harness.core.load import unit_named
from harness.core.typed_json import from_json
from harness.metrics.numbers import format_number
from harness.report.deployments_report import deployment_findings
from harness.report.tables import markdown
from harness.search.comparison import KNEE, Best, Setting, knee_text

Row = dict[str, str]
DATA_PARALLEL: Final = "{data-"
NOT_KNOWN: Final = "-"
STUDY: Final = "Study"
TEXTS: Final = (STUDY, "Load", "Deployment", "With", "Best for", "Not shown to beat")


@dataclass(frozen=True, slots=True)
class Study:
    """What one call of `vary` measured, and what of it is best."""

    name: str  # of its folder
    settings: list[Setting]
    bests: list[Best]


def read_study(folder: Path) -> Study:
    """Of the vary.json in a folder."""
    told = json.loads((folder / "vary.json").read_text())
    bests = [from_json(Best, best) for best in told["best_for"]]
    return Study(folder.resolve().name, [_setting(one) for one in told["settings"]], bests)


def answer(
    studies: Sequence[Study],
    tables: Mapping[str, Any],
    predictions: Mapping[tuple[str, int], Any],
) -> str:
    """`tables`: the deployments of the file, by name.

    `predictions`: results of `fit`, by load and number of GPUs.
    """
    rows: list[Row] = []
    best_rows: list[Row] = []
    for study in studies:
        # a single one needs no name
        named = {STUDY: study.name} if len(studies) > 1 else {}
        findings = deployment_findings(study.settings, study.bests, None)
        for setting in study.settings:
            row = _measured(setting) | findings.columns[setting.name]
            predicted = predictions.get((load_of(setting), setting.gpus))
            if predicted is not None:
                row |= _predicted(predicted, tables[setting.deployment], setting)
            rows.append(named | row)
        best_rows += [named | row for row in findings.best_rows]
    rows.sort(key=lambda row: row["Load"])
    heads = dict.fromkeys(head for row in rows for head in row)
    full_rows = [{head: row.get(head, NOT_KNOWN) for head in heads} for row in rows]
    return "\n".join([*markdown(full_rows, *TEXTS), "", *markdown(best_rows, *TEXTS), ""])


def _measured(setting: Setting) -> Row:
    row = {"Load": load_of(setting), "Deployment": setting.deployment}
    if KNEE in setting.figures:
        row["Users"] = _users(setting)
    return row


def _setting(told: Mapping[str, Any]) -> Setting:
    """Without the seconds of its starts: a list, which no result has, is not read back."""
    return from_json(Setting, {key: value for key, value in told.items() if key != "starts_s"})


def load_of(setting: Setting) -> str:
    """`chat` of `--scenario=chat.toml`."""
    (option,) = setting.client
    _, _, scenario = option.partition("=")
    return Path(scenario).stem


def _users(setting: Setting) -> str:
    """`108 (101 to 115)`, of all its GPUs."""
    unit = unit_named(setting.unit)
    value, low, high = (knee_text(end, unit) for end in setting.figures[KNEE])
    return f"{value} ({low} to {high})"


def _predicted(fit: Mapping[str, Any], table: Mapping[str, Any], setting: Setting) -> Row:
    """`fit`'s users and tokens/s of a GPU."""
    if "prefill" in table:
        return _of_apart(fit["prefill_apart"], table, setting.gpus)
    engines = setting.servers
    if any(DATA_PARALLEL in word for word in table.get("args", ())):
        engines = setting.gpus
    for split in fit["splits"]:
        if split["replicas"] == engines:
            users = format_number(split["users"] / setting.gpus)
            tokens_per_s = format_number(split["tokens_per_s"] / setting.gpus)
            return _columns(f"at most {users}", f"below {tokens_per_s}")
    return {}


def _of_apart(apart: Mapping[str, Any], table: Mapping[str, Any], gpus: int) -> Row:
    for way in apart["layouts"]:
        if (way["prefill"], way["decode"]) == (len(table["prefill"]), len(table["decode"])):
            tokens_per_s = way["requests_per_s"] * apart["answer_tokens"]
            return _columns(format_number(way["users"] / gpus), format_number(tokens_per_s / gpus))
    return {}


def _columns(users: str, tokens_per_s: str) -> Row:
    return {"fit: users per GPU": users, "fit: output tokens/s per GPU": tokens_per_s}


def predict(load: Path, gpus: int, slos: Sequence[str], words: Sequence[str]) -> Any:
    """What `fit` says of one load on so many GPUs; `words`: its options of model and GPU."""
    lengths = tomllib.loads(load.read_text())
    prompt_tokens = lengths["prompt-tokens"]
    answer_tokens = lengths["output-tokens"]
    command = [sys.executable, "-m", "harness", "fit", "--json", "-", "--gpus", str(gpus)]
    command += ["--context", str(prompt_tokens + answer_tokens), *words]
    if gpus > 1:
        command += ["--prefill-apart", f"{prompt_tokens}:{answer_tokens}", *slos]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        sys.exit(done.stderr)
    return json.loads(done.stdout)
