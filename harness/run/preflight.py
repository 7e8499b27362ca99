"""Refuse what cannot work before any load is sent: first this machine, then the target."""

from __future__ import annotations

import contextlib
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TextIO

from harness.errors import ConfigError
from harness.load.conversations import ONE_TURN, planned_tools
from harness.load.lengths import FROM_DATA
from harness.load.plan import CLIP_SAMPLE_SIZE, count_clipped
from harness.records.new_folder import check_new
from harness.senders.prepare import count_tokens
from harness.server.access import TargetAccess
from harness.server.address import (
    LOOPBACK,
    LOOPBACK_SOURCES,
    Address,
    check_port,
    ports_of_connections,
)
from harness.server.max_num_seqs import merge_flags
from harness.server.probe import Capabilities, check_prefill, choose_model, probe
from harness.server.probe_tools import check_tools

if TYPE_CHECKING:
    from harness.engine.config import EngineConfig
    from harness.load.own_data import DataSource
    from harness.load.workloads import Workload
    from harness.run.study_options import LoadOptions, OutputOptions, TargetOptions

ROWS_READ: Final = 100  # of own data, for its tools
FILES_WITHOUT_USERS: Final = 128  # Python, Locust, its web UI, the run folder, the decoder's pipes


@contextlib.contextmanager
def checked_target(
    target: TargetOptions,
    load: LoadOptions,
    output: OutputOptions,
    users: int,
    *,
    tell: Callable[[str], object] | None = None,
    option: str = "--max-users",
) -> Iterator[tuple[str, Capabilities]]:
    """Check everything before any load; yields (url, capabilities). Raises ConfigError and others.

    `option` is the option that sets the number of users. `tell` receives a line as soon as there is
    something to wait for; the default prints it.
    Nothing here imports Locust or numpy, so that this line and every error appear at once.
    """
    check_machine(output, users, option)
    tell = tell or (lambda line: print(line, file=message_stream(output), flush=True))
    if load.processes_note:
        tell(f"load processes: {load.processes_note}")
    with target_url(target, tell) as url:
        known = check_target(target, load, url)
        check_ports(Address.parse(url), known.addresses, users, option)
        if known.addresses > 1:
            host = Address.parse(url).host
            tell(f"{host} has {known.addresses} addresses; connections are spread over all of them")
        if known.no_metrics:
            tell(
                f"{known.no_metrics.rstrip('.')}: without the server's figures (running, waiting, "
                "KV cache, queue time) nothing names the bottleneck or finds other clients; "
                "latencies are measured all the same; behind a gateway, try --metrics-url URL for "
                "each replica"
            )
        for lack in known.lacking:
            tell(lack)
        for note in known.notes:
            tell(note)
        clipped = clipping_note(load, known.max_model_len)
        if clipped:
            tell(clipped)
        yield url, known


def simulation_note(engine: EngineConfig) -> str:
    """What is measured in place of a server."""
    return f"simulated: {engine.model} on {engine.gpu}, in place of a server"


def message_stream(output: OutputOptions) -> TextIO:
    """Messages go to stdout, unless `--json -` uses it."""
    return sys.stderr if output.json_to == "-" else sys.stdout


@contextlib.contextmanager
def target_url(target: TargetOptions, tell: Callable[[str], object]) -> Iterator[str]:
    """The URL of the server; without one, the embedded server runs as long as the context."""
    if target.url is not None:
        tell(f"probing {Address.parse(target.url)}")
        yield target.url
        return
    assert target.engine is not None  # noqa: S101 - options promise it
    tell(simulation_note(target.engine))
    from harness.engine.process import start_engine  # noqa: PLC0415 - heavy: see `checked_target`

    with start_engine(target.engine) as engine:
        yield engine.url


def check_machine(output: OutputOptions, users: int, option: str = "--max-users") -> None:
    """The run folder and the ports are free, and `users` (as `option` says) sockets can be open.

    Raises RunFolderError, ConfigError.

    Raises the soft limit of open files where the hard limit allows; children inherit it.
    """
    check_new(output.out_dir)
    if output.ui_port is not None:
        check_port("--ui-port", LOOPBACK, output.ui_port)
    if output.metrics_port is not None:
        check_port("--metrics-port", output.metrics_host, output.metrics_port)
    raise_file_limit(users + FILES_WITHOUT_USERS, option)


def raise_file_limit(need: int, option: str = "--max-users") -> int:
    """The soft limit of open files, raised to the hard one if `need` asks for it.

    Raises ConfigError when the hard limit is below `need`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= need:
        return soft
    if hard != resource.RLIM_INFINITY and hard < need:
        raise ConfigError(
            f"this process can open {hard} files and the load needs {need}: expected a hard limit "
            f"(`ulimit -Hn`) of at least that; try {option} {max(hard - FILES_WITHOUT_USERS, 1)}."
        )
    wanted = need if hard == resource.RLIM_INFINITY else hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def check_ports(address: Address, n_addresses: int, users: int, option: str) -> None:
    """A connection for each of `users` has a local port. Raises ConfigError.

    To each of the server's addresses the same ports can be used; on the loopback, from each of the
    addresses that `Addresses` sends from.
    """
    ports = ports_of_connections()
    if ports is None:
        return
    n_pairs = LOOPBACK_SOURCES if address.is_local else max(n_addresses, 1)
    most = len(ports) * n_pairs
    if users > most:
        raise ConfigError(
            f"this machine can open {most:,} connections to {address.host} (local ports "
            f"{ports[0]} to {ports[-1]}) and the load needs {users:,}: expected a port for "
            f"each; try `sysctl -w net.ipv4.ip_local_port_range='1024 65535'`, or {option} {most}."
        )


def check_target(target: TargetOptions, load: LoadOptions, url: str) -> Capabilities:
    """What the server at `url` is. Raises ConfigError, ServerUnreachable."""
    access = TargetAccess(
        Address.parse(url),
        api_key=target.api_key,
        key_source=target.key_source,
        ca_file=target.ca_file,
        insecure=target.insecure,
        connect_ns=target.timeouts.connect_ns,
        answer_ns=target.timeouts.answer_ns,
        headers=target.headers,
    )
    known = probe(access, load.workload.api, target.model, load.body, target.metrics_urls)
    if target.prefill_urls:
        known = replace(known, prefill=check_prefill(access, target.prefill_urls, known.model))
    check_tools(access, known, offered_tools(load), load.body)
    for name, _ in load.workload.models:
        choose_model(access, name, known.models)
    merge_flags(known.flags, target.server_flags)  # refuses what contradicts the server
    check_lengths(load.workload, known.max_model_len)
    if load.data is not None and known.tokenize:
        load.data.learn(lambda text: count_tokens(access, known, text))
    return known


def offered_tools(load: LoadOptions) -> tuple[dict[str, Any], ...]:
    """The tools of a request of this load: of its sessions, or of the first rows of its data."""
    data = load.data
    if data is None:
        sessions = load.workload.conversation or ONE_TURN
        return planned_tools(sessions.tools)
    for number in range(min(len(data), ROWS_READ)):
        tools = data.row(number).get("tools")
        if tools:
            return tuple(tools)
    return ()


def check_lengths(workload: Workload, max_model_len: int | None) -> None:
    """The model's context holds the mean request. Raises ConfigError."""
    prompt = workload.prompt_tokens
    output = workload.output.mean
    by_row = workload.prompt.shape == FROM_DATA  # each row is clipped by itself
    if max_model_len is None or prompt + output <= max_model_len or by_row:
        return
    # Shrink prompt and output by the same factor; the shared system message keeps its length.
    own_prompt = workload.prompt.mean
    share = max(max_model_len - workload.system_tokens, 0) / (own_prompt + output)
    prompt_fits = max(int(own_prompt * share), 1)
    output_fits = max(int(output * share), 1)
    raise ConfigError(
        f"the workload's mean request has {prompt + output:,} tokens ({prompt:,} prompt, "
        f"{output:,} output) and the model's context {max_model_len:,}: expected it to fit; try "
        f"--prompt-tokens {prompt_fits} --output-tokens {output_fits}, with --workload fixed for "
        "equal lengths."
    )


def clipping_note(load: LoadOptions, max_model_len: int | None) -> str:
    """How many planned requests are clipped to the context or a session's budget; "" for none.

    Of own data also what comes after the last row, and whether the server's cache may know it.
    """
    if load.data is not None:
        return _data_note(load.data, max_model_len)
    sessions = load.workload.conversation or ONE_TURN
    limits = {"the model's context": max_model_len, "--session-budget": sessions.session_budget}
    given = [(tokens, what) for what, tokens in limits.items() if tokens]
    room, what = min(given, default=(0, ""))
    limited = replace(load.workload, max_model_len=room)
    count = count_clipped(limited, load.seed)
    if not count:
        return ""
    return (
        f"{count:,} of {CLIP_SAMPLE_SIZE:,} planned requests are clipped to {what} of {room:,} "
        "tokens"
    )


def _data_note(data: DataSource, max_model_len: int | None) -> str:
    note = f"{data.path}: {len(data):,} rows, "
    note += f"{data.n_clipped(max_model_len or 0):,} clipped to the model's context"
    if data.n_unsized:
        note += f", {data.n_unsized:,} of unknown length are sent unchanged"
    if data.timed and data.rate_per_s:
        note += f"; their times (ms) ask for {data.rate_per_s:,.3g} requests/s"
    note += "; after the last "
    note += "they begin again" if data.repeat else "the run ends"
    if not data.salt:
        note += "; without --salt the server's cache knows rows of earlier runs"
    return note
