"""What the live page costs the client: CPU per token with a page open and closed, in one run.

    python bench/live_page.py --users 500 --seconds 12 --rounds 4 [--processes 2]

Locust with locustfiles/chat.py holds the users against the paced server (128 tokens each 20 ms); in
turn nobody looks, and two "pages" poll once a second as the real one does, from the same cursor on.
CPU is that of all client processes, tokens are the run's own count; ratios are within a round. What
is done each second whether or not anybody looks (values counted, one point) is measured by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from statistics import median

import numpy as np
from asking_cost import family_cpu_s
from servers import Pace, paced

from harness.metrics.recent_latencies import RecentLatencies
from harness.metrics.run_latencies import RunLatencies
from harness.server.address import free_ports

TOP = Path(__file__).parents[1]
POLLERS = 2


def main() -> None:
    """Print a row a round, then the medians."""
    parser = argparse.ArgumentParser()
    for name, default in (("users", 500), ("seconds", 12), ("rounds", 4), ("processes", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    print(f"one second of 25,000 gaps and 200 requests: {point_ms():.2f} ms")
    with paced(Pace()) as server:
        measure(options, server.url)


def point_ms() -> float:
    """The mean time that a second takes: values are handed over and counted, a point is made."""
    recent, whole, rng = RecentLatencies(), RunLatencies(), np.random.default_rng(1)
    pieces = {
        "itl": rng.normal(2e7, 1e6, (50, 500)),
        "itl_per_token": rng.normal(2e7, 1e6, (50, 500)),
        "ttft": rng.normal(1e8, 1e7, (50, 4)),
        "ttfot": rng.normal(1e8, 1e7, (50, 4)),
        "tpot": rng.normal(2e7, 1e5, (50, 4)),
        "e2e": rng.normal(3e9, 1e8, (50, 4)),
    }
    began = time.perf_counter()
    for _ in range(20):
        for key, values in pieces.items():
            for piece in values:
                recent.take(key, piece)
                whole.take(key, piece)
        recent.look()
    return (time.perf_counter() - began) / 20 * 1e3


def measure(options: argparse.Namespace, url: str) -> None:
    """One level, held by Locust itself."""
    web, bind = free_ports(2, set())
    command = [
        sys.executable,
        "-m",
        "locust",
        "-f",
        "locustfiles/chat.py",
        "--host",
        url,
        "--autostart",
        "--web-host",
        "127.0.0.1",
        "--web-port",
        str(web),
        "-u",
        str(options.users),
        "-r",
        "100",
        "--output-tokens",
        "128",
        "--prompt-tokens",
        "16",
        "--workload",
        "fixed",
        "--master-bind-port",
        str(bind),
        "--master-port",
        str(bind),
        *(("--processes", str(options.processes)) if options.processes else ()),
    ]
    with subprocess.Popen(command, cwd=TOP, stderr=subprocess.DEVNULL) as process:
        try:
            base = f"http://127.0.0.1:{web}"
            steady(base, options.users)
            rows = [a_round(base, process.pid, options.seconds) for _ in range(options.rounds)]
        finally:
            process.send_signal(signal.SIGTERM)
    closed, opened = (median(row[i] for row in rows) for i in (0, 1))
    ratio = median(row[1] / row[0] for row in rows)
    sizes = median(row[2] for row in rows)
    print(
        f"\nmedians: closed {closed:.2f}, open {opened:.2f} µs/token; open/closed {ratio:.3f}; "
        f"an answer has {sizes:.0f} bytes"
    )


def steady(base: str, users: int) -> None:
    """Until every user is there."""
    while True:
        time.sleep(1)
        try:
            points = news(base)[0]["points"]
        except OSError:
            continue
        if points and points[-1][1] == users:
            time.sleep(5)
            return


def a_round(base: str, pid: int, seconds: int) -> tuple[float, float, float]:
    """(µs of CPU per token with nobody there, with POLLERS pages open, bytes of an answer)."""
    found, sizes = [], [0]
    for looking in (False, True):
        began, cpu_s = tokens(base), family_cpu_s(pid)
        until = time.monotonic() + seconds
        cursors = [""] * POLLERS
        while time.monotonic() < until:
            time.sleep(1)
            for i in range(POLLERS if looking else 0):
                told, size = news(base, cursors[i])
                sizes += [size] if cursors[i] else []
                cursors[i] = told["cursor"]
        made = tokens(base) - began
        found.append(1e6 * (family_cpu_s(pid) - cpu_s) / made)
    print(
        f"closed {found[0]:.2f}, open {found[1]:.2f} µs/token, ratio {found[1] / found[0]:.3f}, "
        f"{made / seconds:,.0f} tokens/s",
        flush=True,
    )
    return found[0], found[1], median(sizes[1:])


def news(base: str, cursor: str = "") -> tuple[dict, int]:
    """(what a page is told, its size)."""
    with urllib.request.urlopen(f"{base}/harness/live.json?since={cursor}") as answer:
        body = answer.read()
    return json.loads(body), len(body)


def tokens(base: str) -> float:
    """Output tokens so far, as Prometheus would read them."""
    with urllib.request.urlopen(f"{base}/harness/metrics") as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("harness_output_tokens_total"):
                return float(line.split()[-1])
    return 0.0


if __name__ == "__main__":
    os.chdir(Path(__file__).parent)
    main()
