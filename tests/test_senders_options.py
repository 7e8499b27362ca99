"""What travels to the load processes, and what each request asks for."""

import json
from dataclasses import replace

import pytest

from harness.core.timeouts import Timeouts
from harness.load.plan import RequestSpec
from harness.load.tokens import Calibration
from harness.load.workloads import WORKLOADS, workload
from harness.senders.drive_options import DriveOptions, request_body, request_bytes

CHAT = DriveOptions("http://h:1", "m", WORKLOADS["chat"])
SPEC = RequestSpec("hello there", 2, 9)
LENGTH = {"max_tokens": 9, "ignore_eos": True, "min_tokens": 9}
USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
EXACT = {"temperature": 0} | LENGTH | USAGE


@pytest.mark.parametrize("name", [*WORKLOADS, "chat=9,rag=1"])
def test_options_survive_json(name: str) -> None:
    """What a worker reads equals what the master wrote."""
    options = DriveOptions("http://h:1", "m", workload(name), 7, Calibration(1.3, 12), requests=5)
    sent = json.dumps(options.to_json())
    assert DriveOptions.from_json(json.loads(sent)) == options


TIMES = {"connect_ns": 1, "first_token_ns": 2, "idle_ns": 3, "total_ns": 4}


def test_timeouts_are_flat_in_json() -> None:
    """Their keys are among the others, as workers read them and run folders have had them."""
    options = replace(CHAT, timeouts=Timeouts(1, 2, 3, 4))
    told = json.loads(json.dumps(options.to_json()))
    assert {key: told[key] for key in told if key.endswith("_ns")} == TIMES
    assert "timeouts" not in told
    assert DriveOptions.from_json(told) == options


@pytest.mark.parametrize(
    ("old", "want"),
    [
        (TIMES, Timeouts(1, 2, 3, 4)),
        ({"idle_ns": 7}, Timeouts(idle_ns=7)),  # what is not there has its default
        ({}, Timeouts()),
    ],
)
def test_json_of_before_is_read(old: dict[str, int], want: Timeouts) -> None:
    """From a folder that was written when the timeouts were fields of their own."""
    before = {"url": "http://h:1", "model": "m", "workload": CHAT.to_json()["workload"]} | old
    read = DriveOptions.from_json(json.loads(json.dumps(before)))
    assert read == replace(CHAT, timeouts=want)


def test_the_key_is_named_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """The value comes from the environment and is in no JSON and no repr."""
    monkeypatch.setenv("SOME_KEY", "very-secret")
    options = DriveOptions("http://h:1", "m", WORKLOADS["chat"], key_source="SOME_KEY")
    assert options.access().api_key == "very-secret"
    assert "very-secret" not in json.dumps(options.to_json()) + repr(options)


@pytest.mark.parametrize(
    ("requests", "processes", "shares"),
    [(-1, 2, [-1, -1]), (10, 1, [10]), (25, 2, [13, 12]), (1, 3, [1, 0, 0])],
)
def test_a_number_of_requests_is_shared_out(
    requests: int, processes: int, shares: list[int]
) -> None:
    """The shares add up to what was asked."""
    options = DriveOptions(
        "http://h:1", "m", WORKLOADS["chat"], requests=requests, processes=processes
    )
    assert [options.quota(worker) for worker in range(processes)] == shares


HELLO = [{"role": "user", "content": "hello there"}]
SYSTEM = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
SAID = (*SYSTEM, {"role": "assistant", "content": "c"}, {"role": "user", "content": "d"})
TOOL = {"name": "f", "description": "does f", "parameters": {"type": "object"}}
TALK = RequestSpec("", 3, 9, messages=SAID, tools=({"type": "function", "function": TOOL},))
IDS = RequestSpec("", 3, 9, token_ids=(5, 6, 7))
RESPONSES = {"temperature": 0, "max_output_tokens": 9, "ignore_eos": True}
MESSAGES = {"temperature": 0, "max_tokens": 9}  # Anthropic's API has neither lengths nor counts


@pytest.mark.parametrize(
    ("api", "spec", "want"),
    [
        ("chat", SPEC, EXACT | {"messages": HELLO}),
        ("chat", RequestSpec("b", 1, 9, system="a"), EXACT | {"messages": SYSTEM}),
        ("chat", TALK, EXACT | {"messages": SAID, "tools": TALK.tools}),
        ("completions", SPEC, EXACT | {"prompt": "hello there"}),
        ("completions", RequestSpec("b", 1, 9, system="a"), EXACT | {"prompt": "a\n\nb"}),
        ("completions", IDS, EXACT | {"prompt": [5, 6, 7]}),
        ("responses", RequestSpec("b", 1, 9, system="a"), RESPONSES | {"input": SYSTEM}),
        ("responses", RequestSpec("", 3, 9, messages=SAID), RESPONSES | {"input": SAID}),
        ("messages", SPEC, MESSAGES | {"messages": HELLO}),
        ("messages", RequestSpec("", 3, 9, messages=SAID), MESSAGES | {"messages": SAID}),
        (
            "generate",
            IDS,
            USAGE
            | {
                "token_ids": [5, 6, 7],
                "sampling_params": {"temperature": 0} | LENGTH,
            },
        ),
        ("chat", SPEC._replace(model="other"), EXACT | {"messages": HELLO, "model": "other"}),
    ],
)
def test_bodies_ask_for_exact_length_and_counts(
    api: str, spec: RequestSpec, want: dict[str, object]
) -> None:
    """The whole body, as vLLM accepts it: what an API does not have is left out."""
    assert request_body(CHAT, api, spec) == {"model": "m", "stream": True} | want


@pytest.mark.parametrize(
    ("api", "fields", "want"),
    [
        ("chat", {"top_p": 0.9}, {"top_p": 0.9, "messages": HELLO} | LENGTH | USAGE),
        # what decides the measurement stays the harness's, whatever comes
        ("chat", {"stream": False, "max_tokens": 1}, {"messages": HELLO} | LENGTH | USAGE),
        ("generate", {"top_p": 0.9}, USAGE | {
            "token_ids": [5, 6, 7], "sampling_params": {"top_p": 0.9} | LENGTH,
        }),
    ],
)  # fmt: skip
def test_fields_of_the_users_own(
    api: str, fields: dict[str, object], want: dict[str, object]
) -> None:
    """--body's fields, as they were given; /inference/v1/generate has a place for them."""
    options = DriveOptions("http://h:1", "m", WORKLOADS["chat"], body=fields)
    spec = IDS if api == "generate" else SPEC
    assert request_body(options, api, spec) == {"model": "m", "stream": True} | want


def test_headers_are_filled_in_when_they_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids differ by request and user, a session is unique across runs, a secret is nowhere else."""
    monkeypatch.setenv("TENANT", "tenant-secret")
    headers = (("X-Session-ID", "{session}"), ("X-Ids", "{user}/{request}"), ("X-T", "t $TENANT"))
    options = DriveOptions("http://h:1", "m", WORKLOADS["chat"], headers=headers, run_id="run")
    sent = json.dumps(options.to_json())
    assert DriveOptions.from_json(json.loads(sent)) == options
    sent = request_bytes(
        options, options.access(), "chat", SPEC, request_id="run-0-7", user="0-3", session="0-3"
    )
    assert sent.split(b"\r\n\r\n")[0].decode().split("\r\n")[4:7] == [
        "X-Session-ID: run-0-3",
        "X-Ids: 0-3/run-0-7",
        "X-T: t tenant-secret",
    ]
    assert options.access().secrets == ("tenant-secret",)
    assert "tenant-secret" not in json.dumps(options.to_json())
    assert "tenant-secret" not in repr(options.access())


@pytest.mark.parametrize(
    ("refused", "left"),
    [
        ({"fixed_length": False}, {"max_tokens": 9} | USAGE),
        ({"continuous_usage": False}, LENGTH | {"stream_options": {"include_usage": True}}),
        ({"continuous_usage": False, "final_usage": False}, LENGTH),
    ],
)
def test_what_a_server_refuses_is_left_out(
    refused: dict[str, bool], left: dict[str, object]
) -> None:
    """The preflight found out; the load does not ask again."""
    options = DriveOptions("http://h:1", "m", WORKLOADS["chat"], **refused)  # type: ignore[arg-type]
    got = request_body(options, "completions", SPEC)
    base = {"model": "m", "stream": True, "temperature": 0, "prompt": "hello there"}
    assert got == base | left


@pytest.mark.parametrize(
    ("url", "line", "host"),
    [
        ("http://h:1", "/v1/chat/completions", "h:1"),
        ("http://h", "/v1/chat/completions", "h:80"),
        ("https://10.0.0.1/llm/v1", "/llm/v1/chat/completions", "10.0.0.1:443"),
        ("http://[::1]:8000", "/v1/chat/completions", "[::1]:8000"),
        ("https://[2001:db8::7]", "/v1/chat/completions", "[2001:db8::7]:443"),
    ],
)
def test_where_a_request_goes(url: str, line: str, host: str) -> None:
    """Path and Host header; an IPv6 address is in brackets there too, or servers refuse it."""
    options = DriveOptions(url, "m", WORKLOADS["chat"])
    sent = request_bytes(options, options.access(), "chat", SPEC)
    first, second = sent.split(b"\r\n")[:2]
    assert first.decode() == f"POST {line} HTTP/1.1"
    assert second.decode() == f"Host: {host}"
