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
from typing import IO, Final, NamedTuple

import psutil

from harness.core.held_signals import signals_held
from harness.errors import ConfigError, HarnessError, ServerUnreachable, one_line
from harness.lifecycle.start_log import SeenLine, StartLog, read_start_log, why_it_failed
from harness.records.redact import redact, redact_text
from harness.server.access import TargetAccess
from harness.server.address import LOOPBACK, Address, check_port, free_ports
from harness.server.gpu import local_gpus
from harness.server.http_exchange import fetch
from harness.units import SECOND

WEIGHTS: Final = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
CPU_FLAGS: Final = {"--enforce-eager": "", "--max-model-len": "2048"}
CPU_INFO: Final = Path("/proc/cpuinfo")
# x86 without AVX-512 has nothing that computes in bfloat16: a prompt takes several times as long.
X86, AVX_512 = "sse2", "avx512f"
ASK_VERSION: Final = "import importlib.metadata as m; print(m.version('vllm'))"
READY_S: Final = 1800  # a large model is downloaded, compiled and captured
POLL_S: Final = 0.1
END_S: Final = 30.0  # until SIGKILL, and until nothing is left
MEMORY_BACK_S: Final = 5.0  # then; other processes may use a GPU too
GPU_SLACK_MIB: Final = 256.0  # what a driver may keep
NIXL_PORT: Final = "VLLM_NIXL_SIDE_CHANNEL_PORT"
NIXL_PORTS: Final = 16  # from there on: each data-parallel rank adds its number to that port
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


@dataclass(frozen=True, slots=True)
class Launch:
    """One server to start."""

    options: StartOptions
    log: Path
    more_args: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()  # besides that of this process
    port: int = 0  # 0: any that is free
    has_neighbors: bool = False  # on this host: then it gets ports of its own for NIXL


@dataclass(frozen=True, slots=True)
class Ports:
    """Where one server listens."""

    http: int
    nixl: int = 0  # the first of NIXL_PORTS; 0: as its environment says


@contextmanager
def started(
    options: StartOptions, more_args: Sequence[str] = (), *, log: Path, port: int = 0
) -> Iterator[StartedServer]:
    """Run a server as long as the context, in which SIGTERM interrupts as Ctrl-C does.

    For the main thread, which alone gets signals. Raises ConfigError before anything is started,
    ServerUnreachable with the end of the log when it does not become ready, HarnessError when
    something of it is left afterwards.
    """
    launch = Launch(options, log, tuple(more_args), port=port)
    with launched([launch]) as servers:
        yield servers[0].ready()


@contextmanager
def launched(launches: Sequence[Launch]) -> Iterator[tuple[LaunchedServer, ...]]:
    """Run several servers as long as the context: all start at once, and have then begun to serve.

    Those that failed to say so when they are asked for. For the rest, see `started`.
    """
    servers = [LaunchedServer(launch, ports) for launch, ports in _with_ports(launches).items()]
    memory = _GpuMemory()
    # By default SIGTERM ends Python on the spot: no `finally` would run, and the servers be left.
    # A handler of somebody else's is left alone.
    is_sigterm_ours = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if is_sigterm_ours:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for server in servers:
            server.begin(memory.before_mib)
        while waiting := [server for server in servers if server.is_starting]:
            for server in waiting:
                server.look(memory.used_mib)
            time.sleep(POLL_S)
        yield tuple(servers)
    finally:
        try:
            with signals_held():
                _end_all([server for server in servers if server.process is not None])
                memory.wait_until_back()
        finally:  # also where something of a server is left
            memory.close()
            if is_sigterm_ours:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _with_ports(launches: Sequence[Launch]) -> dict[Launch, Ports]:
    """Ports for each, none twice. Raises ConfigError for one that is taken."""
    given = [launch.port for launch in launches if launch.port]
    for port in given:
        check_port("--port", LOOPBACK, port)
    taken = set(given)

    def free(count: int) -> int:
        row = free_ports(count, taken)
        taken.update(row)
        return row.start

    return {
        launch: Ports(
            http=launch.port or free(1), nixl=free(NIXL_PORTS) if launch.has_neighbors else 0
        )
        for launch in launches
    }


class LaunchedServer:
    """A server from the start of its process until it serves or has failed."""

    def __init__(self, launch: Launch, ports: Ports) -> None:
        """Raises ConfigError."""
        self.port = ports.http
        self._nixl_port = ports.nixl
        self.process: subprocess.Popen[bytes] | None = None
        self._launch = launch
        self._command, self._notes = command_line(launch.options, launch.more_args, self.port)
        self._access = TargetAccess(Address("http", LOOPBACK, self.port), answer_ns=5 * SECOND)
        self._began_s = 0.0
        self._before_mib = 0.0
        self._lines: list[SeenLine] = []
        self._log: IO[str] | None = None
        self._server: StartedServer | None = None
        self._failure: ServerUnreachable | None = None

    @property
    def is_starting(self) -> bool:
        return self._server is None and self._failure is None

    def ready(self) -> StartedServer:
        """The server that serves. Raises ServerUnreachable with the end of its log."""
        if self._failure is not None:
            raise self._failure
        assert self._server is not None  # noqa: S101 - it has begun to serve, or failed
        return self._server

    def begin(self, before_mib: float) -> None:
        """Start its process; `before_mib` of the GPUs' memory were in use before."""
        self._before_mib = before_mib
        environment = {**os.environ, **dict(self._launch.environment)}
        if self._nixl_port:
            environment[NIXL_PORT] = str(self._nixl_port)
        # An interrupt after the process began and before it has a name would leave it running.
        with self._launch.log.open("wb") as out, signals_held():
            self._began_s = time.monotonic()
            # In a session of its own, by which everything that it starts is found and ended.
            self.process = subprocess.Popen(  # noqa: S603 - the user's own command
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env=environment,
            )
        self._log = self._launch.log.open(errors="replace")

    def look(self, used_mib: Callable[[], float]) -> None:
        """See whether it serves by now, or never will."""
        assert self.process is not None  # noqa: S101 - it has begun
        assert self._log is not None  # noqa: S101 - as above
        has_ended = self.process.poll() is not None
        is_ready = False
        with suppress(ServerUnreachable):
            is_ready = fetch(self._access, "/health").status == HTTPStatus.OK
        now_s = time.monotonic() - self._began_s
        gpu_mib = used_mib()
        # Read after /health was asked: what was written before it was ready is in the list.
        self._lines += [SeenLine(now_s, line.rstrip("\n"), gpu_mib) for line in self._log]
        if is_ready and not has_ended:
            self._lines.append(SeenLine(now_s, "ready", gpu_mib))
            self._server = self._started(now_s)
        elif has_ended or now_s >= READY_S:
            self._failure = _failure_of(self.process, self._launch.log)
        if not self.is_starting:
            self._log.close()

    def _started(self, wall_s: float) -> StartedServer:
        assert self.process is not None  # noqa: S101 - it serves
        return StartedServer(
            url=f"http://{LOOPBACK}:{self.port}",
            pid=self.process.pid,
            port=self.port,
            notes=self._notes,
            log=self._launch.log,
            began_s=self._began_s,
            wall_s=wall_s,
            start_log=read_start_log(self._lines, self._before_mib),
        )


def _failure_of(process: subprocess.Popen[bytes], log: Path) -> ServerUnreachable:
    """Why a server does not serve, with the end of its log."""
    code = process.poll()
    what = f"is not ready after {READY_S} s" if code is None else f"ended with exit code {code}"
    text = redact_text(log.read_text(errors="replace"))
    why = one_line(why_it_failed(text)) or "see its log"
    end = "\n".join(text.splitlines()[-LOG_LINES:])
    return ServerUnreachable(
        f"vLLM {what} ({why}): expected it to serve; try its command by itself. The end of {log}:\n"
        f"{end}"
    )


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
        yield cpu_dtype()


def cpu_dtype() -> _Flag:
    """The type of the weights that this processor computes with."""
    try:
        features = set(CPU_INFO.read_text().split())
    except OSError:  # another system
        features = set()
    if X86 in features and AVX_512 not in features:
        return _Flag("--dtype", "float32", "a CPU build of vLLM, and no AVX-512")
    return _Flag("--dtype", "bfloat16", "a CPU build of vLLM")


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


def _end_all(servers: Sequence[LaunchedServer]) -> None:
    """End servers and all that they started. Raises HarnessError if something of one is left."""
    running = [(server.process, server.port) for server in servers if server.process]
    for process, _ in running:  # all at once: each takes seconds
        _send(process, signal.SIGTERM)
    left = ""
    for process, port in running:
        left = left or _end(process, port)
    if left:
        raise HarnessError(f"vLLM was killed, but something of it is left: {left}")


def _send(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to a process and all that it started."""
    for pid in session_pids(process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _end(process: subprocess.Popen[bytes], port: int) -> str:
    """Wait for a server that was asked to end, then make it; what is left of it, or ""."""
    _until(lambda: process.pid not in session_pids(process.pid))  # vLLM ends its own ones first
    # What outlived the first process would keep the port, or the GPU's memory.
    _send(process, signal.SIGKILL)
    _until(lambda: not _remains(process, port))
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_S)  # it may be about to end: no zombie stays
    return _remains(process, port)


def _remains(process: subprocess.Popen[bytes], port: int) -> str:
    running = session_pids(process.pid)
    if running:
        return f"processes {running}: expected none; try `kill -9`"
    try:
        check_port("--port", LOOPBACK, port)
    except ConfigError as error:
        return str(error)
    return ""


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
