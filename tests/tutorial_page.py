"""The commands of docs/tutorial.md with their output; as a script, it writes the page again.

Each ```console block is a command and what it printed on stdout; a ```toml block whose first line
is a name is that file. They run in one folder, each once those have ended whose folders it names,
so loads that do not depend on each other may run side by side. The page is written from commands
that ran in turn (two minutes and a half).
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs/tutorial.md"
BLOCK: Final = re.compile(r"^```(console|toml)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND: Final = re.compile(r"\$ ((?:.*\\\n)*.*\n)")
HARNESS: Final = f"{sys.executable} -m harness"
# An interval is left out with its brackets; a figure is any other, with its separators.
INTERVAL: Final = re.compile(r" \((?:[\d.,]+ to [\d.,]+|at (?:least|most) [\d.,]+)\)")
WORD: Final = re.compile(r"[\w.-]+")
OUT: Final = re.compile(r"--out (\S+)")
FIGURE: Final = re.compile(r"[\d.,]*\d")
HOW_IT_WENT: Final = (
    "replica ",
    "probing ",
    "Left out: ",
    "Sweet spot",
    "Slope: ",
    "Cliff: ",
    "The search took ",
    "In ",
    "B is better than A: ",
)


class Shown(NamedTuple):
    """A command of the page, and the output that the page shows."""

    command: str
    output: str

    @property
    def out(self) -> str:
        """What it leaves for later commands; "" where it leaves nothing."""
        found = OUT.search(self.command)
        return found[1] if found else ""

    def needs(self, earlier: Shown) -> bool:
        """Whether it names what the earlier command leaves."""
        return earlier.out in WORD.findall(self.command)


class Printed(NamedTuple):
    """What a command printed, and how it ended."""

    code: int
    stdout: str
    stderr: str


def blocks(page: str) -> list[Shown | tuple[str, str]]:
    """In order: commands with their outputs, and files as (name, text)."""
    found: list[Shown | tuple[str, str]] = []
    for kind, text in BLOCK.findall(page):
        if kind == "toml":
            name = text.partition("\n")[0].removeprefix("# ")
            found.append((name, text))
            continue
        command = COMMAND.match(text)
        assert command, text
        found.append(Shown(command[1], text[command.end() :]))
    return found


def run(command: str, folder: Path) -> Printed:
    """As a shell runs it, with this harness."""
    ours = command.replace("vllm-harness", HARNESS)
    done = subprocess.run(  # noqa: S602 - the page's own commands, which have pipes
        ours, shell=True, cwd=folder, capture_output=True, text=True, check=False, timeout=240
    )
    return Printed(done.returncode, done.stdout, done.stderr)


def run_all(
    page: list[Shown | tuple[str, str]], folder: Path, at_once: int
) -> list[tuple[Shown, Printed]]:
    """Every command with what it printed, in the page's order; so many run at once."""
    begun: list[tuple[Shown, Future[Printed]]] = []
    with ThreadPoolExecutor(max_workers=at_once) as threads:
        for block in page:
            if not isinstance(block, Shown):
                name, text = block
                (folder / name).write_text(text)
                continue
            needed = [printed for earlier, printed in begun if block.needs(earlier)]
            begun.append((block, threads.submit(_run_after, needed, block.command, folder)))
    return [(shown, printed.result()) for shown, printed in begun]


def _run_after(needed: list[Future[Printed]], command: str, folder: Path) -> Printed:
    """Once these have ended."""
    for printed in needed:
        printed.result()
    return run(command, folder)


def without_figures(output: str) -> list[str]:
    """Its lines, but for those of how one run went: the same in every run that comes to its end."""
    lines = INTERVAL.sub("", output).splitlines()
    return [FIGURE.sub("#", line) for line in lines if not line.startswith(HOW_IT_WENT)]


def main() -> None:
    page = PAGE.read_text()
    with tempfile.TemporaryDirectory() as name:
        for shown, printed in run_all(blocks(page), Path(name), 1):
            print(f"{printed.code}: {shown.command}", printed.stderr[-500:], sep="\n")  # noqa: T201
            old = f"```console\n$ {shown.command}{shown.output}```"
            assert old in page
            page = page.replace(old, f"```console\n$ {shown.command}{printed.stdout}```")
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
