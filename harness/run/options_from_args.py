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

from harness.core.load import Rate, Users
from harness.core.run_kinds import kind_of
from harness.core.timeouts import Timeouts
from harness.errors import ConfigError
from harness.load.lengths import FROM_DATA
from harness.load.request_fields import DEFAULT_FIELDS, check_key
from harness.load.workloads import WORKLOADS, Workload
from harness.run import engine_flags
from harness.run import option_table as table
from harness.run.load_processes import Processes, automatic
from harness.run.option import Option, declare, number_option
from harness.run.scenario import scenario_of
from harness.run.study_options import (
    LoadOptions,
    OutputOptions,
    TargetOptions,
    Wanted,
    wanted_levels,
)
from harness.server.address import Address
from harness.units import SECOND, exact_ns

if TYPE_CHECKING:
    from harness.core.load import Load
    from harness.lifecycle.vllm_start import StartOptions

DEFAULT_HOLD_NS: Final = 30 * SECOND
DEFAULT_TOLERANCE: Final = 0.05
DEFAULT_UI_PORT: Final = 8089  # Locust's own
# say where results go: no part of a scenario
OUTPUTS: Final = [option.flag.strip("-") for option in table.OUTPUT]


def target(parser: argparse.ArgumentParser) -> None:
    """Which server, and the file that may say it and all the rest."""
    table.SCENARIO.declare(parser)
    parser.add_argument("url", nargs="?", metavar="URL", help="Load this server: http://HOST:PORT.")
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
    Option("--host", "Serve at this address.", str, "ADDRESS", "127.0.0.1").declare(group)
    number_option(
        "--port", "Serve on this port; 0 takes any free port.", port, min_value=0, example=port
    ).declare(group)


def target_options(args: argparse.Namespace) -> TargetOptions:
    """The target. Raises ConfigError unless exactly one of URL and --embedded was given."""
    has_url = bool((args.url or "").strip())
    if not args.embedded and not has_url:
        raise _no_url(args)
    if args.url is None:
        _check_embedded(args)
    else:
        _check_url(args)
    if args.prefill_url and not args.metrics_url:
        raise ConfigError(
            f"--prefill-url is {args.prefill_url[0]} without --metrics-url: expected both, as the "
            "servers that decode have metrics of their own; try --metrics-url URL for each."
        )
    header_names = {name.lower() for name, _ in args.header}
    key = ""
    key_source = ""
    if "authorization" not in header_names:
        key, key_source = api_key()
    model = next((name for name, _ in args.model), None)
    engine = engine_flags.engine_config(args) if args.url is None else None
    return TargetOptions(
        url=args.url,
        model=model,
        api_key=key,
        key_source=key_source,
        headers=tuple(args.header),
        ca_file=args.ca_file,
        insecure=args.insecure,
        timeouts=_timeouts(args),
        engine=engine,
        server_flags=dict(args.server_flag),
        metrics_urls=tuple(dict.fromkeys(args.metrics_url)),
        prefill_urls=tuple(dict.fromkeys(args.prefill_url)),
        gpu_metrics=args.gpu_metrics,
    )


def _engine_flag(args: argparse.Namespace) -> str:
    """The first flag of the embedded server that was given, or ""."""
    return next(iter(engine_flags.given_flags(args).values()), "")


def _check_url(args: argparse.Namespace) -> None:
    """The URL can be read, and nothing asks for the embedded server too. Raises ConfigError."""
    flag = "--embedded" if args.embedded else _engine_flag(args)
    if flag:
        raise ConfigError(
            f"{flag} asks for the embedded server, and a URL was given too: expected one of "
            f"the two; leave out {args.url!r} or {flag}."
        )
    Address.parse(args.url)


def _no_url(args: argparse.Namespace) -> ConfigError:
    missing = "no URL was given" if args.url is None else "the URL is empty"
    hint = "http://127.0.0.1:8000"
    flag = _engine_flag(args)
    if flag:
        missing += f", and {flag} asks for the embedded server"
        hint = "--embedded"
    return ConfigError(
        f"{missing}: expected a server's URL, or --embedded to measure a simulated one; try {hint}."
    )


def _check_embedded(args: argparse.Namespace) -> None:
    """Nothing is given that only a server at a URL has. Raises ConfigError."""
    if args.server_flag:
        name = args.server_flag[0][0].replace("_", "-")
        raise ConfigError(
            f"--server-flag {name} describes the server at a URL, and no URL was "
            f"given: expected one; the embedded server has flags of its own, try --{name}."
        )
    if args.metrics_url:
        raise ConfigError(
            f"--metrics-url is {args.metrics_url[0]} and no URL was given: expected the URL that "
            "requests go to; try that of the gateway."
        )
    if args.api not in (None, "chat", "completions"):
        raise ConfigError(
            f"--api is {args.api}, which the embedded server does not have: expected chat or "
            "completions, or a server's URL; try --api chat."
        )


def _timeouts(args: argparse.Namespace) -> Timeouts:
    """Those given, and the defaults. Raises ConfigError for one that could never be reached."""
    ns_of = {
        "connect_ns": args.connect_timeout,
        "first_token_ns": args.first_token_timeout,
        "idle_ns": args.idle_timeout,
        "total_ns": args.request_timeout,
    }
    given = {name: ns for name, ns in ns_of.items() if ns is not None}
    limits = Timeouts(**given)
    # A default above the total does no harm: it is never reached.
    if given.get("first_token_ns", 0) > limits.total_ns:
        first = exact_ns(limits.first_token_ns)
        raise ConfigError(
            f"--first-token-timeout is {first} and --request-timeout {exact_ns(limits.total_ns)}: "
            f"expected the first to be at most the second; try --request-timeout {first}."
        )
    return limits


def load_options(args: argparse.Namespace, option: str, most: Load) -> LoadOptions:
    """The workload at the lengths and on the API asked for.

    `most`: the highest level, of which `option` says how many users; without users there is a rate.
    """
    users = most.users
    if users and args.processes > users:
        raise ConfigError(
            f"--processes is {args.processes} and {option} is {users}: expected at most a process "
            f"for each user; try --processes {users}."
        )
    body = {**DEFAULT_FIELDS, **dict(args.body)}
    work = _workload(args)
    processes = Processes(args.processes)
    if not args.processes:
        processes = _automatic_processes(args, most, work)
    load = LoadOptions(
        work,
        seed=args.seed,
        processes=processes.number,
        processes_note=processes.note,
        body=body,
    )
    if not users:
        load = replace(load, arrivals=args.arrivals, max_in_flight=args.max_in_flight)
    _check_data_options(args, users)
    if args.data is None:
        salt = "" if args.salt == table.AUTO else args.salt
        return replace(load, salt=salt)
    from harness.load.own_data import DataSource  # noqa: PLC0415 - heavy: see app.py

    data = DataSource(args.data, load.workload, seed=args.seed, salt=args.salt)
    data.speed = args.speed or 1.0
    data.repeat = args.data_end != "stop"
    data.workload = data.as_workload(args.api)
    return replace(load, workload=data.workload, data=data)


def _automatic_processes(args: argparse.Namespace, most: Load, work: Workload) -> Processes:
    if getattr(args, "batch", None):  # its users share the requests of one process
        return Processes(1)
    return automatic(most, work.output.mean)


def _check_data_options(args: argparse.Namespace, users: int) -> None:
    """No option is given that needs own data, or that its rows decide. Raises ConfigError."""
    has_data = args.data is not None
    if not has_data:
        _check_left_out("--data-end", args.data_end, "with --data")
    # A command without --rate has levels of another kind.
    by_timestamps = has_data and not users and not getattr(args, "rate", True)
    if not by_timestamps:
        _check_left_out("--speed", args.speed, "with --data, without --users and --rate")
        _check_left_out("--arrivals data", args.arrivals == FROM_DATA, "with --data alone")
    if has_data:
        _check_left_out("--prompt-tokens", args.prompt_tokens, "without --data")
        _check_left_out("--batch", getattr(args, "batch", None), "without --data")
        _check_left_out("--think-time", args.think_time, "without --data")


def _check_left_out(flag: str, given: object, expected: str) -> None:
    """Raises ConfigError if it was given."""
    if given:
        raise ConfigError(f"{flag} is given: expected it {expected}; leave out {flag}.")


def _workload(args: argparse.Namespace) -> Workload:
    for name in ("prompt", "output"):
        low = getattr(args, f"{name}_min")
        high = getattr(args, f"{name}_max")
        if low and high and low > high:
            raise ConfigError(
                f"--{name}-min is {low} and --{name}-max is {high}: expected a range from the "
                f"shortest to the longest; try --{name}-tokens {(low + high) // 2} "
                f"--{name}-min {high} --{name}-max {low}."
            )
    prompt_spread = (args.prompt_cv, args.prompt_min, args.prompt_max)
    output_spread = (args.output_cv, args.output_min, args.output_max)
    chosen: Workload = args.workload.sized(
        args.prompt_tokens, args.output_tokens, prompt_spread, output_spread
    )
    if args.think_time is not None:
        chosen = replace(chosen, think_ms=args.think_time)
    chosen = _with_sessions(chosen, args)
    if args.api not in (None, chosen.api):
        chosen = chosen.through(args.api, exact=True)
    if len(args.model) > 1:
        return replace(chosen, models=tuple(args.model))
    return replace(chosen, models=())


def _with_sessions(chosen: Workload, args: argparse.Namespace) -> Workload:
    """With the sessions asked for. Raises ConfigError where they do not fit."""
    values = {option.dest: getattr(args, option.dest) for option in table.SESSIONS}
    given = {name: value for name, value in values.items() if value is not None}
    sessions = chosen.conversation
    if given and sessions is None:
        raise _contradiction(next(iter(given)), chosen, "no sessions", "--workload conversation")
    if sessions is not None and args.api not in (None, "chat"):
        raise _contradiction("api", chosen, "sessions", "--api chat")
    if sessions is not None or chosen.think_ms:
        _check_pauses(chosen, args)
    if sessions is None:
        return chosen
    chosen = replace(chosen, conversation=replace(sessions, **given))
    budget = given.get("session_budget")
    turn = chosen.prompt_tokens + chosen.output.mean
    if budget and budget < turn:
        raise ConfigError(
            f"--session-budget is {budget:,} and a first turn has {turn:,} tokens on average "
            f"({chosen.prompt_tokens:,} prompt, {chosen.output.mean:,} output): expected room "
            f"for one turn; try --session-budget {sessions.turns.mean * turn}."
        )
    return chosen


def _check_pauses(chosen: Workload, args: argparse.Namespace) -> None:
    """Users who pause send neither a batch nor at a rate. Raises ConfigError."""
    if getattr(args, "batch", None):
        raise _contradiction("batch", chosen, "pauses or sessions", "--workload chat")
    # `knee` asks for rates by --load rate, `run` and `sweep` by --rate.
    if getattr(args, "load", "") == Rate.option:
        raise _contradiction("load", chosen, "pauses or sessions", "a number of users")
    if getattr(args, "rate", None):
        raise _contradiction("rate", chosen, "pauses or sessions", "a number of users")


def _contradiction(option: str, chosen: Workload, has: str, expected: str) -> ConfigError:
    return ConfigError(
        f"--{option.replace('_', '-')} is given and --workload {chosen.name} has {has}: "
        f"expected options that go together; try {expected}."
    )


def is_changed(args: argparse.Namespace, option: Option) -> bool:
    """Whether an option has another value than its default, which scenario files write too."""
    usual: Any = option.default
    if option.read is None:  # a switch
        usual = False
    elif usual is not None:
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
    if args.ui_port is not None and not args.ui:
        raise _lacks("--ui-port", args.ui_port, "--ui", "--ui")
    if args.metrics_host is not None and args.metrics_port is None:
        raise _lacks("--metrics-host", args.metrics_host, "--metrics-port", "--metrics-port 9401")
    ui_port = None
    if args.ui:
        ui_port = args.ui_port or DEFAULT_UI_PORT
    return OutputOptions(
        out_dir=args.out or default_folder(command),
        json_to=args.json,
        junit_to=args.junit,
        upload=args.upload,
        otlp=args.otlp or "",
        ui_port=ui_port,
        live=not args.quiet,
        compat=tuple(dict.fromkeys(args.compat)),
        metrics_port=args.metrics_port,
        metrics_host=args.metrics_host or "127.0.0.1",
        scenario=scenario_of(args.words, args.options, OUTPUTS),
    )


def _lacks(flag: str, value: object, other: str, example: str) -> ConfigError:
    """`flag` is given without the one that it belongs to."""
    return ConfigError(
        f"{flag} is {value} without {other}: expected both; try {example} {flag} {value}."
    )


def _levels(given: int | tuple[int, ...] | None) -> tuple[int, ...]:
    """The levels of an option that takes one with `run` and several with `sweep`."""
    if given is None:
        return ()
    return given if isinstance(given, tuple) else (given,)


def run_options(args: argparse.Namespace, command: str) -> Wanted:
    """What `run` and `sweep` hold: for a time, unless a number of requests was given."""
    levels = _levels(args.users or args.rate)
    kind = Rate if args.rate else Users
    load = load_options(args, "--users", kind.of_count(max(levels, default=0)))
    if not levels:
        levels = (_rate_of_data(load, command),)
        load = replace(load, arrivals=FROM_DATA)
    batch = getattr(args, "batch", None) or 0
    if batch:
        _check_batch(args, batch, max(levels))
    if args.users:
        _check_closed_loop(args)
    check_slos(args, load)
    requests = args.requests
    data = load.data
    if data is not None and not data.repeat and args.duration is None:
        requests = requests or len(data)  # the whole file, however long it takes
    duration_ns = DEFAULT_HOLD_NS if args.duration is None else args.duration
    if requests is not None or batch:
        duration_ns = 0
    default_repeats = 3 if batch else 1  # three: the fewest that show how much they vary
    wanted = wanted_levels(
        kind_of(command),
        target_options(args),
        replace(load, batch=batch),
        output_options(args, command),
        levels,
        duration_ns=duration_ns,
        requests=requests or 0,
        repeats=getattr(args, "repeats", 1) or default_repeats,
        slos=tuple(args.slo),
        max_errors=args.max_errors,
        dry_run=args.dry_run,
    )
    return replace(wanted, **baseline_options(args))


def baseline_options(args: argparse.Namespace) -> dict[str, Any]:
    """What `Wanted` has of --baseline and --tolerance. Raises ConfigError."""
    if args.tolerance is not None and args.baseline is None:
        raise ConfigError(
            "--tolerance is given without --baseline: expected a run folder to compare with; "
            "try --baseline reports/main."
        )
    tolerance = DEFAULT_TOLERANCE if args.tolerance is None else args.tolerance
    return {"baseline": str(args.baseline or ""), "tolerance": tolerance}


def _rate_of_data(load: LoadOptions, command: str) -> int:
    """The level of a run by the timestamps of its rows, in steps. Raises ConfigError."""
    data = load.data
    if data is None or not data.rate_per_s:
        raise ConfigError(
            "one of --users and --rate is required, unless --data has timestamps: expected "
            f"one of the three; try `vllm-harness {command} --help`."
        )
    data.timed = True
    return max(Rate.of_number(data.rate_per_s).count, 1)


def _check_batch(args: argparse.Namespace, batch: int, most_users: int) -> None:
    """A batch is sent by users of one process, who all get a request. Raises ConfigError."""
    if args.rate:
        raise ConfigError(
            "--batch is given with --rate: a batch is sent by users, all at once; "
            f"try --users 8 --batch {batch}, or --rate with --requests {batch}."
        )
    processes = args.processes or 1
    if batch < most_users or processes > 1:
        raise ConfigError(
            f"--batch is {batch}, --users goes up to {most_users} and --processes is "
            f"{processes}: expected a request for each user, shared out by one process; "
            f"try --batch {max(batch, 4 * most_users)} --processes 1."
        )


def _check_closed_loop(args: argparse.Namespace) -> None:
    """No option of an open loop is given. Raises ConfigError."""
    for option in table.OPEN_LOOP:
        if is_changed(args, option):
            raise ConfigError(
                f"{option.flag} is given with --users, who send when their last answer has ended: "
                f"expected it with --rate; leave out {option.flag}, or try --rate 20/s."
            )


def check_slos(args: argparse.Namespace, load: LoadOptions) -> None:
    """They fit the workload. Raises ConfigError."""
    if args.slo:
        from harness.metrics import slo  # noqa: PLC0415 - heavy: see app.py

        slo.check_slos(tuple(args.slo), load.workload.output.mean)


def start_options(args: argparse.Namespace) -> StartOptions:
    """How the server is started. Raises ConfigError for a key that it could never be asked with."""
    api_key()  # for its check alone
    from harness.lifecycle.vllm_start import StartOptions  # noqa: PLC0415 - heavy: see app.py

    values = {option.dest: getattr(args, option.dest) for option in table.START}
    return StartOptions(**values)


def api_key() -> tuple[str, str]:
    """The key and the variable it came from, or two empty strings. The key is never printed."""
    for name in table.KEY_VARIABLES:
        key = os.environ.get(name, "")
        if key:
            check_key(key, name)
            return key, name
    return "", ""
