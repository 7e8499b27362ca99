"""A copy of the package with lines added to it, and what a script prints there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parents[1]


class Addition(NamedTuple):
    """`text` goes before the only `place` of a file of harness/."""

    file: str
    place: str
    text: str


def printed_with(additions: Iterable[Addition], script: str, root: Path) -> dict[str, Any]:
    """The JSON that `script` prints in the copy, which is made in the empty folder `root`.

    Its first argument is a folder to write to.
    """
    for path in ROOT.iterdir():
        if path.name not in ("harness", ".git"):
            (root / path.name).symlink_to(path)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "harness", root / "harness", ignore=ignored)
    for file, place, text in additions:
        path = root / "harness" / file
        source = path.read_text()
        assert source.count(place) == 1
        path.write_text(source.replace(place, text + place))
    done = subprocess.run(
        [sys.executable, "-c", script, root / "run"],
        cwd=root,
        env=os.environ | {"PYTHONPATH": f"{root}:{root / 'tests'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told
