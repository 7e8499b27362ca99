"""A run folder as one PUT of a tar. What fails loses nothing: the folder stays as it is.

In: a run folder and where it goes. Out: the tar's size and checksum.

The tar is made twice, and never stored: a pod's /tmp may be small and of memory. The first time
only its length and its SHA-256 are taken, which belong to the request's head; the second time it
goes out as it is made. Both are equal, byte by byte, because nobody writes to the folder any more.

A presigned URL is a signature over some headers, and a header that it does not know can break it:
Content-Type and Content-MD5 in version 2 of S3's signatures, all that begin with x-amz- in version
4. So we send none of these. The checksum goes as `Content-Digest` (RFC 9530), which stores ignore
that do not know it; and as `SHA256SUMS` in the tar, for `sha256sum --check`.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import io
import re
import ssl
import tarfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit

from harness.errors import RunFolderError

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.export.upload_url import UploadUrl

SUMS: Final = "SHA256SUMS"
PAUSES_S: Final = (1.0, 4.0)  # before the second and the third try
SILENT_S: Final = 60.0  # a store that takes nothing for so long
PIECE_BYTES: Final = 1 << 20
MAX_ANSWER_BYTES: Final = 1 << 16
_CODE: Final = re.compile(rb"<Code>(\w{1,40})</Code>")  # of S3's answer


class UploadFailed(RunFolderError):  # noqa: N818 - reads like its neighbors in errors.py
    """The folder is whole, and only here."""


class _Refused(Exception):  # noqa: N818 - never leaves this file
    """The store has answered, with anything but success."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.may_pass = status >= http.client.INTERNAL_SERVER_ERROR


@dataclass(frozen=True, slots=True)
class Uploaded:
    """What was sent."""

    size: int  # bytes
    sha256: str
    tries: int


class _Sink(Protocol):
    """Where a tar goes."""

    def write(self, data: bytes, /) -> object: ...


class _Measure:
    """A sink that keeps nothing but length and checksum."""

    def __init__(self) -> None:
        self.size = 0
        self.sha256 = hashlib.sha256()

    def write(self, data: bytes) -> None:
        self.size += len(data)
        self.sha256.update(data)


class _Socket:
    """A sink that sends."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self.write: Callable[[bytes], None] = connection.send


class _Hashed(io.RawIOBase):
    """A file that is read once, and its checksum on the way."""

    def __init__(self, file: io.BufferedReader) -> None:
        super().__init__()
        self._file = file
        self.sha256 = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.sha256.update(data)
        return data


def write_tar(folder: Path, sink: _Sink) -> None:
    """All regular files of the folder, below its name, and then their checksums."""
    sums = []
    # "|": forward only, as a socket needs it
    with tarfile.open(fileobj=sink, mode="w|", bufsize=PIECE_BYTES) as tar:  # type: ignore[call-overload]
        for path in sorted(folder.rglob("*")):
            if path.is_symlink() or not path.is_file():
                continue
            name = path.relative_to(folder.parent)
            with path.open("rb") as file:
                hashed = _Hashed(file)
                tar.addfile(tar.gettarinfo(path, str(name)), hashed)
            sums.append(f"{hashed.sha256.hexdigest()}  {name}\n")
        content = "".join(sums).encode()
        about = tarfile.TarInfo(SUMS)
        about.size = len(content)
        tar.addfile(about, io.BytesIO(content))


def upload(folder: Path, url: UploadUrl, pauses_s: tuple[float, ...] = PAUSES_S) -> Uploaded:
    """PUT it; tries again what may pass. Raises UploadFailed, which says where the folder is."""
    folder = folder.absolute()
    measured = _Measure()
    tries = 0
    try:
        write_tar(folder, measured)
        for pause_s in (*pauses_s, None):
            tries += 1
            try:
                _put(folder, url, measured)
                break
            except (OSError, http.client.HTTPException, _Refused) as error:
                if pause_s is None or not _may_pass(error):
                    raise
                time.sleep(pause_s)
    except (OSError, http.client.HTTPException, _Refused) as error:
        raise UploadFailed(
            f"the upload to {url} failed ({_why(error)}): expected it to be stored; nothing is "
            f"lost, the run folder is {folder}; try `vllm-harness report {folder} --upload URL`."
        ) from None  # a traceback could quote the URL
    return Uploaded(measured.size, measured.sha256.hexdigest(), tries)


def _may_pass(error: Exception) -> bool:
    """Whether the same request may succeed a little later."""
    if isinstance(error, _Refused):
        return error.may_pass
    return not isinstance(error, ssl.SSLCertVerificationError)


def _why(error: Exception) -> str:
    """In a few words, and without the URL."""
    if isinstance(error, _Refused):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__


def _put(folder: Path, url: UploadUrl, measured: _Measure) -> None:
    """One PUT, to its answer. Raises OSError, HTTPException, _Refused."""
    parts = urlsplit(url.text)
    connect: type[http.client.HTTPConnection] = http.client.HTTPConnection
    if parts.scheme == "https":
        connect = http.client.HTTPSConnection
    path = parts.path or "/"
    if parts.query:
        path += f"?{parts.query}"
    digest = base64.b64encode(measured.sha256.digest()).decode()
    with closing(connect(str(parts.hostname), parts.port, timeout=SILENT_S)) as connection:
        connection.putrequest("PUT", path, skip_accept_encoding=True)
        connection.putheader("Content-Length", str(measured.size))
        connection.putheader("Content-Digest", f"sha-256=:{digest}:")
        connection.endheaders()
        try:
            write_tar(folder, _Socket(connection))
        except (BrokenPipeError, ConnectionResetError):
            # A store may refuse before it has read everything; what it says is still to be read.
            _check(connection.getresponse())
            raise
        _check(connection.getresponse())


def _check(response: http.client.HTTPResponse) -> None:
    """Raises _Refused. Of the answer only S3's code is quoted: the rest may repeat the URL."""
    body = response.read(MAX_ANSWER_BYTES)
    if response.status in (http.client.OK, http.client.CREATED, http.client.NO_CONTENT):
        return
    meaning = http.client.responses.get(response.status, "")
    why = f"{response.status} {meaning}".strip()
    if code := _CODE.search(body):
        why += f", {code[1].decode()}"
    raise _Refused(response.status, why)
