"""Own data: rows of a file as requests, Mooncake's trace rows, clipping, offsets, prefix hits."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from harness.cli.app import main
from harness.errors import ConfigError
from harness.load import own_data
from harness.load.arrivals import Due, Schedule, Stripe
from harness.load.conversation_log import convert
from harness.load.own_data import DataSource
from harness.load.tokens import Calibration
from harness.load.workloads import WORKLOADS
from harness.senders.drive_options import DriveOptions
from harness.senders.driver import Driver
from harness.units import SECOND

SAMPLES = Path(__file__).parents[1] / "docs/examples/data"
CHAT = WORKLOADS["chat"]
USER = {"role": "user", "content": "Hello there"}
TOOL = {"type": "function", "function": {"name": "look_up"}}


def trace(*rows: tuple[int, list[int]], at_ms: int | None = None) -> list[dict[str, object]]:
    """Rows of a Mooncake trace: (prompt tokens, hashes)."""
    timed = {} if at_ms is None else {"timestamp": at_ms}
    return [
        {"input_length": tokens, "output_length": 5, "hash_ids": ids, **timed}
        for tokens, ids in rows
    ]


def lines(rows: Iterable[object]) -> str:
    """As JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def source(folder: Path, rows: list[dict[str, object]], **more: object) -> DataSource:
    """A file of these rows."""
    path = folder / "rows.jsonl"
    path.write_text(lines(rows))
    data = DataSource(str(path), CHAT, **more)  # type: ignore[arg-type]
    data.workload = data.as_workload(None)
    return data


@pytest.mark.parametrize(
    ("row", "text", "messages", "tools", "output"),
    [
        ({"prompt": "Hello", "output_tokens": 7}, "Hello", (), (), 7),
        ({"messages": [USER], "output_tokens": 3, "id": 9}, "", (USER,), (), 3),
        ({"messages": [USER], "tools": [TOOL], "output_tokens": 3}, "", (USER,), (TOOL,), 3),
        # null is as good as nothing, and what means nothing here goes out as it came
        (
            {"messages": [{"role": "assistant", "content": None, "x": 1}], "tools": None,
             "output_tokens": 1},
            "", ({"role": "assistant", "content": None, "x": 1},), (), 1,
        ),
    ],
)  # fmt: skip
def test_rows_go_out_as_they_are(
    tmp_path: Path,
    row: dict[str, object],
    text: str,
    messages: tuple[object, ...],
    tools: tuple[object, ...],
    output: int,
) -> None:
    """Each time the same; with a salt the first text begins with it, another in each pass."""
    data = source(tmp_path, [row])
    for number in (0, 1, 17):
        spec = data.spec(number)
        assert spec.text == text
        assert spec.messages == messages
        assert spec.tools == tools
        assert spec.output_tokens == output
        assert spec.token_ids == ()


def test_a_salt_begins_the_first_text(tmp_path: Path) -> None:
    """With the number of the pass over the rows; of a trace every block is another."""
    rows: list[dict[str, object]] = [{"prompt": "Hello"}, {"messages": [USER, USER]}]
    rows += trace((600, [1, 2]))
    plain = source(tmp_path, rows)
    data = source(tmp_path, rows, salt="s")
    blocks = [plain.spec(2).text]
    for turn in (0, 1):
        first = 3 * turn
        assert data.spec(first).text == f"s/{turn} Hello"
        messages = data.spec(first + 1).messages
        assert messages == (USER | {"content": f"s/{turn} Hello there"}, USER)
        blocks.append(data.spec(first + 2).text)
    assert len({text[:20] for text in blocks}) == 3


def test_request_k_is_row_k(tmp_path: Path) -> None:
    """Modulo the rows; three processes that take every third number send all, once."""
    rows = [{"prompt": f"row {i}", "output_tokens": i + 1} for i in range(5)]
    data = source(tmp_path, rows)
    want = [f"row {k % 5}" for k in range(12)]
    assert [data.spec(k).text for k in range(12)] == want
    sent = {}
    for worker in range(3):
        for number in range(worker, 12, 3):
            assert number not in sent
            sent[number] = data.spec(number).text
    assert [sent[number] for number in sorted(sent)] == want
    other = DataSource(workload=data.workload, calibration=Calibration(), **data.to_json())
    for number in range(12):
        assert other.spec(number) == data.spec(number)


def test_each_process_plans_its_rows(tmp_path: Path) -> None:
    """From options that came as JSON: closed loop, whichever user asks, and by schedule.

    A level of a schedule begins with row 0, and its salt is its own.
    """
    data = source(tmp_path, [{"prompt": f"row {i}", "output_tokens": 1} for i in range(5)])
    data.salt = "s"
    options = DriveOptions(
        "http://h:1", "m", data.workload, processes=2, data=data.to_json(), requests=5
    )
    text = json.dumps(options.to_json())
    drivers = []
    for worker in (0, 1):
        read = DriveOptions.from_json(json.loads(text))
        drivers.append(Driver(read, worker))
    sent = []
    for driver in drivers:
        while (spec := driver.next_spec(driver.issued % 3)) is not None:
            sent.append(spec.text)
            driver.issued += 1
    assert sorted(sent) == [f"s/0 row {i}" for i in range(5)]
    for driver in drivers:
        due = [driver.due_spec(Due(level, 6, 0)).text for level in (0, 1)]
        assert due == ["s/1 row 1", f"s/{(1 << 20) + 1} row 1"]


def test_answers_without_a_length_get_the_workloads(tmp_path: Path) -> None:
    """Drawn by row, so in each pass and process the same; the file's own stay."""
    data = source(tmp_path, [{"prompt": "a"}, {"prompt": "b", "output_tokens": 9}] * 40)
    drawn = [data.spec(k).output_tokens for k in range(80)]
    assert drawn == [data.spec(k + 80).output_tokens for k in range(80)]
    assert set(drawn[1::2]) == {9}
    assert len(set(drawn[::2])) > 20
    assert data.workload.output == CHAT.output


def test_a_workload_gives_answers_and_models_only(tmp_path: Path) -> None:
    """No sessions, pauses or rows of its own are left; models are drawn by request."""
    chosen = replace(WORKLOADS["conversation"], models=(("a", 3.0), ("b", 1.0)))
    path = source(tmp_path, [{"prompt": "hi"}]).path
    data = DataSource(path, chosen)
    data.workload = work = data.as_workload(None)
    assert work.conversation is None
    assert work.think_ms is None
    assert work.rows == ()
    drawn = Counter(data.spec(number).model for number in range(1000))
    assert drawn["a"] == pytest.approx(750, abs=60)  # 4 standard deviations
    assert drawn["a"] + drawn["b"] == 1000


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (['{"prompt": "a"}', "{}"], "1 bad lines (line 2: found {}, expected one of prompt, mess"),
        (['{"promt": "a"}'], 'line 1: found {"promt": "a"}, expected one of'),
        (['{"prompt": "a", "messages": [{"role": "user"}]}'], "expected one of prompt"),
        (["[1]"], "line 1: found [1], expected one of"),
        (['{"prompt": "a"}', "", '{"prompt": "a"}'], "line 2: found no JSON"),
        (["{"], "line 1: found no JSON (unexpected end of data), expected an object"),
        (['{"prompt": ""}'], "found prompt '', expected text"),
        (['{"prompt": 5}'], "found prompt 5, expected text"),
        (['{"messages": []}'], "found messages [], expected a list of messages"),
        (['{"messages": [{"content": "a"}]}'], "expected a list of messages, each with a role"),
        (['{"prompt": "a", "tools": [1]}'], "found tools [1], expected a list of objects"),
        (['{"prompt": "a", "output_tokens": 0}'], "found output_tokens 0, expected a whole number"),
        (['{"prompt": "a", "output_tokens": 9223372036854775808}'], "found output_tokens 92233720"),
        (['{"prompt": "a", "timestamp": 1e300}'], "found timestamp 1e+300, expected ms"),
        (['{"prompt": "a", "output_tokens": true}'], "found output_tokens True, expected a whole"),
        (['{"prompt": "a", "timestamp": "9 am"}'], "found timestamp '9 am', expected ms"),
        (
            ['{"prompt": "a", "timestamp": 5}', '{"prompt": "a", "timestamp": 4}'],
            "line 2: found timestamp 4 after 5, expected one in each line or in none, in the order",
        ),
        (['{"prompt": "a", "timestamp": 5}', '{"prompt": "a"}'], "line 2: found timestamp nan"),
        (
            ['{"input_length": 513, "output_length": 5, "hash_ids": [1]}'],
            "expected both, a hash for each 512 tokens of input_length: 2",
        ),
        (['{"input_length": 5, "hash_ids": [1]}'], "hash_ids and output_length None, expected"),
        (["x"] * 5, "5 bad lines (line 1: found no JSON"),
        (["x"] * 5, "JSON value), expected an object): expected a JSON object per line"),
        ([], "has no lines"),
    ],
)  # fmt: skip
def test_bad_lines_are_named(tmp_path: Path, lines: list[str], said: str) -> None:
    """With their number, what was found and what was expected; nothing is skipped."""
    path = tmp_path / "bad.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    with pytest.raises(ConfigError) as caught:
        DataSource(str(path), CHAT)
    assert said in str(caught.value)


def test_a_line_that_is_too_long_is_not_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named, and what follows it is not taken for lines."""
    monkeypatch.setattr(own_data, "LONGEST_LINE", 100)
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"prompt": "a" * 500}) + "\n")
    with pytest.raises(ConfigError, match=r"1 bad lines \(line 1: found no JSON"):
        DataSource(str(path), CHAT)


SHARED_BLOCKS = trace((1100, [7, 8, 9]), (1300, [7, 8, 9]), (700, [7, 4]), (700, [8, 7]))


def test_equal_hashes_are_equal_tokens(tmp_path: Path) -> None:
    """Also where the block is the last one and shorter; others differ."""
    data = source(tmp_path, SHARED_BLOCKS)
    assert data.workload.api == "completions"
    assert data.workload.token_ids is True
    ids = [data.spec(k).token_ids for k in range(4)]
    assert [len(row) for row in ids] == [1100, 1300, 700, 700]
    assert ids[0] == ids[1][:1100]
    assert ids[2][:512] == ids[0][:512]
    assert ids[3][:512] == ids[0][512:1024]
    assert ids[2][512:] != ids[0][512:700]
    assert data.as_workload("generate").token_ids


def test_equal_hashes_are_equal_words(tmp_path: Path) -> None:
    """The same where the trace is sent as text."""
    data = source(tmp_path, SHARED_BLOCKS)
    data.workload = data.as_workload("chat")
    data.calibration = Calibration(1.25, 12)  # 512 tokens are 410 words, 1,100 tokens 870
    words = [data.spec(k).text.split(" ") for k in range(4)]
    assert [len(row) for row in words] == [870, 1030, 550, 550]
    assert words[0] == words[1][:870]
    assert words[2][:410] == words[0][:410]
    assert words[2][410:] != words[0][410:550]


@pytest.mark.parametrize(
    ("prompt", "output", "room", "want"),
    [
        (100, 20, 0, (100, 20)),  # not known
        (100, 20, 120, (100, 20)),
        (100, 20, 110, (90, 20)),  # the prompt loses its end
        (100, 90, 100, (50, 50)),  # an answer gets half
        (30, 90, 100, (30, 70)),  # or what the prompt leaves
        (5000, 1, 2, (1, 1)),
    ],
)
def test_lengths_are_clipped_to_the_context(
    tmp_path: Path, prompt: int, output: int, room: int, want: tuple[int, int]
) -> None:
    """Rows that fit stay as they are."""
    rows = trace((prompt, list(range(-(-prompt // 512)))))
    rows[0]["output_length"] = output
    data = source(tmp_path, rows)
    assert data.lengths(0, room) == want
    assert data.n_clipped(room) == (want != (prompt, output))


def test_the_longest_text_is_clipped(tmp_path: Path) -> None:
    """As bytes, never within a character; how many tokens they have, the server said."""
    long = {"role": "user", "content": "ä" * 4000}  # 8,000 bytes, at 0.5 tokens a byte 4,000
    data = source(tmp_path, [{"messages": [USER, long], "output_tokens": 10}])
    data.learn(lambda text: len(text.encode()) // 2)
    assert data.tokens_per_byte == pytest.approx(0.5, abs=0.001)
    whole = data.planned(0)[0]
    assert 4000 < whole < 4070  # the other message and JSON around them
    assert data.n_clipped(2000) == 1
    data.workload = data.workload.sized()  # the server's context is known in a load process
    object.__setattr__(data.workload, "max_model_len", 2000)
    spec = data.spec(0)
    kept = spec.messages[1]["content"]
    assert spec.prompt_tokens == 1950
    assert spec.output_tokens == 10  # 2% of margin: 1,960
    assert set(kept) == {"ä"}
    cut_bytes = 2 * (whole - 1950)
    assert len(kept.encode()) == pytest.approx(8000 - cut_bytes, abs=2)
    assert spec.messages[0] == USER


@pytest.mark.parametrize(
    ("speed", "repeat", "want_ms"),
    [
        # 0, 100 and 300 ms after the first; the mean gap is 150, so a pass takes 450
        (1.0, True, [0, 100, 300, 450, 550, 750, 900]),
        (2.0, True, [0, 50, 150, 225, 275, 375, 450]),
        (1.0, False, [0, 100, 300]),
    ],
)
def test_offsets_follow_the_timestamps(
    tmp_path: Path, speed: float, repeat: bool, want_ms: list[int]
) -> None:
    """From the first on, scaled; the next pass begins a mean gap after the last row."""
    rows = [{"prompt": "a", "timestamp": 1000 + at} for at in (0, 100, 300)]
    data = source(tmp_path, rows, speed=speed, repeat=repeat, timed=True)
    assert [ns / 1e6 for ns in islice(data.due_ns(iter(())), 7)] == want_ms


@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize(("timed", "repeat"), [(True, True), (True, False), (False, False)])
def test_a_schedule_is_striped(processes: int, timed: bool, repeat: bool) -> None:
    """Each process sends its rows at their times; at a rate too, the data ends the schedule."""
    data = DataSource(str(SAMPLES / "trace.jsonl"), CHAT, timed=timed, repeat=repeat)
    arrivals = "data" if timed else "constant"
    due = []
    for worker in range(processes):
        stripe = Stripe(arrivals, 1, worker, processes, data.due_ns)
        stripe.tell(Schedule(3, 2.0, 1_000))
        while (ahead := stripe.ahead()) is not None and ahead.number < 20:
            due.append((ahead.number, ahead.at_ns))
            stripe.take()
    n = 20 if repeat else 9
    offsets = [data.offset_ns(k) if timed else k * SECOND // 2 for k in range(n)]
    assert sorted(due) == [(k, 1_000 + offsets[k]) for k in range(n)]


@pytest.mark.parametrize(
    ("rows", "want"),
    [
        # whole blocks of 16 tokens, never the last token: 1,023 // 16 * 16 = 1,008
        (trace((1024, [1, 2]), (1024, [1, 2])), [0, 1008]),
        (trace((1100, [1, 2, 3]), (1024, [1, 2])), [0, 1008]),
        (trace((1024, [1, 2]), (1100, [1, 2, 3])), [0, 1024]),
        (trace((600, [1, 2]), (700, [1, 2])), [0, 592]),  # 600 // 16 * 16: part of a block
        (trace((700, [1, 2]), (600, [1, 2])), [0, 592]),
        (trace((1024, [1, 2]), (1024, [3, 2])), [0, 0]),  # only from the start
        (trace((1024, [1, 2]), (1024, [3, 4]), (1024, [1, 4])), [0, 0, 512]),
        (trace((10, [1]), (10, [1])), [0, 0]),
        # at 4 bytes a token a block is 64 bytes
        ([{"prompt": "a" * 640}, {"prompt": "a" * 128 + "b" * 512}], [0, 32]),
        ([{"prompt": "a" * 640}, {"prompt": "a" * 640}], [0, 144]),
        ([{"prompt": "a" * 63}, {"prompt": "a" * 63}], [0, 0]),
        # the text is sent, so its hashes mean nothing
        (
            [{"prompt": "a" * 6400, "hash_ids": [1]}, {"prompt": "b" * 6400, "hash_ids": [1]}],
            [0, 0],
        ),
    ],
)
def test_expected_prefix_hits(
    tmp_path: Path, rows: list[dict[str, object]], want: list[int]
) -> None:
    """What a cache that evicts nothing has of each row when it comes."""
    assert list(source(tmp_path, rows).shared_tokens()) == want


def test_a_longer_conversation_shares_the_shorter_one(tmp_path: Path) -> None:
    """Its history is the same text from the start, tools included."""
    asked = {"role": "user", "content": "word " * 100}
    said = {"role": "assistant", "content": "x" * 99}
    rows: list[dict[str, object]] = [
        {"messages": [asked], "tools": [TOOL]},
        {"messages": [asked, said, USER], "tools": [TOOL]},
        {"messages": [asked, said, USER]},
    ]
    first, second, third = source(tmp_path, rows).shared_tokens()
    assert first == 0
    assert second == 144
    assert third == 0  # 500 bytes and what is around them: 9 blocks


def as_object(row: dict[str, str]) -> dict[str, object]:
    """A row of a CSV as a log has it in JSON: without empty cells, tools as what they are."""
    filled: dict[str, object] = {key: text for key, text in row.items() if text}
    for key in ("tools", "tool_calls"):
        if row.get(key):
            filled[key] = json.loads(row[key])
    return filled


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_log_becomes_requests(tmp_path: Path, suffix: str) -> None:
    """One for each turn of the assistant, with its history, tools and time, in order of time."""
    log = SAMPLES / "log.csv"
    out = tmp_path / "out.jsonl"
    if suffix == "jsonl":
        rows = csv.DictReader(log.read_text().splitlines())
        log = tmp_path / "log.jsonl"
        log.write_text(lines(map(as_object, rows)))
    made = convert(log, out)
    assert made.n == 36
    assert made.talks == 6
    assert len(made.rows) == 15
    assert made.notes == []
    assert out.read_text() == (SAMPLES / "chats.jsonl").read_text()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    times = [row["timestamp"] for row in rows]
    assert times == sorted(times)
    assert {row["messages"][0]["role"] for row in rows} == {"system"}
    assert {row["messages"][-1]["role"] for row in rows} == {"user", "tool"}
    first, *later = (row["messages"] for row in rows if row["conversation_id"] == "c3")
    lengths = [len(first), *map(len, later)]
    assert lengths == sorted(lengths)
    for messages in later:
        assert messages[: len(first)] == first
    assert {"tools" in row for row in rows if row["conversation_id"] in ("c1", "c3")} == {True}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (['{"conversation_id": 1, "role": "user", "content": "a"}', "x"], "message 2 of"),
        (['{"role": "user", "content": "a"}'], "message 1 of"),
        (['{"conversation_id": 1, "role": "bot", "content": "a"}'], "role (one of system"),
        (['{"conversation_id": 1, "role": "user"}'], "found {'conversation_id': 1"),
        (['{"conversation_id": 1, "role": "user", "content": "a", "timestamp": "noon"}'],
         "Invalid isoformat string: 'noon'"),
    ],
)  # fmt: skip
def test_a_bad_log_is_refused(tmp_path: Path, rows: list[str], said: str) -> None:
    """The message is named, and nothing is written."""
    log = tmp_path / "log.jsonl"
    out = tmp_path / "out.jsonl"
    log.write_text("\n".join(rows))
    with pytest.raises(ConfigError) as caught:
        convert(log, out)
    assert said in str(caught.value)
    assert not out.exists()


def test_times_of_a_log(tmp_path: Path) -> None:
    """ISO 8601 or ms; the request is due when the message before the answer came."""
    log = tmp_path / "log.jsonl"
    out = tmp_path / "out.jsonl"
    rows = [
        ("b", "user", "2026-11-23T10:00:02Z"),
        ("a", "user", "2026-11-23T10:00:00Z"),
        ("b", "assistant", "2026-11-23T10:00:03Z"),
        ("a", "assistant", "2026-11-23T10:00:09Z"),
    ]
    fields = ("conversation_id", "role", "timestamp")
    messages = [dict(zip(fields, row, strict=True)) | {"content": "hi"} for row in rows]
    log.write_text(lines(messages))
    made = convert(log, out)
    assert made.n == 4
    assert made.talks == 2
    assert len(made.rows) == 2
    assert made.notes == []
    found = [json.loads(line) for line in out.read_text().splitlines()]
    due_ms = {row["conversation_id"]: row["timestamp"] for row in found}
    assert due_ms == {"a": 0, "b": 2000}


def test_the_command_shows_what_a_file_holds(capsys: pytest.CaptureFixture[str]) -> None:
    """Lengths, arrivals, shared prefixes and hits of the trace that ships."""
    assert main(["data", str(SAMPLES / "trace.jsonl"), "--speed", "2"]) == 0
    said = capsys.readouterr().out
    parts = (
        "9 rows, 0 of them with messages, 9 of a Mooncake trace",
        "        prompt       809       738     1,137     1,137     1,137",
        "Arrivals: 4.40/s over 1.82 s",  # 8 gaps in 3.634 s, twice as fast
        "           512 ████████████████████████████████████      89%",  # 8 of 9
        "Expected prefix-cache hits: 56.3% of the prompt tokens",  # 8 x 512 of 7,277
    )
    assert [part for part in parts if part not in said] == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            ["--data", "prompts", "--prompt-tokens", "5"],
            "--prompt-tokens is given: expected it without --data",
        ),
        (["--speed", "2"], "--speed is given: expected it with --data, without"),
        (["--data-end", "stop"], "--data-end is given: expected it with --data;"),
        (
            ["--data", "chats", "--api", "completions"],
            "15 rows with messages and 0 with a prompt: expect",
        ),
        (["--data", "prompts", "--api", "generate"], "0 rows with messages and 12 with a prompt"),
        (["--data", "prompts", "--speed", "0"], "--speed is '0': expected a number above 0"),
        (["--data", "chats", "--speed", "2"], "without --users and --rate; leave out --speed"),
        (["--data", "chats", "--arrivals", "data"], "--arrivals data is given: expected it with"),
        (["--data", "none"], "which cannot be read (No such file or directory)"),
    ],
)
def test_options_that_contradict(
    more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused before anything is sent."""
    files = {name: str(SAMPLES / f"{name}.jsonl") for name in ("prompts", "chats")}
    words = [files.get(word, word) for word in more]
    assert main(["run", "--embedded", "--users", "2", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--data-end", "stop"], ["15 rows, 0 clipped", "after the last the run ends",
                                  "4 users for 15 requests", "without --salt"]),
        (["--salt", "auto"], ["after the last they begin again\n", "4 users for 30 s"]),
        (["--max-model-len", "200"], ["15 rows, 3 clipped to the model's context"]),
    ],
)  # fmt: skip
def test_the_plan_says_what_is_sent(
    more: list[str], said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """And what comes after the last row."""
    chats = str(SAMPLES / "chats.jsonl")
    assert main(["run", "--embedded", "--users", "4", "--dry-run", "--data", chats, *more]) == 0
    out = capsys.readouterr().out
    assert [part for part in said if part not in out] == []
