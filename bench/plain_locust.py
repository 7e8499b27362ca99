"""What most people write: a plain `HttpUser` that times the lines of a streamed answer.

BENCH_REQUESTS in all, BENCH_TOKENS each, by users that begin spread over BENCH_SPREAD_S; what it
measured goes to BENCH_OUT (npz of `ttft_ns` and `itl_ns`) when the last request has ended.
"""

from __future__ import annotations

import json
import os
import random
import time

import gevent
import numpy as np
from locust import HttpUser, constant, events, task
from locust.exception import StopUser

REQUESTS, TOKENS = int(os.environ["BENCH_REQUESTS"]), int(os.environ["BENCH_TOKENS"])
SPREAD_S = float(os.environ["BENCH_SPREAD_S"])
BODY = {
    "model": "bench", "stream": True, "max_tokens": TOKENS, "ignore_eos": True,
    "messages": [{"role": "user", "content": "word " * 256}],
    "stream_options": {"include_usage": True},
}  # fmt: skip
count = {"begun": 0, "ended": 0}
ttft_ns: list[int] = []
itl_ns: list[int] = []


class Streaming(HttpUser):
    """Sends one request after the other."""

    wait_time = constant(0)

    def on_start(self):
        """Users begin as the harness's do."""
        gevent.sleep(SPREAD_S * random.random())  # noqa: S311 - no secret

    @task
    def ask(self):
        """One streamed completion."""
        if count["begun"] >= REQUESTS:
            raise StopUser
        count["begun"] += 1
        try:
            self._ask()
        finally:
            count["ended"] += 1
            if count["ended"] == REQUESTS:
                gevent.spawn(self.environment.runner.quit)  # it ends this greenlet too

    def _ask(self):
        sent, last = time.perf_counter_ns(), 0
        with self.client.post(
            "/v1/chat/completions", json=BODY, stream=True, catch_response=True
        ) as response:
            for line in response.iter_lines():
                if not line.startswith(b"data: ") or line == b"data: [DONE]":
                    continue
                choices = json.loads(line[6:])["choices"]
                if not choices or not choices[0]["delta"].get("content"):
                    continue
                now = time.perf_counter_ns()
                if last:
                    itl_ns.append(now - last)
                else:
                    ttft_ns.append(now - sent)
                last = now
            response.success()


@events.quitting.add_listener
def _keep(**_):
    np.savez(os.environ["BENCH_OUT"], ttft_ns=ttft_ns, itl_ns=itl_ns)
