"""The command's help: what it ends with, and how little it imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

from harness.cli.app import COMMANDS, main, parser

NAMES = [command.__name__.rpartition(".")[2] for command in COMMANDS]
HEAVY = {
    "numpy", "locust", "gevent", "matplotlib", "rich", "pyarrow", "jinja2", "orjson", "msgpack",
    "httptools", "asyncio", "multiprocessing", "http.client", "ssl", "socket", "scipy",
}  # fmt: skip


@pytest.mark.parametrize("command", [None, *NAMES])
def test_help_ends_with_three_lines_to_paste(
    command: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reader can copy each of the last three lines into a shell as it is."""
    with pytest.raises(SystemExit) as ended:
        main([*([command] if command else []), "--help"])
    *_, title, first, second, third = capsys.readouterr().out.splitlines()
    assert ended.value.code == 0
    assert title == "To paste:"
    start = f"vllm-harness {command or ''}".strip()
    lines = [line.strip() for line in (first, second, third)]
    assert [line for line in lines if start not in line] == []


@pytest.mark.parametrize("command", [None, *NAMES])
def test_pasted_lines_parse(command: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    """The lines to paste are ones that the command accepts."""
    with pytest.raises(SystemExit):
        main([*([command] if command else []), "--help"])
    for line in capsys.readouterr().out.splitlines()[-3:]:
        words = line.replace("&&", ";").split(";")
        for part in (text.split() for text in words):
            if part[0] == "vllm-harness":
                assert parser().parse_args(part[1:]).execute


@pytest.mark.parametrize("command", [[], ["knee"], ["engine"], ["doctor"]])
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
