"""The options of the commands that send load, of the form of the web pages, and of `locust`.

An option parses its text or raises ConfigError; `TARGET`, `LOAD` and so on are groups of `--help`.
Options of Locust's command line are texts, and its doors in harness/locust say which they have.
Output files and the API key are never fields of the form, because a browser must not choose them.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from harness.compat import TOOLS, parse_tools
from harness.core.load import UNIT_OF_OPTION, Rate, Users
from harness.core.value_parsers import duration, positive_number, share, whole_number
from harness.errors import ConfigError
from harness.export.upload_url import UploadUrl
from harness.load.arrivals import ARRIVALS, POISSON, parse_arrivals
from harness.load.conversations import REPLIES, parse_history
from harness.load.workloads import (
    API_PATHS,
    AS_USERS,
    parse_weights,
    workload,
    workload_names,
)
from harness.metrics.slo_presets import PREFIX, SLO_PRESETS, slo_texts
from harness.run.option import (
    MAX_FORM_NUMBER,
    Field,
    InLocust,
    Option,
    deviation,
    distribution,
    level_list,
    number_option,
    one_level,
    parse_body_field,
    parse_header,
    rate_list,
    writable,
)
from harness.run.study_options import budget_ns
from harness.server.address import Address, parse_exporter_url
from harness.server.max_num_seqs import parse_server_flag
from harness.units import MS, duration_ns, percent

if TYPE_CHECKING:
    from harness.metrics.slo import Slo

KEY_VARIABLES: Final = ("VLLM_API_KEY", "OPENAI_API_KEY")  # the first that is set counts
AUTO: Final = "auto"  # a salt of the run's own
KEY_FROM: Final = f"The API key is read from the environment only: {' or '.join(KEY_VARIABLES)}."


def _think_ms(text: str) -> int:
    return max(duration_ns(text, "--think-time", "2s") // MS, 1)


def _folder(text: str) -> Path:
    """Raises ConfigError for "", which would mean the current folder."""
    if not text.strip():
        raise ConfigError("--out is empty: expected the name of a new folder; try --out result.")
    return Path(text)


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(
            f"--start-args is {text!r} ({error}): expected flags as in a shell; try "
            "--start-args '--max-num-seqs 64'."
        ) from None


def _precision(text: str) -> float:
    """Raises ConfigError for 0%, which no interval reaches."""
    if wanted := percent(text, "--precision"):
        return wanted
    raise ConfigError(
        f"--precision is {text!r}: expected a width that an interval can reach, above 0%; try "
        "--precision 5%."
    )


def _gpu_source(where: str) -> str:
    return where if where in ("local", "none") else str(parse_exporter_url(where))


def _metrics_url(where: str) -> str:
    address = Address.parse(where, "--metrics-url")
    return str(replace(address, path=address.path.removesuffix("/metrics")))


def _slo(text: str) -> tuple[Slo, ...]:
    from harness.metrics.slo import Slo  # noqa: PLC0415 - imports numpy; --help does without

    return tuple(map(Slo.parse, slo_texts(text)))


def _slos(text: str) -> tuple[Slo, ...]:
    slos: list[Slo] = []
    for word in re.split(r"[\s,]+", text.strip()):
        if word:
            slos += _slo(word)
    return tuple(slos)


CA_FILE: Final = Option("--ca-file", "certificates to trust (PEM)", Path, "FILE")
INSECURE: Final = Option("--insecure", "do not verify the server's certificate", None)
CERTIFICATE: Final = CA_FILE, INSECURE
SERVER_FLAG: Final = Option(
    "--server-flag",
    "a flag that the server was started with, for example max-num-seqs=256; may be repeated",
    parse_server_flag,
    "NAME=VALUE",
    action="append",
)
GPU_METRICS: Final = Option(
    "--gpu-metrics",
    "local, none, or http://HOST:9400 of `vllm-harness exporter` or a dcgm-exporter next to the "
    "server; default: local for a server on this machine",
    _gpu_source,
    "WHERE",
)
SERVER: Final = SERVER_FLAG, GPU_METRICS  # what the server may not report
START: Final = (  # fields of lifecycle.vllm_start.StartOptions
    Option(
        "--vllm",
        "the `vllm` command; default: HARNESS_VLLM_COMMAND, or the one on PATH",
        str,
        "PATH",
        "",
    ),
    Option(
        "--start-command",
        "in place of `vllm serve`: a command line that flags are added to",
        str,
        "COMMAND",
        "",
    ),
    Option(
        "--model-dir",
        "the model's folder; without weight files it gets random weights",
        Path,
        "DIR",
    ),
    Option(
        "--start-args", "further flags of `vllm serve`, in quotation marks", _words, "FLAGS", ""
    ),
)
PROVE: Final = (
    Option(
        "--prove",
        "start vLLM, find the knee, turn the flag that the diagnosis names and the "
        "runner-up's, and find it again",
        None,
    ),
    *START,
)
TIMEOUTS: Final = (  # fields of core.timeouts.Timeouts; their defaults are there
    Option(
        "--connect-timeout",
        "TCP and TLS; default: 10s",
        duration("--connect-timeout", "10s"),
        "TIME",
    ),
    Option(
        "--first-token-timeout",
        "from sending to the first token; default: 120s",
        duration("--first-token-timeout", "120s"),
        "TIME",
    ),
    Option(
        "--idle-timeout",
        "between two reads of a stream, comments that keep it open aside; default: 60s",
        duration("--idle-timeout", "60s"),
        "TIME",
    ),
    Option(
        "--request-timeout",
        "from sending to the end; default: 600s",
        duration("--request-timeout", "600s"),
        "TIME",
    ),
)
EMBEDDED: Final = Option(
    "--embedded",
    "no URL: start the embedded server, which simulates vLLM on a GPU, and measure it",
    None,
)
MODEL: Final = Option(
    "--model",
    "default: the only one that it serves; several, LoRA adapters too: with weights, or repeated",
    partial(parse_weights, "--model"),
    "NAME[=WEIGHT],...",
    action="extend",
    field=Field(
        "Model", "as the server names it; empty: the only one that it serves", read=str.strip
    ),
)
HEADER: Final = Option(
    "--header",
    "of every request; {session}, {user}, {request} and $VARIABLE, of the environment, are filled "
    "in; may be repeated",
    parse_header,
    "NAME:VALUE",
    action="append",
)
METRICS_URL: Final = Option(
    "--metrics-url",
    "a replica behind the URL; repeat it for each, and their /metrics are added up; default: the "
    "URL, or each address of its name",
    _metrics_url,
    "URL",
    action="append",
)
TARGET: Final = EMBEDDED, MODEL, HEADER, *CERTIFICATE, *TIMEOUTS, *SERVER, METRICS_URL
LENGTH_HELP: Final = "mean length; default: the workload's own"
LENGTHS: Final = (
    Option(
        "--workload",
        "one, or several with weights: chat=9,summarize=1",
        workload,
        "NAME[=WEIGHT],...",
        "chat",
        field=Field("Workload", "what is sent", choices=workload_names()),
        in_locust=InLocust(
            AS_USERS,
            "what is sent: lengths, shared prefixes; default: that of the locustfile",
            (AS_USERS, *workload_names()),
        ),
    ),
    number_option(
        "--prompt-tokens",
        LENGTH_HELP,
        example=128,
        field=Field(
            "Prompt tokens",
            "mean; 0: the workload's own",
            "0",
            read=whole_number("prompt tokens", 0, max_value=MAX_FORM_NUMBER),
        ),
        in_locust=InLocust(type=int),
    ),
    number_option(
        "--output-tokens",
        LENGTH_HELP,
        example=128,
        field=Field(
            "Output tokens",
            "mean; 0: the workload's own",
            "0",
            read=whole_number("output tokens", 0, max_value=MAX_FORM_NUMBER),
        ),
        in_locust=InLocust(type=int),
    ),
)


def _spread(kind: str) -> tuple[Option, Option, Option]:
    """How much the lengths of prompts or outputs differ."""
    return (
        Option(
            f"--{kind}-cv",
            "standard deviation of the lengths over their mean, log-normal; 0: "
            "all alike; default: the workload's own",
            deviation(f"--{kind}-cv"),
            "CV",
        ),
        number_option(
            f"--{kind}-min", "no length is below; default: an eighth of the mean", example=16
        ),
        number_option(
            f"--{kind}-max", "no length is above; default: four times the mean", example=4096
        ),
    )


SPREAD: Final = (*_spread("prompt"), *_spread("output"))
DATA: Final = (
    Option(
        "--data",
        "send the rows of a file, one JSON object per line (docs/data.md); request k is row k",
        str,
        "FILE",
    ),
    Option(
        "--data-end",
        "after the last row: begin again, or end the run; default: repeat",
        choices=("repeat", "stop"),
    ),
    Option(
        "--speed",
        "2: twice as fast as the timestamps of --data say; default: 1",
        positive_number("--speed"),
        "X",
    ),
    Option(
        "--salt",
        "TEXT, or auto for another in each run, that keeps prompts out of the "
        "server's prefix cache; default: auto, and with --data none",
        str,
        "TEXT",
        "",
    ),
)
THINK_TIME: Final = Option(
    "--think-time",
    "pause of a user between an answer and its next request: a mean or "
    "SHAPE:MEAN:CV, such as lognormal:2s:0.5; default: the workload's own",
    distribution("--think-time", _think_ms, "lognormal:2s:0.5"),
    "TIME",
)
SESSIONS: Final = (  # fields of load.conversations.Conversation, of a workload with sessions
    Option(
        "--turns",
        "turns of a session: a mean or SHAPE:MEAN:CV; default: the workload's own",
        distribution("--turns", whole_number("--turns"), "lognormal:8:0.5"),
        "N",
    ),
    Option(
        "--history",
        "what a prompt holds of its session: full, last:K turns, or budget:TOKENS "
        "of the prompt; default: full",
        parse_history,
        "POLICY",
    ),
    Option(
        "--replies",
        "the assistant's part of the history: planned text of exact length, or the "
        "server's real answers; default: planned",
        choices=REPLIES,
    ),
    number_option(
        "--tools", "functions that every session offers; default: 0", min_value=0, example=4
    ),
    number_option(
        "--session-budget",
        "end a session before its prompts and answers exceed this; default: no limit",
        example=32_000,
    ),
    Option(
        "--session-timeout",
        "begin no turn later than this in a session; default: no limit",
        duration("--session-timeout", "10m"),
        "TIME",
    ),
)
BODY: Final = Option(
    "--body",
    "a field of every request's body, such as top_p=0.9; may be repeated; temperature is 0 unless "
    "it is given",
    parse_body_field,
    "NAME=JSON",
    action="append",
)
SEED: Final = number_option(
    "--seed", "of prompts, lengths and stagger", 1, min_value=0, in_locust=InLocust(type=int)
)
LOAD: Final = (
    *LENGTHS,
    *SPREAD,
    THINK_TIME,
    *SESSIONS,
    *DATA,
    BODY,
    Option("--api", "default: the workload's own", choices=tuple(API_PATHS)),
    SEED,
    number_option("--processes", "worker processes that send the load", 1),
)
OPEN_LOOP: Final = (
    Option("--arrivals", f"with rates: {', '.join(ARRIVALS)}", parse_arrivals, "KIND", POISSON),
    number_option(
        "--max-in-flight",
        "with rates: what is due beyond it is dropped, and failed",
        2000,
        example=1000,
    ),
)
# the levels of `run`, one, and of `sweep`
USERS: Final = Option("--users", "concurrent requests of a level", one_level("--users"), "N")
RATE: Final = Option(
    "--rate",
    "requests per second of a level, over all processes",
    Rate.parser("--rate"),
    "R",
    in_locust=InLocust("10/s"),
)
SWEPT_USERS: Final = USERS._replace(read=level_list("--users"), metavar="N,N,...")
SWEPT_RATE: Final = RATE._replace(read=rate_list("--rate"), metavar="R,R,...")
DURATION: Final = Option(
    "--duration",
    "default: 30s",
    duration("--duration"),
    "TIME",
    in_locust=InLocust("30s", "of the load, for --run-time"),
)
REQUESTS: Final = number_option("--requests", "instead of a duration", example=500)
BATCH: Final = number_option(
    "--batch", "instead: a batch of so many requests, to its last answer", example=64
)
REPEATS: Final = number_option(
    "--repeats", "times to go through the levels; default: 3 with --batch, else 1", example=3
)
SLO: Final = Option(
    "--slo",
    "for example ttft_p95=500ms, itl_p99.9=80ms, tpot_p99=40ms or e2e_p90=10s; or "
    f"published ones, {PREFIX}{'|'.join(SLO_PRESETS)}; may be repeated",
    _slo,
    "METRIC_pQQ=TIME",
    action="extend",
    field=Field(
        "SLO",
        "several are separated by spaces; empty: find the power knee",
        "ttft_p95=500ms itl_p95=50ms",
        read=_slos,
    ),
)
MAX_ERRORS: Final = Option(
    "--max-errors",
    "allowed share of failed requests at a level",
    share("--max-errors"),
    "SHARE",
    "1%",
    field=Field("Failures allowed", "a level with a larger share of failed requests fails"),
)
OBJECTIVES: Final = SLO, MAX_ERRORS
USER_RANGE: Final = (
    number_option("--min-users", "", 1, field=Field("Lowest level", "users at the start")),
    number_option(
        "--max-users",
        "",
        512,
        field=Field(
            "Highest level",
            "the most users to try",
            read=whole_number("the highest level", max_value=MAX_FORM_NUMBER),
        ),
    ),
)
RATE_RANGE: Final = (
    Option(
        "--load",
        "what levels are: users (closed loop) or a rate (open loop)",
        choices=tuple(UNIT_OF_OPTION),
        default=Users.option,
    ),
    Option(
        "--min-rate",
        "with --load rate: requests per second at the start",
        Rate.parser("--min-rate"),
        "R",
        "1/s",
    ),
    Option(
        "--max-rate",
        "with --load rate: the highest to try",
        Rate.parser("--max-rate"),
        "R",
        "512/s",
    ),
)
BASELINE: Final = Option(
    "--baseline",
    "a run folder: 99 if this run is shown to be worse, as `compare` has it",
    Path,
    "DIR",
)
TOLERANCE: Final = Option(
    "--tolerance",
    "how much worse than the baseline it may be; default: 5%%",
    share("--tolerance"),
    "SHARE",
)
BUDGET: Final = Option(
    "--budget",
    "the load ends within this time",
    partial(budget_ns, what="--budget"),
    "TIME",
    "10m",
    field=Field("Budget", "the load ends within this time"),
)
PRECISION: Final = Option(
    "--precision",
    "the load ends once the knee's interval is so narrow, or one user, and both of "
    "its ends are decided",
    _precision,
    "SHARE",
    "5%",
    field=Field("Precision", "the load ends once the interval is so narrow"),
)
REPEAT: Final = number_option(
    "--repeat", "search so many times, with a seed each, and say how the promises differ", example=5
)
AT_LEAST: Final = number_option(
    "--at-least",
    "the exit code says whether N users are held: 0, 99 if not, 6 if inconclusive",
    example=64,
)
STRICT: Final = Option("--strict", "exit code 6 unless --precision is reached", None)
SEARCH: Final = (
    *USER_RANGE,
    *RATE_RANGE,
    *OPEN_LOOP,
    BUDGET,
    PRECISION,
    STRICT,
    number_option(
        "--plan-users", "also report how many replicas N concurrent requests need", example=2000
    ),
    AT_LEAST,
    Option(
        "--confirm",
        "afterwards hold the promised level for this time, half of it coming from "
        "fewer users and half from more; the exit code says whether it held: 0, 99, or 6",
        partial(budget_ns, what="--confirm"),
        "TIME",
    ),
    BASELINE,
    TOLERANCE,
    REPEAT,
)
JSON: Final = Option(
    "--json",
    "write the result there too; -: to stdout (words then go to stderr)",
    partial(writable, "--json"),
    "FILE",
)
OTHER_TOOLS: Final = Option(
    "--compat",
    f"also show what these tools would print: {', '.join(TOOLS)}",
    parse_tools,
    "TOOL,...",
    action="extend",
)
SCENARIO: Final = Option(
    "--scenario",
    "a TOML file with these options, as each run folder has one; what is given here "
    "replaces the file's",
    str,
    "FILE",
)
UPLOAD: Final = Option(
    "--upload",
    "at the end PUT the run folder there as a tar; a presigned URL, or $NAME of an environment "
    "variable that has it",
    UploadUrl.parse,
    "URL",
)
OUTPUT: Final = (
    Option("--out", "a new run folder; default: one under reports/", _folder, "DIR"),
    Option(
        "--junit",
        "write a JUnit report there: a test case for each SLO",
        partial(writable, "--junit", example="junit.xml"),
        "FILE",
    ),
    JSON,
    UPLOAD,
    Option("--ui", "serve Locust's web UI during the run", None),
    number_option("--ui-port", "default: 8089", example=8089, metavar="PORT"),
    number_option(
        "--metrics-port",
        "serve live metrics for Prometheus during the run; 0: any free port",
        min_value=0,
        example=9401,
        metavar="PORT",
    ),
    Option("--metrics-host", "default: 127.0.0.1", str, "ADDRESS"),
    OTHER_TOOLS,
    Option("--quiet", "no live view", None),
    Option("--dry-run", "print the plan; no server is needed or contacted", None),
)
ASKED_IN_FORM: Final = (MODEL, SLO, *LENGTHS, *USER_RANGE, BUDGET, PRECISION, MAX_ERRORS)
# of the `locust` command alone
API_KEY_ENV: Final = Option(
    "--api-key-env",
    "environment variable that holds the API key; it goes to the --host given here only",
    metavar="NAME",
    default=KEY_VARIABLES[0],
)
RUN_FOLDER: Final = Option(
    "--run-folder", "new folder for the run; without it, one under reports/", metavar="DIR"
)
RUNS: Final = Option(
    "--runs", "folder in which each search makes its run folder", metavar="DIR", default="reports"
)
