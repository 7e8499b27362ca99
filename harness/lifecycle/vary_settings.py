"""`vary`: the same command with each of several settings, on servers that are started for it.

Each run is a `vllm-harness` process of its own, as a user would start it: Locust, gevent and the
collector begin anew, and run.json of its folder has a command that repeats it by hand.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from itertools import chain, product
from typing import TYPE_CHECKING, Final, TextIO

from harness.compare.compare_folders import compare_settings
from harness.compare.proof import AS_STARTED, PROOF_TOLERANCE, prove, turns
from harness.diagnosis.bottleneck import RULES
from harness.errors import ConfigError, HarnessError, ServerUnreachable
from harness.lifecycle.vllm_start import StartOptions, started
from harness.metrics.result import read_result
from harness.records import names
from harness.records.folder_writer import RunFolder
from harness.records.json_files import read_json
from harness.search.comparison import Setting
from harness.server.max_num_seqs import MAX_NUM_SEQS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


MAX_SETTINGS: Final = 16  # each takes a start of the server and a run
UNSET: Final = "default"


def parse_variable(text: str) -> tuple[Setting, ...]:
    """The settings of `server.max-num-seqs=8,16`. Raises ConfigError."""
    name, _, values = text.partition("=")
    server, flag = name.startswith("server."), name.removeprefix("server.").strip("-")
    flag = flag.replace("_", "-")
    each: list[str] = []
    for piece in values.split(","):  # a comma within the braces or brackets of JSON separates none
        if each and sum(map(each[-1].count, "{[")) > sum(map(each[-1].count, "}]")):
            each[-1] += f",{piece}"
        else:
            each.append(piece)
    if not re.fullmatch(r"[a-z][a-z0-9.-]*", flag) or len(each) != len({*each}) or "" in each:
        raise ConfigError(
            f"the setting is {text!r}: expected server.FLAG=VALUE,VALUE, or OPTION=VALUE,VALUE for "
            "an option of the inner command, each value once; try server.max-num-seqs=8,16."
        )
    switch = {"true": f"--{flag}", "false": f"--no-{flag}"}
    words = [(switch.get(v, f"--{flag}={v}"),) * (v != UNSET) for v in each]
    return tuple(
        Setting(f"{name}={v}", word * server, word * (not server))
        for v, word in zip(each, words, strict=True)
    )


def all_settings(variables: Sequence[Sequence[Setting]]) -> list[Setting]:
    """All combinations, those with the same server next to each other. Raises ConfigError."""
    ordered = sorted(variables, key=lambda each: not any(one.server for one in each))
    found = [
        Setting(
            " ".join(one.name for one in each),
            tuple(chain.from_iterable(one.server for one in each)),
            tuple(chain.from_iterable(one.client for one in each)),
        )
        for each in product(*ordered)
    ]
    if not 1 < len(found) <= MAX_SETTINGS:
        raise ConfigError(
            f"the settings have {len(found)} combinations: expected 2 to {MAX_SETTINGS}, each of "
            "which is measured by itself; try server.max-num-seqs=8,16."
        )
    return found


def in_order(settings: Sequence[Setting], out: Path, *, once: bool) -> list[tuple[Setting, Path]]:
    """The runs with their folders. Two settings: A B B A, so that slow drift favors neither.

    The two Bs are on the same server, which saves a start. More settings: A B C C B A if none of
    them needs a server of its own, which would double the starts; else, or with `once`, each once.
    """
    twice = len(settings) == 2 or all(one.server == settings[0].server for one in settings)  # noqa: PLR2004 - a pair
    runs = [*settings, *(settings[::-1] if twice and not once else [])]
    return [
        (one, out / re.sub(r"[^A-Za-z0-9.=_-]+", "_", f"{number}-{one.name}")[:80])
        for number, one in enumerate(runs, start=1)
    ]


def measure(
    runs: Sequence[tuple[Setting, Path]],
    inner: Sequence[str],
    start: StartOptions | None,
    stream: TextIO,
) -> bool:
    """Run the inner command for each, into its folder; False after Ctrl-C, with what there is.

    `start` None: the inner command names its target. A server that does not start is left out.
    """
    flags, url = None, []
    for kind in (signal.SIGTERM, signal.SIGHUP):  # the terminal is closed
        if signal.getsignal(kind) is signal.SIG_DFL:
            signal.signal(kind, signal.default_int_handler)
    os.environ.setdefault("VLLM_SERVER_DEV_MODE", "1")  # its /server_info shows flags
    with ExitStack() as stack, suppress(KeyboardInterrupt):
        for number, (setting, folder) in enumerate(runs, start=1):
            if start is not None and flags != setting.server and not setting.failure:
                log = folder.with_name(f"{folder.name}.server.log")
                try:
                    stack.close()
                    server = stack.enter_context(started(start, setting.server, log=log))
                except HarnessError as error:
                    stream.write(f"{setting.name} is left out: {error}\n")
                    said = str(error).splitlines()  # the last one is the server's own
                    flags, setting.failure = None, " ".join(dict.fromkeys((said[0], said[-1])))
                else:
                    flags, url = setting.server, [server.url]
                    setting.starts_s.append(server.wall_s)
                    setting.flags = dict(server.start_log.flags)
            if setting.failure:
                continue
            stream.write(f"\nRun {number} of {len(runs)}: {setting.name}\n")
            stream.flush()
            words = [inner[0], *url, *inner[1:], *setting.client, "--out", str(folder)]
            setting.runs[str(folder)] = _run(words, stream)
        return True
    return False


def _run(words: Sequence[str], stream: TextIO) -> int:
    """The exit code of `vllm-harness WORDS`; what it says goes to `stream`."""
    # In a session of its own: Ctrl-C reaches this process alone, which passes it on once and waits
    # for the report, while the server still answers. A second Ctrl-C ends the run without.
    command = [sys.executable, "-m", "harness", *words]
    with subprocess.Popen(command, stdout=stream, start_new_session=True) as child:  # noqa: S603
        try:
            return child.wait()
        except BaseException:
            child.send_signal(signal.SIGINT)
            try:
                child.wait()
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
            raise


def prove_knee(words: Sequence[str], start: StartOptions, out: Path, stream: TextIO) -> bool:
    """Find the knee in `out`, turn two knobs into folders below; False after Ctrl-C."""
    base, inner, tried = Setting(AS_STARTED), ["knee", *words], {}
    whole = measure([(base, out)], inner, start, stream)
    if base.failure:
        raise ServerUnreachable(base.failure)
    result = read_result(out)
    if not whole or not result or not result.bottleneck:
        return whole
    server = (read_json(out / names.RUN) or {}).get("server") or {}
    blocks = (server.get("cache_config") or {}).get("num_gpu_blocks")
    inferred = {MAX_NUM_SEQS: result.target.max_num_seqs.value, "num_gpu_blocks_override": blocks}
    flags = {**inferred, **base.flags, **result.target.flags}
    decided = result.bottleneck.bound_by in RULES
    for cause in [one.name for one in result.bottleneck.causes if one.name in RULES][: 2 * decided]:
        tried[cause] = [one for text in turns(cause, flags) for one in parse_variable(text)]
        for one in tried[cause]:
            if whole and not any(other.runs for other in tried[cause]):
                whole = measure([(one, out / one.name)], inner, start, stream)
    measured = [base, *chain.from_iterable(tried.values())]
    proof = prove(tried, compare_settings(measured, PROOF_TOLERANCE))
    RunFolder(out).write_json(names.PROOF, proof)
    return whole
