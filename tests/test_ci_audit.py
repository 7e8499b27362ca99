"""What the dependency audit makes of pip-audit's answers."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

AUDIT = runpy.run_path(str(Path(__file__).parents[1] / ".ci" / "audit.py"))
GOOD = {"name": "rich", "version": "15.0.0", "vulns": []}
BAD = {
    "name": "jinja2",
    "version": "2.4.1",
    "vulns": [{"id": "PYSEC-2014-8", "fix_versions": ["2.7.3"]}],
}
UNKNOWN = {"name": "rich", "skip_reason": "not found on PyPI"}


@pytest.mark.parametrize(
    ("rows", "err", "code", "told"),
    [
        ([GOOD, UNKNOWN], "", 0, "0 found in 1 of 2 packages"),
        ([GOOD, BAD], "", 1,
         "1 found in 2 of 2 packages\njinja2 2.4.1: PYSEC-2014-8, fixed in 2.7.3"),
        # a mirror has packages, and no advisories
        ([UNKNOWN], "", 0, "skipped, the package index here has no advisories"),
        (None, "ERROR:x\nConnectionError: refused\n", 0,
         "skipped, no advisories can be had here (ConnectionError: refused)"),
        (None, "", 0, "skipped, no advisories can be had here (it says nothing)"),
    ],
)  # fmt: skip
def test_the_audit_fails_for_advisories_alone(
    rows: list[object] | None, err: str, code: int, told: str
) -> None:
    """Without a network the checks go on, and say so."""
    out = "" if rows is None else json.dumps({"dependencies": rows})
    assert AUDIT["verdict"](out, err) == (code, f"dependency audit: {told}")
