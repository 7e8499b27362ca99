"""Writes a run folder so that a crash, a kill or a full disk loses as little as possible.

Appended data goes to the kernel at once, in a single write: nothing is buffered in the process. A
write that does not fit on the disk is rolled back, so a file contains complete frames or lines
only. Final files are written under a temporary name and renamed: they are complete or absent.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from harness.core.typed_json import to_json
from harness.errors import RunFolderError
from harness.records import names
from harness.records.codec import decode, encode
from harness.records.json_files import dumps, read_json
from harness.records.new_folder import check_new
from harness.records.redact import redact, redact_text
from harness.records.request_record import Outcome, RequestRecord, SeenNumbers


class RunFolder:
    """A directory with the files of `names`. `secrets` are values that no file may contain."""

    def __init__(self, path: Path, secrets: Iterable[str] = ()) -> None:
        """Use an existing folder; `create` makes a new one."""
        self.path = path
        self.secrets = tuple(secrets)

    @classmethod
    def create(cls, path: Path | str, secrets: Iterable[str] = ()) -> RunFolder:
        """Create the folder. Raises RunFolderError if it is not new or cannot be created."""
        path = Path(path)
        check_new(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(
                f"the output folder {path} cannot be made ({error.strerror}): expected a place "
                "where this user may write; try another --out."
            ) from error
        return cls(path, secrets)

    def lines(self, name: str) -> JsonLines:
        return JsonLines(self.path / name, self.secrets)

    def write(self, name: str, data: bytes | str) -> None:
        """Write a final file: under a temporary name, synced to disk, then renamed."""
        with self.replacing(name) as file:
            file.write(data.encode() if isinstance(data, str) else data)

    @contextlib.contextmanager
    def replacing(self, name: str) -> Iterator[BinaryIO]:
        """Open a file that becomes `name` if the block succeeds and is deleted otherwise.

        Raises RunFolderError if it cannot be written.
        """
        temporary = None
        try:
            # In the same folder, as a rename to another file system is none.
            handle, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=self.path)
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                # mkstemp makes files that nobody else can read.
                os.fchmod(file.fileno(), 0o644)
                # Before the rename, which could otherwise reach the disk without the data.
                os.fsync(file.fileno())
            Path(temporary).replace(self.path / name)
            temporary = None
        except OSError as error:
            raise RunFolderError(
                f"{self.path / name} cannot be written ({error.strerror}): expected room on the "
                "disk and the right to write; make room and run `vllm-harness report` on it."
            ) from error
        finally:
            if temporary:
                Path(temporary).unlink(missing_ok=True)

    def write_json(self, name: str, value: Any) -> None:
        """Write a final JSON file without secrets; infinities as "inf", NaN as null."""
        public = redact(to_json(value), self.secrets)
        self.write(name, dumps(public, indent=True) + b"\n")


class AppendFile:
    """Appends pieces completely or not at all. A full disk is reported once; the run continues."""

    def __init__(self, path: Path) -> None:
        """Open or create `path`. Raises RunFolderError."""
        self.path = path
        self._full = False  # a piece did not fit, and that was said
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            self._fd = os.open(path, flags, 0o644)
        except OSError as error:
            raise RunFolderError(
                f"{path} cannot be opened ({error.strerror}): expected a folder where this user "
                "may write; try another --out."
            ) from error

    def append(self, data: bytes) -> None:
        """Write all of `data`, or nothing."""
        # Only one process at a time writes to a file, so this is what it is rolled back to.
        size = os.fstat(self._fd).st_size
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            # Roll back a partial write: a reader would take the rest of it for damage, and the next
            # piece would be appended to it.
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, size)
            if not self._full:
                sys.stderr.write(
                    f"{self.path} cannot be written ({error.strerror}): the run goes on, what "
                    "does not fit is counted; make room on the disk.\n"
                )
            self._full = True

    def close(self) -> None:
        """Sync to disk and close; safe to repeat."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.fsync(self._fd)
            os.close(self._fd)
            self._fd = -1


class JsonLines(AppendFile):
    """One JSON object per line: dicts or dataclasses."""

    def __init__(self, path: Path, secrets: tuple[str, ...]) -> None:
        super().__init__(path)
        self._secrets = secrets

    def append(self, value: Any) -> None:
        public = redact(to_json(value), self._secrets)
        super().append(dumps(public) + b"\n")


class SendJournal:
    """One worker's count of requests, each counted before its first byte leaves.

    One line, written in place: it survives a kill, and has room on a disk that is full later.
    """

    def __init__(self, path: Path, begun: int = 0) -> None:
        """Create it. Raises OSError."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o644)
        self.count(begun)

    def count(self, begun: int) -> None:
        """So many by now, in all. Raises OSError."""
        # In one write of fixed width: a kill never leaves a mixture of two numbers.
        os.pwrite(self._fd, b"%019d\n" % begun, 0)

    def close(self) -> None:
        os.close(self._fd)


def merge_kept(path: Path, others: Iterable[Path]) -> None:
    """Copy what workers on other hosts kept of a run into its folder. Raises RunFolderError."""
    info = read_json(path / names.RUN) or {}
    config = info.get("config") or {}
    drive = config.get("drive") or {}
    run = str(drive.get("run_id") or "")
    for other in others:
        kept = [*other.glob(f"[rs]*.*.{run}.*")] if run else []
        if not kept:
            raise RunFolderError(
                f"{other} holds nothing of this run: expected files such as "
                f"{names.records(0, run or 'RUN')}; try {names.WORKER_FOLDER} of a worker's host."
            )
        for file in kept:
            copying = RunFolder(path).replacing(file.name)
            with file.open("rb") as source, copying as copy:
                shutil.copyfileobj(source, copy)


CUT_SHORT = "the run ended while this answer was being read"


# Only ended requests are appended to the file. Partial records are kept in memory, by request and
# then by the instant up to which they are known, and are dropped when the whole record arrives. So
# a file never holds a request twice, and every record in it is final.


class RecordWriter:
    """RecordSink: one worker's file. Parts are kept until their request ends.

    `close()` writes unfinished requests as cancelled; call it on every exit path (calling it twice
    is safe). After a kill these requests are missing from the file, and the reader counts them by
    the gap in the request numbers.
    """

    def __init__(self, folder: RunFolder, worker: int) -> None:
        """Open `records.<worker>.msgpack`; it may hold records of any worker."""
        self._file = AppendFile(folder.path / names.records(worker))
        self._secrets = folder.secrets
        self._ended = SeenNumbers()
        self._parts: dict[tuple[int, int], dict[int, bytes]] = {}  # frames

    def put(self, records: Sequence[RequestRecord]) -> None:
        """Write the ended requests, in one write; keep the parts of the others."""
        ended: list[RequestRecord] = []
        for record in records:
            if record.outcome is Outcome.open:
                if record.key not in self._ended:
                    parts = self._parts.setdefault(record.key, {})
                    parts[record.done_ns] = encode(record)
            elif self._ended.add(record.key):
                self._parts.pop(record.key, None)
                ended.append(record)
        self._write(ended)

    def close(self) -> None:
        """Write unfinished requests as cancelled, then sync the file to disk."""
        for parts in self._parts.values():
            records = decode(b"".join(parts.values())).records
            self._write([joined(records)])
        self._parts.clear()
        self._file.close()

    def _write(self, records: Sequence[RequestRecord]) -> None:
        if records:
            frames = map(self._clean, records)
            self._file.append(b"".join(frames))

    def _clean(self, record: RequestRecord) -> bytes:
        if record.error:  # it may quote a URL or a header
            record = replace(record, error=redact_text(record.error, self._secrets))
        return encode(record)


def joined(parts: list[RequestRecord]) -> RequestRecord:
    """Join the parts of an unfinished request, in any order, to a cancelled record."""
    parts = sorted(parts, key=lambda part: part.done_ns)
    at_ns = _chain(part.at_ns for part in parts)
    not_before_ns = _chain(part.not_before_ns for part in parts)
    tokens = _chain(part.tokens for part in parts)
    return replace(
        parts[-1],
        outcome=Outcome.cancelled,
        error=CUT_SHORT,
        at_ns=at_ns,
        not_before_ns=not_before_ns,
        tokens=tokens,
    )


def _chain(arrays: Iterable[array[int]]) -> array[int]:
    return array("q", b"".join(map(bytes, arrays)))
