"""Deployments of one model, from a TOML file: a table for each, by its name.

    [two-replicas]
    gpus = ["0", "1"]              a server on each, behind our balancer

    [tp-2]
    gpus = ["0,1"]                 one server on both
    args = "--tensor-parallel-size 2"

    [apart]
    prefill = ["0"]                servers of two roles, behind our proxy
    decode = ["1"]

`command` starts its servers in place of the one that all have, and `args` are added: a text as a
shell reads it, or a list of words as they are, such as JSON. Servers of two roles get vLLM's
--kv-transfer-config with `connector`, which "" leaves out.
"""

from __future__ import annotations

import json
import os
import shlex
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from harness.errors import ConfigError, closest
from harness.lifecycle.balancer import BalancerProcess
from harness.lifecycle.prefill_decode import DECODE, PREFILL, ProxyProcess
from harness.lifecycle.serve_presets import NIXL
from harness.lifecycle.vllm_start import Launch, StartedServer, StartOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

TOGETHER: Final = "gpus"  # the key of servers that prefill and decode
KEYS: Final = (TOGETHER, PREFILL, DECODE, "command", "args", "connector")
BY_FILES: Final = "ExampleConnector"  # needs no package; for tests
VISIBLE_GPUS: Final = "CUDA_VISIBLE_DEVICES"
KV_FLAG: Final = "--kv-transfer-config"
KV_ROLES: Final = {PREFILL: "kv_producer", DECODE: "kv_consumer"}
SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - where files do not reach a disk
EXAMPLE: Final = '[tp-2] with gpus = ["0,1"] and args = "--tensor-parallel-size 2"'


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """One server of a deployment."""

    gpus: str = ""  # CUDA_VISIBLE_DEVICES; "": those of this process
    role: str = TOGETHER  # or PREFILL, DECODE


@dataclass(frozen=True, slots=True)
class Deployment:
    """Servers that serve as one."""

    name: str
    start: StartOptions
    places: tuple[ServerPlace, ...] = (ServerPlace(),)
    connector: str = NIXL  # of servers of two roles

    @property
    def gpus(self) -> int:
        """Of all its servers; 0: not known."""
        named = [place.gpus for place in self.places if place.gpus]
        return len(",".join(named).split(",")) if named else 0

    def of_role(self, role: str) -> list[int]:
        """The numbers of its servers of a role."""
        return [number for number, place in enumerate(self.places) if place.role == role]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A deployment that serves: where requests go, and where metrics are read."""

    url: str
    servers: Sequence[StartedServer]
    options: tuple[str, ...] = ()  # of a command that measures it: where its metrics are

    @property
    def start_s(self) -> float:
        """Until its last server was ready."""
        return max(server.wall_s for server in self.servers)

    @property
    def flags(self) -> dict[str, Any]:
        """Of its first server, other than the defaults."""
        return dict(self.servers[0].start_log.flags)


def read_deployments(path: Path, start: StartOptions) -> dict[str, Deployment]:
    """Those of a file, by name; `start`: how a server is started. Raises ConfigError."""
    try:
        tables = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(
            f"--deployments is {path} ({error}): expected a TOML file with a table for each; try "
            f"{EXAMPLE}."
        ) from None
    deployments = {}
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise _wrong(name, f"is {table!r}", "a table")
        deployments[name] = _deployment(name, table, start)
    return deployments


def _wrong(name: str, found: str, expected: str) -> ConfigError:
    return ConfigError(f"deployment {name} {found}: expected {expected}; try {EXAMPLE}.")


def _deployment(name: str, table: Mapping[str, Any], start: StartOptions) -> Deployment:
    for key in table:
        if key not in KEYS:
            meant = closest(key, KEYS, TOGETHER)
            raise _wrong(name, f"has {key!r}", f"{', '.join(KEYS)}, perhaps {meant}")
    roles = [role for role in (TOGETHER, PREFILL, DECODE) if role in table]
    if roles not in ([TOGETHER], [PREFILL, DECODE]):
        has = " and ".join(roles) or "no GPUs"
        raise _wrong(name, f"has {has}", "gpus, or prefill and decode")
    places: list[ServerPlace] = []
    for role in roles:
        places += [ServerPlace(gpus, role) for gpus in _gpu_lists(name, role, table[role])]
    texts = {key: table.get(key, "") for key in ("command", "connector")}
    for key, text in texts.items():
        if not isinstance(text, str):
            raise _wrong(name, f"has {key} = {text!r}", "a text")
    if texts["command"]:
        start = replace(start, start_command=texts["command"], model_dir=None)
    words = _words(name, table.get("args", ""))
    start = replace(start, start_args=(*start.start_args, *words))
    connector = texts["connector"] if "connector" in table else NIXL
    return Deployment(name, start, tuple(places), connector)


def _words(name: str, args: object) -> list[str]:
    """The flags of each server: those of a text, or the words of a list. Raises ConfigError."""
    if isinstance(args, list) and all(isinstance(word, str) for word in args):
        return args
    expected = "a text with flags as in a shell, or a list of words"
    if not isinstance(args, str):
        raise _wrong(name, f"has args = {args!r}", expected)
    try:
        return shlex.split(args)
    except ValueError as error:
        raise _wrong(name, f"has args = {args!r} ({error})", expected) from None


def _gpu_lists(name: str, key: str, listed: object) -> list[str]:
    """The GPUs of each server. Raises ConfigError."""
    texts = listed if isinstance(listed, list) else []
    good = [text for text in texts if isinstance(text, str) and all(text.split(","))]
    if not texts or good != texts:
        raise _wrong(name, f"has {key} = {listed!r}", 'a text for each server, such as ["0", "1"]')
    return good


def launches(deployment: Deployment, more_args: Sequence[str], log: Path) -> list[Launch]:
    """How each server is started; `log` of one, or the beginning of the names of several."""
    found = []
    is_one = len(deployment.places) == 1
    for number, place in enumerate(deployment.places, start=1):
        environment = []
        if place.gpus:
            environment.append((VISIBLE_GPUS, place.gpus))
        own_log = log if is_one else log.with_name(f"{log.stem}-{number}{log.suffix}")
        args = (*more_args, *_transfer_args(deployment, place.role))
        launch = Launch(deployment.start, own_log, args, tuple(environment), has_neighbors=True)
        found.append(launch)
    return found


def same_server(launch: Launch) -> tuple[object, ...]:
    """What two servers have in common that can be one."""
    gpus = dict(launch.environment).get(VISIBLE_GPUS, "")
    return launch.options, launch.more_args, gpus


def _transfer_args(deployment: Deployment, role: str) -> tuple[str, ...]:
    """What makes a server of one of two roles hand over the KV cache."""
    is_given = any(arg.startswith(KV_FLAG) for arg in deployment.start.start_args)
    if is_given or role not in KV_ROLES or not deployment.connector:
        return ()
    config: dict[str, Any] = {"kv_connector": deployment.connector, "kv_role": KV_ROLES[role]}
    folder = _kv_folder(deployment)
    if folder is not None:
        config["kv_connector_extra_config"] = {"shared_storage_path": str(folder)}
    return KV_FLAG, json.dumps(config)


def _kv_folder(deployment: Deployment) -> Path | None:
    """Where servers leave KV caches for each other; None: they send them."""
    if deployment.connector != BY_FILES or not deployment.of_role(PREFILL):
        return None
    where = SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path.cwd()
    return where / f"kv-{os.getpid()}"


def disaggregated(
    start: StartOptions, prefill: Sequence[str], decode: Sequence[str], connector: str
) -> Deployment:
    """Servers that prefill and servers that decode, on these GPUs."""
    places = [ServerPlace(gpus, PREFILL) for gpus in prefill]
    places += [ServerPlace(gpus, DECODE) for gpus in decode]
    return Deployment("disaggregated", start, tuple(places), connector)


@contextmanager
def serving(
    deployment: Deployment, servers: Sequence[StartedServer], port: int = 0
) -> Iterator[Endpoint]:
    """What stands before its servers, as long as the context; `port`: of a proxy, 0: any."""
    urls = [server.url for server in servers]
    with ExitStack() as stack:
        if len(servers) == 1:
            yield Endpoint(urls[0], servers)
            return
        prefill = [urls[number] for number in deployment.of_role(PREFILL)]
        if prefill:
            decode = [urls[number] for number in deployment.of_role(DECODE)]
            proxy = stack.enter_context(ProxyProcess(prefill, decode, _kv_folder(deployment), port))
            yield Endpoint(proxy.url, servers, _metrics_options(decode, prefill))
            return
        balancer = stack.enter_context(BalancerProcess(urls))
        yield Endpoint(balancer.url, servers, _metrics_options(urls))


def _metrics_options(urls: Sequence[str], prefill: Sequence[str] = ()) -> tuple[str, ...]:
    words: list[str] = []
    for url in urls:
        words += ["--metrics-url", url]
    for url in prefill:
        words += ["--prefill-url", url]
    return tuple(words)
