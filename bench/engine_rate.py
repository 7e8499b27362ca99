"""How many tokens a second the embedded engine sends on one core, one event per token.

    python bench/engine_rate.py --streams 512,1024 --seconds 5 --gap-ms 10

A paced engine (or the scheduler, `--engine`) and a client that only counts bytes: it naps 50 ms
between reads, so that it costs little. Prints what came, the engine's CPU per send, the rate that
one core would hold (the engine has one thread: sends over its CPU time), and how late the sends
were against the schedule. On a machine that is busy with other things tokens merge and come late.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import time
import urllib.request

import numpy as np

from harness.engine.config import EngineConfig
from harness.engine.process import start_engine
from harness.engine.server import ServingOptions
from harness.wire.http import post

FIRST_MS, NAP_S = 500, 0.05


def cpu_s(pid: int) -> float:
    """User and system seconds of a process."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read_all(port: int, streams: int, body: dict, chat: bool) -> None:
    """Send every request, read every stream to its end."""
    poll, open_ = select.epoll(), {}
    data = post("x", "/v1/chat/completions" if chat else "/v1/completions", body)
    for _ in range(streams):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        sock.sendall(data)
        sock.setblocking(False)
        poll.register(sock.fileno(), select.EPOLLIN)
        open_[sock.fileno()] = sock
    while open_:
        time.sleep(NAP_S)
        for fd, _ in poll.poll(1.0):
            got = open_[fd].recv(1 << 20)
            if not got or got.endswith(b"0\r\n\r\n"):
                poll.unregister(fd)
                open_.pop(fd).close()


def cell(streams: int, options: argparse.Namespace) -> None:
    """One number of streams."""
    tokens = int(options.seconds * 1000 / options.gap_ms)
    paced = ServingOptions(first_ns=FIRST_MS * 10**6, pace_ns=int(options.gap_ms * 1e6))
    config = EngineConfig(
        model="qwen2.5-0.5b",
        max_num_seqs=streams,
        stream_interval=1,
        jitter=0.0,
        time_scale=options.time_scale,
    )
    serving = ServingOptions() if options.engine else paced
    with start_engine(config, serving=serving) as engine:
        body = {"model": config.model, "max_tokens": tokens, "stream": True, "prompt": "a b",
                "messages": [{"role": "user", "content": "a b"}],
                "stream_options": {"include_usage": True,
                                   "continuous_usage_stats": options.continuous}}  # fmt: skip
        before, begun = cpu_s(engine.pid), time.monotonic()
        read_all(int(engine.url.rpartition(":")[2]), streams, body, options.chat)
        wall, used = time.monotonic() - begun, cpu_s(engine.pid) - before
        with urllib.request.urlopen(engine.url + "/oracle") as answer:
            truth = json.load(answer)["requests"]
    show(streams, tokens, wall, used, truth, options)


def show(streams, tokens, wall, used, truth, options) -> None:
    """One line of figures."""
    sends = np.concatenate([r["before_ns"] for r in truth])
    sent = sum(sum(r["tokens"]) for r in truth)
    # the span in which every stream was sending
    low, high = max(r["before_ns"][0] for r in truth), min(r["before_ns"][-1] for r in truth)
    rate = ((sends >= low) & (sends < high)).sum() / (high - low) * 1e9
    line = (
        f"{streams:5d} streams {sent / wall:7.0f} tok/s, with all open {rate:7.0f} sends/s, "
        f"{sent / len(sends):.3f} tokens/send, CPU {used / wall:5.1%}, "
        f"{used / len(sends) * 1e6:6.2f} us/send: one core holds {len(sends) / used:7.0f} sends/s"
    )
    if not options.engine:
        steps = np.arange(tokens) * options.gap_ms * 1e6 + FIRST_MS * 1e6
        whole = [r for r in truth if len(r["before_ns"]) == tokens]
        late = [np.array(r["before_ns"]) - r["arrived_ns"] - steps for r in whole]
        if late:
            p50, p99 = np.quantile(np.concatenate(late) / 1e6, [0.5, 0.99])
            line += f", sends late p50 {p50:.2f} p99 {p99:.2f} ms"
    print(line, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", default="512")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--gap-ms", type=float, default=12.5)
    parser.add_argument("--chat", action="store_true")
    parser.add_argument("--continuous", action="store_true", help="usage on every event")
    parser.add_argument("--engine", action="store_true", help="the scheduler instead of a pace")
    parser.add_argument("--time-scale", type=float, default=1.0, help="of the engine's steps")
    asked = parser.parse_args()
    for count in asked.streams.split(","):
        cell(int(count), asked)
