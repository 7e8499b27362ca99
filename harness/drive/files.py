"""The run folder of a run by the `locust` command: which process writes which file.

A worker that sees the master's folder appends to a file of its own, which survives even the
master; the records of workers on other machines are written by the master as they arrive.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from harness.drive.reading import which
from harness.runfolder import names
from harness.runfolder.recordwriter import RecordWriter
from harness.runfolder.runinfo import run_info
from harness.runfolder.writer import RunFolder

if TYPE_CHECKING:
    from harness.drive.prepare import Prepared
    from harness.measure.records import RequestRecord
    from harness.measure.search import SearchPlan


class RecordFiles:
    """The record files of one process; without a path, nothing is written."""

    def __init__(self, path: str) -> None:
        """`path` as given by --run-folder; "" for none."""
        self.folder = RunFolder(Path(path).absolute()) if path else None
        self._open: dict[int, RecordWriter] = {}
        self._described = False

    def create(self) -> None:
        """Make the folder. Raises RunFolderError when something is in it."""
        if self.folder is not None:
            RunFolder.create(self.folder.path)

    def describe(self, prepared: Prepared, plan: SearchPlan) -> None:
        """Write run.json, once; `plan`: the SLOs that the run is judged by."""
        if self.folder is None or self._described:
            return
        self._described = True
        options = prepared.options
        server = {
            "url": options.url,
            "model": options.model,
            "version": prepared.capabilities.version,
        }
        slos = [str(slo) for slo in plan.slos]
        config = {"kind": "locust", "plan": asdict(plan) | {"slos": slos}, "slos": slos}
        config["drive"] = options.to_json()
        info = run_info(config, seeds={"load": options.seed}, server=server)
        self.folder.write_json(names.RUN, info | {"reader": which()})

    @property
    def described(self) -> Path | None:
        """The folder, once run.json lies in it."""
        return self.folder.path if self.folder is not None and self._described else None

    def shared(self) -> bool:
        """Whether this process sees the folder that the master made."""
        return self.folder is not None and (self.folder.path / names.RUN).is_file()

    def writers(self, worker: int) -> list[RecordWriter]:
        """The sink for this process's own records, if it writes any."""
        if self.folder is None or not self.shared():
            return []
        self._open[worker] = RecordWriter(self.folder, worker)
        return [self._open[worker]]

    def store(self, worker: int, records: list[RequestRecord]) -> None:
        """Write the records of a worker that cannot."""
        if self.folder is not None:
            if worker not in self._open:
                self._open[worker] = RecordWriter(self.folder, worker)
            self._open[worker].put(records)

    def close(self, invalid: str = "", *, interrupted: bool = False) -> None:
        """Bring everything to the disk; `invalid`: why the figures must not be used."""
        for writer in self._open.values():
            writer.close()
        if self._described and self.folder is not None:
            ended = {"interrupted": interrupted, "invalid": invalid}
            self.folder.write_json(names.ENDED, ended)
