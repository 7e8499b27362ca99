"""The expressions that panels are made of, and the variables in them.

    $window   what rates and quantiles look back over
    $run      names of runs, a regular expression; so are
    $model    vLLM's model_name, and
    $target   a server's HOST:PORT, which is Prometheus' `instance` of it unless it is relabelled

A run's and an exporter's series carry none of these: they are chosen by the info series of the same
page. Where several servers or runs are chosen, counts add up.
"""

from __future__ import annotations

from typing import Final

from harness.export.metric_definitions import (
    HARNESS_SERIES,
    VLLM_SERIES,
    finite_mean,
    newest_name,
)
from panels.model import Variable

WINDOW: Final = "[$window]"
OF_SERVER: Final = 'model_name=~"$model", instance=~"$target"'
SAME: Final = "and on (job, instance)"
RUN_INFO: Final = 'harness_run_info{run=~"$run", model=~"$model"}'
THIS_RUN: Final = f"{SAME} {RUN_INFO}"
THIS_TARGET: Final = f'{SAME} harness_target_info{{target=~"$target"}}'

MODEL: Final = Variable(
    "model",
    "Model",
    "The model, as the server calls it.",
    "vllm:num_requests_running",
    "model_name",
)
TARGET_OF: Final = Variable(
    "target",
    "Target",
    "The server, as Prometheus names it (`instance`).",
    'vllm:num_requests_running{model_name=~"$model"}',
    "instance",
)
RUN_OF: Final = Variable(
    "run", "Run", "A run, by the name of its folder.", 'harness_run_info{model=~"$model"}', "run"
)
LOOK_BACK: Final = Variable(
    "window",
    "Window",
    "Range of rates and quantiles: at least four scrape intervals.",
    values=("1m", "5s", "10s", "30s", "5m"),
)
VARIABLES: Final = (MODEL, TARGET_OF, RUN_OF, LOOK_BACK)


def run(key: str, labels: str = "") -> str:
    """A gauge of a run."""
    return f"{HARNESS_SERIES[key]}{_only(labels)} {THIS_RUN}"


def run_result(key: str) -> str:
    """What a run finds late, 0 until then: else a stat goes on with the run before it."""
    return f"max({run(key)}) or 0 * max({RUN_INFO})"


def run_rate(key: str, labels: str = "", part: str = "") -> str:
    """A counter of a run, per second; `part`: of a histogram, such as `_bucket`."""
    return f"rate({HARNESS_SERIES[key]}{part}{_only(labels)}{WINDOW}) {THIS_RUN}"


def beside(key: str, labels: str = "") -> str:
    """A gauge of the exporter beside the target."""
    return f"{HARNESS_SERIES[key]}{_only(labels)} {THIS_TARGET}"


def beside_rate(key: str) -> str:
    """A counter of the exporter, per second."""
    return f"rate({HARNESS_SERIES[key]}{WINDOW}) {THIS_TARGET}"


def server(key: str) -> str:
    """A gauge of vLLM's."""
    return f"{newest_name(key)}{{{_of(key)}}}"


def server_rate(key: str, part: str = "") -> str:
    """A counter of vLLM's, per second."""
    counted = "_total" if VLLM_SERIES[key].kind == "counter" else part
    return f"rate({newest_name(key)}{counted}{{{_of(key)}}}{WINDOW})"


def run_buckets(key: str) -> str:
    """Observations per second at or below each bound."""
    return f"sum by (le) ({run_rate(key, part='_bucket')})"


def server_buckets(key: str) -> str:
    """The same, as the server counts."""
    return f"sum by (le) ({server_rate(key, '_bucket')})"


def run_mean(key: str) -> str:
    """Of what did not fail."""
    return finite_mean(key, lambda part: f"sum({run_rate(key, part=part)})")


def server_mean(key: str) -> str:
    """Sum over count."""
    return f"sum({server_rate(key, '_sum')}) / sum({server_rate(key, '_count')})"


def _of(key: str) -> str:
    label, value = VLLM_SERIES[key].where
    return f'{label}="{value}", {OF_SERVER}' if label else OF_SERVER


def _only(labels: str) -> str:
    return f"{{{labels}}}" if labels else ""
