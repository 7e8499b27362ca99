"""Data sets that people have, made into own data; what a file that is none of them looks like."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.cli.app import main
from harness.errors import ConfigError
from harness.load.conversation_log import convert
from harness.load.known_data import Kind, at_ms, looks_like
from harness.load.own_data import DataSource
from harness.load.workloads import WORKLOADS

CHAT = WORKLOADS["chat"]
HUMAN = {"from": "human", "value": "Hello"}
GPT = {"from": "gpt", "value": "Hi, how can I help?"}
ODD = {"from": "observation", "value": "{}"}
ASKED = [{"role": "user", "content": "Hello"}]
ANSWERED = [*ASKED, {"role": "assistant", "content": GPT["value"]}]
FIVE = {"output_tokens": 5}  # of 19 bytes


def lines(*rows: object) -> str:
    """JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def made(tmp_path: Path, text: str | bytes, suffix: str = "json") -> tuple[list[Any], list[str]]:
    """The rows of own data that a file of this text becomes, and what is said of them."""
    file = tmp_path / f"in.{suffix}"
    out = tmp_path / "out.jsonl"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    notes = convert(file, out).notes
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    DataSource(str(out), CHAT)  # reads it all
    return rows, notes


TALK = {"id": "a", "conversations": [HUMAN, GPT]}
FIRST = {"conversation_id": "a", "messages": ASKED, **FIVE}


@pytest.mark.parametrize(
    ("text", "want", "note"),
    [
        (json.dumps([TALK]), [FIRST], ""),
        (json.dumps([TALK], indent=2), [FIRST], ""),
        (lines(TALK), [FIRST], ""),
        ("\ufeff" + lines(TALK), [FIRST], ""),
        ("\ufeff" + json.dumps([TALK], indent=1), [FIRST], ""),
        # the second answer, with all that came before it
        (
            lines({"conversations": [HUMAN, GPT, HUMAN, GPT]}),
            [{"messages": ASKED, **FIVE}, {"messages": [*ANSWERED, *ASKED], **FIVE}],
            "",
        ),
        # bare lists, as some tools write them
        (json.dumps([[HUMAN, GPT]], indent=1), [{"messages": ASKED, **FIVE}], ""),
        (json.dumps([[HUMAN, GPT]]), [{"messages": ASKED, **FIVE}], ""),
        (lines([HUMAN, GPT], [HUMAN, GPT]), [{"messages": ASKED, **FIVE}] * 2, ""),
        # other names of the same
        (
            lines({"items": [HUMAN | {"from": "User"}, GPT | {"from": "bing"}], "id": 7}),
            [{**FIRST, "conversation_id": "7"}],
            "",
        ),
        (lines({"conversations": ANSWERED}), [{"messages": ASKED, **FIVE}], ""),
        (
            lines({"conversation": [{"human": "Hello", "assistant": GPT["value"]}]}),
            [{"messages": ASKED, **FIVE}],
            "",
        ),
        # a system message, beside the turns or among them, is kept
        (
            lines({"system": "Be brief.", "conversations": [HUMAN, GPT]}),
            [{"messages": [{"role": "system", "content": "Be brief."}, *ASKED], **FIVE}],
            "",
        ),
        (
            lines({"conversations": [{"from": "system", "value": "Be brief."}, HUMAN, GPT]}),
            [{"messages": [{"role": "system", "content": "Be brief."}, *ASKED], **FIVE}],
            "",
        ),
        # it opens with an answer: history only
        (
            lines({"conversations": [GPT, HUMAN, GPT]}),
            [{"messages": [ANSWERED[1], *ASKED], **FIVE}],
            "",
        ),
        # odd roles, turns that are no objects, texts that are none: what came before is used
        (
            lines(TALK, {"conversations": [HUMAN, GPT, ODD, GPT]}),
            [FIRST, {"messages": ASKED, **FIVE}],
            "1 conversations end before a turn whose role or text is not known: {'from': 'obs",
        ),
        (lines(TALK, {"conversations": [HUMAN, 5, GPT]}), [FIRST], "is not known: 5"),
        (lines(TALK, {"conversations": [HUMAN, {"from": "gpt"}]}), [FIRST], "{'from': 'gpt'}"),
        (lines(TALK, {"conversations": []}), [FIRST], "1 conversations have no answer"),
    ],
)
def test_sharegpt(tmp_path: Path, text: str, want: list[Any], note: str) -> None:
    """A request for each answer to a user, in the order of the file."""
    rows, notes = made(tmp_path, text)
    assert rows == want
    assert note in " ".join(notes)
    assert bool(notes) == bool(note)


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
SESSIONS = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens\n"


@pytest.mark.parametrize(
    ("text", "want", "note"),
    [
        # of 2023 seven digits, of 2024 with an offset; none of them is rounded away
        (
            AZURE + "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:03.9809600,3180,8\n"
            "2023-11-16 18:17:04.0319600,110,27\n",
            [(0, 4808, 10), (1, 3180, 8), (52, 110, 27)],
            "",
        ),
        (
            AZURE + "2024-05-10 00:00:00.009930+00:00,2162,5\n"
            "2024-05-10 00:00:00.017335+00:00,9,7\n",
            [(0, 2162, 5), (7.405, 9, 7)],
            "",
        ),
        ("\ufeff" + AZURE + "2024-05-10T00:00:00Z,1,2\n", [(0, 1, 2)], ""),
        # seconds from the start
        (
            BURST + "5,ChatGPT,472,18,490,Conversation log\n45.5,GPT-4,1087,230,1317,API log\n",
            [(0, 472, 18), (40500, 1087, 230)],
            "",
        ),
        (
            BURST + "5,ChatGPT,472,18,490,a\n1106,ChatGPT,0,0,0,a\n1107,ChatGPT,9,0,9,a\n",
            [(0, 472, 18)],
            "2 rows have no prompt or no answer (they failed) and are left out.",
        ),
        (SESSIONS + "1,4,0.5,GPT-4,7,8,15\n", [(0, 7, 8)], ""),
        (
            BURST + "9,a,1,1,2,b\n5,a,2,2,4,b\n",
            [(0, 2, 2), (4000, 1, 1)],
            "1 rows are earlier than the one above them",
        ),
    ],
)
def test_traces_of_lengths(
    tmp_path: Path, text: str, want: list[tuple[float, int, int]], note: str
) -> None:
    """In ms from the first row on; prompts of their own share nothing."""
    rows, notes = made(tmp_path, text, "csv")
    assert [tuple(row.values()) for row in rows] == want
    assert list(rows[0]) == ["timestamp", "input_length", "output_length"]
    assert note in " ".join(notes)
    assert bool(notes) == bool(note)
    data = DataSource(str(tmp_path / "out.jsonl"), CHAT)
    assert set(data.shared_tokens()) == {0}


def test_prompts_of_a_length_alone(tmp_path: Path) -> None:
    """Exactly so long, by row, pass and seed another, and each time the same."""
    path = tmp_path / "rows.jsonl"
    row = {"input_length": 600, "output_length": 5}
    path.write_text(lines(row, row))
    drawn = []
    for seed in (1, 2):
        data = DataSource(str(path), CHAT, seed=seed)
        data.workload = data.as_workload(None)
        assert data.spec(1) == data.spec(1)
        drawn += [data.spec(number).token_ids for number in range(4)]  # two passes
    assert {len(ids) for ids in drawn} == {600}
    assert len({ids[:16] for ids in drawn}) == 8


def test_mooncake_hashes_of_64_bits(tmp_path: Path) -> None:
    """Two that differ in their upper half alone are two blocks."""
    path = tmp_path / "rows.jsonl"
    row = {"input_length": 64, "output_length": 5}
    hashes = [high << 32 | 7 for high in (0, 1, 2**31, 0)]
    path.write_text(lines(*(row | {"hash_ids": [number]} for number in hashes)))
    data = DataSource(str(path), CHAT)
    data.workload = data.as_workload(None)
    first, *others, again = [data.spec(number).token_ids for number in range(4)]
    assert again == first
    assert len({first, *others}) == 3
    assert list(data.shared_tokens()) == [0, 0, 0, 48]


def test_blocks_of_another_size(tmp_path: Path) -> None:
    """They are named: a trace of 16-token blocks is none of Mooncake's."""
    path = tmp_path / "rows.jsonl"
    row = {"input_length": 521, "output_length": 5}
    path.write_text(lines(row | {"hash_ids": [*range(33)]}))
    with pytest.raises(ConfigError, match="these would be blocks of 16 tokens"):
        DataSource(str(path), CHAT)


BODY = {"model": "m", "messages": ASKED, "max_tokens": 100, "temperature": 0.7}


@pytest.mark.parametrize(
    ("body", "want", "note"),
    [
        (BODY, {"messages": ASKED, "output_tokens": 100}, "Left out: temperature; give what all"),
        (
            {"messages": ASKED, "max_completion_tokens": 7},
            {"messages": ASKED, "output_tokens": 7},
            "",
        ),
        ({"messages": ASKED}, {"messages": ASKED}, "1 requests name no length"),
        ({"prompt": "Hello", "max_tokens": 3}, {"prompt": "Hello", "output_tokens": 3}, ""),
        ({"input": "Hello", "max_output_tokens": 3}, {"prompt": "Hello", "output_tokens": 3}, ""),
        ({"input": ASKED, "max_output_tokens": 3}, {"messages": ASKED, "output_tokens": 3}, ""),
    ],
)
def test_openai_batches(
    tmp_path: Path, body: dict[str, Any], want: dict[str, Any], note: str
) -> None:
    """Messages, tools and lengths, in the order of the file; what is left out is said."""
    request = {"custom_id": "r", "method": "POST", "url": "/v1/chat/completions", "body": body}
    rows, notes = made(tmp_path, lines(request, request), "jsonl")
    assert rows == [want] * 2
    assert note.replace("1 requests", "2 requests") in " ".join(notes)
    assert bool(notes) == bool(note)


MESSAGE = {"conversation_id": 0, "role": "user", "content": "Hello"}
REPLY = {"conversation_id": 0, "role": "assistant", "content": "Hi"}


@pytest.mark.parametrize(
    ("times", "want", "note"),
    [
        ((0, 1000, 2500, 3000), [0, 2500], ""),  # ms from the start
        ((0, 1, 1_500_000_000, 1_500_000_001), [0, 1_500_000_000], ""),  # the same, 17 days long
        ((1711842000, 1711842005, 1711842060, 1711842061), [0, 60_000], "as seconds since 1970"),
        ((1711842000000, 1711842005000, 1711842060000, 0), [0, 60_000], "as milliseconds since"),
        ((1711842000 * 10**6, 0, 1711842060 * 10**6, 0), [0, 60_000], "as microseconds since"),
        ((1711842000 * 10**9, 0, 1711842060 * 10**9, 0), [0, 60_000], "as nanoseconds since"),
        (("2024-03-30T23:40:00", 0, "2024-03-31T00:40:00Z", 0), [0, 3_600_000], ""),
        ((5, 6, None, None), [None, None], "2 messages have no timestamp: the times of all are"),
        ((5, None, 7, None), [0, 2], ""),  # those of questions are enough
        ((None, None, None, None), [None, None], ""),
    ],
)
def test_the_unit_of_a_log_s_times(
    tmp_path: Path, times: tuple[Any, ...], want: list[float | None], note: str
) -> None:
    """A number that can only be a time since 1970 is one; what is dropped is said."""
    talk = [MESSAGE, REPLY, MESSAGE | {"conversation_id": 1}, REPLY | {"conversation_id": 1}]
    rows = [one | {"timestamp": at} for one, at in zip(talk, times, strict=True)]
    found, notes = made(tmp_path, lines(*rows), "jsonl")
    assert [row.get("timestamp") for row in found] == want
    assert [row["conversation_id"] for row in found] == ["0", "1"]  # as in the file
    assert note in " ".join(notes)
    assert bool(notes) == bool(note)


def test_halves_of_surrogates(tmp_path: Path) -> None:
    """They become U+FFFD; a pair is a character, and after an escaped backslash there is none."""
    asked = r"a\ud83d b\ud83d\ude00 \\ud83d\uDE00"
    rows, _ = made(tmp_path, lines(TALK).replace("Hello", asked))
    (row,) = rows
    assert row["messages"][0]["content"] == "a\ufffd b\U0001f600 \\ud83d\ufffd"


def test_the_name_of_a_file_says_nothing(tmp_path: Path) -> None:
    """Its content does: a CSV may be called .txt, JSON lines .csv."""
    assert len(made(tmp_path, AZURE + "2024-05-10,1,2\n", "txt")[0]) == 1
    assert made(tmp_path, lines(TALK), "csv")[0] == [FIRST]


@pytest.mark.parametrize("text", ["nan", "inf", "noon", "2024-13-01"])
def test_times_that_are_none(text: str) -> None:
    """Refused, never a time."""
    with pytest.raises(ValueError, match=r"timestamp|iso|month"):
        at_ms(text, 1.0)


FILES: dict[str, tuple[bytes, str, Kind]] = {
    "array": (b"[1,\n2]\n", "jsonl", Kind.array),
    "array of rows": (json.dumps([{"prompt": "a"}], indent=1).encode(), "json", Kind.own_array),
    "instructions": (b'[{"instruction": "Say", "output": "a"}]', "json", Kind.instructions),
    "results": (b'{"id": "b", "custom_id": "r", "response": {}}\n', "jsonl", Kind.batch_results),
    "gzip": (gzip.compress(b"{}", mtime=0), "jsonl", Kind.gzip),
    "parquet": (b"PAR1\x15\x04", "parquet", Kind.parquet),
    "zip": (b"PK\x03\x04\x14", "zip", Kind.zip),
    "utf16": ('{"prompt": "a"}'.encode("utf-16"), "jsonl", Kind.utf16),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\n", "json", Kind.lfs),
    "html": (b"<!doctype html>\n<p>Sign in", "json", Kind.html),
    "table": (b"time,tokens\n1,2\n", "csv", Kind.table),
    "words": (b"Once upon a time\n", "txt", Kind.unknown),
    "empty": (b"", "jsonl", Kind.unknown),
    "deep": (b"[" * 100_000, "json", Kind.array),
    "other fields": (b'{"question": "a"}\n', "jsonl", Kind.unknown),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_none_of_them(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and one sentence that says what it looks like, from both ways to read it."""
    data, suffix, kind = FILES[name]
    file = tmp_path / f"in.{suffix}"
    out = tmp_path / "out.jsonl"
    file.write_bytes(data)
    assert looks_like(file) is kind
    assert main(["data", str(file), "--convert", str(out)]) == 2
    said = capsys.readouterr().err
    assert kind.value in said
    assert said.count("\n") == 1
    assert not out.exists()
    assert main(["data", str(file)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    named = {Kind.array: "expected an object", Kind.own_array: "a JSON array: try `jq"}
    assert named.get(kind, kind.value) in said


@pytest.mark.parametrize(
    ("text", "suffix", "said"),
    [
        (lines(TALK), "json", "looks like ShareGPT conversations: try `vllm-harness data"),
        (json.dumps([TALK], indent=2), "json", "looks like ShareGPT conversations"),
        (AZURE + "2024-05-10,1,2\n", "csv", "looks like a trace of Azure's LLM inference: try"),
        (BURST + "5,a,1,1,2,b\n", "csv", "looks like a BurstGPT trace: try"),
        (lines({"custom_id": "r", "body": BODY}), "jsonl", "requests of an OpenAI batch: try"),
        (lines(MESSAGE), "jsonl", "looks like a log of conversations, a row per message: try"),
        (lines({"prompt": "a", "timestamp": 1711842000}), "jsonl", "like seconds since 1970"),
    ],
)
def test_what_to_do_with_it(tmp_path: Path, text: str, suffix: str, said: str) -> None:
    """--data names what can be converted, and how."""
    file = tmp_path / f"in.{suffix}"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        DataSource(str(file), CHAT)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "suffix", "said"),
    [
        (lines(TALK, 5), "json", "ShareGPT conversation 2 of"),
        (lines({"conversations": "Hello"}), "json", "ShareGPT conversation 1 of"),
        (lines({"conversations": [HUMAN]}), "json", "has no request among 1 ShareGPT"),
        (AZURE + "2024-05-10,x,2\n", "csv", "Azure trace row 1 of"),
        (AZURE + "noon,1,2\n", "csv", "Invalid isoformat string: 'noon'"),
        (AZURE + ",1,2\n", "csv", "expected timestamp"),
        (AZURE + "2024-05-10,1\n", "csv", "generatedtokens ''"),
        (BURST + "5,a,1,1e999,2,b\n", "csv", "response tokens '1e999'"),
        (lines({"custom_id": "r", "body": 5}), "jsonl", "found {'custom_id': 'r', 'body': 5}"),
        (
            lines({"custom_id": "r", "url": "/v1/embeddings", "body": {"input": "a"}}),
            "jsonl",
            "found a request to /v1/embeddings, expected messages or a prompt",
        ),
        (lines({"custom_id": "r", "body": {"prompt": [1, 2]}}), "jsonl", "batch request 1 of"),
        (
            lines(*({"custom_id": "r", "body": {"messages": one}} for one in (ASKED, "Hello"))),
            "jsonl",
            "batch request 2 of",
        ),
        (lines({"timestamp": 1, "request tokens": 1, "response tokens": 1}, 5), "json", "found 5"),
        (lines(MESSAGE, [1, 2]), "jsonl", "message 2 of"),
        (lines(MESSAGE | {"content": 5}), "jsonl", "message 1 of"),
        (lines(MESSAGE | {"timestamp": {}}), "jsonl", "message 1 of"),
    ],
)
def test_a_bad_record_is_named(tmp_path: Path, text: str, suffix: str, said: str) -> None:
    """With what was found; nothing is written."""
    file = tmp_path / f"in.{suffix}"
    out = tmp_path / "out.jsonl"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        convert(file, out)
    assert said in str(caught.value)
    assert not out.exists()


def test_the_log_itself_is_never_overwritten(tmp_path: Path) -> None:
    """Whatever path leads to it."""
    file = tmp_path / "log.jsonl"
    file.write_text(lines(MESSAGE, REPLY))
    with pytest.raises(ConfigError, match="the file that is read"):
        convert(file, tmp_path / "." / "log.jsonl")
    assert file.read_text() == lines(MESSAGE, REPLY)


def test_a_byte_order_mark(tmp_path: Path) -> None:
    """Is no error, and no part of the first row."""
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + lines({"prompt": "a"}, {"prompt": "b"}).encode())
    data = DataSource(str(file), CHAT)
    assert [data.row(index)["prompt"] for index in range(2)] == ["a", "b"]


def test_rows_whose_length_nobody_knows(tmp_path: Path) -> None:
    """Pictures go out as they are, however small the context; the others are clipped."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 40_000}}
    text = {"type": "text", "text": "What is it?"}
    asked = {"role": "user", "content": [text, picture]}
    long = {"role": "user", "content": "word " * 1000}
    file = tmp_path / "rows.jsonl"
    without_picture = {"role": "user", "content": [text]}
    talks = [[asked], [asked, long], [without_picture], [long]]
    rows = [{"messages": talk, "output_tokens": 8} for talk in talks]
    file.write_text(lines(*rows))
    data = DataSource(str(file), replace(CHAT, max_model_len=500))
    assert data.n_unsized == 2
    assert data.n_clipped(500) == 1
    assert data.planned(0)[0] < 50  # its text; the picture is no text
    for index in (0, 1):
        assert data.lengths(index, 100) == data.planned(index)
        assert list(data.spec(index).messages) == talks[index]


NAMES = (
    "conversations", "items", "id", "from", "value", "role", "content", "custom_id", "body", "url",
    "messages", "prompt", "input", "max_tokens", "timestamp", "contexttokens", "generatedtokens",
    "Request tokens", "Response tokens", "conversation_id", "tools", "tool_calls", "system",
    "input_length", "output_length", "hash_ids", "output_tokens", "instruction",
)  # fmt: skip
VALUES = (
    "human",
    "gpt",
    "user",
    "assistant",
    "system",
    "",
    "\ud83d",
    "2024-05-10",
    "1",
    "nan",
    "-5",
    None,
    True,
    0,
    5,
    1.5,
    -1,
    1e300,
    2**63,
    1711842000,
)
STARTS: tuple[dict[str, Any], ...] = (
    TALK,
    MESSAGE,
    {"custom_id": "r", "body": BODY},
    {"timestamp": "2024-05-10", "contexttokens": 1, "generatedtokens": 2},
    {"timestamp": 1, "Request tokens": 1, "Response tokens": 2},
    {"prompt": "a"},
)


def drawn(draw: random.Random, depth: int = 0) -> Any:
    """Any JSON value of the names and values that mean something somewhere."""
    kind = draw.random()
    if depth > 3 or kind < 0.45:
        return draw.choice(VALUES)
    if kind < 0.7:
        return [drawn(draw, depth + 1) for _ in range(draw.randrange(4))]
    return {draw.choice(NAMES): drawn(draw, depth + 1) for _ in range(draw.randrange(5))}


def hostile_text(draw: random.Random) -> str:
    """One to three rows with wrong fields or values, as lines or an array, often cut off."""
    rows: list[Any] = []
    for _ in range(draw.randrange(1, 4)):
        row = dict(draw.choice(STARTS))
        for _ in range(draw.randrange(3)):
            row[draw.choice(NAMES)] = drawn(draw)
        rows.append(row if draw.random() < 0.9 else drawn(draw))
    text = lines(*rows) if draw.random() < 0.7 else json.dumps(rows)
    return text if draw.random() < 0.9 else text[: draw.randrange(len(text))]


def test_hostile_files(tmp_path: Path) -> None:
    """300 seeded ones: a sentence or rows that --data reads, never another error."""
    file = tmp_path / "in.json"
    out = tmp_path / "out.jsonl"
    read = 0
    refused = []
    for seed in range(300):
        draw = random.Random(seed)  # noqa: S311 - a test
        file.write_text(hostile_text(draw))
        try:
            convert(file, out)
        except ConfigError as error:
            refused.append(str(error))
        else:
            DataSource(str(out), CHAT)
            read += 1
        with contextlib.suppress(ConfigError):
            DataSource(str(file), CHAT)
    assert min(read, len(refused)) > 30
    assert [said for said in refused if "\n" in said] == []
