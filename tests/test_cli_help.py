"""The command's help: what it ends with, and how little it imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli.app import COMMANDS, main, parser
from harness.load.workloads import WORKLOADS
from harness.run import options_from_args as plain

ROOT = Path(__file__).parents[1]

NAMES = list(COMMANDS)
HEAVY = {
    "numpy",
    "locust",
    "gevent",
    "dukpy",
    "rich",
    "pyarrow",
    "jinja2",
    "orjson",
    "msgpack",
    "httptools",
    "asyncio",
    "multiprocessing",
    "http.client",
    "ssl",
    "socket",
    "scipy",
}


@pytest.mark.parametrize("command", [None, *NAMES])
def test_help_ends_with_three_examples(
    command: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reader can copy each of the last three lines into a shell as it is."""
    with pytest.raises(SystemExit) as ended:
        main([*([command] if command else []), "--help"])
    *_, title, first, second, third = capsys.readouterr().out.splitlines()
    assert ended.value.code == 0
    assert title == "Examples:"
    start = f"vllm-harness {command or ''}".strip()
    lines = [line.strip() for line in (first, second, third)]
    assert [line for line in lines if start not in line] == []


@pytest.mark.parametrize("command", [None, *NAMES])
def test_examples_are_accepted(command: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is one that the command takes: it parses, and names a URL or --embedded."""
    with pytest.raises(SystemExit):
        main([*([command] if command else []), "--help"])
    for line in capsys.readouterr().out.splitlines()[-3:]:
        words = line.replace("&&", ";").split(";")
        for part in (text.split() for text in words):
            if part[0] == "vllm-harness":
                accept(part[1:])


def test_make_knee_is_accepted() -> None:
    """The first command on a fresh clone asks for the embedded server."""
    shown = subprocess.run(
        ["make", "-n", "--no-print-directory", "--assume-old=.venv/.ready", "knee"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.replace("\\\n", " ")
    words = shown.splitlines()[-1].split()
    assert words[0].endswith("vllm-harness")
    assert "--embedded" in accept(words[1:])


def accept(words: list[str]) -> list[str]:
    """The words, if the command takes them. Raises ConfigError."""
    args = parser().parse_args(words)
    if "embedded" in args:
        plain.target_options(args)
    return words


@pytest.mark.parametrize(
    ("words", "title"),
    [
        (["help"], "usage: vllm-harness [-h]"),
        (["help", "knee"], "usage: vllm-harness knee (URL | --embedded)"),
        (["-V"], "vllm-harness "),
        (["--version"], "vllm-harness "),
    ],
)
def test_help_and_version(words: list[str], title: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By the names that people try first."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(title)


def test_help_shows_the_workloads_lengths(capsys: pytest.CaptureFixture[str]) -> None:
    """Mean tokens of a prompt, with the system message, and of an answer."""
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    rows = [line.split()[:3] for line in capsys.readouterr().out.splitlines()]
    assert [row for row in rows if row[:1] and row[0] in WORKLOADS] == [
        ["chat", "256", "128"],
        ["completions", "256", "128"],
        ["fixed", "256", "128"],
        ["rag", "2048", "64"],
        ["summarize", "1536", "192"],
        ["write", "96", "512"],
        ["agent", "1216", "96"],
        ["conversation", "96", "192"],
    ]


@pytest.mark.parametrize("command", [[], ["knee"], ["engine"], ["doctor"], ["coldstart"]])
def test_help_imports_nothing_heavy(command: list[str]) -> None:
    """`--help` answers at once because it loads no numerical, network or drawing library."""
    code = (
        "import sys\nfrom harness.cli import main\n"
        f"try: main({[*command, '--help']!r})\n"
        "except SystemExit: print(*sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert HEAVY & set(done.stderr.split()) == set()


def test_python_m_harness_is_the_command() -> None:
    """`python -m harness --version` is `vllm-harness --version`."""
    done = subprocess.run(
        [sys.executable, "-m", "harness", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("vllm-harness ")


def options(command: str) -> dict[str, str]:
    """The options of a command with their help texts."""
    commands = parser()._subparsers._group_actions[0].choices  # noqa: SLF001 - their only place
    texts = {}
    for action in commands[command]._actions:  # noqa: SLF001 - as above
        text = (action.help or "") % {"default": action.default}
        texts["/".join(action.option_strings) or action.dest] = text
    return texts


@pytest.mark.parametrize("command", NAMES)
def test_help_texts_are_sentences(command: str) -> None:
    """Each option has one, which begins with a capital and ends with a period."""
    wrong = {}
    for name, text in options(command).items():
        first = text[:1]
        begins_well = first.isupper()
        if not begins_well or not text.endswith("."):
            wrong[name] = text
    assert wrong == {}


MOST_SHOWN = 25


@pytest.mark.parametrize("command", ["knee", "run", "sweep"])
def test_help_shows_what_people_need(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` has a part of the options, `--help-all` has all, and the first says so."""
    pages = {}
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as ended:
            main([command, flag])
        assert ended.value.code == 0
        pages[flag] = capsys.readouterr().out
    shown = {}
    for flag, text in pages.items():
        starts = [line.split()[0].rstrip(",") for line in text.splitlines() if line[:3] == "  -"]
        shown[flag] = {start for start in starts if start.startswith("-")}
    every = {name.split("/")[0] for name in options(command) if name.startswith("-")}
    assert shown["--help-all"] == every
    assert shown["--help"] < every
    assert len(shown["--help"]) <= MOST_SHOWN
    assert f"{len(shown['--help'])} of {len(every)} options; " in pages["--help"]
    assert " options; " not in pages["--help-all"]
