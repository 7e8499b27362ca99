"""The reader against the embedded engine's oracle: accuracy and CPU per token.

    python bench/reader_accuracy.py --streams 16,128,512 --tokens 128 --rounds 2

One paced engine (first token after 100 ms, one per 20 ms), one reader process, plain greenlets for
users (no Locust). Prints, per number of streams, quantiles read and sent, whether every interval
meets [clock before the send, clock after it], and where the CPU went.
"""

from __future__ import annotations

from gevent import monkey

monkey.patch_all()

import argparse
import json
import resource
import sys
import time
import urllib.request

import gevent
import numpy as np

from harness.drive.clock import CLOCK
from harness.drive.connection import Place
from harness.drive.reader import Reader
from harness.engine.config import EngineConfig
from harness.engine.process import start_engine
from harness.engine.server import Serving
from harness.measure.records import Outcome
from harness.wire.http import post

FIRST_NS, MS = 100_000_000, 1e6
QUANTILES = (0.5, 0.95, 0.99)


def cpu(who: int) -> float:
    """Seconds, user and system."""
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def cpu_of(pid: int) -> float:
    """Seconds of another process."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def truth_of(url: str) -> dict[str, dict[str, list[int]]]:
    """The oracle, by the client's request id."""
    with urllib.request.urlopen(url + "/oracle") as answer:
        return {r["client_id"]: r for r in json.load(answer)["requests"]}


def cell(streams: int, tokens: int, rounds: int, gap_ms: float, continuous: bool) -> None:
    """One number of streams."""
    config = EngineConfig(max_num_seqs=4096, max_num_batched_tokens=8192)
    with start_engine(
        config, serving=Serving(first_ns=FIRST_NS, pace_ns=int(gap_ms * MS))
    ) as engine:
        port = int(engine.url.rpartition(":")[2])
        records = {}

        def put(some):
            records.update((r.number, r) for r in some if r.outcome is not Outcome.open)

        reader = Reader(0, put, Place("127.0.0.1", port))
        options = {"include_usage": True, "continuous_usage_stats": continuous}
        body = {"model": "llama-3.1-8b", "stream": True, "max_tokens": tokens,
                "messages": [{"role": "user", "content": "x"}],
                "stream_options": options}  # fmt: skip

        def user(index: int) -> None:
            for k in range(rounds):
                number = index * rounds + k
                data = post(
                    "x", "/v1/chat/completions", body, headers={"X-Request-Id": str(number)}
                )
                reader.request(data, number, index, tokens)

        gevent.sleep(0.5)
        before, engine_before = cpu(resource.RUSAGE_SELF), cpu_of(engine.pid)
        child_before = reader.link.cpu_s
        begun = time.monotonic()
        gevent.joinall([gevent.spawn(user, i) for i in range(streams)])
        reader.flush(30)
        wall = time.monotonic() - begun
        used = resource.getrusage(resource.RUSAGE_SELF)
        print(
            "user",
            used.ru_utime,
            "sys",
            used.ru_stime,
            "rounds",
            reader.poller._round,
            "reads",
            reader.poller.reads,
        )
        mine = cpu(resource.RUSAGE_SELF) - before
        child = reader.link.cpu_s - child_before
        theirs = cpu_of(engine.pid) - engine_before
        truth = truth_of(engine.url)
        show(streams, records, truth, reader, wall, mine, child, theirs)
        reader.close()


def show(streams, records, truth, reader, wall, mine, child, theirs) -> None:
    """Two lines of figures."""
    ttft, ttft_true, itl, itl_true = [], [], [], []
    n = missed = 0
    anchor = time.time_ns() - CLOCK.now_ns()  # oracle's clock to the records'
    for number, record in records.items():
        sent = truth[str(number)]
        at = np.array(record.at_ns)
        low = np.array(record.not_before_ns)
        sends = np.repeat(np.arange(len(sent["tokens"])), sent["tokens"])
        before = np.array(sent["before_ns"])
        after = np.array(sent["after_ns"])
        # an event of the reader is one send of the engine
        ks = np.cumsum(np.array(record.tokens)) - 1
        if record.outcome is not Outcome.ok or ks[-1] != len(sends) - 1:
            print("record", number, record.outcome, record.error, ks[-1:], len(sends))
            continue
        before, after = before[sends[ks]] - anchor, after[sends[ks]] - anchor
        bad = (at < before - 50_000) | (low > after + 50_000)
        missed += int(bad.sum())
        n += int(np.sum(record.tokens))
        ttft.append(at[0] - record.sent_ns)
        ttft_true.append(before[0] - sent["arrived_ns"] + anchor)
        itl.append(np.diff(at))
        itl_true.append(np.diff(before))
    itl, itl_true = np.concatenate(itl), np.concatenate(itl_true)

    def quantiles(values):
        return "/".join(f"{q:.3f}" for q in np.quantile(np.array(values) / MS, QUANTILES))

    figures = reader.figures()
    print(f"{streams:5d} streams {n / wall:7.0f} tok/s  ttft read {quantiles(ttft)} sent "
          f"{quantiles(ttft_true)}  itl read {quantiles(itl)} sent {quantiles(itl_true)}  "
          f"off {missed}/{n}")  # fmt: skip
    print(f"      cpu/token us: reader {mine / n * 1e6:.2f} decoder {child / n * 1e6:.2f} sum "
          f"{(mine + child) / n * 1e6:.2f} engine {theirs / n * 1e6:.2f}  {figures}")  # fmt: skip
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", default="16,128,512")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--gap-ms", type=float, default=20.0)
    parser.add_argument("--plain", action="store_true", help="no continuous usage")
    options = parser.parse_args()
    for count in options.streams.split(","):
        cell(int(count), options.tokens, options.rounds, options.gap_ms, not options.plain)
