"""Writing a run folder so that a crash, a kill or a full disk costs as little as possible.

Everything appended goes to the kernel in one write and at once (nothing waits in our memory, so
the promise "flushed each second" holds by itself), and a write that did not fit is taken back, so
that a file holds whole frames or lines only. Final files appear by rename, complete or not at all.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from harness.errors import RunFolderError
from harness.runfolder.jsonfiles import plain, to_json
from harness.runfolder.redact import redact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


class RunFolder:
    """A directory with the files of `names`. `secrets` are values that no file may hold."""

    def __init__(
        self, path: Path, secrets: Iterable[str] = (), say: Callable[[str], None] = _say
    ) -> None:
        """An existing folder; `create` makes a new one. `say` tells a person."""
        self.path = path
        self.secrets = tuple(secrets)
        self.say = say

    @classmethod
    def create(
        cls, path: Path | str, secrets: Iterable[str] = (), say: Callable[[str], None] = _say
    ) -> RunFolder:
        """Make the folder. Raises RunFolderError when it holds anything or cannot be made."""
        path = Path(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise RunFolderError(
                    f"the output folder {path} exists and is not empty: expected a new one, so "
                    "that no earlier run is overwritten; try another --out."
                )
        except OSError as error:
            raise RunFolderError(
                f"the output folder {path} cannot be made ({error.strerror}): expected a place "
                "where this user may write; try another --out."
            ) from error
        return cls(path, secrets, say)

    def append_to(self, name: str) -> AppendFile:
        """A file to append to, created when it is not there."""
        return AppendFile(self.path / name, self.say)

    def lines(self, name: str) -> JsonLines:
        """A JSON-lines file to append to: steps, server or gpu samples."""
        return JsonLines(self.append_to(name), self.secrets)

    def write(self, name: str, data: bytes | str) -> None:
        """Write a final file whole: to a temporary name, to the disk, then by rename."""
        with self.replacing(name) as file:
            file.write(data.encode() if isinstance(data, str) else data)

    @contextlib.contextmanager
    def replacing(self, name: str) -> Iterator[BinaryIO]:
        """A file that becomes `name` when the block ends well, and else is gone.

        Raises RunFolderError where it cannot be written.
        """
        temporary = None
        try:
            handle, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=self.path)
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fchmod(file.fileno(), 0o644)
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
        self.write(name, to_json(redact(plain(value), self.secrets), indent=True) + b"\n")


class AppendFile:
    """Whole pieces or nothing. A full disk is said once and counted; the run goes on."""

    def __init__(self, path: Path, say: Callable[[str], None] = _say) -> None:
        """Open or create `path`. Raises RunFolderError."""
        self.path = path
        self.unwritten = 0  # pieces that did not fit
        self._say = say
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise RunFolderError(
                f"{path} cannot be opened ({error.strerror}): expected a folder where this user "
                "may write; try another --out."
            ) from error

    def append(self, data: bytes, pieces: int = 1) -> bool:
        """Write all of `data`, which holds so many pieces, or take it back and count them."""
        size = os.fstat(self._fd).st_size
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, size)
            if not self.unwritten:
                self._say(
                    f"{self.path} cannot be written ({error.strerror}): the run goes on, what "
                    "does not fit is counted; make room on the disk."
                )
            self.unwritten += pieces
            return False
        return True

    def close(self) -> None:
        """Bring everything to the disk; harmless when closed already."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.fsync(self._fd)
            os.close(self._fd)
            self._fd = -1


class JsonLines:
    """One JSON object per line: dicts or dataclasses."""

    def __init__(self, file: AppendFile, secrets: Iterable[str] = ()) -> None:
        """Write to `file`."""
        self.file = file
        self._secrets = tuple(secrets)

    def append(self, value: Any) -> None:
        """Write one line, without secrets."""
        self.file.append(to_json(redact(plain(value), self._secrets)) + b"\n")

    def close(self) -> None:
        """Nothing comes after."""
        self.file.close()
