"""One rule at every door: keys, headers, URLs and folders that cannot be used are refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from harness.cli.app import main
from harness.errors import ConfigError, HarnessError, RunFolderError
from harness.load.workloads import WORKLOADS
from harness.records.folder_writer import RunFolder
from harness.records.new_folder import check_new
from harness.run import form
from harness.run.option import parse_header
from harness.run.preflight import check_machine, check_target
from harness.run.study_options import LoadOptions, OutputOptions, TargetOptions
from harness.senders.drive_options import DriveOptions
from harness.senders.driver import Driver
from harness.server.access import TargetAccess
from harness.server.address import Address, parse_exporter_url

if TYPE_CHECKING:
    from collections.abc import Callable

TOP: Final = Path(__file__).parents[1]
URL: Final = "http://127.0.0.1:1"  # nobody is there: what gets so far is told so, with 3
PARTS: Final = ("q7Planted-key", "0123456789-rest")
KEYS: Final = {
    "line break": "\n".join(PARTS),
    "carriage return": "\r\n".join(PARTS),
    "blank": " ".join(PARTS),
    "tab": "\t".join(PARTS),
    "at its end": "".join(PARTS) + "\n",
    "not ASCII": "ä".join(PARTS),
}
COMMANDS: Final[dict[str, list[str]]] = {
    "run": ["run", URL, "--users", "1"],
    "knee": ["knee", URL, "--slo", "ttft_p95=1s"],
    "sweep": ["sweep", URL, "--users", "1"],
    "drill": ["drill", str(TOP / "drills/replica-death.toml")],
    "vary": [
        "vary",
        "history=full,last:4",
        "--",
        "run",
        URL,
        "--workload",
        "agent",
        "--users",
        "1",
    ],
    "exporter": ["exporter", "--target", URL],
    "engine": ["engine", "--port", "0"],
    "fit": ["fit", URL],
    "serve": ["serve", "--model-dir", "m"],
    "coldstart": ["coldstart", "--model-dir", "m"],
    "kv-scaling": ["kv-scaling", "--model-dir", "m"],
}


def drive_options(**more: object) -> DriveOptions:
    """For one process."""
    return DriveOptions(URL, "m", WORKLOADS["chat"], **more)  # type: ignore[arg-type]


LOAD: Final = LoadOptions(WORKLOADS["chat"])
PYTHON: Final[dict[str, Callable[[str], object]]] = {
    "TargetAccess": lambda key: TargetAccess(Address.parse(URL), key, "VLLM_API_KEY"),
    "check_target": lambda key: check_target(TargetOptions(URL, api_key=key), LOAD, URL),
    "DriveOptions.access": lambda _: drive_options(key_source="VLLM_API_KEY").access(),
    "Driver": lambda _: Driver(drive_options(key_source="VLLM_API_KEY"), 0),
}
HEADERS: Final[dict[str, Callable[[], object]]] = {
    "Driver": lambda: Driver(drive_options(headers=(("X-Y", "$VLLM_API_KEY"),)), 0),
    "--header": lambda: parse_header("X-Y: $VLLM_API_KEY"),
}


@pytest.fixture(params=KEYS)
def key(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """In the environment, as a user has it."""
    found = KEYS[request.param]
    monkeypatch.setenv("VLLM_API_KEY", found)
    return found


def unsaid(text: str) -> bool:
    """Whether no part of the key is there."""
    return not any(part in text for part in PARTS)


@pytest.mark.parametrize("door", COMMANDS)
def test_commands(
    door: str,
    key: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Refused with one sentence that names the variable; nothing was written."""
    assert key
    monkeypatch.chdir(tmp_path)
    assert main(COMMANDS[door]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("vllm-harness: VLLM_API_KEY holds a blank, a line break")
    assert err.count("\n") == 1
    assert unsaid(out + err)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("door", PYTHON)
def test_the_python_api(door: str, key: str) -> None:
    """The same rule for whoever builds on it."""
    with pytest.raises(ConfigError) as caught:
        PYTHON[door](key)
    assert "expected" in str(caught.value)
    assert unsaid(str(caught.value))


@pytest.mark.parametrize("door", HEADERS)
@pytest.mark.parametrize("name", [name for name in KEYS if name != "blank"])
def test_headers(door: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the environment fills in; only blanks are as good as other characters there."""
    monkeypatch.setenv("VLLM_API_KEY", KEYS[name])
    with pytest.raises(ConfigError, match="HTTP cannot carry") as caught:
        HEADERS[door]()
    assert unsaid(str(caught.value))


@pytest.mark.process
@pytest.mark.parametrize(("file", "variable"), [("chat", "VLLM_API_KEY"), ("knee", "OTHER")])
def test_locustfiles(file: str, variable: str, tmp_path: Path) -> None:
    """Exit code 2, no traceback, no folder; by any variable that --api-key-env names."""
    where = "--runs" if file == "knee" else "--run-folder"
    folder = tmp_path / "out"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "locust", "-f", f"locustfiles/{file}.py", "--headless"),
            *("--host", URL, "-u", "1", "-t", "2s", "--api-key-env", variable),
            *(where, str(folder)),
        ],
        cwd=TOP,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        stdin=subprocess.DEVNULL,
        env=os.environ | {variable: KEYS["line break"]},
    )
    said = done.stdout + done.stderr
    assert done.returncode == 2, said
    assert f"{variable} holds a blank, a line break" in said
    assert "Traceback" not in said
    assert unsaid(said)
    assert not folder.exists()


URLS: Final[dict[str, Callable[[str], object]]] = {
    "Address": Address.parse,
    "the form": form.FIELDS["host"].read,
    "--gpu-metrics": parse_exporter_url,
    "--metrics-url": lambda url: TargetAccess(Address.parse(URL)).replicas([url]),
    "DriveOptions": lambda url: DriveOptions(url, "m", WORKLOADS["chat"]).access(),
}


@pytest.mark.parametrize("door", URLS)
@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:80\n00",
        "http://ho\tst",
        "http://host:8000/a\r\nb",
        f"http://ann:{PARTS[0]}@host",
        "http://host:99999",
    ],
)
def test_urls(door: str, url: str) -> None:
    """A line break within is refused, not dropped; a password is not repeated."""
    with pytest.raises(ConfigError) as caught:
        URLS[door](url)
    assert "\n" not in str(caught.value)
    assert unsaid(str(caught.value))


FOLDERS: Final[dict[str, Callable[[Path], object]]] = {
    "--out": lambda path: check_machine(OutputOptions(path), 1),
    "--run-folder": lambda path: check_new(path, "--run-folder"),
    "RunFolder": RunFolder.create,
}


@pytest.mark.parametrize("door", FOLDERS)
@pytest.mark.parametrize("name", ["a\nb", "x" * 300, "taken"])
def test_folders(door: str, name: str, tmp_path: Path) -> None:
    """One line, a name that the disk takes, nothing in it."""
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/file").write_text("")
    with pytest.raises(RunFolderError, match=r"^the output folder .*: expected") as caught:
        FOLDERS[door](tmp_path / name)
    assert isinstance(caught.value, HarnessError)
    assert "\n" not in str(caught.value)
