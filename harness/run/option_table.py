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
from harness.export.otlp_endpoint import otlp_endpoint
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
AUTO: Final = "auto"  # a salt of the run's own; as many processes as are needed
KEY_FROM: Final = f"The API key is read from the environment only: {' or '.join(KEY_VARIABLES)}."


def _think_ms(text: str) -> int:
    return max(duration_ns(text, "--think-time", "2s") // MS, 1)


def _processes(text: str) -> int:
    """0: as many as are needed."""
    return 0 if text.strip() == AUTO else whole_number("--processes")(text)


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


def _metrics_url(option: str, where: str) -> str:
    address = Address.parse(where, option)
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


CA_FILE: Final = Option("--ca-file", "Trust the certificates of this PEM file.", Path, "FILE")
INSECURE: Final = Option("--insecure", "Do not verify the server's certificate.", None)
CERTIFICATE: Final = CA_FILE, INSECURE
SERVER_FLAG: Final = Option(
    "--server-flag",
    "Name a flag that the server was started with, for example max-num-seqs=256. Repeatable.",
    parse_server_flag,
    "NAME=VALUE",
    action="append",
)
GPU_METRICS: Final = Option(
    "--gpu-metrics",
    "Read the GPUs here: local, none, or http://HOST:9400 of `vllm-harness exporter` or a "
    "dcgm-exporter beside the server. Default: local for a server on this machine.",
    _gpu_source,
    "WHERE",
)
SERVER: Final = SERVER_FLAG, GPU_METRICS  # what the server may not report
START: Final = (  # fields of lifecycle.vllm_start.StartOptions
    Option(
        "--vllm",
        "Run this `vllm` command. Default: HARNESS_VLLM_COMMAND, or the one on PATH.",
        str,
        "PATH",
        "",
    ),
    Option(
        "--start-command",
        "Start the server with this command line instead of `vllm serve`. Flags are appended.",
        str,
        "COMMAND",
        "",
    ),
    Option(
        "--model-dir",
        "Serve the model in this folder; without weight files it gets random weights.",
        Path,
        "DIR",
    ),
    Option(
        "--start-args", "Pass these flags to `vllm serve`, in quotation marks.", _words, "FLAGS", ""
    ),
)
PROVE: Final = (
    Option(
        "--prove",
        "Start vLLM, find the knee, change the flag that the diagnosis names and that of the "
        "runner-up, and find it again.",
        None,
    ),
    *START,
)
TIMEOUTS: Final = (  # fields of core.timeouts.Timeouts; their defaults are there
    Option(
        "--connect-timeout",
        "Wait this long for TCP and TLS. Default: 10s.",
        duration("--connect-timeout", "10s"),
        "TIME",
    ),
    Option(
        "--first-token-timeout",
        "Wait this long for the first token. Default: 120s.",
        duration("--first-token-timeout", "120s"),
        "TIME",
    ),
    Option(
        "--idle-timeout",
        "Allow this much silence in a stream; keep-alive comments do not count. Default: 60s.",
        duration("--idle-timeout", "60s"),
        "TIME",
    ),
    Option(
        "--request-timeout",
        "Give up a request after this time. Default: 600s.",
        duration("--request-timeout", "600s"),
        "TIME",
    ),
)
EMBEDDED: Final = Option(
    "--embedded",
    "Start the embedded server, which simulates vLLM on a GPU, and measure it in place of a URL.",
    None,
)
MODEL: Final = Option(
    "--model",
    "Ask for this model. Repeat it, or give weights, to mix models or LoRA adapters. Default: the "
    "server's only model.",
    partial(parse_weights, "--model"),
    "NAME[=WEIGHT],...",
    action="extend",
    field=Field(
        "Model", "as the server names it", placeholder="the server's only model", read=str.strip
    ),
)
HEADER: Final = Option(
    "--header",
    "Add a header to every request. {session}, {user}, {request} and $VARIABLE, from the "
    "environment, are expanded. Repeatable.",
    parse_header,
    "NAME:VALUE",
    action="append",
)
METRICS_URL: Final = Option(
    "--metrics-url",
    "Read /metrics of this replica behind the URL. Repeat it for each: their figures are added up. "
    "Default: the URL, or each address of its name.",
    partial(_metrics_url, "--metrics-url"),
    "URL",
    action="append",
)
PREFILL_URL: Final = Option(
    "--prefill-url",
    "Read /metrics of this server, which only prefills; those of --metrics-url then decode. "
    "Repeatable.",
    partial(_metrics_url, "--prefill-url"),
    "URL",
    action="append",
)
TARGET: Final = (
    EMBEDDED,
    MODEL,
    HEADER,
    *CERTIFICATE,
    *TIMEOUTS,
    *SERVER,
    METRICS_URL,
    PREFILL_URL,
)


def _length_field(label: str) -> Field:
    """A mean length of the form; an empty one is the workload's, as 0 is."""
    read_number = whole_number(label.lower(), 0, max_value=MAX_FORM_NUMBER)
    return Field(
        label,
        "mean",
        placeholder="the workload's",
        read=lambda text: read_number(text) if text.strip() else 0,
    )


LENGTHS: Final = (
    Option(
        "--workload",
        "Send this workload, or several with weights: chat=9,summarize=1.",
        workload,
        "NAME[=WEIGHT],...",
        "chat",
        field=Field("Workload", "what is sent", choices=workload_names()),
        in_locust=InLocust(
            AS_USERS,
            "Workload: lengths and shared prefixes (default: that of the locustfile)",
            (AS_USERS, *workload_names()),
        ),
    ),
    number_option(
        "--prompt-tokens",
        "Set the mean prompt length. Default: the workload's.",
        example=128,
        field=_length_field("Prompt tokens"),
        in_locust=InLocust("0", "Prompt tokens, mean (0: the workload's)", type=int),
    ),
    number_option(
        "--output-tokens",
        "Set the mean output length. Default: the workload's.",
        example=128,
        field=_length_field("Output tokens"),
        in_locust=InLocust("0", "Output tokens, mean (0: the workload's)", type=int),
    ),
)


def _spread(kind: str) -> tuple[Option, Option, Option]:
    """How much the lengths of prompts or outputs differ."""
    return (
        Option(
            f"--{kind}-cv",
            f"Set the standard deviation of the {kind} lengths, divided by their mean "
            "(log-normal); 0 makes all equal. Default: the workload's.",
            deviation(f"--{kind}-cv"),
            "CV",
        ),
        number_option(
            f"--{kind}-min", f"Set the shortest {kind} in tokens. Default: mean/8.", example=16
        ),
        number_option(
            f"--{kind}-max",
            f"Set the longest {kind} in tokens. Default: 4 times the mean.",
            example=4096,
        ),
    )


SPREAD: Final = (*_spread("prompt"), *_spread("output"))
DATA: Final = (
    Option(
        "--data",
        "Send the rows of this file in order, one JSON object per line (docs/data.md).",
        str,
        "FILE",
    ),
    Option(
        "--data-end",
        "Repeat or stop after the last row of --data. Default: repeat.",
        choices=("repeat", "stop"),
    ),
    Option(
        "--speed",
        "Replay the timestamps of --data X times as fast. Default: 1.",
        positive_number("--speed"),
        "X",
    ),
    Option(
        "--salt",
        "Keep prompts out of the server's prefix cache with this text; auto takes another in each "
        "run. Default: auto, and none with --data.",
        str,
        "TEXT",
        "",
    ),
)
THINK_TIME: Final = Option(
    "--think-time",
    "Pause between an answer and the user's next request: a mean, or SHAPE:MEAN:CV such as "
    "lognormal:2s:0.5. Default: the workload's.",
    distribution("--think-time", _think_ms, "lognormal:2s:0.5"),
    "TIME",
)
SESSIONS: Final = (  # fields of load.conversations.Conversation, of a workload with sessions
    Option(
        "--turns",
        "Set the turns of a session: a mean, or SHAPE:MEAN:CV. Default: the workload's.",
        distribution("--turns", whole_number("--turns"), "lognormal:8:0.5"),
        "N",
    ),
    Option(
        "--history",
        "Keep this of a session in its prompts: full, last:K turns, or budget:TOKENS of the "
        "prompt. Default: full.",
        parse_history,
        "POLICY",
    ),
    Option(
        "--replies",
        "Fill the assistant's part of the history with planned text of exact length, or with the "
        "server's real answers. Default: planned.",
        choices=REPLIES,
    ),
    number_option(
        "--tools", "Offer N functions in every session. Default: 0.", min_value=0, example=4
    ),
    number_option(
        "--session-budget",
        "End a session before its prompts and answers exceed N tokens. Default: no limit.",
        example=32_000,
    ),
    Option(
        "--session-timeout",
        "Begin no turn of a session after this time. Default: no limit.",
        duration("--session-timeout", "10m"),
        "TIME",
    ),
)
BODY: Final = Option(
    "--body",
    "Set a field of every request's body, such as top_p=0.9. Repeatable. The temperature is 0 "
    "unless it is set.",
    parse_body_field,
    "NAME=JSON",
    action="append",
)
SEED: Final = number_option(
    "--seed",
    "Seed the prompts, lengths and stagger.",
    1,
    min_value=0,
    in_locust=InLocust(type=int),
)
LOAD: Final = (
    *LENGTHS,
    *SPREAD,
    THINK_TIME,
    *SESSIONS,
    *DATA,
    BODY,
    Option("--api", "Call this API. Default: the workload's.", choices=tuple(API_PATHS)),
    SEED,
    Option(
        "--processes",
        "Send the load from N worker processes, or from as many as the highest level needs.",
        _processes,
        "N",
        AUTO,
    ),
)
OPEN_LOOP: Final = (
    Option(
        "--arrivals",
        f"Let the requests of a rate arrive so: {', '.join(ARRIVALS)}.",
        parse_arrivals,
        "KIND",
        POISSON,
    ),
    number_option(
        "--max-in-flight",
        "With a rate: drop requests that are due beyond N in flight, and count them as failed.",
        2000,
        example=1000,
    ),
)
# the levels of `run`, one, and of `sweep`
USERS: Final = Option("--users", "Hold N concurrent requests.", one_level("--users"), "N")
RATE: Final = Option(
    "--rate",
    "Send R requests per second, over all processes.",
    Rate.parser("--rate"),
    "R",
    in_locust=InLocust("10/s"),
)
SWEPT_USERS: Final = USERS._replace(
    help="Hold each of these numbers of concurrent requests in turn.",
    read=level_list("--users"),
    metavar="N,N,...",
)
SWEPT_RATE: Final = RATE._replace(
    help="Send each of these rates in turn, in requests per second.",
    read=rate_list("--rate"),
    metavar="R,R,...",
)
DURATION: Final = Option(
    "--duration",
    "Measure each level for this time. Default: 30s.",
    duration("--duration"),
    "TIME",
    in_locust=InLocust("30s", "Duration of the load (replaces --run-time)"),
)
REQUESTS: Final = number_option(
    "--requests", "Measure N requests per level instead of a duration.", example=500
)
BATCH: Final = number_option(
    "--batch",
    "Send a batch of N requests at each level instead, and wait for its last answer.",
    example=64,
)
REPEATS: Final = number_option(
    "--repeats", "Go through the levels N times. Default: 3 with --batch, else 1.", example=3
)
SLO: Final = Option(
    "--slo",
    "Require this latency, for example ttft_p95=500ms, itl_p99.9=80ms, tpot_p99=40ms or "
    f"e2e_p90=10s; or published ones, {PREFIX}{'|'.join(SLO_PRESETS)}. Repeatable.",
    _slo,
    "METRIC_pQQ=TIME",
    action="extend",
    field=Field(
        "SLO",
        "several are separated by spaces; none: the power knee",
        "ttft_p95=500ms itl_p95=50ms",
        read=_slos,
    ),
)
MAX_ERRORS: Final = Option(
    "--max-errors",
    "Let at most this share of a level's requests fail.",
    share("--max-errors"),
    "SHARE",
    "1%",
    field=Field("Failures allowed", "the largest share of failed requests"),
)
OBJECTIVES: Final = SLO, MAX_ERRORS
USER_RANGE: Final = (
    number_option(
        "--min-users",
        "Start at this level.",
        1,
        field=Field("Lowest level", "users at the start"),
    ),
    number_option(
        "--max-users",
        "Go no higher than this level.",
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
        "Search over users (closed loop) or over a rate (open loop).",
        choices=tuple(UNIT_OF_OPTION),
        default=Users.option,
    ),
    Option(
        "--min-rate",
        "With --load rate: start at this rate, in requests per second.",
        Rate.parser("--min-rate"),
        "R",
        "1/s",
    ),
    Option(
        "--max-rate",
        "With --load rate: go no higher than this rate.",
        Rate.parser("--max-rate"),
        "R",
        "512/s",
    ),
)
BASELINE: Final = Option(
    "--baseline",
    "Exit with 99 if this run is shown to be worse than this run folder, as `compare` judges.",
    Path,
    "DIR",
)
TOLERANCE: Final = Option(
    "--tolerance",
    "Let this run be this much worse than the baseline. Default: 5%%.",
    share("--tolerance"),
    "SHARE",
)
BUDGET: Final = Option(
    "--budget",
    "Send load for at most this time.",
    partial(budget_ns, what="--budget"),
    "TIME",
    "10m",
    field=Field("Budget", "send load for at most this time"),
)
PRECISION: Final = Option(
    "--precision",
    "Stop when the knee's interval is this narrow, or one user, and the level at each end is "
    "decided.",
    _precision,
    "SHARE",
    "5%",
    field=Field("Precision", "stop when the interval of the knee is this narrow"),
)
REPEAT: Final = number_option(
    "--repeat",
    "Search N times, each with its own seed, and report how the promises differ.",
    example=5,
)
AT_LEAST: Final = number_option(
    "--at-least",
    "Exit with 0 if N users are held, with 99 if not, with 6 if that is inconclusive.",
    example=64,
)
STRICT: Final = Option("--strict", "Exit with 6 unless --precision is reached.", None)
SEARCH: Final = (
    *USER_RANGE,
    *RATE_RANGE,
    *OPEN_LOOP,
    BUDGET,
    PRECISION,
    STRICT,
    number_option(
        "--plan-users", "Also report how many replicas N concurrent requests need.", example=2000
    ),
    AT_LEAST,
    Option(
        "--confirm",
        "Afterwards hold the promised level for this time, half of it coming from fewer users and "
        "half from more. Exit with 0 if it held, with 99 if not, with 6 if that is inconclusive.",
        partial(budget_ns, what="--confirm"),
        "TIME",
    ),
    BASELINE,
    TOLERANCE,
    REPEAT,
)
JSON: Final = Option(
    "--json",
    "Write the result to this file; - is stdout (text then goes to stderr).",
    partial(writable, "--json"),
    "FILE",
)
GPU_HOUR: Final = Option(
    "--gpu-hour",
    "Add the cost, at this price of a GPU hour in any currency.",
    positive_number("--gpu-hour"),
    "P",
)
OTHER_TOOLS: Final = Option(
    "--compat",
    f"Also show what these tools would print: {', '.join(TOOLS)}.",
    parse_tools,
    "TOOL,...",
    action="extend",
)
SCENARIO: Final = Option(
    "--scenario",
    "Read options from a TOML file, such as the one in each run folder. Options on the command "
    "line take precedence.",
    str,
    "FILE",
)
UPLOAD: Final = Option(
    "--upload",
    "Send the run folder there at the end, as a tar in one PUT; presigned URLs work. $NAME takes "
    "the URL from that environment variable.",
    UploadUrl.parse,
    "URL",
)
OTLP: Final = Option(
    "--otlp",
    "Send the metrics of all levels to this OpenTelemetry collector at the end, by OTLP over HTTP. "
    "env: the one of the OTEL_EXPORTER_OTLP_* variables.",
    otlp_endpoint,
    "URL|env",
)
OUTPUT: Final = (
    Option("--out", "Write to this new run folder. Default: one under reports/.", _folder, "DIR"),
    Option(
        "--junit",
        "Write a JUnit report with a test case for each SLO.",
        partial(writable, "--junit", example="junit.xml"),
        "FILE",
    ),
    JSON,
    UPLOAD,
    OTLP,
    Option("--ui", "Serve the live page and Locust's web UI during the run.", None),
    number_option(
        "--ui-port", "Serve them on this port. Default: 8089.", example=8089, metavar="PORT"
    ),
    number_option(
        "--metrics-port",
        "Serve live metrics for Prometheus during the run; 0 takes any free port.",
        min_value=0,
        example=9401,
        metavar="PORT",
    ),
    Option("--metrics-host", "Serve them at this address. Default: 127.0.0.1.", str, "ADDRESS"),
    OTHER_TOOLS,
    Option("--quiet", "Show no live view.", None),
    Option("--dry-run", "Print the plan without contacting a server.", None),
)
ASKED_IN_FORM: Final = (SLO, MODEL, *LENGTHS, *USER_RANGE, BUDGET, PRECISION, MAX_ERRORS)
# of the `locust` command alone
API_KEY_ENV: Final = Option(
    "--api-key-env",
    "Read the API key from this environment variable; it goes to the --host given here only.",
    metavar="NAME",
    default=KEY_VARIABLES[0],
)
RUN_FOLDER: Final = Option(
    "--run-folder", "Write to this new run folder. Default: one under reports/.", metavar="DIR"
)
RUNS: Final = Option(
    "--runs", "Make the run folder of each search in this folder.", metavar="DIR", default="reports"
)
