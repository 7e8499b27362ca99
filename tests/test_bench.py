"""The benchmark's cells: what was read matches what was sent, and the table shows it."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tomllib
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deployments
import numpy as np
import psutil
import pytest
import rivals
import soak
import streams
import streams_page
import visits
from accuracy import Latency, Row, by_id
from cells import Cell
from deployments_table import answer, read_study
from sent import HEAD, Sent, from_bytes, sender_ids
from visits import Kept, key_of

from harness.core.typed_json import to_json
from harness.lifecycle.deployments import launches, read_deployments
from harness.lifecycle.vllm_start import StartOptions
from harness.report.deployments_report import TOKENS
from harness.search.comparison import KNEE, Best, Setting

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests/data/clients"
CLIENTS = ["C client", "vllm-harness", "Locust HttpUser"]
# TLS needs more than the rest: OpenSSL's headers, and its command for a certificate
HEADERS = ["cc", "-xc", "-fsyntax-only", "-include", "openssl/ssl.h", "/dev/null"]
HAVE_TLS = (
    all(map(shutil.which, ("cc", "openssl")))
    and subprocess.run(HEADERS, capture_output=True, check=False).returncode == 0
)
TLS = {"server": "tls"} if HAVE_TLS else {}
# No figure is judged here, so nothing waits for five seconds until strangers are calm.
MATRIX = """
import sys
sys.path.insert(0, "bench")
import matrix
matrix.CALM_TRIES = 1
matrix.main()
"""
ALONE = {"clients": ["vllm-harness"]}
REFUSED = "exit 5: its own check refuses these figures"
SMALL = {"streams": 4, "tokens": 12, "seconds": 0.4}
# 12 events take 0.32 s, so two rounds; three of 4 tokens take 0.11 s, so four. So much at least:
# ours measures that number of requests once it has settled
CELLS = [
    pytest.param({"clients": CLIENTS}, 2 * 4 * 12, id="all clients"),
    pytest.param(
        {"burst": True, "per_event": 4, "gap_ms": 5.0, "api": "completions"} | TLS | ALONE,
        4 * 4 * 3,
        id=f"four an event, burst, {'TLS' if TLS else 'plain'}",
    ),
    pytest.param({"server": "engine"} | ALONE, 2 * 4 * 12, id="the engine's oracle"),
]


def measured(cell: dict[str, Any], folder: Path) -> tuple[dict[str, Any], str]:
    """(the rows of one cell by client, the page)."""
    asked = json.dumps(SMALL | cell)
    page = folder / "page.md"
    done = subprocess.run(
        [sys.executable, "-c", MATRIX, "--cell", asked, "--out", str(page)],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    (kept,) = json.loads(page.with_suffix(".json").read_text())["cells"]
    return {row["client"]: row for row in kept["rows"]}, page.read_text()


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler: the floor needs one")
@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize(("cell", "events"), CELLS)
def test_what_is_read_matches_what_was_sent(
    cell: dict[str, Any], events: int, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """Every request and event of the harness finds its send, and no client loses a token.

    On a machine that is too busy the harness refuses its own latencies, as it should; what it
    read is compared all the same.
    """
    rows, page = measured(cell, tmp_path)
    assert [note for note in rows["vllm-harness"]["notes"] if note != REFUSED] == []
    # the engine merges tokens when it comes late, so only the paced server's events can be counted
    seen, each = rows["vllm-harness"]["events"], 12 // cell.get("per_event", 1)
    if cell.get("server") != "engine":
        assert (seen % each, seen >= events) == (0, True)
    tokens = {name: row["tokens"] % 12 for name, row in rows.items()}
    assert (tokens, seen > 0) == (dict.fromkeys(cell["clients"], 0), True)
    assert [client for client in rows if f"| {client} |" not in page] == []
    row = rows["vllm-harness"]
    figure(f"off {row['off']}/{row['events']}, {row['cost_us']:.0f} us/token of 4 streams")


def to_ms(values_ns: NDArray[np.number]) -> list[float]:
    """Rounded as the samples are said here."""
    return [round(float(value) / 1e6, 3) for value in values_ns]


def test_what_aiperf_exports() -> None:
    """Three requests of a real run, in the order in which they began."""
    ttft_ns, itl_ns = rivals.read_aiperf(DATA / "aiperf.jsonl")
    assert to_ms(ttft_ns) == [109.702, 109.241, 104.018]
    assert to_ms(itl_ns)[:5] == [18.425, 20.01, 20.113, 19.88, 18.36]
    assert len(itl_ns) == 12


def test_what_guidellm_exports() -> None:
    """Three requests of a real run, in the order in which they began."""
    assert to_ms(rivals.read_guidellm(DATA / "guidellm.json")) == [102.117, 101.922, 105.66]


def logged(arrived_ns: int, sender: int, sends_ns: list[int]) -> list[int]:
    """A request of so many tokens in the paced server's log; each send took 10 ns."""
    head = [arrived_ns, len(sends_ns), 1, 0, sender, len(sends_ns)]
    assert len(head) == HEAD
    return [*head, *sends_ns, *(at + 10 for at in sends_ns)]


def test_requests_find_their_sends_by_id() -> None:
    """Also two that arrived in another order than they were sent, and one that nobody read."""
    log = [
        *logged(100, 1 << 32 | 7, [110, 120]),
        *logged(101, 5, [111, 121]),
        *logged(102, 6, [112, 122]),
    ]
    sent = Sent.of(from_bytes(np.array(log, np.int64).tobytes()), tokens=2)
    ids = sender_ids(np.array([0, 1]), np.array([5, 7]))
    assert ids.tolist() == [5, 1 << 32 | 7]

    class Table:
        worker, number = np.array([0, 1]), np.array([5, 7])

    read_rows, sent_rows = by_id(Table, sent)  # type: ignore[arg-type]
    assert dict(zip(read_rows.tolist(), sent_rows.tolist(), strict=True)) == {0: 1, 1: 0}


def of_client(client: str, ttft_ms: float, cost_us: float) -> Row:
    """A client that read such a TTFT, at each quantile, for the 100 ms that were sent."""
    sent = [(99.9, 100.1)] * 3
    read = [ttft_ms] * 3 if ttft_ms else []
    row = Row(
        client,
        tokens=100,
        cpu_us={"client": cost_us},
        ttft=Latency(read, [], sent, [""] * len(read)),
    )
    row.memory_mb = {"client": (10.0, 11.28, 12.0), "server": (1.0, 99.0, 99.0)}
    return row


CELL = Cell(64, seconds=visits.SECONDS)
HERE = {
    "cpu": "A CPU", "cores": 32, "usable_cores": 15, "memory": "1000000 kB", "system": "Linux",
    "python": "3.12", "versions": {"locust": "2"}, "commit": "abc",
}  # fmt: skip


def visit(ours_us: float) -> Kept:
    """Three clients on 64 streams, and one that is not here."""
    rows = [
        of_client("C client", 0, 5),
        of_client("vllm-harness", 100.02, ours_us),
        of_client("aiperf", 140, 8),
    ]
    kept = {key_of(CELL, row.client): row for row in rows}
    return Kept(HERE, kept, {key_of(CELL, "guidellm"): "it is not installed here"})


@pytest.mark.parametrize(
    ("value", "want"),
    [
        (0.004, "+0.00"),
        (-0.126, "-0.13"),
        (9.994, "+9.99"),
        (45.67, "+45.7"),
        (-136.2, "-136"),
        (1596.2, "+1,596"),
    ],
)
def test_an_error_s_digits(value: float, want: str) -> None:
    """Those that matter beside 100 ms."""
    assert streams_page.written(value, streams_page.MAIN[0]) == want


def test_the_caption_is_of_what_is_drawn() -> None:
    """Neither TLS nor guidellm was measured, or both."""
    kept = visit(14.1)
    assert streams_page.caption([kept]) == ""
    row = next(iter(kept.rows.values()))
    for cell, client in visits.plan(64):
        kept.rows.setdefault(key_of(cell, client), row)
    both = "Dashed lines are TLS. The dotted line is guidellm."
    assert streams_page.caption([kept]) == both


def test_rows_in_tls_come_last() -> None:
    """Whatever was measured first."""
    kept = visit(14.1)
    for cell, client in visits.plan(64):
        kept.rows.setdefault(key_of(cell, client), next(iter(kept.rows.values())))
    lines = streams_page.figure_table([kept], streams_page.MAIN[4], 64)
    names = [line.split("|")[1].strip() for line in lines[5:]]
    assert names == sorted(names, key=lambda name: name.endswith(", TLS"))
    assert sum(name.endswith(", TLS") for name in names) == 3


@pytest.mark.parametrize(
    ("title", "want"),
    [
        ("p95 TTFT, error in ms", {"vllm-harness": "+0.02", "aiperf": "+40.0 !"}),
        (
            "CPU per token, us",
            {"C client": "5.0", "vllm-harness": "14.1 to 14.6", "aiperf": "8.0"},
        ),
        ("Memory a stream, kB", {"C client": "20", "vllm-harness": "20", "aiperf": "20"}),
        ("p95 ITL, error in ms", {}),
    ],
)
def test_a_table_of_many_streams(title: str, want: dict[str, str]) -> None:
    """A row for each client that has the figure, over two visits."""
    (figure,) = [one for one in streams_page.MAIN if one.title == title]
    lines = streams_page.figure_table([visit(14.1), visit(14.6)], figure, 64)
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[5:]]
    rows = [row for row in cells if row[0] not in ("client", "---")]
    assert {row[0]: row[1] for row in rows} == want


def test_the_losses_of_many_streams() -> None:
    """Who costs less than ours, but not who is further off; and who was not measured."""
    text = streams_page.page([visit(14.1), visit(14.6)], 64, "x.svg")
    losses = text.partition("## Losses")[2].partition("## All rows")[0]
    assert [line for line in losses.splitlines() if line.startswith("- ")] == [
        "- CPU per token, us: C client has 5.0 against 14.1 to 14.6 at 64 streams.",
        "- CPU per token, us: aiperf has 8.0 against 14.1 to 14.6 at 64 streams.",
    ]
    assert "- guidellm at 64 streams: it is not installed here." in text
    assert text.count("A CPU, 15 of 32 cores") == 2


def test_an_older_visit_is_drawn(tmp_path: Path) -> None:
    """Its file lacks what later ones have, and a second one lies beside it."""
    older = (ROOT / "tests/data/streams-older.json").read_text()
    for name in ("streams.json", "streams-2.json"):
        (tmp_path / name).write_text(older)
    page = tmp_path / "streams.md"
    streams.draw(page, 10_000)
    text = page.read_text()
    assert [part in text for part in ("# Many streams", "Visit 2:", "| C client |")] == [True] * 3
    assert page.with_suffix(".svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("process", "figure", "per_hour", "want"),
    [
        ("worker", "memory, MB", 0.0, "flat"),
        ("worker", "memory, MB", -90.0, "flat"),  # what shrinks does no harm
        ("worker", "memory, MB", 15.0, "rising"),
        ("main", "memory, MB", 15.0, "rising"),
        ("all", "memory, MB", 55.0, "flat"),  # a megabyte a minute
        ("all", "memory, MB", 65.0, "rising"),
        ("worker", "descriptors", 2.0, "rising"),
        ("engine", "loop lag, ms", 30.0, "inconclusive"),
    ],
)
def test_a_soak_finds_the_slope(process: str, figure: str, per_hour: float, want: str) -> None:
    """A line with noise, looked at for half an hour; the first half counts for nothing."""
    draw = random.Random(1)  # noqa: S311 - no secret
    points = [
        (at, 50 + per_hour * at / 3600 + draw.gauss(0, 0.05) + 500 * (at < 900))
        for at in map(float, range(0, 1800, 5))
    ]
    found = soak.slope(process, figure, points, soak.limit_of(process, figure), 900)
    assert found.verdict == want
    assert found.per_hour == pytest.approx(per_hour, abs=0.5)
    assert found.low < found.per_hour < found.high


@pytest.mark.parametrize(("named", "nameless", "want"), [(1, 0, 1), (1, 1, 1), (1, 2, 2)])
def test_a_soak_counts_descriptors(named: int, nameless: int, want: int, tmp_path: Path) -> None:
    """A second file without a name is one too many."""
    opening = f"""
import sys, tempfile
files = [open(f"{tmp_path}/{{number}}", "w") for number in range({named})]
files += [tempfile.TemporaryFile(dir="{tmp_path}") for _ in range({nameless})]
print("opened", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", opening]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=null) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"opened\n"
        of_python = 3  # stdin, stdout and stderr
        assert soak.descriptors(psutil.Process(process.pid)) - of_python == want
        process.communicate()


@pytest.mark.parametrize(
    ("minutes", "streams", "want_s"),
    [(30, 0, 900), (60, 512, 300), (20, 4096, 300), (2, 64, 60)],
)
def test_a_soak_s_warm_up(minutes: float, streams: int, want_s: float) -> None:
    """Five minutes of many streams, if there are as many."""
    assert soak.warm_up_s(minutes, streams) == want_s


@pytest.mark.parametrize(
    ("code", "want"),
    [
        (0, []),
        (5, ["- **The run refused its latencies, as the machine was too busy.**"]),
        (4, ["- **The run ended with exit code 4: MISSED.**"]),
    ],
)
def test_a_soak_says_how_its_run_ended(code: int, want: list[str]) -> None:
    """What a busy machine did to latencies does not lose what was seen of memory."""
    assert [answer.line for answer in soak.ending(code)] == want


@pytest.mark.parametrize("gpus", deployments.FILES)
def test_deployments_that_are_measured(gpus: int, tmp_path: Path) -> None:
    """On these GPUs, and JSON reaches vLLM with its quotation marks."""
    path = tmp_path / "gpus.toml"
    path.write_text(deployments.deployments_text(gpus, deployments.OF_VLLM))
    found = read_deployments(path, StartOptions())
    assert {one.gpus for one in found.values()} == {2: {2}, 4: {1, 2, 4}}[gpus]
    transfers = []
    for one in found.values():
        for launch in launches(one, (), tmp_path / "log"):
            words = [*launch.options.start_args, *launch.more_args]
            given = dict(pairwise(words))
            json.loads(given.get("--compilation-config", "{}"))
            transfers.append(json.loads(given.get("--kv-transfer-config", "null")))
    servers_that_transfer = [one for one in transfers if one is not None]
    assert len(servers_that_transfer) == {2: 4, 4: 21}[gpus]
    assert all(one == deployments.BOTH_ROLES for one in servers_that_transfer)


def test_some_of_the_deployments() -> None:
    """In the order that is asked for, with the comments of the file."""
    text = deployments.deployments_text(4, deployments.OF_VLLM)
    some = deployments.only(text, ["tp-4", "two-tp-2"])
    assert list(tomllib.loads(some)) == ["tp-4", "two-tp-2"]
    assert some.startswith("# Four GPUs")
    for name, table in tomllib.loads(some).items():
        assert table == tomllib.loads(text)[name]
    with pytest.raises(SystemExit, match=r"--only has tp-3: expected some of four-replicas, "):
        deployments.only(text, ["tp-3"])


def measured_with(deployment: str, servers: int, users: float) -> Setting:
    """With two GPUs, the load `chat`."""
    return Setting(
        f"{deployment} scenario=chat.toml",
        deployment=deployment,
        gpus=2,
        servers=servers,
        client=("--scenario=chat.toml",),
        figures={KNEE: (2 * users, 2 * users - 8, inf)},
        per_gpu={KNEE: (users, users - 4, inf), TOKENS: (1000.0, 900.0, 1100.0)},
    )


# Composed: what `fit --json` says of two GPUs, as far as it is read.
FIT = {
    "splits": [
        {"replicas": 2, "gpus": 1, "users": 316, "tokens_per_s": 44080.7},
        {"replicas": 1, "gpus": 2, "users": 317, "tokens_per_s": 66329.6},
    ],
    "prefill_apart": {
        "answer_tokens": 128,
        "layouts": [{"prefill": 1, "decode": 1, "requests_per_s": 103.3, "users": 159.3}],
    },
}
TOKENS_TEXT = "1,000 (900 to 1,100)"
BOUND = ("at most 158", "below 22,040")
ANSWER = [
    ("chat", "two-replicas", "108 (100 to ?)", "2", "54.0 (50.0 to ?)", TOKENS_TEXT, *BOUND),
    (
        "chat",
        "tp-2",
        "104 (96 to ?)",
        "2",
        "52.0 (48.0 to ?)",
        TOKENS_TEXT,
        BOUND[0],
        "below 33,165",
    ),
    ("chat", "dp-2", "102 (94 to ?)", "2", "51.0 (47.0 to ?)", TOKENS_TEXT, *BOUND),
    # of prefill apart by its SLOs
    (
        "chat",
        "prefill-1-decode-1",
        "80 (72 to ?)",
        "2",
        "40.0 (36.0 to ?)",
        TOKENS_TEXT,
        "79.7",
        "6,611",
    ),
    ("this load", "Most users per GPU", "two-replicas", "54.0 (50.0 to ?)", "tp-2"),
]


def test_the_table_of_deployments(tmp_path: Path) -> None:
    """Users and tokens/s of each load and deployment, what `fit` predicts, and the best."""
    settings = [
        measured_with("two-replicas", 2, 54),
        measured_with("tp-2", 1, 52),
        measured_with("dp-2", 1, 51),
        measured_with("prefill-1-decode-1", 2, 40),
    ]
    best = Best(KNEE, 0, "", settings[0].name, (settings[1].name,), (54, 50, inf))
    told = to_json({"settings": settings, "best_for": [best]})
    (tmp_path / "vary.json").write_text(json.dumps(told))
    study = read_study(tmp_path)
    tables = tomllib.loads((deployments.HERE / "two.toml").read_text())
    text = answer([study], tables, {("chat", 2): FIT})
    lines = text.replace("above all levels", "?").splitlines()
    cells = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]
    assert [row for row in cells if row[0] in ("chat", "this load")] == ANSWER
    assert "fit" not in answer([study], tables, {})


def test_the_table_of_several_studies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each row says of which study it is, and what is best was compared in its study alone."""
    pair = [measured_with("tp-2", 1, 52), measured_with("two-replicas", 2, 54)]
    best = Best(KNEE, 0, "", pair[1].name, (pair[0].name,), (54, 50, inf))
    again = [measured_with("tp-2", 1, 60)]
    for name, settings, bests in (("pair", pair, [best]), ("again", again, [])):
        (tmp_path / name).mkdir()
        told = to_json({"settings": settings, "best_for": bests})
        (tmp_path / name / "vary.json").write_text(json.dumps(told))
    folders = [str(tmp_path / name) for name in ("pair", "again")]
    monkeypatch.setattr(sys, "argv", ["deployments.py", "table", *folders])
    assert deployments.main() == 0
    lines = capsys.readouterr().out.splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [row[:4] for row in cells if row[0] in ("Study", "pair", "again")] == [
        ["Study", "Load", "Deployment", "Users"],
        ["pair", "chat", "tp-2", "104 (96 to above all levels)"],
        ["pair", "chat", "two-replicas", "108 (100 to above all levels)"],
        ["again", "chat", "tp-2", "120 (112 to above all levels)"],
        ["Study", "With", "Best for", "Deployment"],
        ["pair", "this load", "Most users per GPU", "two-replicas"],
    ]
