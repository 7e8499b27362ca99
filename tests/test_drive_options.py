"""What travels to the load processes, and what each request asks for."""

import json

import pytest

from harness.load.plan import RequestSpec
from harness.load.tokens import Calibration
from harness.load.workloads import WORKLOADS
from harness.senders.drive_options import DriveOptions
from harness.senders.request_body import request_body, request_bytes

CHAT = DriveOptions("http://h:1", "m", WORKLOADS["chat"])
SPEC = RequestSpec("hello there", 2, 9)
LENGTH = {"max_tokens": 9, "ignore_eos": True, "min_tokens": 9}
USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}


@pytest.mark.parametrize("name", WORKLOADS)
def test_options_survive_json(name: str) -> None:
    """What a worker reads equals what the master wrote."""
    options = DriveOptions("http://h:1", "m", WORKLOADS[name], 7, Calibration(1.3, 12), requests=5)
    assert DriveOptions.from_json(json.loads(json.dumps(options.to_json()))) == options


def test_the_key_is_named_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """The value comes from the environment and is in no JSON and no repr."""
    monkeypatch.setenv("SOME_KEY", "very-secret")
    options = DriveOptions("http://h:1", "m", WORKLOADS["chat"], key_source="SOME_KEY")
    assert options.api_key == options.access().api_key == "very-secret"
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


@pytest.mark.parametrize(
    ("api", "spec", "want"),
    [
        ("chat", SPEC, {"messages": [{"role": "user", "content": "hello there"}]}),
        (
            "chat",
            RequestSpec("b", 1, 9, system="a"),
            {"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]},
        ),
        ("completions", SPEC, {"prompt": "hello there"}),
        ("completions", RequestSpec("b", 1, 9, system="a"), {"prompt": "a\n\nb"}),
        ("completions", RequestSpec("", 3, 9, token_ids=(5, 6, 7)), {"prompt": [5, 6, 7]}),
    ],
)
def test_bodies_ask_for_exact_length_and_counts(
    api: str, spec: RequestSpec, want: dict[str, object]
) -> None:
    """The whole body, as vLLM accepts it."""
    assert request_body(CHAT, api, spec) == {"model": "m", "stream": True} | LENGTH | USAGE | want


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
    assert got == {"model": "m", "stream": True, "prompt": "hello there"} | left


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
    first, second = request_bytes(options, options.access(), "chat", SPEC).split(b"\r\n")[:2]
    assert (first.decode(), second.decode()) == (f"POST {line} HTTP/1.1", f"Host: {host}")
