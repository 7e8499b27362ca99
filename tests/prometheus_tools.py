"""What others make of our pages and rules: prometheus_client's parser, Prometheus' promtool."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness.wire.prometheus_text import parse_metrics

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


Series = tuple[str, tuple[tuple[str, str], ...]]  # a line's name and labels


def by_series(samples: Iterable[Any]) -> dict[Series, float]:
    """The values of what a parser has read."""
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for s in samples}


def lines_of(page: bytes) -> dict[Series, float]:
    """Each line once, by our own parser; prometheus_client's reads the same."""
    ours = by_series(parse_metrics(page))
    theirs: dict[Series, float] = {}
    for family in text_string_to_metric_families(page.decode()):
        theirs |= by_series(family.samples)
    assert ours == theirs
    assert len(ours) == sum(line[:1] not in (b"#", b"") for line in page.split(b"\n"))
    return ours


def promtool(*arguments: str, stdin: bytes = b"") -> str:
    """What it says of something that it accepts; a refusal fails the test. Skips without it."""
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian, Ubuntu: apt-get install prometheus)")
    done = subprocess.run(["promtool", *arguments], input=stdin, capture_output=True, check=False)
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said


def check_rules(text: str, folder: Path) -> str:
    """`promtool check rules`."""
    path = folder / "rules.yml"
    path.write_text(text)
    return promtool("check", "rules", str(path))


def test_rules(text: str, folder: Path, tests: list[dict[str, Any]]) -> None:
    """`promtool test rules`: each of `tests` is one of its cases."""
    (folder / "rules.yml").write_text(text)
    case = folder / "test.yml"
    whole = {"rule_files": ["rules.yml"], "evaluation_interval": "15s", "tests": tests}
    case.write_text(json.dumps(whole))  # JSON is YAML
    promtool("test", "rules", str(case))


test_rules.__test__ = False  # type: ignore[attr-defined] # promtool's word, not pytest's
