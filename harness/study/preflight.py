"""Refuse what cannot work before any load is sent: first this machine, then the target."""

from __future__ import annotations

import resource
import socket
from typing import TYPE_CHECKING, Final

from harness.drive.options import UI_HOST
from harness.errors import ConfigError, RunFolderError
from harness.load.planner import plan_lengths
from harness.server.access import Access
from harness.server.address import Address
from harness.server.probe import Capabilities, probe
from harness.server.seats import flags_of
from harness.units import SECOND, exact_ns

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from harness.load.workloads import Workload
    from harness.measure.slo import Slo
    from harness.study.options import LoadOptions, OutputOptions, TargetOptions

FILES_BESIDE_USERS: Final = 128  # Python, Locust, its web UI, the run folder, the decoder's pipes
ANSWER_NS: Final = 60 * SECOND  # a loaded vLLM answers the probe late, but not later than this
DRAWS: Final = 1_000  # planned requests looked at for the longest


def check_machine(output: OutputOptions, users: int, option: str = "--max-users") -> None:
    """The run folder and the ports are free, and `users` (as `option` says) sockets can be open.

    Raises RunFolderError, ConfigError.

    Raises the soft limit of open files where the hard limit allows; children inherit it.
    """
    check_folder(output.out_dir)
    if output.ui_port is not None:
        check_port("--ui-port", UI_HOST, output.ui_port)
    if output.metrics_port is not None:
        check_port("--metrics-port", output.metrics_host, output.metrics_port)
    if output.otlp_port is not None:
        check_port("--otlp-port", UI_HOST, output.otlp_port)
    raise_file_limit(users + FILES_BESIDE_USERS, option)


def check_folder(folder: Path) -> None:
    """Nothing lies there that a run could overwrite. Raises RunFolderError."""
    try:
        free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    except OSError:
        free = False
    if not free:
        raise RunFolderError(
            f"the output folder {folder} exists and is not an empty folder: expected a new one, "
            "so that no earlier run is overwritten; try another --out."
        )


def check_port(flag: str, host: str, port: int) -> None:
    """A server can listen there. Raises ConfigError: else it would be said only amid the load."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as sock, socket.socket() as other:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the servers do
        try:
            sock.bind((host, port))
            sock.listen()
        except (OSError, OverflowError) as error:
            other.bind((UI_HOST, 0))
            why = getattr(error, "strerror", None) or "no such port"
            raise ConfigError(
                f"{flag} is {port} ({why}): expected a free port of {host}; "
                f"try {flag} {other.getsockname()[1]}."
            ) from None


def raise_file_limit(need: int, option: str = "--max-users") -> int:
    """The soft limit of open files, raised to the hard one if `need` asks for it.

    Raises ConfigError when the hard limit is below `need`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= need:
        return soft
    if hard != resource.RLIM_INFINITY and hard < need:
        raise ConfigError(
            f"this process may open {hard} files and the load needs {need}: expected a hard limit "
            f"(`ulimit -Hn`) of at least that; try {option} {max(hard - FILES_BESIDE_USERS, 1)}."
        )
    wanted = need if hard == resource.RLIM_INFINITY else hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def check_slos(slos: Sequence[Slo], workload: Workload) -> None:
    """Each is on a quantile of its own, of what requests have. Raises ConfigError."""
    for slo in slos:
        same = sorted(other.limit_ns for other in slos if other.name == slo.name)
        if len(same) > 1:
            raise ConfigError(
                f"--slo {slo.name} is given {len(same)} times: expected one limit for each "
                f"quantile; try --slo {slo.name}={exact_ns(same[0])} alone."
            )
        if slo.metric in ("itl", "tpot") and workload.output.mean < 2:  # noqa: PLR2004 - a gap's ends
            raise ConfigError(
                f"--slo {slo} is on the time between output tokens, and a request has one: "
                "expected two or more; try --output-tokens 16."
            )


def check_target(target: TargetOptions, load: LoadOptions, url: str) -> Capabilities:
    """What the server at `url` is. Raises ConfigError, ServerUnreachable."""
    access = Access(
        Address.parse(url),
        api_key=target.api_key,
        key_source=target.key_source,
        ca_file=target.ca_file,
        insecure=target.insecure,
        connect_ns=target.timeouts.connect_ns,
        answer_ns=min(target.timeouts.total_ns, ANSWER_NS),
    )
    found = probe(access, load.workload.api, target.model)
    flags_of(found.flags, target.server_flags)  # refuses what contradicts the server
    if found.max_model_len is not None:
        check_lengths(load.workload, load.seed, found.max_model_len)
    return found


def check_lengths(workload: Workload, seed: int, max_model_len: int) -> None:
    """The model's context holds the planned requests. Raises ConfigError."""
    longest = max(sum(plan_lengths(workload, seed, 0, number)) for number in range(DRAWS))
    if longest > max_model_len:
        share = max_model_len / longest
        raise ConfigError(
            f"the workload's longest request has {longest} tokens and the model's context "
            f"{max_model_len}: expected every request to fit; try --prompt-tokens "
            f"{max(int(workload.prompt.mean * share), 1)} --output-tokens "
            f"{max(int(workload.output.mean * share), 1)}."
        )
