"""No secret reaches a file, and no figure is taken for one."""

from pathlib import Path

import pytest

from harness.records import names
from harness.records.folder_writer import RecordWriter, RunFolder
from harness.records.redact import HIDDEN, redact
from harness.records.request_record import Outcome, RequestRecord

X = HIDDEN


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ({"Authorization": "Bearer abc"}, {"Authorization": X}),
        (
            {"headers": {"X-Api-Key": "abc", "X-Team": "infra"}},
            {"headers": {"X-Api-Key": X, "X-Team": "infra"}},
        ),
        (
            {"hf_token": "abc", "token": "abc", "password": ""},
            {"hf_token": X, "token": X, "password": ""},
        ),
        (
            {"prompt_tokens": 256, "output_tokens_per_s": 1.5, "max_num_batched_tokens": 8192},
            {"prompt_tokens": 256, "output_tokens_per_s": 1.5, "max_num_batched_tokens": 8192},
        ),
        (
            {"j_per_output_token": 2.5, "per_token": "abc", "x_token": 123456},
            {"j_per_output_token": 2.5, "per_token": X, "x_token": X},
        ),
        ("Inter-Token Latency", "Inter-Token Latency"),
        ("http://ann:pw@host:8000/v1?key=1", f"http://{X}@host:8000/v1?{X}"),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("GET https://h/p?token=abc failed", f"GET https://h/p?{X} failed"),
        ("Authorization: Bearer eyJh.bGci", f"Authorization: Bearer {X}"),
        (["serve", "--api-key", "abc", "--model", "m"], ["serve", "--api-key", X, "--model", "m"]),
        ("vllm serve --api-key=abc --max-num-seqs 4", f"vllm serve --api-key={X} --max-num-seqs 4"),
        ("used sk-abcdefghijkl", f"used {X}"),
        ("the environment's s3cr3t-value leaked", f"the environment's {X} leaked"),
        (["ttft_p95=500ms", 3, None, True], ["ttft_p95=500ms", 3, None, True]),
    ],
)
def test_redaction(given: object, want: object) -> None:
    """Secrets go by key, shape and value; hosts, flags and figures stay."""
    assert redact(given, ["s3cr3t-value", "x"]) == want


def test_no_file_holds_the_key(tmp_path: Path) -> None:
    """A key given to the folder is in none of its files, whatever was written."""
    key = "q7-very-private"
    folder = RunFolder.create(tmp_path, secrets=[key])
    folder.write_json(names.RUN, {"command": ["knee", f"--header=x: {key}"]})
    folder.lines(names.LEVELS).append({"reason": f"401 for {key}"})
    failed = RequestRecord(0, 0, 0, 1, 2, Outcome.status, error=f"bad key {key}")
    writer = RecordWriter(folder, 0)
    writer.put([failed])
    writer.close()
    held = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert held.count(HIDDEN.encode()) == 3
    assert key.encode() not in held
