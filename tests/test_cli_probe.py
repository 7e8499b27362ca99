"""What the probe finds out about servers, and what it says of those that cannot be measured."""

from __future__ import annotations

import json
import re
import socket
import ssl
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
import trustme
from little_servers import (
    KV_CACHE,
    ROLE,
    USAGE,
    LittleServer,
    Reply,
    http,
    little_server,
    models,
    sse,
    token,
    vllm_like,
)

from harness.errors import ConfigError, HarnessError, ServerUnreachable
from harness.load.conversations import planned_tools
from harness.server.access import TargetAccess
from harness.server.address import Address, addresses_of
from harness.server.probe import Capabilities, probe
from harness.server.probe_tools import check_tools
from harness.server.probed_stream import UNENDED
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from pathlib import Path

CHAT = "/v1/chat/completions"
INFO = "/server_info?config_format=json"


def access(url: str, **options: Any) -> TargetAccess:
    """As the command would make it, with short waits."""
    return TargetAccess(Address.parse(url), connect_ns=2 * SECOND, answer_ns=500 * MS, **options)


def ask(server: LittleServer, model: str | None = None, **options: Any) -> Capabilities:
    """Probe a little server."""
    return probe(access(f"http://127.0.0.1:{server.port}", **options), "chat", model)


SHOWN = {
    "vllm_config": {
        "scheduler_config": {"max_num_seqs": 8, "policy": "fcfs", "max_num_active_seqs": None},
        "parallel_config": {"tensor_parallel_size": 2, "worker_cls": "auto"},
        "cache_config": "CacheConfig(...)",
    },
    "vllm_env": {"VLLM_PORT": 1},
}
CACHE = (
    b'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1\n'
    b'vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="900"} 1\n'
)


@pytest.mark.parametrize(
    ("info", "want"),
    [
        (http(SHOWN), {"max_num_seqs": 8, "policy": "fcfs", "tensor_parallel_size": 2}),
        (http({"vllm_config": "max_num_seqs=8"}), {}),  # the text that older ones show
        (http(b"<html>"), {}),
        (http({}, status=404), {}),  # all but those in development mode
    ],
    ids=["shown", "as text", "no JSON", "not there"],
)
def test_flags_that_the_server_shows(info: bytes, want: dict[str, Any]) -> None:
    """Those that move a knee are taken; a server that shows none is as good."""
    with little_server(vllm_like(**{INFO[1:]: info})) as server:
        assert ask(server).flags == want


@pytest.mark.parametrize(
    ("lines", "want"),
    [
        (
            CACHE,
            {
                "engines": 2,
                "block_size": 16,
                "kv_blocks": 1900,
                "kv_tokens": 30400,
                "cache_config": {"block_size": "16", "engine": "0", "num_gpu_blocks": "1000"},
            },
        ),
        (
            CACHE.replace(b'"900"', b'"None"'),
            {
                "engines": 2,
                "block_size": 16,
                "kv_blocks": None,
                "kv_tokens": None,
                "cache_config": {"block_size": "16", "engine": "0", "num_gpu_blocks": "1000"},
            },
        ),
        (b"", {}),
    ],
    ids=["two engines", "one does not say", "nothing"],
)
def test_the_kv_cache_that_the_server_shows(lines: bytes, want: dict[str, Any]) -> None:
    """Blocks of all engines together, and the first one's settings."""
    text = b"vllm:num_requests_running 0\n" + lines
    with little_server(vllm_like(metrics=http(text, kind="text/plain"))) as server:
        got = ask(server)
    assert got.metrics is True
    assert got.cache == want


def test_good_server() -> None:
    """Everything a vLLM offers is found, with one request to the API under load."""
    with little_server(vllm_like()) as server:
        got = ask(server)
        asked = server.asked
    assert got == Capabilities(
        url=f"http://127.0.0.1:{server.port}",
        api="chat",
        model="m",
        models=("m",),
        max_model_len=4096,
        version="0.32.0",
        fixed_length=True,
        continuous_usage=True,
        final_usage=True,
        tokenize=True,
        metrics=True,
        cache=KV_CACHE,
    )
    assert server.paths == ["/v1/models", CHAT, "/version", "/metrics", "/tokenize", INFO]
    assert asked[1][1]["stream"] is True
    assert asked[1][1]["max_tokens"] == 2


@pytest.mark.parametrize(
    ("said", "want"), [(4096, 4096), (0, None), (-1, None), (True, None), ("4096", None)]
)
def test_a_context_that_the_server_shows(said: object, want: int | None) -> None:
    """A length that cannot be one is unknown."""
    with little_server(vllm_like(models=models("m", max_model_len=said))) as server:
        assert ask(server).max_model_len == want


def test_bare_server() -> None:
    """A server with the bare API only is measurable, and what it lacks is known."""
    plain = vllm_like()

    def reply(path: str, body: dict[str, Any]) -> bytes:
        if path == CHAT and ("stream_options" in body or "ignore_eos" in body):
            return http({"error": "extra fields not permitted"}, status=422)
        if path == CHAT:
            return sse(ROLE, token(), token())
        return plain(path, body) if path == "/v1/models" else http({}, status=404)

    with little_server(reply) as server:
        got = ask(server)
    assert server.paths[:5] == ["/v1/models", *[CHAT] * 4]
    assert got.fixed_length is False
    assert got.continuous_usage is False
    assert got.final_usage is False
    assert got.version == ""
    assert got.tokenize is False
    assert got.metrics is False


EACH = sse(ROLE, token(usage=1), token(usage=2), USAGE)
AT_END = sse(ROLE, token(), token(), USAGE)


@pytest.mark.parametrize(
    ("refused", "answer", "want"),
    [
        ((), EACH, (True, True, True)),
        ((), AT_END, (True, False, True)),
        (("ignore_eos",), EACH, (False, True, True)),
        # OpenAI's API knows include_usage alone
        (("ignore_eos", "continuous_usage_stats"), AT_END, (False, False, True)),
        # counts unasked, and refuses to be asked: what is sent under load is what was accepted
        (("ignore_eos", "continuous_usage_stats"), EACH, (False, False, True)),
        (("ignore_eos", "stream_options"), AT_END, (False, False, False)),
        (("ignore_eos", "stream_options"), EACH, (False, False, False)),
    ],
)
def test_no_more_is_asked_for_than_was_accepted(
    refused: tuple[str, ...], answer: bytes, want: tuple[bool, bool, bool]
) -> None:
    """A field that was refused here would be refused with each request of the load."""
    plain = vllm_like()

    def reply(path: str, body: dict[str, Any]) -> bytes:
        if path != CHAT:
            return plain(path, body)
        text = json.dumps(body)
        return http({"error": "extra"}, 422) if any(f'"{x}"' in text for x in refused) else answer

    with little_server(reply) as server:
        got = ask(server)
    assert (got.fixed_length, got.continuous_usage, got.final_usage) == want


@pytest.mark.parametrize(
    ("end", "notes"),
    [(b"data: [DONE]\n\n", ()), (b"data: [DONE]\n", (UNENDED,)), (b"data: [DONE]", (UNENDED,))],
)
def test_an_end_without_its_empty_line(end: bytes, notes: tuple[str, ...]) -> None:
    """Clients take it: so does the probe, and says so. Heartbeats and broken text are nothing."""
    beat = b"data:\n\n" + b'data: {"choices":[{"delta":{"content":"\xff\\ud83d"}}]}\n\n'
    answer = sse(ROLE, token(), end=beat + end)
    with little_server(vllm_like(**{"chat/completions": answer})) as server:
        assert ask(server).notes == notes


@pytest.mark.parametrize("refuses", [False, True])
def test_tools_are_tried_before_any_load(refuses: bool) -> None:
    """A vLLM without --enable-auto-tool-choice refuses each request with tools."""
    plain = vllm_like()
    needs = '"auto" tool choice requires --enable-auto-tool-choice'

    def reply(path: str, body: dict[str, Any]) -> bytes:
        refused = refuses and path == CHAT and "tools" in body
        return http({"message": needs}, 400) if refused else plain(path, body)

    with little_server(reply) as server:
        known = ask(server)
        where = access(f"http://127.0.0.1:{server.port}")
        check_tools(where, known, (), {})  # nothing is asked for
        assert server.paths.count(CHAT) == 1
        told = r"answers 400 to one with tools .*try `vllm serve ... --enable-auto-tool-choice"
        with pytest.raises(ServerUnreachable, match=told) if refuses else nullcontext():
            check_tools(where, known, planned_tools(2), {"temperature": 0})
        chats = [body for path, body in server.asked if path == CHAT]
        assert [len(body.get("tools", ())) for body in chats] == [0, 2]


def raw(answer: bytes) -> Reply:
    """A reply of these bytes to anything."""
    return lambda _path, _body: answer


SEEN_BAD: dict[str, tuple[Reply, str | None, type[HarnessError], tuple[str, ...], int]] = {
    # name: reply, --model, error, what its sentence holds, requests to the API under load
    "not HTTP": (
        raw(b"SSH-2.0-OpenSSH_9.2\r\n"),
        None,
        ServerUnreachable,
        ("does not answer in HTTP", "SSH-2.0", "expected a vLLM server", "try the port"),
        0,
    ),
    "closes at once": (
        raw(b""),
        None,
        ServerUnreachable,
        ("does not answer in HTTP", "closes"),
        0,
    ),
    "another service": (
        raw(http(b"<html>", 404, "text/html")),
        None,
        ServerUnreachable,
        ("/v1/models answers 404", "expected vLLM's API", "try the port"),
        0,
    ),
    "another service with 200": (
        raw(http(b"<html>", 200, "text/html")),
        None,
        ServerUnreachable,
        ("/v1/models lists no model", "try the port"),
        0,
    ),
    "401": (
        raw(http({"error": "Unauthorized"}, 401)),
        None,
        ServerUnreachable,
        ("answers 401", "no key was sent", "VLLM_API_KEY", "OPENAI_API_KEY"),
        0,
    ),
    "not ready": (
        raw(http({}, 503)),
        None,
        ServerUnreachable,
        ("answers 503", "ready", "/health"),
        0,
    ),
    "breaks": (
        raw(http({"error": "out\nof\x1b[2J memory"}, 500)),
        None,
        ServerUnreachable,
        ("answers 500", "memory", "expected 200"),
        0,
    ),
    "unknown model": (
        vllm_like(models=models("a", "b")),
        "c",
        ConfigError,
        ("--model is 'c'", "expected one of a, b", "try --model a"),
        0,
    ),
    "redirects": (
        raw(http({}, 307, Location="https://llm.example/v1/models")),
        None,
        ServerUnreachable,
        ("/v1/models answers 307 and redirects to https://llm.example/v1/models:",),
        0,
    ),
    "rate limit": (
        vllm_like(**{"chat/completions": http({}, 429, **{"Retry-After": "30"})}),
        None,
        ServerUnreachable,
        ("answers 429 (Retry-After: 30)", "try again after 30 s"),
        1,
    ),
    "rate limit, until some time": (
        vllm_like(**{"chat/completions": http({}, 429)}),
        None,
        ServerUnreachable,
        ("answers 429 (no Retry-After)", "try again later"),
        1,
    ),
    "several models, none named": (
        vllm_like(models=models("a", "b")),
        None,
        ConfigError,
        ("serves 2 models", "none was named", "a, b", "try --model a"),
        0,
    ),
    "does not stream": (
        vllm_like(**{"chat/completions": http({"choices": [{"message": {"content": "a"}}]})}),
        None,
        ServerUnreachable,
        ("does not stream", "expected text/event-stream"),
        1,
    ),
    "no chat": (
        vllm_like(**{"chat/completions": http({}, 404)}),
        None,
        ServerUnreachable,
        (CHAT, "answers 404", "--api"),
        1,
    ),
    "needs a flag of the server": (
        vllm_like(**{"chat/completions": http({"message": "use --enable-scale-out"}, 403)}),
        None,
        ServerUnreachable,
        (CHAT, "answers 403", "use --enable-scale-out"),
        1,
    ),
    "a field that it refuses": (
        vllm_like(**{"chat/completions": http({"message": "top_p must be in [0, 1]"}, 400)}),
        None,
        ServerUnreachable,
        ("answers 400", "top_p must be in [0, 1]"),
        4,
    ),
    "refuses all": (
        vllm_like(**{"chat/completions": http({"message": "no chat template"}, 400)}),
        None,
        ServerUnreachable,
        (CHAT, "answers 400", "no chat template"),
        4,
    ),
    "streams nothing": (
        vllm_like(**{"chat/completions": sse(ROLE, USAGE)}),
        None,
        ServerUnreachable,
        ("streams no token", "expected two"),
        1,
    ),
    "breaks off": (
        vllm_like(**{"chat/completions": sse(ROLE, token(), end=b"")}),
        None,
        ServerUnreachable,
        ("breaks its stream off", "[DONE]"),
        1,
    ),
    "streams an error": (
        vllm_like(**{"chat/completions": sse(ROLE, {"error": {"message": "engine died"}})}),
        None,
        ServerUnreachable,
        ("streams an error", "engine died", "log"),
        1,
    ),
    "streams no JSON": (
        vllm_like(**{"chat/completions": sse(end=b"data: hello\n\n")}),
        None,
        ServerUnreachable,
        ("not JSON", "hello"),
        1,
    ),
    "streams an error by its name": (
        vllm_like(**{"chat/completions": sse(ROLE, end=b"event: error\ndata: no room\n\n")}),
        None,
        ServerUnreachable,
        ("streams an error", "no room", "log"),
        1,
    ),
    "gives up": (
        vllm_like(**{"chat/completions": sse(token(), {"choices": [{"finish_reason": "abort"}]})}),
        None,
        ServerUnreachable,
        ("breaks its answer off", "abort"),
        1,
    ),
    "ends by a stranger": (
        vllm_like(**{"chat/completions": sse({"x": 1}, token(), {"x": 1})}),
        None,
        ServerUnreachable,
        ("ends its stream by an object",),
        1,
    ),
    "compressed": (
        vllm_like(
            **{
                "chat/completions": http(
                    b"x", 200, "text/event-stream", **{"Content-Encoding": "gzip"}
                )
            }
        ),
        None,
        ServerUnreachable,
        ("answers encoded (gzip)", "without compression"),
        1,
    ),
    "an error with 200": (
        vllm_like(**{"chat/completions": http({"error": {"message": "model is loading"}})}),
        None,
        ServerUnreachable,
        ("does not stream", "says 'model is loading'", "log"),
        1,
    ),
    "an error with 200, as a stream": (
        vllm_like(**{"chat/completions": http({"detail": "is loading"}, 200, "text/event-stream")}),
        None,
        ServerUnreachable,
        ("answers an error (is loading)",),
        1,
    ),
    "truncated body": (
        raw(http({"data": []})[:-3]),
        None,
        ServerUnreachable,
        ("does not answer in HTTP",),
        0,
    ),
}


@pytest.mark.parametrize("name", SEEN_BAD)
def test_bad_server(name: str) -> None:
    """Each bad target gets its sentence and exit code, and no more than the probe's requests."""
    reply, model, kind, parts, loads = SEEN_BAD[name]
    with little_server(reply) as server, pytest.raises(kind) as caught:
        ask(server, model)
    sentence = str(caught.value)
    assert [part for part in parts if part not in sentence] == []
    assert sentence.isprintable()
    assert server.paths.count(CHAT) == loads


@pytest.mark.parametrize(
    ("line", "want"),
    [
        (
            b'vllm:time_to_first_token_seconds_bucket{le="x"} 1\n',
            "/metrics cannot be read (vllm:time_to_first_token_seconds_bucket has a bucket le='x',",
        ),
        (b'vllm:cache_config_info{engine="core-0"} 1\n', ""),
    ],
)
def test_odd_metrics(line: bytes, want: str) -> None:
    """A page that cannot be read ends in a sentence, never in a traceback."""
    page = http(b"vllm:num_requests_running 1\n" + line, kind="text/plain")
    with little_server(vllm_like(metrics=page)) as server:
        if not want:
            assert ask(server).cache["engines"] == 1
            return
        with pytest.raises(ServerUnreachable, match=re.escape(want)):
            ask(server)


def test_nothing_listens() -> None:
    """A closed port is named, with the command that would open it."""
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    with pytest.raises(ServerUnreachable, match=f"nothing listens .*:{port}.*vllm serve"):
        probe(access(f"http://127.0.0.1:{port}"), "chat")


def test_silent_server() -> None:
    """A listener that never answers is given up after the time allowed, which is named."""
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(ServerUnreachable, match="does not finish an answer within 500 ms"),
    ):
        probe(access(f"http://127.0.0.1:{silent.getsockname()[1]}"), "chat")


@pytest.mark.parametrize(
    ("found", "want"),
    [
        (["127.0.0.1"], ("127.0.0.1",)),
        (["127.0.0.1", "127.0.0.2", "127.0.0.3"], ("127.0.0.1", "127.0.0.2", "127.0.0.3")),
        (["::1", "127.0.0.1", "127.0.0.2"], ("::1",)),  # connections go to the first family
        (["::1", "127.0.0.1", "::2"], ("::1", "::2")),
    ],
)
def test_addresses(
    found: list[str], want: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that connections are spread over."""
    infos = []
    for address in found:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        infos.append((family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, 8000)))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: infos)
    assert addresses_of(Address.parse("http://replicas:8000")) == want


def test_unknown_host() -> None:
    """A name without an address is told from a server that is down."""
    with pytest.raises(ServerUnreachable, match=r"'no-such-host.invalid' has no address"):
        probe(access("http://no-such-host.invalid:8000"), "chat")


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """A certificate authority of our own."""
    return trustme.CA()


def tls(authority: trustme.CA, name: str) -> ssl.SSLContext:
    """A server's context with a certificate for `name`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


@pytest.mark.parametrize(
    ("name", "scheme", "trusted", "parts"),
    [
        ("other.example", "https", True, ("certificate for another name", "127.0.0.1")),
        ("127.0.0.1", "https", False, ("not trusted", "--ca-file")),
        ("127.0.0.1", "http", True, ("speaks TLS", "try https://")),
        (None, "https", True, ("does not speak TLS", "try http://")),
    ],
)
def test_tls(
    authority: trustme.CA,
    tmp_path: Path,
    name: str | None,
    scheme: str,
    trusted: bool,
    parts: tuple[str, ...],
) -> None:
    """Each TLS failure is told from the others, before any request."""
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    options = {"ca_file": ca_file} if trusted else {}
    with (
        little_server(vllm_like(), name and tls(authority, name)) as server,
        pytest.raises(ServerUnreachable) as caught,
    ):
        probe(access(f"{scheme}://127.0.0.1:{server.port}", **options), "chat")
    assert [part for part in parts if part not in str(caught.value)] == []
    assert [path for path in server.paths if path.startswith("/v1")] == []


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("missing", "(No such file or directory): expected"),
        (".", "(Is a directory): expected"),
        ("garbage", "(no certificate or crl found): expected"),
    ],
)
def test_ca_file_that_is_none(tmp_path: Path, name: str, want: str) -> None:
    """In words, without an error number."""
    (tmp_path / "garbage").write_text("no certificate")
    with pytest.raises(ConfigError) as caught:
        access("https://h", ca_file=tmp_path / name).tls_context()
    assert want in str(caught.value)


@pytest.mark.parametrize("how", ["trusted", "insecure"])
def test_tls_good(authority: trustme.CA, tmp_path: Path, how: str) -> None:
    """A certificate that matches, or --insecure with one that does not, gets through."""
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    name = "127.0.0.1"
    options = {"ca_file": ca_file}
    if how == "insecure":
        name = "other.example"
        options = {"insecure": True}
    with little_server(vllm_like(), tls(authority, name)) as server:
        got = probe(access(f"https://127.0.0.1:{server.port}", **options), "chat")
    assert got.model == "m"


def test_key_is_sent_and_never_said() -> None:
    """The key goes into the header; a refusal names the variable, not the key."""
    with little_server(raw(http({}, 401))) as server, pytest.raises(ServerUnreachable) as caught:
        ask(server, api_key="secret-123", key_source="OPENAI_API_KEY")
    assert server.keys == ["Bearer secret-123"]
    assert "the key in OPENAI_API_KEY was refused" in str(caught.value)
    assert "secret-123" not in str(caught.value) + repr(access("http://h", api_key="secret-123"))


@pytest.mark.parametrize(
    ("url", "want"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000"),
        ("https://example.com/llm/v1", "https://example.com:443/llm"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("http://vllm_1:8000", "http://vllm_1:8000"),  # a service's name in Compose
        ("http://münchen.example:8000", "http://münchen.example:8000"),
        ("http://gateway:8000/v1/team", "http://gateway:8000/v1/team"),
    ],
)
def test_address(url: str, want: str) -> None:
    """A URL may end in /v1, as OpenAI's clients want it, or carry a path of its own."""
    assert str(Address.parse(url)) == want


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("127.0.0.1:8000", "try http://127.0.0.1:8000"),
        ("localhost:8000", "try http://localhost:8000"),
        ("ftp://h", "try http://127.0.0.1:8000"),
        ("http://h:99999", "try http://127.0.0.1:8000"),
        ("http://127.0.0.1 :8000", "without spaces; try http://127.0.0.1:8000"),
        ("local host:8000", "try http://127.0.0.1:8000"),
        ("http://h;rm:8000", "with a host"),
        ("http://a..b:8000", "(label empty or too long)"),
        (f"http://{64 * 'a'}:8000", "(label too long)"),
        ("http://h/a b", "without spaces"),
        ("http://h/ä", "without spaces"),
        ("http://h/v1/chat/completions", "expected the server; try http://h."),
        ("https://h:8000/llm/v1/models/", "try https://h:8000/llm."),
        ("http://key@h:8000", "export VLLM_API_KEY"),
        ("http://h:8000?key=1", "export VLLM_API_KEY"),
        ("bob:pa/ss@h:8000", "is '[redacted]@h:8000'"),
        ("http:/bob:pass@h", "is 'http:/[redacted]@h'"),
        ("h:8000?key=1", "is 'h:8000'"),
    ],
)
def test_bad_address(url: str, hint: str) -> None:
    """A URL that cannot be one is refused with the nearest that could."""
    with pytest.raises(ConfigError) as caught:
        Address.parse(url)
    assert hint in str(caught.value)
