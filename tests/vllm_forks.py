"""`vllm` commands, each in a fork of one process that has imported vLLM: real, but soon there.

Nearly all that a start of vLLM costs are imports: each of its three processes takes 16 s of a core.
`serve_forks` imports once, and who runs `ask_for_a_fork` gets vLLM's own `main` in a fork, with its
words, environment, folder and output. The fork runs as long as who asked, whose exit code is its.
Both run in vLLM's Python: nothing of ours can be imported here.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
import socket
import sys
from multiprocessing.connection import Client, Connection, wait
from multiprocessing.context import ForkProcess
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import Final

IMPORTED: Final = (
    "setproctitle",  # which cannot find the title any more once the environment was changed
    "vllm.entrypoints.cli.main",
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.cli.benchmark.main",
    "vllm.benchmarks.serve",
    "vllm.entrypoints.launchers.api_server.entry",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.llama",
)
STDIN: Final = 0  # which ends when pytest does
OUTPUTS: Final = (1, 2)  # the descriptors that a fork has from who asked for it


class PinnedFork(ForkProcess):
    """What vLLM forks, for it would have spawned it.

    It says in the environment how many threads OpenMP has and where they run, which OpenMP reads as
    it is loaded: in a fork that was long ago.
    """

    def run(self) -> None:
        if threads := os.environ.get("OMP_NUM_THREADS"):
            importlib.import_module("torch").set_num_threads(int(threads))
        if cores := os.environ.get("GOMP_CPU_AFFINITY"):
            os.sched_setaffinity(0, map(int, cores.split()))
        super().run()


def serve_forks(listening: int) -> None:
    """Forks for who asks at this socket, until the standard input ends."""
    for name in IMPORTED:
        importlib.import_module(name)
    with socket.socket(fileno=listening) as server:
        while STDIN not in wait([server, STDIN]):
            asking, _ = server.accept()
            with Connection(asking.detach()) as client:
                ForkProcess(target=attend, args=(client,)).start()


def attend(client: Connection) -> None:
    """One command to its end, or until who asked for it is gone, or pytest."""
    words, environment, folder = client.recv()
    outputs = [recv_handle(client) for _ in OUTPUTS]
    given = (words, environment, folder, outputs)
    command = ForkProcess(target=run, args=given, name="MainProcess")
    command.start()
    assert command.pid
    client.send(command.pid)
    wait([client, command.sentinel, STDIN])
    with contextlib.suppress(ProcessLookupError):
        os.killpg(command.pid, signal.SIGKILL)  # and what it started
    command.kill()
    command.join()
    with contextlib.suppress(BrokenPipeError):
        client.send(command.exitcode)


def run(words: list[str], environment: dict[str, str], folder: Path, outputs: list[int]) -> None:
    """What the command `vllm` does."""
    os.setsid()
    importlib.import_module("setproctitle").setproctitle("VLLM::Fork")  # as vLLM names its own
    for output, number in zip(outputs, OUTPUTS, strict=True):
        os.dup2(output, number)
    os.chdir(folder)
    os.environ.update(environment)
    sys.argv = words
    context = multiprocessing.get_context("fork")
    context.Process = PinnedFork
    multiprocessing.get_context = lambda _method=None: context
    sys.exit(importlib.import_module("vllm.entrypoints.cli.main").main())


def ask_for_a_fork(path: str) -> None:
    """The command `vllm`."""
    with Client(path) as server:
        server.send((sys.argv, dict(os.environ), Path.cwd()))
        for number in OUTPUTS:
            send_handle(server, number, None)
        pid = server.recv()
        for number in signal.SIGTERM, signal.SIGINT:
            signal.signal(number, lambda got, _: os.kill(pid, got))
        sys.exit(server.recv())


if __name__ == "__main__":
    serve_forks(int(sys.argv[1]))
