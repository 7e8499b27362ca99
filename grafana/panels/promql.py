"""The expressions that panels are made of, and the variables in them.

    $__rate_interval   what rates and quantiles look back over: Grafana's own, four scrapes or more
    $run               names of runs, a regular expression; so are
    $model_name        vLLM's label, and
    $target            a server's HOST:PORT, Prometheus' `instance` of it unless it is relabelled
    $namespace, $pod   labels that a cluster adds, and
    $engine            one that vLLM adds; All is `.*`, which matches series without the label, too

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

WINDOW: Final = "[$__rate_interval]"
OF_POD: Final = 'namespace=~"$namespace", pod=~"$pod"'
OF_PROCESS: Final = f'instance=~"$target", {OF_POD}'
OF_SERVER: Final = f'model_name=~"$model_name", {OF_PROCESS}, engine=~"$engine"'
SAME: Final = "and on (job, instance)"
RUN_INFO: Final = 'harness_run_info{run=~"$run", model=~"$model_name"}'
THIS_RUN: Final = f"{SAME} {RUN_INFO}"
THIS_TARGET: Final = f'{SAME} harness_target_info{{target=~"$target"}}'

NAMESPACE: Final = Variable(
    "namespace",
    "Namespace",
    "Where the server's pod is. Without such labels: All.",
    "vllm:num_requests_running",
    "namespace",
)
POD: Final = Variable(
    "pod",
    "Pod",
    "The server's pod. Without such labels: All.",
    'vllm:num_requests_running{namespace=~"$namespace"}',
    "pod",
)
MODEL: Final = Variable(
    "model_name",
    "Model",
    "The model, as the server calls it.",
    f"vllm:num_requests_running{{{OF_POD}}}",
    "model_name",
)
TARGET_OF: Final = Variable(
    "target",
    "Target",
    "The server, as Prometheus names it (`instance`).",
    f'vllm:num_requests_running{{model_name=~"$model_name", {OF_POD}}}',
    "instance",
)
ENGINE: Final = Variable(
    "engine",
    "Engine",
    "Which of a server's engines: several with --data-parallel-size.",
    f'vllm:num_requests_running{{model_name=~"$model_name", {OF_PROCESS}}}',
    "engine",
)
RUN_OF: Final = Variable(
    "run",
    "Run",
    "A run, by the name of its folder.",
    'harness_run_info{model=~"$model_name"}',
    "run",
)
PRICE: Final = Variable(
    "price",
    "Price of a replica-hour",
    "What a server costs per hour with all its GPUs, in any currency.",
    text="1",
)
OF_SERVERS: Final = (NAMESPACE, POD, MODEL, TARGET_OF, ENGINE)
VARIABLES: Final = (*OF_SERVERS, RUN_OF)


LENGTHS: Final = {  # of requests, in tokens: only dashboards have a use for them
    "prompt": "vllm:request_prompt_tokens",
    "output": "vllm:request_generation_tokens",
}


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


def server_rate(key: str, part: str = "", only: str = "") -> str:
    """A counter of vLLM's, per second; `only`: further labels."""
    counted = "_total" if VLLM_SERIES[key].kind == "counter" else part
    labels = f"{only}, {_of(key)}" if only else _of(key)
    return f"rate({newest_name(key)}{counted}{{{labels}}}{WINDOW})"


def run_buckets(key: str) -> str:
    """Observations per second at or below each bound."""
    return f"sum by (le) ({run_rate(key, part='_bucket')})"


def server_buckets(key: str, by: str = "le") -> str:
    """The same, as the server counts."""
    return f"sum by ({by}) ({server_rate(key, '_bucket')})"


def length_buckets(name: str) -> str:
    """Of one of LENGTHS: requests per second at or below each number of tokens."""
    return f"sum by (le) (rate({LENGTHS[name]}_bucket{{{OF_SERVER}}}{WINDOW}))"


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
