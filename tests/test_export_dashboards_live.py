"""Every expression of every dashboard, asked of a real Prometheus about a real run.

What it answers is recomputed from the samples that it stored (promql_again), and those samples are
compared with the run folder (dashboard_truth): equal at the end, between neighbours before it.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from counted import expected, exposed
from dashboard_checks import differences
from dashboard_stage import staged
from dashboard_truth import (
    LATE_S,
    beside_samples,
    decisions,
    events,
    gauges_apart,
    lateness,
    own_samples,
    steps_as_written,
)
from panels.promql import VARIABLES
from prometheus_tools import free_port
from promql_again import interpolated
from real_vllm import real_vllm
from recorded_nvml import SAID
from study_process import load

from harness.engine.config import EngineConfig
from harness.engine.process import start_engine
from harness.measure.slo import Slo
from harness.measure.table import concat
from harness.runfolder.reader import read_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dashboard_checks import Key
    from dashboard_stage import Staged
    from promql_again import Stored

MODEL = "llama-3.1-8b"  # as the embedded engine calls itself
SLOS = tuple(map(Slo.parse, ("ttft_p95=250ms", "itl_p95=50ms", "tpot_p50=1s", "e2e_p50=30s")))
SEATS = {"max_num_seqs": 4}
LENGTHS = ("--prompt-tokens", "64", "--output-tokens", "32")
ELSEWHERE = {  # not of this run: asked of the decoy, whose requests have a schedule and fail, or
    ("client", "Schedule lag", "p50"), ("client", "Schedule lag", "p99"),
    ("client", "Failed requests by outcome", "{{outcome}}"),
    ("server", "Server CPU, cores", "engine cores"),  # of the real vLLM
}  # fmt: skip


@pytest.fixture(scope="module")
def knee(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Staged, Stored]]:
    """A search that is over, and all that Prometheus has of it."""
    with start_engine(EngineConfig(max_num_seqs=4)) as engine:
        command = ("knee", "--budget", "30s", "--max-users", "16", *LENGTHS)
        place = tmp_path_factory.mktemp("stage")
        with staged(engine.url, MODEL, place, SLOS, free_port(), *command) as stage:
            time.sleep(max(stage.ended + 4 - time.time(), 0))
            yield stage, stage.stored(10.0)


@pytest.mark.realtime
def test_every_expression(knee: tuple[Staged, Stored], figure: Callable[[str], None]) -> None:
    """Each answers what its recomputation says, at each second, with narrow and wide windows."""
    stage, stored = knee
    compared: Counter[Key] = Counter()
    for seconds in (3, 10, 300):  # steps are short here: only the first sees one level alone
        held = replace(stored, window_s=float(seconds), _rates={})
        wrong, values = differences(stage, held, f"{seconds}s")
        assert wrong == []
        compared.update(values)
    nothing = {key for key, values in compared.items() if not values}
    found = load(stage.folder / "result.json")["status"] == "found"
    assert {key for key in nothing if found or "nee" not in "".join(key[1:])} <= ELSEWHERE
    figure(f"{len(compared)} expressions, {compared.total()} values of Prometheus recomputed")


ALL = {"run": ".*", "model": ".*", "target": ".*"}
OTHER = {"run": "another", "model": "other", "target": "other:1"}
PAGES = ("run", "server", "beside")


@pytest.mark.realtime
@pytest.mark.parametrize(
    ("chosen", "ours", "decoys"),  # which pages' series are in it
    [
        (ALL, PAGES, PAGES),  # two runs, models and targets add up
        ({**ALL, "model": MODEL}, PAGES, ("beside",)),  # an exporter names no model
        ({**ALL, "run": "another"}, ("server", "beside"), PAGES),
        (OTHER, (), ("run", "beside")),  # its page has failures, +Inf and a schedule
    ],
)
def test_what_is_chosen(
    knee: tuple[Staged, Stored], chosen: dict[str, str], ours: tuple[str, ...],
    decoys: tuple[str, ...],
) -> None:  # fmt: skip
    """The variables choose between our pages and the decoy's; what they choose together adds up."""
    stage, stored = knee
    pages = {
        page: (stage.instances[page],) * (page in ours) + (stage.decoy,) * (page in decoys)
        for page in PAGES
    }
    held = replace(stored, instances=pages, _rates={})
    wrong, compared = differences(replace(stage, chosen=chosen), held, "10s")
    assert wrong == []
    if chosen is OTHER:
        assert all(compared[key] for key in ELSEWHERE if key[0] == "client")


@pytest.mark.realtime
def test_what_is_stored_is_what_the_run_folder_says(
    knee: tuple[Staged, Stored], figure: Callable[[str], None]
) -> None:
    """Equal after the last scrape, bucket by bucket; before it, between neighbours."""
    stage, stored = knee
    run = read_run(stage.folder)
    table = concat(list(run.chunks()))
    want = exposed(expected(table, SLOS), SLOS)
    result = load(stage.folder / "result.json")
    for decision, count in decisions(stage).items():
        want["harness_steps_total", (("decision", decision),)] = count
    if result["status"] == "found":
        low, high = result["knee"]["ci95"]
        want["harness_knee_users", ()] = result["knee"]["estimate"]
        want["harness_knee_low_users", ()], want["harness_knee_high_users", ()] = low, high
    got = {
        (name, labels): points[-1][1]
        for name, labels in want
        for said, points in stored.of("run", name)
        if all(said.get(k) == v for k, v in labels)
    }
    assert got == pytest.approx(want, abs=1e-9)
    late, server = lateness(stored, table), beside_samples(stored, run.server)
    assert late <= LATE_S
    own, inside = own_samples(stored, run.client), steps_as_written(stage, stored)
    assert min(server // 100, own, inside) >= 5
    apart = gauges_apart(stored, run.server)
    figure(
        f"{result['status']}; records counted {late:.1f} s after they arrived at most; {server} of "
        f"the server's counters between their neighbours; means of gauges {apart}"
    )
    for mine, theirs in apart.values():  # two samplings of what moves: sanity
        assert mine == pytest.approx(theirs, rel=0.5)


@pytest.mark.realtime
@pytest.mark.parametrize("key", ["ttft", "itl", "tpot", "e2e"])
def test_quantiles_of_the_whole_run(knee: tuple[Staged, Stored], key: str) -> None:
    """After the last scrape, over all of it: from the run folder's buckets, near the exact one."""
    stage, stored = knee
    table = concat(list(read_run(stage.folder).chunks()))
    counts = exposed(expected(table, SLOS), SLOS)
    name = f"harness_{key}_seconds_bucket"
    buckets = sorted((float(dict(labels)["le"]), float(n)) for (of, labels), n in counts.items()
                     if of == name)  # fmt: skip
    assert {points[0][1] for _, points in stored.of("run", name)} == {0.0}  # from the beginning
    expr = stage.filled(
        f"histogram_quantile(0.95, sum by (le) (rate({name}[$window]) and on (job, instance) "
        'harness_run_info{run=~"$run"}))', "10m",
    )  # fmt: skip
    answer = stage.prometheus.ask("query", query=expr, time=stage.ended + 0.05)["result"]
    value = float(answer[0]["value"][1])
    assert value == pytest.approx(interpolated(0.95, buckets), rel=1e-6)
    exact = np.quantile(events(table)[key][1], 0.95)
    assert value == pytest.approx(exact, rel=0.34)


@pytest.mark.realtime
def test_gpus_as_recorded(knee: tuple[Staged, Stored]) -> None:
    """Each reading of the H200 in turn, in base units."""
    _, stored = knee
    readings = SAID["readings"]
    for name, values in {
        "utilization_ratio": [r["util"][0] / 100 for r in readings],
        "memory_utilization_ratio": [r["util"][1] / 100 for r in readings],
        "memory_used_bytes": [float(r["used"]) for r in readings],
        "power_watts": [r["power"] / 1e3 for r in readings],
        "energy_joules_total": [r["energy"] / 1e3 for r in readings],
        "sm_clock_hertz": [r["sm"] * 1e6 for r in readings],
        "memory_clock_hertz": [r["mem"] * 1e6 for r in readings],
        "temperature_celsius": [float(r["temperature"]) for r in readings],
        "memory_bytes": [float(SAID["total"])],
    }.items():
        [(labels, points)] = stored.of("beside", f"harness_gpu_{name}")
        assert labels["gpu"] == "0"
        seen = [v for v, _ in groupby(round(v, 6) for _, v in points)]
        turns = [v for v, _ in groupby(round(v, 6) for v in values)]
        assert seen == turns, name
    held = {labels["reason"]: [v for v, _ in groupby(v for _, v in points)]
            for labels, points in stored.of("beside", "harness_gpu_throttled")}  # fmt: skip
    assert held.pop("power_cap") == [0, 1, 0]
    assert all(values == [0] for values in held.values())
    # from one reading to the next the bus moved so many bytes, within a second or so
    moved = {(b["rx"] - a["rx"]) for a, b in pairwise(readings)}
    [(_, points)] = stored.of("beside", "harness_gpu_pcie_receive_bytes_per_second")
    assert {round(v / 1e6) for _, v in points if v} <= {
        round(m / s / 1e6) for m in moved for s in np.arange(0.8, 3, 0.001)
    }
    assert len({v for _, v in points if v}) >= len(readings) - 2


@pytest.mark.realtime
def test_variables(knee: tuple[Staged, Stored]) -> None:
    """Each offers what there is: both models, their targets, both runs; by model, only its own."""
    stage, _ = knee
    offered = {}
    for variable in VARIABLES:
        if variable.series:
            for model in (".*", MODEL):
                series = variable.series.replace("$model", model)
                where = f"label/{variable.of_label}/values"
                found = stage.prometheus.ask(where, **{"match[]": series})
                offered[variable.name, model] = set(found)
    decoy = offered["target", ".*"] - {stage.instances["server"]}
    assert len(decoy) == 1
    assert offered == {
        ("model", ".*"): {MODEL, "other"}, ("model", MODEL): {MODEL, "other"},
        ("target", ".*"): decoy | {stage.instances["server"]},
        ("target", MODEL): {stage.instances["server"]},
        ("run", ".*"): {stage.folder.name, "another"}, ("run", MODEL): {stage.folder.name},
    }  # fmt: skip


def of_server(expr: str) -> bool:
    """Whether vLLM's page answers it, alone or through the exporter."""
    return (
        "vllm:" in expr or re.search(r"harness_(server|target|engine)_(?!info)", expr) is not None
    )


@pytest.mark.vllm
def test_every_expression_of_vllm(tmp_path: Path, figure: Callable[[str], None]) -> None:
    """The same expressions about a real vLLM on the CPU, whatever it calls its series."""
    with real_vllm("dashboards") as server:  # which does not say its seats
        command = ("run", "--users", "6", "--duration", "8s", *LENGTHS)
        with staged(server.url, "m", tmp_path, SLOS, free_port(), *command, flags=SEATS) as stage:
            time.sleep(max(stage.ended + 4 - time.time(), 0))
            stored = stage.stored(10.0)
            wrong, compared = differences(stage, stored, "10s", of_server)
    assert wrong == []
    run = read_run(stage.folder)
    between = beside_samples(stored, run.server)
    nothing = sorted(" / ".join(key) for key, values in compared.items() if not values)
    figure(f"real vLLM: {len(compared)} expressions; {between} counters between their neighbours; "
           f"without a value: {nothing}")  # fmt: skip
    assert between > 1000
    by_reason = re.compile("Waiting, by reason")  # vLLM newer than some that run here
    assert [name for name in nothing if not by_reason.search(name)] == []
