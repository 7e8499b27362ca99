"""Reading a run folder, whatever happened to it: what can be read, and what could not, counted."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import RunFolderError
from harness.measure.samples import ServerSample
from harness.measure.table import RecordTable
from harness.runfolder import names
from harness.runfolder.codec import decode
from harness.runfolder.jsonfiles import number, read_json, read_lines
from harness.runfolder.seen import Seen

if TYPE_CHECKING:
    from harness.measure.records import RequestRecord


@dataclass(slots=True)
class Damage:
    """What a folder lost. All zero or empty: nothing."""

    torn_bytes: int = 0  # of unfinished last frames: a process was killed while writing
    damaged_bytes: int = 0  # skipped inside the record files
    duplicates: int = 0  # records that came twice; dropped, no loss
    bad_lines: int = 0  # of the JSON-lines files
    missing: dict[int, int] = field(default_factory=dict)  # worker: requests without a record
    unreadable: list[str] = field(default_factory=list)  # files that should be there and are not

    def sentences(self) -> list[str]:
        """What is lost, in words; duplicates are no loss. Empty: nothing."""
        told = [
            (self.torn_bytes, f"{self.torn_bytes} bytes of an unfinished last record were cut off"),
            (self.damaged_bytes, f"{self.damaged_bytes} damaged bytes of records were skipped"),
            (self.bad_lines, f"{self.bad_lines} unreadable lines of steps or samples were skipped"),
            (self.unreadable, f"missing or unreadable: {', '.join(self.unreadable)}"),
        ]
        lost = sum(self.missing.values())
        return [text for count, text in told if count] + (
            [f"{lost} requests have no record (by worker: {self.missing})"] if lost else []
        )


@dataclass(frozen=True, slots=True)
class Run:
    """A run folder in memory. Rows of `table` and entries of `errors` are the same requests."""

    path: Path
    info: dict[str, Any]  # run.json; {} when there is none
    table: RecordTable  # by worker, then number
    errors: list[str]  # "" where nothing was said
    finish_reasons: list[str]
    steps: list[dict[str, Any]]
    server: list[ServerSample]
    gpu: list[dict[str, Any]]
    summary: dict[str, Any] | None
    knee: dict[str, Any] | None
    damage: Damage


def read_run(path: Path | str) -> Run:
    """Everything in a run folder. Raises RunFolderError only when it is none at all."""
    path = Path(path)
    known = (names.RUN, names.STEPS, names.SERVER, names.SUMMARY, names.KNEE)
    if not path.is_dir() or not (
        names.record_files(path) or any((path / name).exists() for name in known)
    ):
        raise RunFolderError(
            f"{path} is not a run folder: expected a directory with {names.RUN}, as `vllm-harness "
            "knee` or `run` write it; try one under reports/."
        )
    damage = Damage()
    records = read_records(path, damage)
    info = read_json(path / names.RUN)
    if info is None:
        damage.unreadable.append(names.RUN)
    return Run(
        path=path,
        info=info or {},
        table=RecordTable.from_records(records),
        errors=[record.error for record in records],
        finish_reasons=[record.finish_reason for record in records],
        steps=_lines(path, names.STEPS, damage),
        server=read_server(path, damage),
        gpu=_lines(path, names.GPU, damage),
        summary=_final(path, names.SUMMARY, damage),
        knee=_final(path, names.KNEE, damage),
        damage=damage,
    )


def read_records(path: Path, damage: Damage) -> list[RequestRecord]:
    """Each request once, by worker and number, from all record files; losses go to `damage`."""
    seen = Seen()
    records: list[RequestRecord] = []
    for file in names.record_files(path):
        try:
            decoded = decode(file.read_bytes())
        except OSError:
            damage.unreadable.append(file.name)
            continue
        damage.torn_bytes += decoded.torn_bytes
        damage.damaged_bytes += decoded.damaged_bytes
        fresh = [record for record in decoded.records if seen.add(record.key)]
        damage.duplicates += len(decoded.records) - len(fresh)
        records += fresh
    damage.missing = seen.missing()
    return sorted(records, key=lambda record: record.key)


def read_server(path: Path, damage: Damage) -> list[ServerSample]:
    """The server's samples in time order; figures that a line lacks are NaN."""
    known = {f.name for f in fields(ServerSample)} - {"at_ns"}
    samples = []
    for row in _lines(path, names.SERVER, damage):
        try:
            figures = {name: number(row[name]) for name in known & row.keys()}
            samples.append(ServerSample(at_ns=int(row["at_ns"]), **figures))
        except (KeyError, TypeError, ValueError):
            damage.bad_lines += 1
    return sorted(samples, key=lambda sample: sample.at_ns)


def _lines(path: Path, name: str, damage: Damage) -> list[dict[str, Any]]:
    rows, bad = read_lines(path / name)
    damage.bad_lines += bad
    return rows


def _final(path: Path, name: str, damage: Damage) -> dict[str, Any] | None:
    """A final file; None when the run did not get that far."""
    value = read_json(path / name)
    if value is None and (path / name).exists():
        damage.unreadable.append(name)
    return value
