"""Deployments of several servers: what a file says, what is started, and who answers a request."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import real_vllm
from study_process import alive, descendants

from harness.errors import ConfigError
from harness.lifecycle.deployments import (
    BY_FILES,
    disaggregated,
    launches,
    read_deployments,
    serving,
)
from harness.lifecycle.prefill_decode import (
    ASK_TO_KEEP,
    KEPT_S,
    Pool,
    decode_body,
    prefill_body,
    remove_old,
)
from harness.lifecycle.vllm_start import NIXL_PORT, NIXL_PORTS, Launch, StartOptions, launched
from harness.records import names
from harness.records.json_files import read_json
from harness.server.access import TargetAccess
from harness.server.address import LOOPBACK, Address, check_port
from harness.server.http_exchange import fetch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ENGINE = shlex.join([sys.executable, "-m", "harness", "engine"])
CONFIG = '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'
START = StartOptions(start_command="vllm serve m", start_args=("--seed", "1"))
FILE = """
[two-replicas]
gpus = ["0", "1"]

[tp-2]
gpus = ["0,1"]
args = "--tensor-parallel-size 2"

[apart]
prefill = ["0"]
decode = ["1", "2,3"]

[own]
command = "other serve"
prefill = ["0"]
decode = ["1"]
connector = ""
"""

TWO = '[two-replicas]\ngpus = ["0", "1"]\n'


def written(folder: Path, text: str) -> Path:
    """A file of deployments."""
    path = folder / "gpus.toml"
    path.write_text(text)
    return path


def test_what_is_started(tmp_path: Path) -> None:
    """Each server with its GPUs, its arguments and a log; two roles hand over the KV cache."""
    found = read_deployments(written(tmp_path, FILE), START)
    assert {name: one.gpus for name, one in found.items()} == {
        "two-replicas": 2,
        "tp-2": 2,
        "apart": 4,
        "own": 2,
    }
    log = tmp_path / "1-x.server.log"
    gpus: dict[str, list[str]] = {}
    args: dict[str, set[tuple[str, ...]]] = {}
    for name, deployment in found.items():
        started = launches(deployment, (), log)
        gpus[name] = [dict(launch.environment)["CUDA_VISIBLE_DEVICES"] for launch in started]
        args[name] = {(*launch.options.start_args, *launch.more_args) for launch in started}
        assert len({launch.log for launch in started}) == len(started)
    assert gpus == {
        "two-replicas": ["0", "1"],
        "tp-2": ["0,1"],
        "apart": ["0", "1", "2,3"],
        "own": ["0", "1"],
    }
    assert args == {
        "two-replicas": {("--seed", "1")},
        "tp-2": {("--seed", "1", "--tensor-parallel-size", "2")},
        "apart": {
            ("--seed", "1", "--kv-transfer-config", CONFIG.replace("both", role))
            for role in ("producer", "consumer")
        },
        "own": {("--seed", "1")},
    }
    assert found["own"].start.start_command == "other serve"


@pytest.mark.parametrize(
    ("args", "want"),
    [
        ("'--seed 2 --name \"a b\"'", ("--seed", "2", "--name", "a b")),
        (f'"""--kv-transfer-config \'{CONFIG}\'"""', ("--kv-transfer-config", CONFIG)),
        (f"['--kv-transfer-config', '{CONFIG}']", ("--kv-transfer-config", CONFIG)),
        ("['a b', \"it's\"]", ("a b", "it's")),
        ("[]", ()),
    ],
)
def test_args_as_a_text_or_as_words(tmp_path: Path, args: str, want: tuple[str, ...]) -> None:
    """A text is read as by a shell; a list is taken as it is, so JSON keeps its quotation marks."""
    path = written(tmp_path, f'[a]\ngpus = ["0"]\nargs = {args}\n')
    (deployment,) = read_deployments(path, StartOptions()).values()
    assert deployment.start.start_args == want


def test_kv_caches_by_files(tmp_path: Path) -> None:
    """Both roles get the same folder, which needs no package of vLLM's."""
    text = f'[apart]\nprefill = ["0"]\ndecode = ["1"]\nconnector = "{BY_FILES}"\n'
    (deployment,) = read_deployments(written(tmp_path, text), START).values()
    configs = [
        json.loads(launch.more_args[-1]) for launch in launches(deployment, (), tmp_path / "x")
    ]
    assert [config["kv_role"] for config in configs] == ["kv_producer", "kv_consumer"]
    folders = [config["kv_connector_extra_config"]["shared_storage_path"] for config in configs]
    assert folders[0] == folders[1]
    assert folders[0].endswith(f"kv-{os.getpid()}")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x = 1", "deployment x is 1: expected a table"),
        ("[a]\n", "deployment a has no GPUs: expected gpus, or prefill and decode"),
        ('[a]\nprefill = ["0"]\n', "deployment a has prefill: expected gpus, or"),
        ('[a]\ngpus = ["0"]\ndecode = ["1"]\n', "deployment a has gpus and decode: expected"),
        ('[a]\ngpus = "0"\n', "deployment a has gpus = '0': expected a text for each server"),
        ('[a]\ngpus = ["0,"]\n', "deployment a has gpus = \\['0,'\\]: expected a text"),
        ('[a]\ngpus = ["0"]\ncommand = 2\n', "deployment a has command = 2: expected a text"),
        ('[a]\ngpus = ["0"]\nargs = 2\n', "deployment a has args = 2: expected a text with"),
        (
            '[a]\ngpus = ["0"]\nargs = ["-a", 2]\n',
            "args = .*, 2\\]: expected a text .*list of words",
        ),
        ("[a]\ngpus = ['0']\nargs = \"-a '\"\n", r"args = .* \(No closing quotation\): expected"),
        ('[a]\ngpu = ["0"]\n', "deployment a has 'gpu': expected .*, perhaps gpus"),
        ("[a", "--deployments is .*: expected a TOML file"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, found: str) -> None:
    """One sentence with what was found, before anything is started."""
    with pytest.raises(ConfigError, match=found):
        read_deployments(written(tmp_path, text), START)


BODY = {"prompt": [1, 2], "max_tokens": 9, "min_tokens": 9, "stream": True, "stream_options": {}}


def test_what_each_role_is_asked() -> None:
    """One token without a stream; then the request itself, and where its KV cache is."""
    assert prefill_body(BODY) == {
        "prompt": [1, 2],
        "max_tokens": 1,
        "min_tokens": 1,
        "stream": False,
        "kv_transfer_params": ASK_TO_KEEP,
    }
    told: Mapping[str, Any] = {"remote_port": 5}
    answer = json.dumps({"kv_transfer_params": told}).encode()
    assert decode_body(BODY, answer) == {**BODY, "kv_transfer_params": told}
    assert decode_body(BODY, b"{}") == BODY  # a connector that finds it by itself


def test_the_least_busy_server() -> None:
    """The one with the fewest requests, in turn where they are equal."""
    pool = Pool(["a", "b"])
    assert {pool.least_busy(), pool.least_busy()} == {"a", "b"}
    pool.in_flight["a"] = 1
    assert [pool.least_busy() for _ in range(3)] == ["b", "b", "b"]


def test_old_kv_caches_are_removed(tmp_path: Path) -> None:
    """And no file of the folder itself, nor what a request may still want."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "layer").write_text("")
    (tmp_path / "file").write_text("")
    os.utime(tmp_path / "old", (1000, 1000))
    os.utime(tmp_path / "new", (2000, 2000))
    remove_old(tmp_path, 2000 + KEPT_S / 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "new"]


@pytest.mark.process
def test_ports_that_servers_of_one_host_would_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each gets ports of its own for NIXL, with room for the ranks that vLLM adds to the first."""
    monkeypatch.setenv(NIXL_PORT, "5600")
    start = StartOptions(start_command=ENGINE)
    (deployment,) = read_deployments(written(tmp_path, TWO), start).values()
    alone = Launch(start, tmp_path / "alone.log")
    with launched([*launches(deployment, (), tmp_path / "log"), alone]) as begun:
        servers = [server.ready() for server in begun]
        environments = [psutil.Process(server.pid).environ() for server in servers]
    *firsts, of_user = [int(environment[NIXL_PORT]) for environment in environments]
    assert of_user == 5600
    ports = {server.port for server in servers}
    for first in firsts:
        ports |= {*range(first, first + NIXL_PORTS)}
    assert len(ports) == 3 + 2 * NIXL_PORTS


@pytest.mark.process
def test_the_preset_of_serve(tmp_path: Path) -> None:
    """It starts both roles and a proxy, answers, and ends all of them."""
    command = [
        *(sys.executable, "-m", "harness", "serve", "--preset", "disaggregated"),
        *("--connector", "", "--port", "0", "--log", str(tmp_path / "log.txt")),
        *("--decode-gpus", "1/2", "--start-command", ENGINE),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = next(line for line in process.stdout if " serves at " in line)
    _, _, rest = said.partition("vLLM serves at ")
    url, _, measure = rest.partition("; ")
    assert (measure.count("--metrics-url"), measure.count("--prefill-url")) == (2, 1)
    family = descendants(process.pid)
    nixl_ports = {psutil.Process(one).environ().get(NIXL_PORT) for one in family}
    assert len(nixl_ports - {None}) == 3
    body: dict[str, Any] = {"prompt": "a b c", "max_tokens": 3}
    told: Any = fetch(TargetAccess(Address.parse(url)), "/v1/completions", body).json()
    assert told["usage"]["completion_tokens"] == 3
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode == 0
    assert alive(family) == []


@pytest.mark.vllm
def test_prefill_apart_on_a_real_vllm(
    vllm_command: str,
    tmp_path: Path,
    figure: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two servers of the CPU build: one prefills, the other finds nearly all of each prompt."""
    for variable, value in real_vllm.one_core().items():
        monkeypatch.setenv(variable, value)
    start = StartOptions(vllm=vllm_command, model_dir=real_vllm.MODEL)
    deployment = disaggregated(start, ["0"], ["1"], BY_FILES)
    out = tmp_path / "run"
    with (
        launched(launches(deployment, (), tmp_path / "vllm.log")) as begun,
        serving(deployment, [server.ready() for server in begun]) as endpoint,
    ):
        command = [
            *(sys.executable, "-m", "harness", "run", endpoint.url, *endpoint.options),
            *("--users", "2", "--requests", "16", "--workload", "fixed", "--quiet"),
            *("--prompt-tokens", "400", "--output-tokens", "8", "--out", str(out)),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode in {0, 5}, done.stderr  # 5: a busy machine
    (level,) = (read_json(out / names.RESULT) or {})["levels"]
    split = level["ttft_split"]
    parts = [f"{part} {split[f'{part}_ms']:.0f}" for part in ("prefill_server", "ttft", "residual")]
    figure(f"mean TTFT {split['client_ms']:.0f} ms: {', '.join(parts)}")
    assert split["exact"]
    assert level["server"]["external_hit_share"] > 0.5
    assert level["prefill"]["external_hit_share"] == 0


@pytest.mark.long
@pytest.mark.process
def test_kept_side_by_side(tmp_path: Path) -> None:
    """Replicas behind the balancer and both roles behind the proxy, on embedded engines."""
    text = """
    [replicas]
    gpus = ["0", "1"]
    [apart]
    prefill = ["0"]
    decode = ["1"]
    connector = ""
    """
    out = tmp_path / "vary"
    command = [
        *(sys.executable, "-m", "harness", "vary", "--keep", "--once"),
        *("--deployments", str(written(tmp_path, text)), "--start-command", ENGINE),
        *("--out", str(out), "--", "run", "--users", "2", "--duration", "3s", "--quiet"),
        *("--workload", "fixed", "--prompt-tokens", "64", "--output-tokens", "8"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode in {0, 5}, done.stderr  # 5: a busy machine
    assert "Starting 2 servers at once" in done.stdout  # which both deployments use
    told = read_json(out / "vary.json")
    assert told is not None
    of_replicas, of_apart = told["settings"]
    assert [len(one["starts_s"]) for one in (of_replicas, of_apart)] == [1, 1]
    (replicas,) = map(Path, of_replicas["runs"])
    (apart,) = map(Path, of_apart["runs"])
    for run in (replicas, apart):
        server = (read_json(run / names.RUN) or {})["server"]
        urls = [*server["replicas"], *server["prefill"]]
        assert len(urls) == 2
        for url in urls:  # each has ended with the command
            check_port("--port", LOOPBACK, Address.parse(url).port)
    (level,) = (read_json(apart / names.RESULT) or {})["levels"]
    split = level["ttft_split"]
    parts = ("prefill_server", "queue", "prefill", "rest", "residual")
    whole = sum(split[f"{part}_ms"] for part in parts)
    assert whole == pytest.approx(split["client_ms"])
    # what the decoding server was sent has been prefilled, but for the last block
    assert level["server"]["prefix_hit_share"] > 0.5
    assert level["prefill"]["prefix_hit_share"] == 0
