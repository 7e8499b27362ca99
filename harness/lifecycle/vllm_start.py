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
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from harness.core.held_signals import signals_held
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
    memory = _GpuMemory()
    process = None
    # By default SIGTERM ends Python on the spot: no `finally` would run, and the server be left.
    # A handler of somebody else's is left alone.
    is_sigterm_ours = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if is_sigterm_ours:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        # An interrupt after the process began and before it has a name would leave it running.
        with log.open("wb") as out, signals_held():
            began_s = time.monotonic()
            # In a session of its own, by which everything that it starts is found and ended.
            process = subprocess.Popen(  # noqa: S603 - the user's own command
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        lines = _until_ready(process, began_s, port, log, memory.used_mib)
        yield StartedServer(
            url=f"http://{LOOPBACK}:{port}",
            pid=process.pid,
            port=port,
            notes=notes,
            log=log,
            began_s=began_s,
            wall_s=lines[-1].at_s,
            start_log=read_start_log(lines, memory.before_mib),
        )
    finally:
        try:
            with signals_held():
                if process is not None:
                    _end(process, port)
                memory.wait_until_back()
        finally:  # also where something of the server is left
            memory.close()
            if is_sigterm_ours:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)


class _GpuMemory:
    """Of all GPUs of this machine together, compared with what was in use when this was made."""

    def __init__(self) -> None:
        self._gpus = local_gpus().source
        self.before_mib = self.used_mib()

    def used_mib(self) -> float:
        """NaN where it is hidden, 0 without a GPU."""
        if not self._gpus:
            return 0.0
        return sum(gpu.memory_used_mib for gpu in self._gpus.read(0))

    def wait_until_back(self) -> None:
        """What is free on a GPU is what the next server gets: wait for it, or say that it lacks."""
        _until(self._is_back, MEMORY_BACK_S)
        held_mib = self.used_mib() - self.before_mib
        if held_mib >= GPU_SLACK_MIB:
            sys.stderr.write(f"GPUs have {held_mib:,.0f} MiB less than before: see nvidia-smi\n")

    def _is_back(self) -> bool:
        held_mib = self.used_mib() - self.before_mib
        return not held_mib >= GPU_SLACK_MIB  # NaN, unknown, is not waited for

    def close(self) -> None:
        if self._gpus:
            self._gpus.close()


def command_line(
    options: StartOptions, more_args: Sequence[str], port: int
) -> tuple[list[str], tuple[str, ...]]:
    """Return the whole command, and notes on what was added to it. Raises ConfigError."""
    given = [*options.start_args, *more_args]
    command = _command(options)
    _check_model(options)
    if options.model_dir is not None:
        command.append(str(options.model_dir))
    names = {_name_of_flag(arg) for arg in given}
    added = []
    for ours in _flags_of_ours(options.model_dir, tuple(command)):
        if ours.flag not in names:
            added.append(ours)
            command += ours.words
    command += [*given, "--port", str(port)]
    if list(redact(command)) != command:
        raise ConfigError(
            "the command that starts vLLM holds a secret: expected it in the environment, which no "
            "file and no list of processes shows; try `export VLLM_API_KEY=...` or HF_TOKEN."
        )
    notes = [f"{' '.join(ours.words)}: {ours.why}" for ours in added if ours.why]
    return command, tuple(notes)


def _name_of_flag(arg: str) -> str:
    """`--enable-x` of `--no-enable_x=...`: vLLM takes all of these spellings."""
    name, _, _ = arg.partition("=")
    return name.replace("_", "-").replace("--no-", "--")


def _check_model(options: StartOptions) -> None:
    """Raises ConfigError if it is not said which model, or its folder holds none."""
    model = options.model_dir
    if model is None:
        is_missing = not options.start_command
        was_given = "no --model-dir was given"
    else:
        is_missing = not (model / "config.json").is_file()
        was_given = f"--model-dir is {model}"
    if is_missing:
        raise ConfigError(
            f"{was_given}: expected a model's folder, with its config.json; try --start-command "
            "'vllm serve NAME' for one that is downloaded."
        )


class _Flag(NamedTuple):
    """One that the user did not ask for."""

    flag: str
    value: str
    why: str = ""  # "": not worth a note

    @property
    def words(self) -> list[str]:
        """Of the command line: a value may have blanks, or be missing."""
        return [self.flag, self.value] if self.value else [self.flag]


def _flags_of_ours(model: Path | None, command: Sequence[str]) -> Iterator[_Flag]:
    """What a command begins with, unless its user says otherwise."""
    yield _Flag("--host", LOOPBACK)
    if model is not None:
        yield _Flag("--served-model-name", model.resolve().name)
        has_weights = any(file for pattern in WEIGHTS for file in model.glob(pattern))
        if not has_weights:
            why = "random weights, for the model folder has no weight files"
            yield _Flag("--load-format", "dummy", why)
    # vLLM tells a CPU build in the same way.
    is_for_cpu = "cpu" in installed_version(command)
    if is_for_cpu or os.environ.get("VLLM_TARGET_DEVICE") == "cpu":
        for flag, value in CPU_FLAGS.items():
            yield _Flag(flag, value, "a CPU build of vLLM")


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
    scripts = [word for word in command if Path(word).name == "vllm"]
    program = scripts[0] if scripts else command[0]
    script = shutil.which(program) or ""
    with suppress(OSError, UnicodeDecodeError), Path(script).open("rb") as file:
        first_line = file.readline().decode()
        if first_line.startswith("#!") and "python" in first_line:
            python = first_line.removeprefix("#!").split()
            question = [*python, "-c", ASK_VERSION]
            told = subprocess.run(question, capture_output=True, text=True, check=False)  # noqa: S603 - as above
            return told.stdout
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
    now_s = 0.0
    lines_so_far: list[SeenLine] = []
    with log.open(errors="replace") as lines:
        while process.poll() is None and now_s < READY_S:
            ready = False
            with suppress(ServerUnreachable):
                ready = fetch(access, "/health").status == HTTPStatus.OK
            now_s = time.monotonic() - began_s
            gpu_mib = used_mib()
            # Read after /health was asked: what was written before it was ready is in the list.
            lines_so_far += [SeenLine(now_s, line.rstrip("\n"), gpu_mib) for line in lines]
            if ready:
                return [*lines_so_far, SeenLine(now_s, "ready", gpu_mib)]
            with suppress(subprocess.TimeoutExpired):
                process.wait(POLL_S)
    code = process.poll()
    what = f"is not ready after {READY_S} s" if code is None else f"ended with exit code {code}"
    text = redact_text(log.read_text(errors="replace"))
    why = one_line(why_it_failed(text)) or "see its log"
    end = "\n".join(text.splitlines()[-LOG_LINES:])
    raise ServerUnreachable(
        f"vLLM {what} ({why}): expected it to serve; try its command by itself. The end of {log}:\n"
        f"{end}"
    )


def _end(process: subprocess.Popen[bytes], port: int) -> None:
    """End a server and all that it started. Raises HarnessError if something of it is left."""

    def send(number: signal.Signals) -> None:
        for pid in session_pids(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def remains() -> str:
        running = session_pids(process.pid)
        if running:
            return f"processes {running}: expected none; try `kill -9`"
        try:
            check_port("--port", LOOPBACK, port)
        except ConfigError as error:
            return str(error)
        return ""

    send(signal.SIGTERM)
    _until(lambda: process.pid not in session_pids(process.pid))  # vLLM ends its own ones first
    # What outlived the first process would keep the port, or the GPU's memory.
    send(signal.SIGKILL)
    _until(lambda: not remains())
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_S)  # it may be about to end: no zombie stays
    left = remains()
    if left:
        raise HarnessError(f"vLLM was killed, but something of it is left: {left}")


def _until(done: Callable[[], bool], seconds: float = END_S) -> None:
    until_s = time.monotonic() + seconds
    while not done() and time.monotonic() < until_s:
        time.sleep(POLL_S)


def session_pids(session: int) -> list[int]:
    """Return what runs in the session of that process; a zombie does not run."""
    pids = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # it ended meanwhile
            is_of_session = os.getsid(process.pid) == session
            if is_of_session and process.status() != psutil.STATUS_ZOMBIE:
                pids.append(process.pid)
    return pids
