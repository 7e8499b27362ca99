"""An API that a version of vLLM does not stream is named; nobody else is blamed for it."""

from __future__ import annotations

import pytest
from little_servers import Reply, http, little_server, vllm_like

from harness.errors import ServerUnreachable
from harness.server.access import TargetAccess
from harness.server.address import Address
from harness.server.api_versions import is_too_old
from harness.server.probe import probe

PATHS = {"responses": "responses", "messages": "messages", "generate": "inference/v1/generate"}
IN_ONE_PIECE = http({"choices": [{"token_ids": [1, 2]}]})
CUT_OFF = b"HTTP/1.1 200 -\r\nContent-Type: text/event-stream\r\nContent-Length: 99\r\n\r\ndata:"
NOT_FOUND = http({"detail": "Not Found"}, 404)


@pytest.mark.parametrize(
    ("api", "version", "want"),
    [
        ("responses", "0.11.0", True),
        ("responses", "0.15.1", False),
        ("messages", "0.11.0+cpu", True),
        ("messages", "0.11.1rc5.dev25+g1da3309ac", False),
        ("generate", "0.19.1", True),
        ("generate", "v0.20.0", False),
        ("generate", "0.9", True),
        ("chat", "0.5.0", False),
        ("generate", "nightly", False),  # no number: nothing is known
        ("generate", "", False),
    ],
)
def test_since_which_version(api: str, version: str, want: bool) -> None:
    """By numbers, not by letters."""
    assert is_too_old(api, version) == want


@pytest.mark.parametrize(
    ("api", "version", "answer", "words"),
    [
        (
            "generate",
            "0.15.1",
            IN_ONE_PIECE,
            ("does not stream (vLLM 0.15.1): expected vLLM 0.20 or newer for --api generate",),
        ),
        ("responses", "0.11.0", CUT_OFF, ("expected vLLM 0.15 or newer for --api responses",)),
        ("responses", "0.11.0", b"", ("expected vLLM 0.15 or newer for --api responses",)),
        ("messages", "0.11.0", NOT_FOUND, ("expected vLLM 0.11.1", "try --api chat")),
        # a newer one, or another server: what was seen, and no port is blamed
        ("responses", "0.32.0", b"", ("/v1/responses closes the connection early", "server's log")),
        ("responses", "", CUT_OFF, ("/v1/responses closes the connection early",)),
        ("generate", "", IN_ONE_PIECE, ("does not stream: it answered",)),
        ("messages", "0.32.0", NOT_FOUND, ("/v1/messages answers 404",)),
    ],
)
def test_what_is_blamed(api: str, version: str, answer: bytes, words: tuple[str, ...]) -> None:
    """The version where it is known to lack the API, else what was seen."""
    shown = {"version": http({"version": version})} if version else {"version": NOT_FOUND}
    server_like: Reply = vllm_like(**shown, **{PATHS[api]: answer})
    with little_server(server_like) as server:
        access = TargetAccess(Address.parse(f"http://127.0.0.1:{server.port}"))
        with pytest.raises(ServerUnreachable) as caught:
            probe(access, api)
    said = str(caught.value)
    assert [word for word in words if word not in said] == []
    assert ("the port" in said) == (answer is NOT_FOUND and version == "0.32.0")
