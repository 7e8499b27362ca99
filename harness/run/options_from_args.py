"""Option groups shared by subcommands, and the conversion of parsed arguments to study options.

Raises ConfigError if arguments contradict each other.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from harness.core.timeouts import Timeouts
from harness.errors import ConfigError
from harness.load.lengths import FROM_DATA
from harness.load.request_fields import DEFAULT_FIELDS, check_key
from harness.load.workloads import WORKLOADS, Workload
from harness.run import engine_flags
from harness.run import option_table as table
from harness.run.option import Option, declare, number_option
from harness.run.scenario import scenario_of
from harness.run.study_options import (
    RATE_STEP_PER_S,
    LoadOptions,
    OutputOptions,
    TargetOptions,
    Wanted,
    wanted_levels,
)
from harness.server.address import Address
from harness.units import SECOND, exact_ns

if TYPE_CHECKING:
    from harness.lifecycle.vllm_start import StartOptions

DEFAULT_HOLD_NS: Final = 30 * SECOND
DEFAULT_UI_PORT: Final = 8089  # Locust's own
# say where results go: no part of a scenario
OUTPUTS: Final = [option.flag.strip("-") for option in table.OUTPUT]


def target(parser: argparse.ArgumentParser) -> None:
    """Which server, and the file that may say it and all the rest."""
    table.SCENARIO.declare(parser)
    parser.add_argument("url", nargs="?", metavar="URL", help="the server: http://HOST:PORT")
    declare(parser.add_argument_group("target", table.KEY_FROM), table.TARGET)


def with_workloads(parser: argparse.ArgumentParser, title: str) -> argparse._ArgumentGroup:
    """An option group whose description lists the workloads and their lengths."""
    rows = "\n".join(
        f"  {w.name:<12}{w.prompt.mean + w.system_tokens:>6} {w.output.mean:>6}  {w.title}"
        for w in WORKLOADS.values()
    )
    means = "mean prompt tokens, mean output tokens"
    return parser.add_argument_group(title, f"Workloads ({means}):\n{rows}")


def load_and_objectives(parser: argparse.ArgumentParser) -> None:
    """The workload, the load processes, and the SLOs."""
    declare(with_workloads(parser, "load"), table.LOAD)
    declare(parser.add_argument_group("objectives"), table.OBJECTIVES)


def output(parser: argparse.ArgumentParser) -> None:
    """Output options, then the flags of the embedded server."""
    declare(parser.add_argument_group("output"), table.OUTPUT)
    engine_flags.declare(parser, "embedded server (with --embedded), with vLLM's option names")


def listen(group: argparse._ActionsContainer, port: int) -> None:
    """The address of a server that we run."""
    Option("--host", "", str, "ADDRESS", "127.0.0.1").declare(group)
    number_option("--port", "0: any free port", port, min_value=0, example=port).declare(group)


def target_options(args: argparse.Namespace) -> TargetOptions:
    """The target. Raises ConfigError unless exactly one of URL and --embedded was given."""
    flag = next(iter(engine_flags.given_flags(args).values()), "")
    if not args.embedded and not (args.url or "").strip():
        found = "no URL was given" if args.url is None else "the URL is empty"
        raise ConfigError(
            f"{found}{f', and {flag} asks for the embedded server' if flag else ''}: expected a "
            "server's URL, or --embedded to measure a simulated one; "
            f"try {'--embedded' if flag else 'http://127.0.0.1:8000'}."
        )
    if args.url is not None:
        if flag := "--embedded" if args.embedded else flag:
            raise ConfigError(
                f"{flag} asks for the embedded server, and a URL was given too: expected one of "
                f"the two; leave out {args.url!r} or {flag}."
            )
        Address.parse(args.url)
    elif args.server_flag:
        name = args.server_flag[0][0].replace("_", "-")
        raise ConfigError(
            f"--server-flag {name} describes the server at a URL, and no URL was "
            f"given: expected one; the embedded server has flags of its own, try --{name}."
        )
    elif args.metrics_url:
        raise ConfigError(
            f"--metrics-url is {args.metrics_url[0]} and no URL was given: expected the URL that "
            "requests go to; try that of the gateway."
        )
    elif args.api not in (None, "chat", "completions"):
        raise ConfigError(
            f"--api is {args.api}, which the embedded server does not have: expected chat or "
            "completions, or a server's URL; try --api chat."
        )
    own_key = "authorization" in (name.lower() for name, _ in args.header)
    key, source = ("", "") if own_key else api_key()
    return TargetOptions(
        url=args.url,
        model=next((name for name, _ in args.model), None),
        api_key=key,
        key_source=source,
        headers=tuple(args.header),
        ca_file=args.ca_file,
        insecure=args.insecure,
        timeouts=_timeouts(args),
        engine=engine_flags.engine_config(args) if args.url is None else None,
        server_flags=dict(args.server_flag),
        metrics_urls=tuple(dict.fromkeys(args.metrics_url)),
        gpu_metrics=args.gpu_metrics,
    )


def _timeouts(args: argparse.Namespace) -> Timeouts:
    """Those given, and the defaults. Raises ConfigError for one that could never be reached."""
    given = {
        "connect_ns": args.connect_timeout,
        "first_token_ns": args.first_token_timeout,
        "idle_ns": args.idle_timeout,
        "total_ns": args.request_timeout,
    }
    given = {name: ns for name, ns in given.items() if ns is not None}
    limits = Timeouts(**given)
    if given.get("first_token_ns", 0) > limits.total_ns:
        first = exact_ns(limits.first_token_ns)
        raise ConfigError(
            f"--first-token-timeout is {first} and --request-timeout {exact_ns(limits.total_ns)}: "
            f"expected the first to be at most the second; try --request-timeout {first}."
        )
    return limits


def load_options(args: argparse.Namespace, option: str, users: int = 0) -> LoadOptions:
    """The workload at the lengths and on the API asked for.

    `option` says how many users; 0: there is a rate instead.
    """
    if users and args.processes > users:
        raise ConfigError(
            f"--processes is {args.processes} and {option} is {users}: expected at most a process "
            f"for each user; try --processes {users}."
        )
    body = {**DEFAULT_FIELDS, **dict(args.body)}
    load = LoadOptions(_workload(args), seed=args.seed, processes=args.processes, body=body)
    if not users:
        load = replace(load, arrivals=args.arrivals, max_in_flight=args.max_in_flight)
    own, timed = args.data is not None, not (users or getattr(args, "rate", True))
    for flag, given, fits, needs in (
        ("--data-end", args.data_end, own, "with --data"),
        ("--speed", args.speed, own and timed, "with --data, without --users and --rate"),
        ("--arrivals data", args.arrivals == FROM_DATA, own and timed, "with --data alone"),
        ("--prompt-tokens", args.prompt_tokens, not own, "without --data"),
        ("--batch", getattr(args, "batch", None), not own, "without --data"),
        ("--think-time", args.think_time, not own, "without --data"),
    ):
        if given and not fits:
            raise ConfigError(f"{flag} is given: expected it {needs}; leave out {flag}.")
    if not own:
        return replace(load, salt="" if args.salt == table.AUTO else args.salt)
    from harness.load.own_data import DataSource  # noqa: PLC0415 - heavy: see app.py

    data = DataSource(args.data, load.workload, seed=args.seed, salt=args.salt)
    data.speed, data.repeat = args.speed or 1.0, args.data_end != "stop"
    data.workload = data.as_workload(args.api)
    return replace(load, workload=data.workload, data=data)


def _workload(args: argparse.Namespace) -> Workload:
    for name in ("prompt", "output"):
        low, high = getattr(args, f"{name}_min"), getattr(args, f"{name}_max")
        if low and high and low > high:
            raise ConfigError(
                f"--{name}-min is {low} and --{name}-max is {high}: expected a range from the "
                f"shortest to the longest; try --{name}-tokens {(low + high) // 2} "
                f"--{name}-min {high} --{name}-max {low}."
            )
    chosen: Workload = args.workload.sized(
        args.prompt_tokens,
        args.output_tokens,
        (args.prompt_cv, args.prompt_min, args.prompt_max),
        (args.output_cv, args.output_min, args.output_max),
    )
    chosen = _with_sessions(chosen, args)
    if args.api not in (None, chosen.api):
        chosen = chosen.through(args.api, exact=True)
    return replace(chosen, models=tuple(args.model) if len(args.model) > 1 else ())


def _with_sessions(chosen: Workload, args: argparse.Namespace) -> Workload:
    """The think time and sessions asked for. Raises ConfigError where a workload has none."""
    if args.think_time is not None:
        chosen = replace(chosen, think_ms=args.think_time)
    given = {one.dest: getattr(args, one.dest) for one in table.SESSIONS}
    given = {name: value for name, value in given.items() if value is not None}
    talk, batch = chosen.conversation, getattr(args, "batch", None)
    asks_rate = "load" if getattr(args, "load", "") == "rate" else "rate"
    rates, pauses = asks_rate == "load" or getattr(args, "rate", None), talk or chosen.think_ms
    for wrong, option, has, expected in (
        (given and talk is None, next(iter(given), ""), "no sessions", "--workload conversation"),
        (talk and args.api not in (None, "chat"), "api", "sessions", "--api chat"),
        (batch and pauses, "batch", "pauses or sessions", "--workload chat"),
        (rates and pauses, asks_rate, "pauses or sessions", "a number of users"),
    ):
        if wrong:
            raise ConfigError(
                f"--{option.replace('_', '-')} is given and --workload {chosen.name} has {has}: "
                f"expected options that go together; try {expected}."
            )
    if talk is not None:
        chosen = replace(chosen, conversation=replace(talk, **given))
        turn, budget = chosen.prompt_tokens + chosen.output.mean, given.get("session_budget")
        if budget and budget < turn:
            raise ConfigError(
                f"--session-budget is {budget:,} and a first turn has {turn:,} tokens on average "
                f"({chosen.prompt_tokens:,} prompt, {chosen.output.mean:,} output): expected room "
                f"for one turn; try --session-budget {talk.turns.mean * turn}."
            )
    return chosen


def is_changed(args: argparse.Namespace, option: Option) -> bool:
    """Whether an option has another value than its default, which scenario files write too."""
    usual: Any = option.default
    if usual is not None and option.read is not None:
        usual = option.read(usual)
    return bool(getattr(args, option.dest) != usual)


def default_folder(command: str) -> Path:
    """`reports/COMMAND-YYYYMMDD-HHMMSS`."""
    return Path("reports") / f"{command}-{time.strftime('%Y%m%d-%H%M%S')}"


def folder_of(out: Path | None, command: str) -> Path:
    """`--out`, or the default folder, if it is new. Raises RunFolderError."""
    from harness.records.new_folder import check_new  # noqa: PLC0415 - heavy: see app.py

    folder = out or default_folder(command)
    check_new(folder)
    return folder


def output_options(args: argparse.Namespace, command: str) -> OutputOptions:
    """The run folder and the other outputs. Raises ConfigError."""
    for flag, value, needs, there in (
        ("--ui-port", args.ui_port, "--ui", args.ui),
        ("--metrics-host", args.metrics_host, "--metrics-port 9401", args.metrics_port is not None),
    ):
        if value is not None and not there:
            raise ConfigError(
                f"{flag} is {value} without {needs.split()[0]}: expected both; "
                f"try {needs} {flag} {value}."
            )
    return OutputOptions(
        out_dir=args.out or default_folder(command),
        json_to=args.json,
        junit_to=args.junit,
        ui_port=(args.ui_port or DEFAULT_UI_PORT) if args.ui else None,
        live=not args.quiet,
        compat=tuple(dict.fromkeys(args.compat)),
        metrics_port=args.metrics_port,
        metrics_host=args.metrics_host or "127.0.0.1",
        scenario=scenario_of(args.words, args.options, OUTPUTS),
    )


def _levels(given: int | tuple[int, ...] | None) -> tuple[int, ...]:
    """The levels of an option that takes one with `run` and several with `sweep`."""
    if given is None:
        return ()
    return given if isinstance(given, tuple) else (given,)


def run_options(args: argparse.Namespace, command: str) -> Wanted:
    """What `run` and `sweep` hold: for a time, unless a number of requests was given."""
    load = load_options(args, "--users", max(_levels(args.users), default=0))
    users = _levels(args.users or args.rate)
    if not users:
        if (data := load.data) is None or not data.rate_per_s:
            raise ConfigError(
                "one of --users and --rate is required, unless --data has timestamps: expected "
                f"one of the three; try `vllm-harness {command} --help`."
            )
        load, data.timed = replace(load, arrivals=FROM_DATA), True
        users = (max(round(data.rate_per_s / RATE_STEP_PER_S), 1),)
    duration_ns = DEFAULT_HOLD_NS if args.duration is None else args.duration
    batch, repeats = getattr(args, "batch", None), getattr(args, "repeats", 1)
    if batch and args.rate:
        raise ConfigError(
            "--batch is given with --rate: a batch is sent by users, all at once; "
            f"try --users 8 --batch {batch}, or --rate with --requests {batch}."
        )
    if batch and (batch < max(users) or args.processes > 1):
        raise ConfigError(
            f"--batch is {batch}, --users goes up to {max(users)} and --processes is "
            f"{args.processes}: expected a request for each user, shared out by one process; "
            f"try --batch {max(batch, 4 * max(users))} --processes 1."
        )
    for option in table.OPEN_LOOP:
        if args.users and is_changed(args, option):
            raise ConfigError(
                f"{option.flag} is given with --users, who send when their last answer has ended: "
                f"expected it with --rate; leave out {option.flag}, or try --rate 20/s."
            )
    requests = args.requests
    if load.data is not None and not load.data.repeat and args.duration is None:
        requests = requests or len(load.data)  # the whole file, however long it takes
    check_slos(args, load)
    return wanted_levels(
        command,
        target_options(args),
        replace(load, batch=batch or 0),
        output_options(args, command),
        users,
        duration_ns=duration_ns if requests is None and not batch else 0,
        requests=requests or 0,
        repeats=repeats or (3 if batch else 1),  # three: the fewest that show how much they vary
        slos=tuple(args.slo),
        max_errors=args.max_errors,
        dry_run=args.dry_run,
    )


def check_slos(args: argparse.Namespace, load: LoadOptions) -> None:
    """They fit the workload. Raises ConfigError."""
    if args.slo:
        from harness.metrics import slo  # noqa: PLC0415 - heavy: see app.py

        slo.check_slos(tuple(args.slo), load.workload.output.mean)


def start_options(args: argparse.Namespace) -> StartOptions:
    """How the server is started. Raises ConfigError for a key that it could never be asked with."""
    api_key()
    from harness.lifecycle.vllm_start import StartOptions  # noqa: PLC0415 - heavy: see app.py

    return StartOptions(**{option.dest: getattr(args, option.dest) for option in table.START})


def api_key() -> tuple[str, str]:
    """The key and the variable it came from, or two empty strings. The key is never printed."""
    for name in table.KEY_VARIABLES:
        key = os.environ.get(name, "")
        if not key:
            continue
        check_key(key, name)
        return key, name
    return "", ""
