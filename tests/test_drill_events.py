"""Every kind of event has its keys, its sentence and its row in docs/drills.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from harness.drill.drill_file import parse_drill
from harness.drill.events import AT, EVENTS, Disconnect, Event
from harness.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from harness.drill.events import Key

PAGE: Final = Path(__file__).parents[1] / "docs/drills.md"
# A value of each key, and another one.
VALUES: Final = {
    "at": ("1s", "2s"),
    "replica": (1, 2),
    "for": ("3s", "4s"),
    "factor": (2, 3),
    "by": ("200ms", "300ms"),
    "bytes_per_s": (1000, 2000),
    "count": (5, 6),
    "tokens": (70, 80),
    "pod": ("vllm-0", "vllm-1"),
    "workload": ("deployment/vllm", "statefulset/vllm"),
    "node": ("node-1", "node-2"),
    "replicas": (3, 4),
}
DRILL: Final = """
[servers]
engines = 2
context = "staging"
[[phase]]
name = "calm"
users = 1
for = "10s"
[[expect]]
lost = 0
"""


def classes(of: type[Event] = Event) -> Iterator[type[Event]]:
    """All that have a name in the file."""
    for kind in of.__subclasses__():
        if "kind" in vars(kind):
            yield kind
        yield from classes(kind)


def keys_of(kind: type[Event]) -> tuple[Key, ...]:
    """All that it takes besides `do` and its name."""
    return (AT, *kind.needs, *kind.may)


def event_with(kind: type[Event], values: Mapping[str, Any]) -> Event:
    """Read from a file with these keys."""
    lines = [f"{key} = {value!r}" for key, value in values.items()]
    text = "\n".join([DRILL, "[[event]]", f"do = '{kind.kind}'", *lines])
    (event,) = parse_drill(text, "x.toml").events
    return event


def rows() -> dict[str, tuple[str, str]]:
    """What the page says an event needs, and what happens."""
    _, _, table = PAGE.read_text().partition("| `do` | needs | what happens |\n")
    table, _, _ = table.partition("\n\n")
    found = re.findall(r"^\| `([\w-]+)` \| (.*) \| (.*) \|$", table, re.MULTILINE)
    return {do: (needs, happens) for do, needs, happens in found}


def test_the_file_knows_every_class() -> None:
    """A class that is not named in EVENTS could not be asked for."""
    assert {kind.kind: kind for kind in classes()} == EVENTS
    assert len(list(classes())) == len(EVENTS)


@pytest.mark.parametrize("kind", EVENTS.values(), ids=EVENTS)
def test_keys_and_sentence(kind: type[Event]) -> None:
    """Every key may be given, and what happens is said with all values but the time."""
    values = {key.name: VALUES[key.name][0] for key in keys_of(kind)}
    event = event_with(kind, values)
    assert type(event) is kind
    assert event.sentence.startswith(kind.kind)
    for key in (*kind.needs, *kind.may):
        other = event_with(kind, values | {key.name: VALUES[key.name][1]})
        assert other.sentence != event.sentence, key.name


def test_a_client_that_never_sends_is_refused() -> None:
    """Hanging up after no time at all, where a timeout of 0 would mean never."""
    values = {key.name: VALUES[key.name][0] for key in keys_of(Disconnect)}
    with pytest.raises(ConfigError, match=r"by is '0s': expected more than zero .*200ms"):
        event_with(Disconnect, values | {"by": "0s"})


def test_the_page_has_every_event() -> None:
    """In the same order, with the keys that each needs; what it may have is said beside it."""
    page = rows()
    assert list(page) == list(EVENTS)
    for do, kind in EVENTS.items():
        needs, happens = page[do]
        assert set(needs.split(", ")) == {f"`{key.name}`" for key in kind.needs}, do
        assert happens.strip(), do
        assert [key.name for key in kind.may if f"`{key.name}`" not in happens] == [], do


def test_the_page_says_what_cannot_act() -> None:
    """An event that acts by pids only, or by containers only, is said not to act by the others."""
    page = rows()
    for do, kind in EVENTS.items():
        local = {"pids", "containers"}
        owners = local if local & set(kind.acts_by) else set()
        without = set(re.findall(r"not for `(\w+)`", page[do][1]))
        assert without == owners - set(kind.acts_by), do
