"""vLLM's life: started here with `vllm serve`, ready by /health, ended with nothing left behind.

The server runs in a session of its own, so that Ctrl-C reaches only the harness, which ends it:
SIGTERM, SIGKILL for what is left, until no process of the session runs, the port is free and the
GPUs' memory is back. It listens on the loopback only.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from itertools import chain
from pathlib import Path
from typing import Final

import psutil

from harness.errors import ConfigError, HarnessError, ServerUnreachable, one_line
from harness.lifecycle.start_log import SeenLine, StartLog, read_start_log, why_it_failed
from harness.records.redact import redact, redact_text
from harness.server.access import TargetAccess
from harness.server.address import LOOPBACK, Address, check_port, free_port
from harness.server.gpu import local_gpus
from harness.server.http_exchange import fetch
from harness.units import SECOND

WEIGHTS: Final = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
CPU_FLAGS: Final = {"--enforce-eager": "", "--dtype": "bfloat16", "--max-model-len": "2048"}
ASK_VERSION: Final = "import importlib.metadata as m; print(m.version('vllm'))"
READY_S: Final = 1800  # a large model is downloaded, compiled and captured
POLL_S: Final = 0.1
END_S: Final = 30.0  # until SIGKILL, and until nothing is left
MEMORY_BACK_S: Final = 5.0  # then; other processes may use a GPU too
GPU_SLACK_MIB: Final = 256.0  # what a driver may keep
LOG_LINES: Final = 15  # of a failed start that are shown


@dataclass(frozen=True, slots=True)
class StartOptions:
    """How vLLM is started."""

    vllm: str = ""  # path of the `vllm` command; "": HARNESS_VLLM_COMMAND, or the one on PATH
    start_command: str = ""  # in place of `vllm serve`: a command line; flags are appended
    model_dir: Path | None = None
    start_args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StartedServer:
    """A server that is ready."""

    url: str
    pid: int  # of its first process, and of its session
    port: int
    notes: tuple[str, ...]  # what was added to the command, and why
    log: Path
    began_s: float  # the start of the process, by time.monotonic
    wall_s: float  # from there until /health answered
    start_log: StartLog


@contextmanager
def started(
    options: StartOptions, more_args: Sequence[str] = (), *, log: Path, port: int = 0
) -> Iterator[StartedServer]:
    """Run a server as long as the context, in which SIGTERM interrupts as Ctrl-C does.

    For the main thread, which alone gets signals. Raises ConfigError before anything is started,
    ServerUnreachable with the end of the log when it does not become ready, HarnessError when
    something of it is left afterwards.
    """
    if port:
        check_port("--port", LOOPBACK, port)
    port = port or free_port()
    command, notes = command_line(options, more_args, port)
    gpus, process = local_gpus().source, None

    def used_mib() -> float:
        return sum(gpu.memory_used_mib for gpu in gpus.read(0)) if gpus else 0.0

    def held_mib() -> float:
        return used_mib() - before

    before = used_mib()
    if ours := signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with log.open("wb") as out, _uninterrupted():
            began_s = time.monotonic()
            process = subprocess.Popen(  # noqa: S603 - the user's own command
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        lines = _until_ready(process, began_s, port, log, used_mib)
        yield StartedServer(
            f"http://{LOOPBACK}:{port}",
            process.pid,
            port,
            notes,
            log,
            began_s,
            lines[-1].at_s,
            read_start_log(lines, before),
        )
    finally:
        with _uninterrupted():
            if process is not None:
                _end(process, port)
            # What is free on a GPU is what the next server gets.
            _until(lambda: not held_mib() >= GPU_SLACK_MIB, MEMORY_BACK_S)  # or unknown, NaN
            if (held := held_mib()) >= GPU_SLACK_MIB:
                sys.stderr.write(f"GPUs have {held:,.0f} MiB less than before: see nvidia-smi\n")
            if gpus:
                gpus.close()
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def command_line(
    options: StartOptions, more_args: Sequence[str], port: int
) -> tuple[list[str], tuple[str, ...]]:
    """Return the whole command, and notes on what was added to it. Raises ConfigError."""
    given, model = [*options.start_args, *more_args], options.model_dir
    command = _command(options)
    if not (model / "config.json").is_file() if model else not options.start_command:
        raise ConfigError(
            f"{f'--model-dir is {model}' if model else 'no --model-dir was given'}: expected a "
            "model's folder, with its config.json; try --start-command 'vllm serve NAME' for one "
            "that is downloaded."
        )
    added, because = {"--host": LOOPBACK}, {}
    if model is not None:
        command.append(str(model))
        added["--served-model-name"] = model.resolve().name
        if not any(file for pattern in WEIGHTS for file in model.glob(pattern)):
            because["--load-format"] = "random weights, for the model folder has no weight files"
            added["--load-format"] = "dummy"
    # vLLM tells a CPU build in the same way.
    if "cpu" in installed_version(command) or os.environ.get("VLLM_TARGET_DEVICE") == "cpu":
        because |= dict.fromkeys(CPU_FLAGS, "a CPU build of vLLM")
        added |= CPU_FLAGS
    names = {arg.partition("=")[0].replace("_", "-").replace("--no-", "--") for arg in given}
    new = {flag: f"{flag} {value}".split() for flag, value in added.items() if flag not in names}
    command += [*chain(*new.values()), *given, "--port", str(port)]
    if list(redact(command)) != command:
        raise ConfigError(
            "the command that starts vLLM holds a secret: expected it in the environment, which no "
            "file and no list of processes shows; try `export VLLM_API_KEY=...` or HF_TOKEN."
        )
    return command, tuple(f"{' '.join(new[f])}: {why}" for f, why in because.items() if f in new)


def _command(options: StartOptions) -> list[str]:
    beside = str(Path(sys.executable).with_name("vllm"))  # PATH may lack our own environment
    named = options.vllm or os.environ.get("HARNESS_VLLM_COMMAND", "")
    words = [named or shutil.which("vllm") or beside, "serve"]
    with suppress(ValueError):  # an open quotation mark: then the whole is no program
        words = shlex.split(options.start_command) or words
    if not shutil.which(words[0]):
        raise ConfigError(
            f"{words[0]!r} is no program that can be run: expected the `vllm` command of this "
            "machine; try --vllm PATH, or `pip install 'vllm-harness[vllm]'`. A vLLM in Compose or "
            "on another machine cannot be restarted from here: run this command where it runs, or "
            'stop that one and give --start-command "docker run --rm --network host ...".'
        )
    return words


def installed_version(command: Sequence[str]) -> str:
    """Return the version of the vLLM behind a command, as its own Python has it; "": unknown."""
    script = shutil.which(next((word for word in command if Path(word).name == "vllm"), command[0]))
    with suppress(OSError, UnicodeDecodeError), Path(script or "").open("rb") as file:
        first = file.readline().decode()
        if first.startswith("#!") and "python" in first:
            asked = [*first[2:].split(), "-c", ASK_VERSION]
            return subprocess.run(asked, capture_output=True, text=True, check=False).stdout  # noqa: S603 - as above
    return ""


def _until_ready(
    process: subprocess.Popen[bytes],
    began_s: float,
    port: int,
    log: Path,
    used_mib: Callable[[], float],
) -> list[SeenLine]:
    """Return the log's lines, each with when it was seen. Raises ServerUnreachable."""
    access = TargetAccess(Address("http", LOOPBACK, port), answer_ns=5 * SECOND)
    now_s, seen = 0.0, []
    with log.open(errors="replace") as lines:
        while process.poll() is None and now_s < READY_S:
            ready = False
            with suppress(ServerUnreachable):
                ready = fetch(access, "/health").status == HTTPStatus.OK
            now_s, used = time.monotonic() - began_s, used_mib()
            seen += [SeenLine(now_s, line.rstrip("\n"), used) for line in lines]
            if ready:
                return [*seen, SeenLine(now_s, "ready", used)]
            with suppress(subprocess.TimeoutExpired):
                process.wait(POLL_S)
    code, said = process.poll(), redact_text(log.read_text(errors="replace"))
    what = f"is not ready after {READY_S} s" if code is None else f"ended with exit code {code}"
    end = "\n".join(said.splitlines()[-LOG_LINES:])
    raise ServerUnreachable(
        f"vLLM {what} ({one_line(why_it_failed(said)) or 'see its log'}): expected it to serve; "
        f"try its command by itself. The end of {log}:\n{end}"
    )


def _end(process: subprocess.Popen[bytes], port: int) -> None:
    """End a server and all that it started. Raises HarnessError if something of it is left."""

    def send(number: signal.Signals) -> None:
        for pid in session_pids(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def left() -> str:
        if running := session_pids(process.pid):
            return f"processes {running}: expected none; try `kill -9`"
        try:
            check_port("--port", LOOPBACK, port)
        except ConfigError as error:
            return str(error)
        return ""

    send(signal.SIGTERM)
    _until(lambda: process.pid not in session_pids(process.pid))  # vLLM ends its own ones first
    send(signal.SIGKILL)
    _until(lambda: not left())
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_S)  # it may be about to end: no zombie stays
    if found := left():
        raise HarnessError(f"vLLM was killed, but something of it is left: {found}")


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait until the block is left: nothing is forgotten half-way."""
    came: list[int] = []
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda n, _: came.append(n)) for number in kinds}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def _until(done: Callable[[], bool], seconds: float = END_S) -> None:
    until_s = time.monotonic() + seconds
    while not done() and time.monotonic() < until_s:
        time.sleep(POLL_S)


def session_pids(session: int) -> list[int]:
    """Return what runs in the session of that process; a zombie does not run."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # it ended meanwhile
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found
