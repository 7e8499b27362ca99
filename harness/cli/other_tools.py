"""What other load generators call our options, for "did you mean".

The nearest spelling is often another thing: `--concurrency` is not `--insecure`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MOST_LETTERS: Final = 2  # apart: more is no slip of the fingers

# Our names, the best first: not every command has each. Theirs are of vllm bench serve, guidellm,
# aiperf and genai-perf, llmperf, Locust, k6, wrk, hey and ab.
MEANT: Final[dict[tuple[str, ...], str]] = {
    ("--users", "--max-users"): "--concurrency --max-concurrency --num-users --vus --clients "
    "--connections --parallel --concurrent-requests --num-concurrent-requests --max-outstanding "
    "--request-concurrency -u -c",
    ("--rate", "--max-rate"): "--request-rate --rps --qps --requests-per-second --arrival-rate "
    "--throughput -r",
    ("--requests", "--budget"): "--num-prompts --num-requests --request-count --max-requests "
    "--max-num-completed-requests --iterations --prompt-count --num-samples -n",
    ("--duration", "--budget"): "--run-time --time --max-seconds --benchmark-duration --seconds "
    "--test-duration --time-limit --measurement-interval -t -d",
    ("--prompt-tokens",): "--input-len --input-length --input-tokens --random-input-len --isl "
    "--prompt-len --prompt-length --synthetic-input-tokens-mean --mean-input-tokens",
    ("--output-tokens",): "--output-len --output-length --random-output-len --osl --max-tokens "
    "--max-output-tokens --output-tokens-mean --mean-output-tokens --gen-len --generation-tokens",
    ("--prompt-cv",): "--random-range-ratio --stddev-input-tokens --synthetic-input-tokens-stddev",
    ("--output-cv",): "--stddev-output-tokens --output-tokens-stddev",
    ("--out",): "--output --output-dir --output-path --result-dir --results-dir --artifact-dir "
    "--save-result --csv --html -o",
    ("--json",): "--output-file --result-file --result-filename --summary-export --json-file",
    ("--slo",): "--goodput --slos --threshold --thresholds --sla",
    ("--load", "--rate"): "--rate-type --load-type --schedule",
    ("--data",): "--dataset --dataset-path --dataset-name --input-file --trace-file "
    "--fixed-schedule",
    ("--body",): "--extra-body --extra-inputs --extra-request-body --temperature --top-p --top-k "
    "--additional-sampling-params --ignore-eos",
    ("--header",): "--headers -H",
    ("--model",): "--model-name --served-model-name --model-id -m",
    ("--api",): "--endpoint --endpoint-type --service-kind --backend --llm-api --protocol",
    ("--seed",): "--random-seed",
    ("--arrivals",): "--burstiness --arrival-pattern",
    ("--processes",): "--workers --num-workers --expect-workers --threads --max-workers",
    ("--request-timeout",): "--timeout --request-timeout-seconds",
    ("--insecure",): "--no-verify --skip-tls-verify --insecure-skip-tls-verify -k",
    ("--quiet",): "--silent --disable-tqdm --no-progress -q",
    ("--ui-port",): "--web-port",
    ("--turns",): "--num-turns --session-turns-mean",
    ("--think-time",): "--wait-time --session-turn-delay-mean",
    ("--compat",): "--tool",
}  # fmt: skip
IN_URL: Final = (
    "--host",
    "--url",
    "--base-url",
    "--target",
    "--server",
    "--server-url",
    "--endpoint-url",
    "--address",
    "--port",
)
KEYS: Final = (
    "--api-key",
    "--key",
    "--token",
    "--auth-token",
    "--bearer-token",
    "--openai-api-key",
)
# A URL that may be repeated: one with a user or a query may hold a secret.
PLAIN_URL: Final = re.compile(r"https?://[\w.:\[\]-]+")
# Options that have no counterpart, and why none is needed.
NEEDLESS: Final = {
    "--verbose": "progress is shown unless --quiet is given",
    "--debug": "progress is shown unless --quiet is given",
    "--log-level": "progress is shown unless --quiet is given",
    "--loglevel": "progress is shown unless --quiet is given",
    "--headless": "there is no page unless --ui is given",
    "--stream": "answers are always streamed",
    "--streaming": "answers are always streamed",
    "--num-warmups": "each level warms up by itself",
    "--warmup": "each level warms up by itself",
    "--warmup-requests": "each level warms up by itself",
    "--warmup-request-count": "each level warms up by itself",
    "--tokenizer": "the server counts the tokens",
    "--spawn-rate": "the users of a level start at once",
    "--ramp-up": "the users of a level start at once",
    "--percentile-metrics": "the report has all of them",
    "--metric-percentiles": "the report has all of them",
    "--otlp-port": "the server's metrics say where the mean TTFT goes",  # was ours
}


def hint(name: str, value: str, known: Mapping[str, object], prog: str, *, has_url: bool) -> str:
    """What to say of an unknown option: ": did you mean --users? Try", or "; try".

    `known`: the command's options; `has_url`: a URL is one of its arguments.
    """
    if has_url and name in IN_URL:
        port = value if name == "--port" and value.isdecimal() else "8000"
        url = value if PLAIN_URL.fullmatch(value) else f"http://127.0.0.1:{port}"
        return f": the server's URL is an argument; try `{prog} {url}`, or"
    if name in KEYS:
        return ": the key is read from the environment; try `export VLLM_API_KEY=...`, or"
    if has_url and name in NEEDLESS:  # a command that sends load
        return f", and needs none: {NEEDLESS[name]}; leave it out, or try"
    # One of ours may be another command's.
    ours = [option for option in counterparts(name) if option in known]
    meant = ours[0] if ours else nearest(name, known)
    return f": did you mean {meant}? Try" if meant else "; try"


def counterparts(name: str) -> tuple[str, ...]:
    """Our names, the best first, for another tool's option or one of ours; () if there is none."""
    for ours, theirs in MEANT.items():
        if name in ours or name in theirs.split():
            return ours
    return ()


def nearest(word: str, known: Iterable[str]) -> str:
    """The one of `known` that is at most MOST_LETTERS from `word`, or ""."""
    distances = [(letters_apart(word, option), option) for option in known]
    distance, option = min(distances, default=(MOST_LETTERS + 1, ""))
    return option if distance <= MOST_LETTERS else ""


def letters_apart(word: str, other: str) -> int:
    """Letters to insert, leave out or replace, to turn one word into the other."""
    # Row by row: from the letters of `word` so far to each beginning of `other`.
    above = list(range(len(other) + 1))
    for number, letter in enumerate(word, start=1):
        row = [number]
        for column, other_letter in enumerate(other, start=1):
            replaced = above[column - 1]
            if letter != other_letter:
                replaced += 1
            left_out = above[column] + 1
            inserted = row[-1] + 1
            row.append(min(left_out, inserted, replaced))
        above = row
    return above[-1]


def is_foreign(name: str) -> bool:
    """Whether it is a short option of another tool, such as `-u`."""
    return any(name in theirs.split() for theirs in MEANT.values())
