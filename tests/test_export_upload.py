"""`--upload`: a PUT that a store can check, failures that lose nothing, and a query nobody sees."""

from __future__ import annotations

import base64
import hashlib
import io
import subprocess
import tarfile
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Final

import pytest
from study_process import harness

from harness.errors import ConfigError
from harness.export.upload import UploadFailed, upload
from harness.export.upload_url import UploadUrl
from harness.server.address import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET: Final = "X-Amz-Signature=9f86d081884c7d659a2feaa0"  # noqa: S105 - planted
FILES: Final = {"result.json": b"{}", "records.0.msgpack": bytes(range(256)) * 9_000, "d/x": b""}
DENIED: Final = (
    b"<Error><Code>SignatureDoesNotMatch</Code><SignatureProvided>9f86d081884c7d659a2feaa0"
    b"</SignatureProvided></Error>"
)
# What a signature may be over: any of these that it does not know breaks it.
SIGNED: Final = ("content-type", "content-md5", "x-amz-", "transfer-encoding")


class Store(ThreadingHTTPServer):
    """Answers each PUT with the next of `statuses`, and the last one from then on."""

    daemon_threads = True

    def __init__(self, *statuses: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.statuses = list(statuses)
        self.bodies: list[bytes] = []
        self.heads: list[dict[str, str]] = []
        self.paths: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/bucket/run.tar?{SECRET}"


class _Handler(BaseHTTPRequestHandler):
    server: Store

    def do_PUT(self) -> None:
        store = self.server
        status = store.statuses.pop(0) if len(store.statuses) > 1 else store.statuses[0]
        store.paths.append(self.path)
        store.heads.append({name.lower(): value for name, value in self.headers.items()})
        store.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        body = b"" if status == 200 else DENIED
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing: the test looks."""


@contextmanager
def store(*statuses: int) -> Iterator[Store]:
    with Store(*statuses) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        path = tmp_path / "knee-1" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (tmp_path / "knee-1/link").symlink_to("/etc/passwd")
    return tmp_path / "knee-1"


def test_the_tar_is_the_folder_with_its_checksums(folder: Path, tmp_path: Path) -> None:
    """Unpacked it is the same, and `sha256sum` agrees; links are left out."""
    with store(200) as there:
        sent = upload(folder, UploadUrl.parse(there.url))
    [body], [head] = there.bodies, there.heads
    assert (sent.size, sent.sha256, sent.tries) == (len(body), hashlib.sha256(body).hexdigest(), 1)
    digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
    assert head["content-digest"] == f"sha-256=:{digest}:"
    assert there.paths == [f"/bucket/run.tar?{SECRET}"]
    unpacked = tmp_path / "unpacked"
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        tar.extractall(unpacked, filter="data")
    found = {
        str(path.relative_to(unpacked / "knee-1")): path.read_bytes()
        for path in (unpacked / "knee-1").rglob("*")
        if path.is_file()
    }
    assert found == FILES
    check = ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"]
    assert subprocess.run(check, cwd=unpacked, check=False).returncode == 0


def test_nothing_is_sent_that_a_signature_may_be_over(folder: Path) -> None:
    """Presigned URLs of S3 are refused with a header that was not signed."""
    with store(200) as there:
        upload(folder, UploadUrl.parse(there.url))
    assert [name for name in there.heads[0] if name.startswith(SIGNED)] == []


@pytest.mark.parametrize(
    ("statuses", "tries", "why"),
    [
        ((200,), 1, ""),
        ((503, 500, 201), 3, ""),
        ((503,), 3, "503 Service Unavailable, SignatureDoesNotMatch"),
        ((403,), 1, "403 Forbidden, SignatureDoesNotMatch"),
        ((307,), 1, "307 Temporary Redirect, SignatureDoesNotMatch"),
    ],
)
def test_what_may_pass_is_tried_again(folder: Path, statuses, tries, why) -> None:
    """A refusal is not; and its sentence has the folder and S3's code, no more of the answer."""
    said = ""
    with store(*statuses) as there:
        try:
            upload(folder, UploadUrl.parse(there.url), pauses_s=(0, 0))
        except UploadFailed as error:
            said = str(error)
    assert len(there.bodies) == tries
    assert (f"({why})" in said, str(folder) in said) == (bool(why), bool(why))
    assert "9f86" not in said
    assert sorted(path.name for path in folder.iterdir()) == [
        *("d", "link", "records.0.msgpack", "result.json")
    ]


def test_nobody_listens(folder: Path) -> None:
    url = UploadUrl.parse(f"http://127.0.0.1:{free_port()}/a?{SECRET}")
    with pytest.raises(UploadFailed, match="Connection refused"):
        upload(folder, url, pauses_s=())


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ("https://b.example/k?s=1", "https://b.example/k"),
        ("$UPLOAD_URL", "https://c.example:444/k"),
        ("${UPLOAD_URL}", "https://c.example:444/k"),
        ("$NOT_SET", "environment variable NOT_SET, is not set"),
        ("b.example/k?s=secret", "is no URL that can be used"),
        ("ftp://b.example/k?s=secret", "is no URL that can be used"),
        ("https://b.example:port/k?s=secret", "is no URL that can be used"),
        ("https://b.example/a b?s=secret", "is no URL that can be used"),
        ("https://user:secret@b.example/k", "holds a user"),
    ],
)
def test_what_is_shown_of_a_url(monkeypatch: pytest.MonkeyPatch, given: str, want: str) -> None:
    """Never its query, and nothing at all of what is no URL."""
    monkeypatch.setenv("UPLOAD_URL", "https://c.example:444/k?s=secret")
    try:
        said = f"{UploadUrl.parse(given)}"
        assert "secret" not in repr(UploadUrl.parse(given))
    except ConfigError as error:
        said = str(error)
    assert want in said
    assert "secret" not in said


@pytest.mark.process
@pytest.mark.parametrize(("status", "code"), [(200, 0), (403, 4)])
def test_a_run_uploads_its_folder(tmp_path: Path, status: int, code: int) -> None:
    """Refused, a run that is otherwise fine ends with 4; no file and no word has the query."""
    out = tmp_path / "run"
    with store(status, 200) as there:
        run = ("run", "--embedded", "--users", "2", "--requests", "4", "--output-tokens", "4")
        done = harness(*run, "--quiet", "--out", str(out), "--upload", there.url)
        again = harness("report", str(out), "--upload", there.url)
    assert (done.returncode, again.returncode) == (code, 0), done.stderr + again.stderr
    said = done.stdout + done.stderr + again.stdout + again.stderr
    written = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    assert ("9f86d081" in said, b"9f86d081" in written) == (False, False)
    assert b"/bucket/run.tar" in written  # that it was asked for is in run.json
    with tarfile.open(fileobj=io.BytesIO(there.bodies[-1])) as tar:
        assert {"run/result.json", "run/report.html", "SHA256SUMS"} <= set(tar.getnames())
