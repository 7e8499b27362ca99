"""`vary`: the same command with each of several settings, on servers that are started for it.

Each run is a `vllm-harness` process of its own, as a user would start it: Locust, gevent and the
collector begin anew, and run.json of its folder has a command that repeats it by hand.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from itertools import chain, product
from typing import TYPE_CHECKING, Any, Final, TextIO

from harness.compare.compare_folders import compare_settings
from harness.compare.proof import AS_STARTED, PROOF_TOLERANCE, prove, turns
from harness.diagnosis.bottleneck import RULES
from harness.errors import ConfigError, ServerUnreachable
from harness.lifecycle.vary_servers import VariedServers
from harness.metrics.result import read_result
from harness.records import names
from harness.records.folder_writer import RunFolder
from harness.records.json_files import read_json
from harness.search.comparison import Setting
from harness.server.max_num_seqs import MAX_NUM_SEQS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from harness.lifecycle.deployments import Deployment
    from harness.lifecycle.vllm_start import StartOptions
    from harness.metrics.result import Bottleneck, Result

MAX_SETTINGS: Final = 32  # each takes a start of the server and a run
MAX_FOLDER_NAME: Final = 80  # characters
UNSET: Final = "default"


def parse_variable(text: str) -> tuple[Setting, ...]:
    """The settings of `server.max-num-seqs=8,16`. Raises ConfigError."""
    name, _, listed = text.partition("=")
    flag = name.removeprefix("server.").strip("-").replace("_", "-")
    is_flag = re.fullmatch(r"[a-z][a-z0-9.-]*", flag)
    values = _split_values(listed)
    if not is_flag or "" in values or len(values) != len(set(values)):
        raise ConfigError(
            f"the setting is {text!r}: expected server.FLAG=VALUE,VALUE, or OPTION=VALUE,VALUE for "
            "an option of the inner command, each value once; try server.max-num-seqs=8,16."
        )
    return tuple(_setting(name, flag, value) for value in values)


def _split_values(listed: str) -> list[str]:
    """Split at commas, but not at those within the braces or brackets of JSON."""
    values: list[str] = []
    for piece in listed.split(","):
        if values and _is_open(values[-1]):
            values[-1] += f",{piece}"
        else:
            values.append(piece)
    return values


def _is_open(json_start: str) -> bool:
    """Whether braces or brackets are open at its end."""
    opened = sum(map(json_start.count, "{["))
    closed = sum(map(json_start.count, "}]"))
    return opened > closed


def _setting(name: str, flag: str, value: str) -> Setting:
    words: tuple[str, ...] = (f"--{flag}={value}",)
    if value == UNSET:
        words = ()
    elif value == "true":
        words = (f"--{flag}",)
    elif value == "false":
        words = (f"--no-{flag}",)
    if name.startswith("server."):
        return Setting(f"{name}={value}", server=words)
    return Setting(f"{name}={value}", client=words)


def deployment_settings(deployments: Mapping[str, Deployment]) -> tuple[Setting, ...]:
    """Each deployment as a setting."""
    return tuple(
        Setting(name, deployment=name, gpus=one.gpus, servers=len(one.places))
        for name, one in deployments.items()
    )


def all_settings(variables: Sequence[Sequence[Setting]]) -> list[Setting]:
    """All combinations, those with the same server next to each other. Raises ConfigError."""
    # The last variable changes fastest: the server's come first, and change the least.
    ordered = sorted(variables, key=_restarts, reverse=True)
    combinations = [_combined(parts) for parts in product(*ordered)]
    if not 1 < len(combinations) <= MAX_SETTINGS:
        raise ConfigError(
            f"the settings have {len(combinations)} combinations: expected 2 to {MAX_SETTINGS}, "
            "each of which is measured by itself; try server.max-num-seqs=8,16."
        )
    return combinations


def _restarts(settings: Sequence[Setting]) -> bool:
    """Whether the server is started anew for each of them."""
    return any(one.server or one.deployment for one in settings)


def _combined(parts: Sequence[Setting]) -> Setting:
    deployed = next((part for part in parts if part.deployment), Setting(""))
    return Setting(
        name=" ".join(part.name for part in parts),
        deployment=deployed.deployment,
        gpus=deployed.gpus,
        servers=deployed.servers,
        server=tuple(chain.from_iterable(part.server for part in parts)),
        client=tuple(chain.from_iterable(part.client for part in parts)),
    )


def in_order(
    settings: Sequence[Setting], out: Path, *, once: bool, keep: bool = False
) -> list[tuple[Setting, Path]]:
    """The runs with their folders. Two settings: A B B A, so that slow drift favors neither.

    The two Bs are on the same server, which saves a start. More settings: A B C C B A if none of
    them needs a server of its own or all are kept; else, or with `once`, each once.
    """
    is_pair = len(settings) == 2  # noqa: PLR2004 - a pair
    servers = {(setting.deployment, setting.server) for setting in settings}
    runs = list(settings)
    if (is_pair or keep or len(servers) == 1) and not once:
        runs += settings[::-1]
    with_folders = []
    for number, setting in enumerate(runs, start=1):
        folder = out / _folder_name(f"{number}-{setting.name}")
        with_folders.append((setting, folder))
    return with_folders


def _folder_name(text: str) -> str:
    name = re.sub(r"[^A-Za-z0-9.=_-]+", "_", text)
    return name[:MAX_FOLDER_NAME]


def measure(
    runs: Sequence[tuple[Setting, Path]],
    inner: Sequence[str],
    servers: VariedServers | None,
    stream: TextIO,
    keep_in: Path | None = None,
) -> bool:
    """Run the inner command for each, into its folder; False after Ctrl-C, with what there is.

    `servers` None: the inner command names its target. A server that does not start is left out.
    `keep_in`: start all servers first, with their logs in this folder, and keep them.
    """
    _interrupt_on(signal.SIGTERM)
    _interrupt_on(signal.SIGHUP)  # the terminal is closed
    # The servers that we start inherit it: their /server_info shows flags.
    os.environ.setdefault("VLLM_SERVER_DEV_MODE", "1")
    # An interrupt ends inside the stack, which then ends the servers as after the last run. Nothing
    # else passes over `return True`.
    with ExitStack() as stack, suppress(KeyboardInterrupt):
        if servers is not None:
            stack.enter_context(servers)
        if servers is not None and keep_in is not None:
            servers.keep([setting for setting, _ in runs], keep_in)
        for number, (setting, folder) in enumerate(runs, start=1):
            if setting.failure:  # its server did not start for an earlier run of it
                continue
            target: tuple[str, ...] = ()
            if servers is not None:
                log = folder.with_name(f"{folder.name}.server.log")
                endpoint = servers.endpoint(setting, log)
                if endpoint is None:
                    continue
                target = (endpoint.url, *endpoint.options)
            stream.write(f"\nRun {number} of {len(runs)}: {setting.name}\n")
            stream.flush()
            words = [inner[0], *target, *inner[1:], *setting.client, "--out", str(folder)]
            setting.runs[str(folder)] = _run(words, stream)
        return True
    return False


def _interrupt_on(kind: signal.Signals) -> None:
    """As Ctrl-C does, unless somebody decided otherwise (`nohup` ignores a hangup)."""
    if signal.getsignal(kind) is signal.SIG_DFL:
        signal.signal(kind, signal.default_int_handler)


def _run(words: Sequence[str], stream: TextIO) -> int:
    """The exit code of `vllm-harness WORDS`; what it says goes to `stream`."""
    # In a session of its own: Ctrl-C reaches this process alone, which passes it on once and waits
    # for the report, while the server still answers. A second Ctrl-C ends the run without.
    command = [sys.executable, "-m", "harness", *words]
    with subprocess.Popen(command, stdout=stream, start_new_session=True) as child:  # noqa: S603
        try:
            return child.wait()
        except BaseException:
            child.send_signal(signal.SIGINT)
            try:
                child.wait()
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
            raise


def prove_knee(words: Sequence[str], start: StartOptions, out: Path, stream: TextIO) -> bool:
    """Find the knee in `out`, turn two knobs into folders below; False after Ctrl-C."""
    base = Setting(AS_STARTED)
    inner = ["knee", *words]
    servers = VariedServers(start, stream)
    is_complete = measure([(base, out)], inner, servers, stream)
    if base.failure:
        raise ServerUnreachable(base.failure)
    result = read_result(out)
    if not is_complete or not result or not result.bottleneck:
        return is_complete
    flags = _present_flags(out, base, result)
    tried: dict[str, list[Setting]] = {}
    for cause in _causes_to_prove(result.bottleneck):
        settings: list[Setting] = []
        for text in turns(cause, flags):
            settings += parse_variable(text)
        tried[cause] = settings
        for setting in settings:
            # One run proves a cause: the next setting is for a server that did not start.
            was_measured = any(other.runs for other in settings)
            if is_complete and not was_measured:
                folder = out / setting.name
                is_complete = measure([(setting, folder)], inner, servers, stream)
    measured = [base, *chain.from_iterable(tried.values())]
    proof = prove(tried, compare_settings(measured, PROOF_TOLERANCE))
    RunFolder(out).write_json(names.PROOF, proof)
    return is_complete


def _present_flags(out: Path, base: Setting, result: Result) -> dict[str, Any]:
    """The server's flags as far as they are known: what was inferred counts least."""
    info = read_json(out / names.RUN) or {}
    server = info.get("server") or {}
    cache_config = server.get("cache_config") or {}
    inferred = {
        MAX_NUM_SEQS: result.target.max_num_seqs.value,
        "num_gpu_blocks_override": cache_config.get("num_gpu_blocks"),
    }
    return {**inferred, **base.flags, **result.target.flags}


def _causes_to_prove(bottleneck: Bottleneck) -> list[str]:
    """The named cause and its runner-up; none where the diagnosis has not decided."""
    if bottleneck.bound_by not in RULES:
        return []
    possible = [cause.name for cause in bottleneck.causes if cause.name in RULES]
    return possible[:2]
