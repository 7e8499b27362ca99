"""What it costs a vLLM to be asked for token counts in every event, and to be scraped.

    python bench/asking_cost.py http://127.0.0.1:8000 --pid PID --streams 8 --tokens 256 --rounds 6

PID is the server's process; its children count too. Each round sends the same load four times, in
turn with and without `continuous_usage_stats` and with and without a scrape of /metrics each
second, and compares the server's CPU per token and tokens/s as ratios within the round. The
client only counts bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import threading
import time
import urllib.request
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from harness.wire.http import post

VARIANTS = {
    "bare": (False, False),
    "counts": (True, False),
    "scrape": (False, True),
    "both": (True, True),
}


def family_cpu_s(pid: int) -> float:
    """CPU of a process and all below it."""
    parents, used = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(entry.name)] = int(fields[1])
        used[int(entry.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    total = 0.0
    for child, own_s in used.items():
        at = child
        while at not in (pid, 0, 1):
            at = parents.get(at, 0)
        total += own_s if at == pid else 0.0
    return total


def load(url: str, model: str, options: argparse.Namespace, *, counts: bool) -> tuple[float, int]:
    """(seconds, bytes) of `streams` requests at once."""
    where = urlsplit(url)
    body = {
        "model": model,
        "max_tokens": options.tokens,
        "min_tokens": options.tokens,
        "ignore_eos": True,
        "stream": True,
        "temperature": 0,
        "prompt": f"{time.time_ns()} say something",
        "stream_options": {"include_usage": True, "continuous_usage_stats": counts},
    }
    poll, open_, n_bytes = select.epoll(), {}, 0
    begun = time.monotonic()
    for _ in range(options.streams):
        sock = socket.create_connection((where.hostname, where.port))
        sock.sendall(post(where.netloc, "/v1/completions", body))
        poll.register(sock.fileno(), select.EPOLLIN)
        open_[sock.fileno()] = sock
    while open_:
        for fd, _ in poll.poll(30.0):
            got = open_[fd].recv(1 << 16)
            n_bytes += len(got)
            if not got or b"[DONE]" in got:
                poll.unregister(fd)
                open_.pop(fd).close()
    return time.monotonic() - begun, n_bytes


def scraping(url: str, stop: threading.Event) -> None:
    """GET /metrics each second."""
    while not stop.wait(1.0):
        with urllib.request.urlopen(f"{url}/metrics") as answer:
            answer.read()


def once(url: str, model: str, options: argparse.Namespace, variant: str) -> tuple[float, float]:
    """(server's CPU us per token, tokens/s)."""
    counts, scraped = VARIANTS[variant]
    stop = threading.Event()
    thread = threading.Thread(target=scraping, args=(url, stop), daemon=True)
    if scraped:
        thread.start()
    before, seconds, tokens = family_cpu_s(options.pid), 0.0, 0
    while seconds < options.seconds:
        seconds += load(url, model, options, counts=counts)[0]
        tokens += options.streams * options.tokens
    used = family_cpu_s(options.pid) - before
    stop.set()
    if scraped:
        thread.join()
    return used / tokens * 1e6, tokens / seconds


def main(options: argparse.Namespace) -> None:
    """Rounds, then the medians of the ratios."""
    with urllib.request.urlopen(f"{options.url}/v1/models") as answer:
        model = json.load(answer)["data"][0]["id"]
    once(options.url, model, options, "bare")  # warm
    rounds = []
    for number in range(options.rounds):
        order = list(VARIANTS)[number % 4 :] + list(VARIANTS)[: number % 4]
        rounds.append({v: once(options.url, model, options, v) for v in order})
    bare = [r["bare"] for r in rounds]
    print(
        f"bare    CPU {median(c for c, _ in bare):.0f} us/token, {median(t for _, t in bare):.0f}"
        f" tokens/s; {options.streams} streams, medians of {options.rounds} rounds"
    )
    for variant in ("counts", "scrape", "both"):
        cpu = sorted(r[variant][0] / r["bare"][0] - 1 for r in rounds)
        rate = sorted(r[variant][1] / r["bare"][1] - 1 for r in rounds)
        print(
            f"{variant:7s} CPU {median(cpu):+.1%} ({cpu[0]:+.1%} to {cpu[-1]:+.1%}), "
            f"tokens/s {median(rate):+.1%} ({rate[0]:+.1%} to {rate[-1]:+.1%})"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("url")
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each variant in each round")
    parser.add_argument("--rounds", type=int, default=8)
    main(parser.parse_args())
