"""A program that behaves like `vllm serve` at its start: for tests of its life, not of its answers.

little_vllm.py FLAGS --port N: a child that ignores SIGTERM, a log, /health. With --dies it ends
while it starts, with --refuses=N only if N is among its flags; with --hangs it is never ready.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

CHILD = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
ENGINE = (
    "(EngineCore pid=7) INFO 11-22 19:51:32 [core.py:133] Initializing a V1 LLM engine (v0.32.0) "
    "with config: device_config=cpu\n"
)


class Health(BaseHTTPRequestHandler):
    """Answers 200 to everything."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()


def main(flags: list[str]) -> None:
    """Serve until SIGTERM."""
    subprocess.Popen([sys.executable, "-c", CHILD])
    sys.stdout.write(ENGINE)
    sys.stdout.flush()
    if "--dies" in flags:
        sys.exit("RuntimeError: Engine core initialization failed.")
    refused = next((f.partition("=")[2] for f in flags if f.startswith("--refuses=")), "")
    if refused in flags:
        sys.exit(f"ValueError: no room for {refused} tokens")
    if "--hangs" in flags:
        signal.pause()
    HTTPServer(("127.0.0.1", int(flags[flags.index("--port") + 1])), Health).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
