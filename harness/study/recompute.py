"""`vllm-harness report DIR`: results and reports again, from the records alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.study.session import conclude

if TYPE_CHECKING:
    from harness.study.options import ReportOptions
    from harness.study.session import Front


def run_report(options: ReportOptions, front: Front) -> int:
    """The exit code that the run itself had. Raises RunFolderError."""
    return conclude(options.folder, options.json_to, front, options.compat).exit_code
