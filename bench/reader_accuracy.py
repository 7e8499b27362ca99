"""The reader against the embedded engine's oracle, and against a C client, in one run.

    python bench/reader_accuracy.py --streams 16,128,512 --tokens 128 --rounds 4

One paced engine (first token after 100 ms, then one per 20 ms), one reader process, plain greenlets
for users (no Locust). Per number of streams it prints the quantiles as read and as sent, how many
events' intervals miss [clock before the send, clock after it], and CPU per token: of the reader, of
its decoder, and of `c_client.c`, which reads the same streams without parsing them.
"""

from __future__ import annotations

from gevent import monkey

monkey.patch_all()

import argparse
import json
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gevent
import numpy as np
from servers import build

from harness.engine.config import EngineConfig
from harness.engine.process import start_engine
from harness.engine.server import ServingOptions
from harness.reader.client_connection import Place
from harness.reader.clock import CLOCK
from harness.reader.reader import Reader
from harness.records.request_record import Outcome
from harness.wire.http import post

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.records.request_record import RequestRecord

MS = 1e6
FIRST_NS = 100_000_000
SLACK_NS = 50_000  # two clocks are compared, each read on its own
QUANTILES = (0.5, 0.95, 0.99)


def request(tokens: int, *, continuous: bool, number: str = "c") -> bytes:
    """One request's bytes."""
    body = {
        "model": "llama-3.1-8b", "stream": True, "max_tokens": tokens,
        "messages": [{"role": "user", "content": "hi"}],
        "stream_options": {"include_usage": True, "continuous_usage_stats": continuous},
    }  # fmt: skip
    return post("x", "/v1/chat/completions", body, headers={"X-Request-Id": number})


def c_client(port: int, streams: int, options: argparse.Namespace, folder: Path) -> str:
    """CPU in us per token of the C client, all streams at once in one process."""
    file = folder / "request"
    file.write_bytes(request(options.tokens, continuous=not options.plain))
    spread_ms = 0
    numbers = [port, streams, streams * options.rounds, file, options.tokens, spread_ms]
    command = [build("c_client"), *map(str, numbers)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    user_us, system_us = map(float, done.stdout.split())
    return f"{user_us + system_us:.2f}"


def load(reader: Reader, streams: int, options: argparse.Namespace) -> None:
    """All requests, each user one after the other."""

    def user(index: int) -> None:
        for number in range(index * options.rounds, (index + 1) * options.rounds):
            data = request(options.tokens, continuous=not options.plain, number=str(number))
            reader.request(data, number, index, options.tokens)

    gevent.joinall([gevent.spawn(user, i) for i in range(streams)])


def cell(streams: int, options: argparse.Namespace, folder: Path) -> None:
    """One number of streams."""
    config = EngineConfig(max_num_seqs=4096, max_num_batched_tokens=8192)
    serving = ServingOptions(first_ns=FIRST_NS, pace_ns=int(options.gap_ms * MS))
    with start_engine(config, serving=serving) as engine:
        port = int(engine.url.rpartition(":")[2])
        floor = c_client(port, streams, options, folder)
        records: dict[int, RequestRecord] = {}

        def put(some: list[RequestRecord]) -> None:
            whole = (r for r in some if r.outcome is not Outcome.open)
            records.update((r.number, r) for r in whole)

        reader = Reader(0, put, Place("127.0.0.1", port))
        gevent.sleep(0.5)
        mine, child, begun = time.process_time(), reader.link.cpu_s, time.monotonic()
        load(reader, streams, options)
        reader.link.flush(30)
        wall = time.monotonic() - begun
        mine, child = time.process_time() - mine, reader.link.cpu_s - child
        with urllib.request.urlopen(engine.url + "/oracle") as answer:
            truth = {r["client_id"]: r for r in json.load(answer)["requests"]}
        figures = reader.figures()
        reader.close()
    n = accuracy(streams, records, truth, wall)
    print(
        f"      CPU us/token: reader {mine / n * 1e6:.2f} + decoder {child / n * 1e6:.2f} = "
        f"{(mine + child) / n * 1e6:.2f}; C client {floor}; exact {figures['exact_share']}, "
        f"loop lag p99 {figures['loop_lag_p99_ms']} ms, decoding held the loop for "
        f"{figures['decoder_hold_max_ms']} ms at most",
        flush=True,
    )


def accuracy(
    streams: int, records: dict[int, RequestRecord], truth: dict[str, Any], wall: float
) -> int:
    """Print a line of it; the number of tokens."""
    ttft, ttft_sent, itl, itl_sent = [], [], [np.empty(0)], [np.empty(0)]
    n = events = missed = lost = 0
    to_records = CLOCK.now_ns() - time.time_ns()
    for number, record in records.items():
        sent = truth[str(number)]
        sends = np.repeat(np.arange(len(sent["tokens"])), sent["tokens"])
        n += len(sends)
        last = np.cumsum(record.tokens) - 1  # of each event: the token that ends it
        if record.outcome is not Outcome.ok or last[-1] != len(sends) - 1:
            lost += 1
            continue
        before = np.array(sent["before_ns"])[sends[last]] + to_records
        after = np.array(sent["after_ns"])[sends[last]] + to_records
        at, low = np.array(record.at_ns), np.array(record.not_before_ns)
        missed += int(((at < before - SLACK_NS) | (low > after + SLACK_NS)).sum())
        events += len(at)
        ttft.append(at[0] - record.sent_ns)
        ttft_sent.append(before[0] - sent["arrived_ns"] - to_records)
        itl.append(np.diff(at))
        itl_sent.append(np.diff(before))
    print(
        f"{streams:5d} streams {n / wall:7.0f} tok/s, ms p50/p95/p99 read | sent: "
        f"TTFT {quantiles(ttft)} | {quantiles(ttft_sent)}; ITL {quantiles(np.concatenate(itl))} | "
        f"{quantiles(np.concatenate(itl_sent))}; off {missed}/{events}, lost {lost}"
    )
    return n


def quantiles(values: Sequence[int]) -> str:
    """In ms."""
    if not len(values):
        return "-"
    return "/".join(f"{q:.2f}" for q in np.quantile(np.array(values) / MS, QUANTILES))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", default="16,128,512")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--gap-ms", type=float, default=20.0)
    parser.add_argument("--plain", action="store_true", help="no continuous usage")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        for count in chosen.streams.split(","):
            cell(int(count), chosen, Path(scratch))
