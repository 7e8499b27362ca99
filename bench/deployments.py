"""Ways to use two or four GPUs, measured side by side, by the users that each GPU holds.

    PYTHONPATH=. python bench/deployments.py begin FOLDER --gpus 2 --command "vllm serve MODEL ..."
    PYTHONPATH=. python bench/deployments.py wait FOLDER OUT --seconds 540
    PYTHONPATH=. python bench/deployments.py table OUT --config 7B --gpu h100 --kv-memory 8

`begin` starts `vllm-harness vary --keep` over bench/deployments/two.toml or four.toml in the
background, with chat and with long prompts, and returns at once: where one call may not last long,
it is the first of a chain. `wait` waits, prints how far it is, and puts what was found into OUT,
which is to be repeated until it exits with 0: at most seven files, of 16 MB each. It exits with 3
while the study lasts, and with 1 if that failed. The study ends by itself: at `--limit` what was
measured so far is compared. `table` prints users and tokens/s of each load and deployment, and the
best; with options of `fit` that say which model and GPU, also what that predicts. It takes several
folders, as of studies that one machine had no room for at once, and says what is best in each.

`--only tp-2,tp-4` takes some of the deployments, as where a model does not fit on one GPU.
The command starts one server: its model, its KV cache in bytes and a low --gpu-memory-utilization,
as all servers share the GPUs. It runs in FOLDER, so its paths are absolute. The environment is
passed on. `--embedded` tries the same with embedded engines, whose slots stand for GPUs: then no
command is needed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

from deployments_table import answer, load_of, predict, read_study

HERE: Final = Path(__file__).parent / "deployments"
FILES: Final = {2: "two.toml", 4: "four.toml"}
SLOS: Final = ("--slo", "ttft_p95=500ms", "--slo", "itl_p95=50ms")
# What stands for '{name}' in these files, as words: of vLLM, and of the embedded engine.
WITHOUT_FUSION: Final = {"pass_config": {"fuse_allreduce_rms": False}}
BOTH_ROLES: Final = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
TENSOR: Final = (
    "--disable-custom-all-reduce",
    "--compilation-config",
    json.dumps(WITHOUT_FUSION),
    "--tensor-parallel-size",
)
# One API server would bind before a GPU of a chat does, so each deployment has one a GPU.
API_SERVERS: Final = "--api-server-count"
OF_VLLM: Final = {
    "transfer": ("--kv-transfer-config", json.dumps(BOTH_ROLES)),
    "tensor-2": (*TENSOR, "2", API_SERVERS, "2"),
    "tensor-4": (*TENSOR, "4", API_SERVERS, "4"),
    "data-2": ("--data-parallel-size", "2", API_SERVERS, "2"),
    "data-4": ("--data-parallel-size", "4", API_SERVERS, "4"),
}
# One engine for a server of several GPUs, with more slots.
OF_ENGINE: Final = {
    "transfer": ("--max-num-seqs", "8"),
    "tensor-2": ("--max-num-seqs", "16", "--served-model-name", "tensor-2"),
    "tensor-4": ("--max-num-seqs", "16", "--served-model-name", "tensor-4"),
    "data-2": ("--max-num-seqs", "24", "--served-model-name", "data-2"),
    "data-4": ("--max-num-seqs", "24", "--served-model-name", "data-4"),
}
LIMIT_S: Final = 24 * 60.0
END_S: Final = 60.0  # from the interrupt to the comparison, and to servers that have ended
POLL_S: Final = 1.0
LARGEST_BYTES: Final = 16_000_000
PID: Final = "pid"
CODE: Final = "exit-code"
COMMAND: Final = "command.json"
LOG: Final = "log.txt"
STUDY: Final = "vary"
PAGES: Final = "pages"
SERVER: Final = re.compile(r"http://127\.0\.0\.1:\d+")
LASTS: Final = 3


def begin(args: argparse.Namespace) -> int:
    """Write the file of deployments, and start the study in a session of its own."""
    folder = args.folder
    folder.mkdir(parents=True)
    deployments = folder / "gpus.toml"
    text = deployments_text(args.gpus, OF_ENGINE if args.embedded else OF_VLLM)
    deployments.write_text(only(text, args.only.split(",")) if args.only else text)
    for name in args.loads.split(","):
        shutil.copy(HERE / f"{name}.toml", folder)
    words = [sys.executable, str(Path(__file__).resolve()), "study", ".", str(args.limit)]
    given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    paths = os.pathsep.join(str(Path(path).resolve()) for path in given)
    (folder / COMMAND).write_text(json.dumps(study_words(args, deployments)))
    with (folder / LOG).open("wb") as log:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": paths},
        )
    (folder / PID).write_text(f"{process.pid}\n")
    sys.stdout.write(f"begun as process {process.pid}, in {folder}\n")
    return 0


def deployments_text(gpus: int, named: Mapping[str, Sequence[str]]) -> str:
    """The file of deployments of so many GPUs, with the words that stand for each name."""
    text = (HERE / FILES[gpus]).read_text()
    for name, words in named.items():
        # a string of JSON is one of TOML
        text = text.replace(f"'{{{name}}}'", ", ".join(map(json.dumps, words)))
    return text


def only(text: str, names: Sequence[str]) -> str:
    """The deployments of these names, as a model that does not fit on a GPU leaves others out."""
    head, *tables = re.split(r"^(?=\[)", text, flags=re.MULTILINE)
    by_name = {table[1 : table.index("]")]: table for table in tables}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        sys.exit(f"--only has {unknown[0]}: expected some of {', '.join(by_name)}.")
    return head + "".join(by_name[name] for name in names)


def study_words(args: argparse.Namespace, deployments: Path) -> list[str]:
    """The command line of `vary`."""
    scenarios = ",".join(f"{name}.toml" for name in args.loads.split(","))
    command = args.command
    if args.embedded:
        command = shlex.join([sys.executable, "-m", "harness", "engine"])
    words = [sys.executable, "-m", "harness", "vary", f"scenario={scenarios}", "--keep"]
    words += ["--deployments", deployments.name, "--start-command", command, "--out", STUDY]
    if args.gpus > min(FILES):
        words.append("--once")
    if args.gpu_hour:
        words += ["--gpu-hour", args.gpu_hour]
    return [*words, "--", "knee", *SLOS, "--budget", args.budget, "--max-users", args.max_users]


def study(folder: Path, limit_s: float) -> int:
    """Run the study; interrupt it at the limit. The pages of its servers are kept meanwhile."""
    until_s = time.monotonic() + limit_s
    words = json.loads((folder / COMMAND).read_text())
    process = subprocess.Popen([*words, "--quiet"], start_new_session=True)
    while process.poll() is None and time.monotonic() < until_s:
        keep_pages(folder)
        with suppress(subprocess.TimeoutExpired):
            process.wait(POLL_S)
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        code = process.wait(END_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
    (folder / CODE).write_text(f"{code}\n")
    return code


def keep_pages(folder: Path) -> None:
    """Keep the newest /metrics of each server of a run that has one: tests read them later."""
    pages = folder / PAGES
    pages.mkdir(exist_ok=True)
    runs = sorted((folder / STUDY).glob("*/run.json"), key=lambda path: path.stat().st_mtime)
    for run in runs[-1:]:
        for number, url in enumerate(dict.fromkeys(SERVER.findall(run.read_text()))):
            with suppress(OSError), urlopen(f"{url}/metrics", timeout=2) as answer:
                (pages / f"{run.parent.name}-{number}.txt").write_bytes(answer.read())


def wait(args: argparse.Namespace) -> int:
    """Wait for the end of the study; copy what there is."""
    until_s = time.monotonic() + args.seconds
    ended = args.folder / CODE
    while not ended.exists() and is_alive(args.folder) and time.monotonic() < until_s:
        time.sleep(POLL_S)
    collect(args.folder, args.out)
    lines = (args.folder / LOG).read_text(errors="replace").splitlines()
    sys.stdout.write("\n".join([*lines[-40:], ""]))
    if ended.exists():
        code = int(ended.read_text())
        # 6: a knee is not as sure as one would like, 130: the limit was reached
        return 0 if code in {0, 3, 5, 6, 130} else 1
    return LASTS if is_alive(args.folder) else 1


def is_alive(folder: Path) -> bool:
    pid = int((folder / PID).read_text())
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def collect(folder: Path, out: Path) -> None:
    """The answer as it is, and an archive of results, logs and pages."""
    out.mkdir(parents=True, exist_ok=True)
    for name in ("vary.md", "vary.html", "vary.json"):
        with suppress(FileNotFoundError):
            shutil.copy(folder / STUDY / name, out / name)
    shutil.copy(folder / LOG, out / LOG)
    archives = {
        "results.tar.gz": ("*/result.json", "*/report.md", "*/run.json", "*/levels.jsonl"),
        "logs.tar.gz": ("*.server*.log",),
    }
    for name, patterns in archives.items():
        found = [path for pattern in patterns for path in (folder / STUDY).glob(pattern)]
        pack(out / name, folder, found)
    pack(out / "pages.tar.gz", folder, [*(folder / PAGES).glob("*.txt"), folder / "gpus.toml"])


def pack(archive: Path, folder: Path, files: list[Path]) -> None:
    """As many of these as fit; the others are named on standard output."""
    with tarfile.open(archive, "w:gz") as packed:
        for path in sorted(files):
            if archive.stat().st_size > LARGEST_BYTES - path.stat().st_size:
                sys.stdout.write(f"left out, as {archive.name} is full: {path}\n")
            elif path.is_file():
                packed.add(path, path.relative_to(folder))


def table(folders: Sequence[Path], fit_words: Sequence[str]) -> int:
    """Print the answer; `fit_words`: options of `fit`, [] without its predictions."""
    studies = [read_study(folder) for folder in folders]
    settings = [setting for study in studies for setting in study.settings]
    most_gpus = max(setting.gpus for setting in settings)
    predictions = {}
    if fit_words:
        for load, gpus in {(load_of(setting), setting.gpus) for setting in settings}:
            scenario = HERE / f"{load}.toml"
            predictions[load, gpus] = predict(scenario, gpus, SLOS, fit_words)
    tables = tomllib.loads((HERE / FILES[most_gpus]).read_text())
    sys.stdout.write(answer(studies, tables, predictions))
    return 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = made.add_subparsers(required=True, dest="what")
    first = commands.add_parser("begin")
    first.add_argument("folder", type=Path)
    first.add_argument("--gpus", type=int, choices=FILES, required=True)
    first.add_argument("--command", default="")
    first.add_argument("--embedded", action="store_true")
    first.add_argument("--loads", default="chat,long")
    first.add_argument("--only", default="", help="deployments of the file: tp-2,tp-4")
    first.add_argument("--budget", default="60s")
    first.add_argument("--max-users", default="2048")
    first.add_argument("--gpu-hour", default="", help="the price of a GPU and hour")
    first.add_argument("--limit", type=float, default=LIMIT_S)
    then = commands.add_parser("wait")
    then.add_argument("folder", type=Path)
    then.add_argument("out", type=Path)
    then.add_argument("--seconds", type=float, default=540.0)
    last = commands.add_parser("table")
    last.add_argument("out", type=Path, nargs="+", help="the folder of vary.json")
    own = commands.add_parser("study")
    own.add_argument("folder", type=Path)
    own.add_argument("limit", type=float)
    return made


def main() -> int:
    args: Any
    args, fit_words = parser().parse_known_args()
    if args.what == "table":
        return table(args.out, fit_words)
    if fit_words:
        sys.exit(f"{fit_words[0]} is not known: expected it after `table` alone; see --help.")
    if args.what == "begin":
        if not args.command and not args.embedded:
            sys.exit("--command is missing: expected what starts a server; try --embedded first.")
        return begin(args)
    if args.what == "wait":
        return wait(args)
    return study(args.folder, args.limit)


if __name__ == "__main__":
    sys.exit(main())
