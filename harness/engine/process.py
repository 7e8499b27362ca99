"""The embedded engine as a child process that dies with its parent."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Final, Self

from harness.engine.config import EngineConfig
from harness.engine.server import ServingOptions, serve
from harness.errors import ServerUnreachable

EXIT_S: Final = 5.0
PR_SET_PDEATHSIG: Final = 1


@dataclass(slots=True)
class EngineProcess:
    """A running engine. Use it as a context manager, or call `stop`."""

    url: str
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self) -> None:
        """Stop the process; safe to repeat."""
        with self.process:  # closes its pipes
            self.process.terminate()
            try:
                self.process.wait(EXIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def start_engine(
    config: EngineConfig, port: int = 0, serving: ServingOptions | None = None
) -> EngineProcess:
    """Start the engine on 127.0.0.1 and wait until it listens. Raises ServerUnreachable.

    The configuration goes through a pipe: it may contain a key, and arguments are world-readable.
    """
    parent = str(os.getpid())
    command = [sys.executable, "-m", "harness.engine.process", str(port), parent]
    process = subprocess.Popen(  # noqa: S603 - our own module
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C must reach only the harness, which stops the engine last
    )
    assert process.stdin is not None  # noqa: S101 - asked for above
    assert process.stdout is not None  # noqa: S101 - as above
    serving = serving or ServingOptions()
    options = json.dumps([asdict(config), asdict(serving)])
    try:
        process.stdin.write(options.encode() + b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except BaseException:  # Ctrl-C during the start: nobody else has the process yet
        process.kill()
        process.wait()
        raise
    if not line:
        process.wait()
        raise ServerUnreachable(
            f"the embedded engine ended with exit code {process.returncode} before it listened: "
            "see its message above; try `vllm-harness engine` by itself."
        )
    return EngineProcess(f"http://127.0.0.1:{int(line)}", process)


def main(port: int, parent: int) -> None:
    """Run in the child: read options from stdin, write the port to stdout."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        return  # the parent died before prctl: no signal would come
    config, serving = json.loads(sys.stdin.buffer.readline())

    def ready(at: int) -> None:
        sys.stdout.write(f"{at}\n")
        sys.stdout.flush()

    serve(EngineConfig(**config), port=port, serving=ServingOptions(**serving), ready=ready)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
