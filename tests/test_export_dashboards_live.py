"""A smoke of every panel: a real Prometheus has data for it after a real run.

What the data should be is in test_export_panels.py; here the pages of a run, of a server and of the
exporter are real, so that a name or a label that nobody serves any more is found.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from dashboard_stage import staged, with_variables
from panels import expressions
from panels.promql import VARIABLES
from study_process import load

from harness.engine.config import EngineConfig
from harness.engine.process import start_engine
from harness.metrics.slo import Slo
from harness.server.address import free_port

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MODEL = "llama-3.1-8b"  # as the embedded engine calls itself
SLOS = tuple(
    map(
        Slo.parse,
        (
            "ttft_p95=250ms",
            "itl_p95=50ms",
            "itl_per_token_p95=1s",
            "tpot_p50=1s",
            "e2e_p50=30s",
        ),
    )
)
LENGTHS = ("--prompt-tokens", "64", "--output-tokens", "32")
NOT_OF_THE_ENGINE = "DCGM_|spec_decode|vllm:request_(prompt|generation)_tokens"
POD = {"namespace": "prod", "pod": "vllm-0"}
EMPTY = {
    ("client", "Schedule lag", "p50"),
    ("client", "Schedule lag", "p99"),  # users have no schedule
    *(
        key
        for key, expr in expressions()
        if re.search(r"harness_(\w*rate_|in_flight|drill)", expr)
        if key[1] != "knee found"
    ),
    ("client", "Failed requests by outcome", "{{outcome}}"),  # none fails
    ("server", "Server CPU, cores", "engine cores"),  # the embedded engine has no such process
    ("overview", "Requests that failed", "HTTP 5xx"),  # nor these counters
    *(key for key, expr in expressions() if re.search(NOT_OF_THE_ENGINE, expr)),
}
UNDECIDED = {  # a short search may end before
    ("knee", "Search progress", "failed from"),
    ("knee", "Search progress", "knee"),
    ("knee", "Search progress", "passed up to"),
    ("knee", "knee found", ""),
}


@pytest.mark.process
def test_every_panel_has_data(tmp_path: Path, figure: Callable[[str], None]) -> None:
    """After a short search of the embedded engine; the variables offer what there is.

    With a cluster's labels and without them: the same server is scraped in both ways.
    """
    command = ("knee", "--budget", "20s", "--max-users", "8", *LENGTHS)
    with (
        start_engine(EngineConfig(max_num_seqs=4)) as engine,
        staged(engine.url, MODEL, tmp_path, SLOS, free_port(), *command, pod=POD) as stage,
    ):
        plain = replace(stage, chosen={**stage.chosen, **dict.fromkeys(POD, "")})
        labelled = replace(stage, chosen={**stage.chosen, **POD})
        nothing = plain.without_data(expressions())
        nothing_of_pod = labelled.without_data(expressions())
        offered = {
            v.name: stage.prometheus.ask(
                f"label/{v.of_label}/values", **{"match[]": with_variables(v.series, stage.chosen)}
            )
            for v in VARIABLES
            if v.series
        }
    found = load(stage.folder / "result.json")["status"] == "found"
    assert nothing - (set() if found else UNDECIDED) == EMPTY
    assert nothing_of_pod == nothing
    here = ("run", "model_name", "target")
    assert offered == {
        **{name: [stage.chosen[name]] for name in here},
        **{name: [value] for name, value in POD.items()},
        "engine": ["0"],
    }
    figure(f"{len(list(expressions()))} expressions, without a value: {len(nothing)}")


@pytest.mark.vllm
def test_every_panel_of_a_real_vllm_has_data(
    vllm: Callable[[str], str], tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """The panels about the server, whatever it calls its series."""
    of_server = re.compile("vllm:|harness_(server|target|engine)_(?!info)")
    asked = [
        (key, expr)
        for key, expr in expressions()
        if of_server.search(expr) and "DCGM_" not in expr  # no GPU is here
    ]
    command = ("run", "--users", "6", "--duration", "5s", *LENGTHS)
    # which does not say its seats
    with staged(
        vllm("speculating"), "m", tmp_path, SLOS, free_port(), *command, flags={"max_num_seqs": 4}
    ) as stage:
        nothing = stage.without_data(asked)
    figure(f"real vLLM: {len(asked)} expressions, without a value: {sorted(nothing)}")
    # vLLM newer than some that run here
    assert {key for key in nothing if key[1] != "Waiting requests by reason"} == set()
