"""Requests sent = records + requests counted as lost, whatever dies: two runs of hosts.py."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from hosts import played, table

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize(("fault", "lost"), [("worker killed", 8), ("master killed", 0)])
def test_nothing_is_lost_without_being_counted(fault: str, lost: int, tmp_path: Path) -> None:
    """A worker killed with its decoder: what it sent in the last second at most is counted as lost.

    A master killed: all is in the workers' files, most of it nowhere else.
    """
    row = played(fault, 1, tmp_path, apart=False)
    sys.stdout.write("\n".join(table([vars(row)])) + "\n")
    assert (row.wrong, row.sent == row.records + row.lost) == ([], True)
    assert row.records > row.before or fault == "worker killed"
    assert lost or not row.lost
