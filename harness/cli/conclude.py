"""The end of a study: results, reports, words, files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.json_output import write_json
from harness.core.extras import left_out
from harness.errors import EXIT_OK
from harness.export.upload import UploadFailed, upload
from harness.report.answer import build_answer
from harness.report.report_data import ReportData
from harness.report.write import junit, write_reports
from harness.run.results import write_results

if TYPE_CHECKING:
    from harness.export.upload_url import UploadUrl
    from harness.metrics.result import Result
    from harness.metrics.slo import Slo
    from harness.run.run_page import RunPage


def conclude(
    folder: Path,
    json_to: str | None,
    junit_to: str | None = None,
    *,
    compat: tuple[str, ...] = (),
    view: RunPage | None = None,
    slos: tuple[Slo, ...] = (),
    otlp: str = "",
) -> Result:
    """Results, reports, words, `--json`, `--junit`, `--otlp`. `view` is told of them too.

    By `slos` other than its own the folder is only read.
    """
    run, result, gaps = write_results(folder, compat, slos)
    stream = sys.stderr if json_to == "-" else sys.stdout
    answer = build_answer(ReportData(run, result)) if slos else write_reports(run, result, gaps)
    words = answer.text.rstrip()
    if view is not None:
        view.answer(result, words)
    without = [] if slos else left_out(folder)
    stream.write("\n".join([words, *without, f"The run folder: {folder}\n"]))
    stream.flush()
    if json_to:
        write_json(json_to, result)
    if junit_to:
        Path(junit_to).write_text(junit(result))
    if otlp:
        from harness.export.otlp import send_metrics  # noqa: PLC0415 - an extra

        # A collector that is away never changes the answer's exit code: metrics are a copy.
        sys.stderr.write(f"{send_metrics(otlp, run, result, gaps)}\n")
    return result


def code_after_upload(folder: Path, url: UploadUrl | None, code: int) -> int:
    """Send the folder where that was asked for; the exit code, of the result `code`.

    A pipeline that goes on without the files that it asked for must notice, but what the server
    missed weighs more.
    """
    if url is None:
        return code
    try:
        sent = upload(folder, url)
    except UploadFailed as error:
        sys.stderr.write(f"vllm-harness: {error}\n")
        return code if code != EXIT_OK else error.exit_code
    megabytes = sent.size / 1e6
    sys.stderr.write(f"Uploaded to {url}: {megabytes:.1f} MB, sha256 {sent.sha256}\n")
    return code
