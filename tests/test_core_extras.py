"""What a plain installation does without the extras, and the files that it brings."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest
from report_folder import make

import harness
from harness.cli.app import main
from harness.core.extras import MADE_BY_REPORT, PACKAGES, MissingPackage
from harness.core.shipped import shipped_files
from harness.records import names

# one worker makes what they look at
pytestmark = pytest.mark.xdist_group("extras")
TOP = Path(__file__).parents[1]
EXTRAS = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_extras_are_those_of_pyproject() -> None:
    """Each with its packages; `all` has them all."""
    found = {name: tuple(line.partition(">")[0] for line in EXTRAS[name]) for name in PACKAGES}
    assert found == PACKAGES
    assert EXTRAS["all"] == [f"vllm-harness[{','.join(PACKAGES)}]"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with its reports."""
    folder = tmp_path_factory.mktemp("extras") / "run"
    make(folder, seconds=2, levels=(1, 8))
    return folder


def reported(run: Path) -> dict[str, bytes]:
    """All that `report` writes, by file."""
    for name in (names.PARQUET, names.LEVELS_PARQUET):
        (run / name).unlink(missing_ok=True)
    main(["report", str(run)])
    written = (names.RESULT, names.REPORT_MD, names.LEVELS_CSV, names.PARQUET, names.LEVELS_PARQUET)
    return {name: (run / name).read_bytes() for name in written if (run / name).exists()}


@pytest.mark.parametrize("extra", MADE_BY_REPORT)
def test_a_report_without_an_extra(extra, run, monkeypatch, capsys) -> None:
    """It is whole but for what takes the extra and says so; the next one with it has all."""
    page = run / names.REPORT_HTML
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, PACKAGES[extra][0], None)
        without = reported(run)
    said_without, page_without = capsys.readouterr().out, page.read_text()
    with_all = reported(run)
    assert "not installed" not in capsys.readouterr().out
    assert "this chart needs JavaScript" not in page.read_text()
    made = {"parquet": {names.PARQUET, names.LEVELS_PARQUET}, "charts": set()}[extra]
    assert without == {name: text for name, text in with_all.items() if name not in made}
    again = f"`pip install 'vllm-harness[{extra}]'`, then `vllm-harness report {run}`."
    assert f"is not installed; try {again}" in said_without
    assert ("this chart needs JavaScript" in page_without) is (extra == "charts")
    assert "harnessCharts.mountAll" in page_without


@pytest.mark.parametrize(
    ("lacking", "says"),
    [
        (["pandas"], "pandas is not installed"),
        (["pandas", "pyarrow"], "pandas and pyarrow are not installed"),
    ],
)
def test_frames_need_pandas(lacking, says, run, monkeypatch) -> None:
    """One sentence, with the exit code of a script that lets it end."""
    for package in lacking:
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackage) as error:
        harness.open_run(run)
    want = f"harness.open_run cannot be used: {says}; try `pip install 'vllm-harness[pandas]'`."
    assert str(error.value) == want
    assert error.value.exit_code == 2


@pytest.mark.parametrize("folder", ["drills", "locustfiles"])
def test_the_package_brings_what_lies_at_the_top(folder) -> None:
    """Every file, by its name."""
    listed = {path.stem for path in (TOP / folder).iterdir() if path.suffix in (".py", ".toml")}
    assert set(shipped_files(folder)) == listed
    assert listed


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("locustfile chat", 0, "class Chat(ChatUser):"),
        ("locustfile chat --path", 0, "harness/locustfiles/chat.py"),
        ("locustfile chatt", 2, "expected one of chat, completions, "),
        ("drill overload --dry-run", 0, "Overload and recovery: 100s of load"),
        ("drill overload --print", 0, (TOP / "drills/overload.toml").read_text()),
        ("drill overlod", 2, "slow-replica; try vllm-harness drill overload."),
    ],
)
def test_names_of_what_ships(words, code, says, monkeypatch, tmp_path, capsys) -> None:
    """Where no such file is."""
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == code
    found = capsys.readouterr()
    assert says in found.out + found.err


def test_a_file_counts_before_a_name(monkeypatch, tmp_path, capsys) -> None:
    """An own drill that is called like one that ships."""
    monkeypatch.chdir(tmp_path)
    Path("overload").write_text("title = 1")
    assert main(["drill", "overload", "--print"]) == 0
    assert capsys.readouterr().out == "title = 1"
