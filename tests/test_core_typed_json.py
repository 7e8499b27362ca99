"""Dataclasses as JSON: what is written is read back, fits its schema, and errors name the path."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from enum import StrEnum
from math import inf, nan
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from harness.core.typed_json import from_json, json_schema, round_floats, to_json
from harness.metrics.result import Result


class State(StrEnum):
    """How it ended."""

    OK = "ok"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Leaf:
    """The smallest part."""

    at_ms: float = nan  # an instant, in ms
    ci95_ms: tuple[float, float] | None = None  # its interval, in ms


@dataclass(frozen=True, slots=True)
class Whole:
    """One of each kind of field."""

    name: str
    n: int
    state: State  # how it ended
    way: Literal["up", "down"] = "up"
    ok: Annotated[bool, "whether it may be used"] = True
    best: Leaf = Leaf()
    worst: Leaf | None = None
    leaves: tuple[Leaf, ...] = ()
    by_reason: dict[str, int] = field(default_factory=dict)
    users: int | None = None
    either: int | str = 0
    extra: Any = None


LEAVES = st.builds(Leaf, at_ms=..., ci95_ms=...)
EVERY = {each.name: ... for each in fields(Whole)} | {"extra": st.none(), "best": LEAVES}


@given(st.builds(Whole, **EVERY | {"worst": st.none() | LEAVES, "leaves": st.tuples(LEAVES)}))
def test_what_is_written_is_read_back_and_fits_the_schema(whole: Whole) -> None:
    """For any values."""
    written = json.loads(json.dumps(to_json(whole), allow_nan=False))
    # repr: NaN is not equal to itself
    assert repr(from_json(Whole, written)) == repr(whole)
    assert not list(Draft202012Validator(SCHEMA).iter_errors(written))


MINIMAL = {"name": "a", "n": 1, "state": "ok"}
NUMBER = {"$ref": "#/$defs/number"}


def test_json_forms() -> None:
    """NaN is null, infinity a word, and what JSON lacks is refused."""
    whole = Whole("a", 1, State.BAD, best=Leaf(inf, (-inf, 2.0)), by_reason={"stop": 3})
    assert to_json(whole) == {
        "name": "a",
        "n": 1,
        "state": "bad",
        "way": "up",
        "ok": True,
        "best": {"at_ms": "inf", "ci95_ms": ["-inf", 2.0]},
        "worst": None,
        "leaves": [],
        "by_reason": {"stop": 3},
        "users": None,
        "either": 0,
        "extra": None,
    }
    assert to_json(Leaf()) == {"at_ms": None, "ci95_ms": None}
    with pytest.raises(TypeError, match=r"set has no JSON form: \{1\}"):
        to_json([{1}])


def test_tolerant_reading() -> None:
    """Unknown keys are ignored, missing ones take the default, null is NaN."""
    data = MINIMAL | {"unknown": 1, "best": {"at_ms": 2}, "worst": {"at_ms": None}}
    assert repr(from_json(Whole, data)) == repr(
        Whole("a", 1, State.OK, best=Leaf(2.0), worst=Leaf(nan))
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "Whole: found [], expected Whole"),
        ({"name": "a", "n": 1}, "Whole.state: missing"),
        ({"name": 1}, "Whole.name: found 1, expected str"),
        ({"n": True}, "Whole.n: found True, expected int"),
        ({"n": 1.5}, "Whole.n: found 1.5, expected int"),
        ({"ok": 1}, "Whole.ok: found 1, expected bool"),
        ({"state": "worse"}, "Whole.state: found 'worse', expected State"),
        ({"way": "left"}, "Whole.way: found 'left', expected Literal['up', 'down']"),
        ({"best": None}, "Whole.best: found None, expected Leaf"),
        ({"leaves": [{}, {"at_ms": "x"}]}, "Whole.leaves[1].at_ms: found 'x', expected float"),
        (
            {"worst": {"ci95_ms": [1]}},
            "Whole.worst.ci95_ms: found [1], expected tuple[float, float]",
        ),
        ({"by_reason": {"stop": "3"}}, "Whole.by_reason.stop: found '3', expected int"),
        ({"either": None}, "Whole.either: found None, expected str"),
    ],
)
def test_errors_name_the_path(data: Any, message: str) -> None:
    """In one line: where, what was found, what was expected."""
    with pytest.raises(ValueError, match=r"^Whole") as caught:
        from_json(Whole, MINIMAL | data if data and len(data) == 1 else data)
    assert str(caught.value) == message


SCHEMA = json.loads(json.dumps(json_schema(Whole)))


def test_schema() -> None:
    """Descriptions come from docstrings; every field is required."""
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["title"] == "Whole"
    assert SCHEMA["description"] == "One of each kind of field."
    assert SCHEMA["required"] == list(SCHEMA["properties"])
    assert sorted(SCHEMA["$defs"]) == ["Leaf", "State", "number"]
    assert SCHEMA["$defs"]["State"] == {"description": "How it ended.", "enum": ["ok", "bad"]}


def test_schema_of_fields() -> None:
    """Descriptions come from comments and `Annotated`."""
    pair = {"type": "array", "prefixItems": [NUMBER, NUMBER], "items": False, "minItems": 2}
    want = {
        "state": {"$ref": "#/$defs/State", "description": "how it ended"},
        "ok": {"type": "boolean", "description": "whether it may be used"},
        "worst": {"anyOf": [{"$ref": "#/$defs/Leaf"}, {"type": "null"}]},
        "leaves": {"type": "array", "items": {"$ref": "#/$defs/Leaf"}},
        "by_reason": {"type": "object", "additionalProperties": {"type": "integer"}},
        "extra": {},
    }
    assert {name: SCHEMA["properties"][name] for name in want} == want
    assert SCHEMA["$defs"]["Leaf"]["properties"] == {
        "at_ms": NUMBER | {"description": "an instant, in ms"},
        "ci95_ms": {"anyOf": [pair, {"type": "null"}], "description": "its interval, in ms"},
    }


def test_every_field_of_result_json_is_described() -> None:
    """In its own words, with its unit, on the line that declares it."""
    schema = json_schema(Result)
    undescribed = []
    for owner, part in {"Result": schema, **schema["$defs"]}.items():
        for name, field_schema in part.get("properties", {}).items():
            if not field_schema.get("description"):
                undescribed.append(f"{owner}.{name}")
    assert undescribed == []


def test_rounding() -> None:
    """Floats only, and only those that are fields themselves."""
    leaf = Leaf(1.23456, (1.23456, inf))
    assert round_floats(leaf, 2) == Leaf(1.23, (1.23456, inf))
    assert round_floats(Whole("a", 7, State.OK, best=leaf), 0).best == leaf
