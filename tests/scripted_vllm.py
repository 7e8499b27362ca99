"""A scripted streaming server as a process: `python scripted_vllm.py FIRST_MS GAP_MS [HOST FILE]`.

It answers like vLLM (role chunk, one token per event with usage so far, usage chunk, [DONE]), the
first token after FIRST_MS and the others every GAP_MS, to as many at once as ask. Prints its port.
FILE gets a line for each request when it arrives: from whom, when in ns, how many tokens it asks.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

FIRST_S, GAP_S = (float(ms) / 1000 for ms in sys.argv[1:3])
HOST = sys.argv[3] if len(sys.argv) > 3 else "127.0.0.1"
ARRIVED = Path(sys.argv[4]).open("a", buffering=1) if len(sys.argv) > 4 else None  # noqa: SIM115
DONE = {"requests": 0, "tokens": 0, "running": 0, "cut": 0}


def event(body: object) -> bytes:
    """One chunk of the response's body holding one SSE event."""
    data = b"data: " + (body if isinstance(body, bytes) else json.dumps(body).encode()) + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


def whole(body: object, kind: str = "application/json") -> bytes:
    """A response in one piece."""
    data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n"
        % (kind.encode(), len(data))
        + data
    )


def prompt_tokens(asked: dict[str, Any]) -> int:
    """One token a word, and five of a chat template."""
    if "messages" in asked:
        return 5 + sum(len(m["content"].split()) for m in asked["messages"])
    prompt = asked["prompt"]
    return len(prompt.split() if isinstance(prompt, str) else prompt)


def metrics() -> str:
    """The few series that matter here, as two engines."""
    lines = []
    for engine, share in ((0, 1), (1, 0)):
        label = f'{{engine="{engine}",model_name="scripted"}}'
        lines += [
            f"vllm:num_requests_running{label} {share * DONE['running']}",
            f"vllm:generation_tokens_total{label} {share * DONE['tokens']}",
            f"vllm:kv_cache_usage_perc{label} 0.5",
            f"vllm:request_success_total{label} {share * DONE['requests']}",
        ]
    return "\n".join(lines) + "\n"


async def stream(asked: dict[str, Any], chat: bool, out: asyncio.StreamWriter) -> None:
    """The events of one completion."""
    prompt, tokens = prompt_tokens(asked), int(asked.get("max_tokens", 16))
    out.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    if chat:
        out.write(event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}))
    await asyncio.sleep(FIRST_S)
    for n in range(1, tokens + 1):
        end = "length" if n == tokens else None
        part = {"delta": {"content": " a"}} if chat else {"text": " a"}
        usage = {"prompt_tokens": prompt, "completion_tokens": n, "total_tokens": prompt + n}
        choice = {"index": 0, **part, "finish_reason": end}
        out.write(event({"choices": [choice], "usage": usage}))
        await out.drain()
        DONE["tokens"] += 1
        if n < tokens:
            await asyncio.sleep(GAP_S)
    out.write(event({"choices": [], "usage": usage}) + event(b"[DONE]") + b"0\r\n\r\n")
    DONE["requests"] += 1


async def serve(reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
    """One connection, kept alive."""
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            fields = head.decode().lower().split("\r\n")
            length = next((int(f[15:]) for f in fields if f.startswith("content-length:")), 0)
            body = json.loads(await reader.readexactly(length) or b"{}")
            path = head.split(b" ")[1].decode()
            if path == "/metrics":
                out.write(whole(metrics(), "text/plain"))
            elif path == "/v1/models":
                out.write(whole({"data": [{"id": "scripted", "max_model_len": 32768}]}))
            elif path == "/tokenize":
                out.write(whole({"count": prompt_tokens(body)}))
            elif path.endswith("/completions") and body.get("stream"):
                if ARRIVED is not None:
                    peer = out.get_extra_info("peername")[0]
                    ARRIVED.write(f"{peer} {time.time_ns()} {body.get('max_tokens')}\n")
                DONE["running"] += 1
                try:
                    await stream(body, "chat" in path, out)
                finally:
                    DONE["running"] -= 1
            else:
                out.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            await out.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        out.close()


async def main() -> None:
    """Serve until killed."""
    server = await asyncio.start_server(serve, HOST, 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
