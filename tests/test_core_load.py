"""Loads of both sorts, and the units that runs count them in."""

from __future__ import annotations

import pytest

from harness.core.load import (
    CONCURRENT,
    REQUESTS_PER_S,
    SESSIONS,
    THINKING,
    UNIT_OF_OPTION,
    UNITS,
    Load,
    LoadUnit,
    Rate,
    Users,
    recorded_load,
    unit_named,
    unit_of_users,
)
from harness.errors import ConfigError


@pytest.mark.parametrize(
    ("load", "count", "number", "users", "rate_per_s", "by_schedule", "said"),
    [
        (Users(0), 0, 0, 0, 0.0, False, "0 users"),
        (Users(8), 8, 8, 8, 0.0, False, "8 users"),
        (Rate(20.0), 2000, 20, 0, 20.0, True, "20 requests/s"),
        (Rate(0.29), 29, 0.29, 0, 0.29, True, "0.29 requests/s"),  # 0.29 / 0.01 is below 29
        (Rate(0.0), 0, 0, 0, 0.0, False, "0 requests/s"),  # nothing is ever due
        (Rate(6.6667), 667, 6.6667, 0, 6.6667, True, "6.6667 requests/s"),  # of a drill
    ],
)
def test_what_a_load_says_of_itself(
    load: Load,
    count: int,
    number: float,
    users: int,
    rate_per_s: float,
    by_schedule: bool,
    said: str,
) -> None:
    """To a search, to people, to Locust and to a schedule."""
    assert (load.count, load.number, load.users, load.rate_per_s) == (
        count,
        number,
        users,
        rate_per_s,
    )
    assert type(load.number) is type(number)  # a whole rate is shown as 20, not as 20.0
    assert load.by_schedule is by_schedule
    assert str(load) == said


@pytest.mark.parametrize("unit", UNITS)
def test_a_search_may_work_on_counts(unit: LoadUnit) -> None:
    """Each count is a load of its own, higher than the one before."""
    loads = [unit.of_count(count) for count in range(1, 10_000)]
    assert [load.count for load in loads] == [*range(1, 10_000)]
    assert sorted(loads) == loads
    assert [unit.number(load.count) for load in loads] == [load.number for load in loads]


@pytest.mark.parametrize(
    ("sort", "number", "nearest", "exactly", "floor"),
    [
        (Users, 8.6, Users(9), Users(9), 8),
        (Users, 8, Users(8), Users(8), 8),
        (Rate, 8.567, Rate(8.57), Rate(8.567), 8.56),
        (Rate, 20, Rate(20.0), Rate(20), 20),
    ],
)
def test_the_load_of_a_number(
    sort: type[Load], number: float, nearest: Load, exactly: Load, floor: float
) -> None:
    """The one that a search may hold, the one that a drill holds, and what is promised of it."""
    assert sort.of_number(number) == nearest
    assert sort.exactly(number) == exactly
    assert sort.floor(number) == floor


@pytest.mark.parametrize(
    ("load", "response_s", "want"), [(Users(8), 2.5, 8), (Rate(8.0), 2.5, 20), (Rate(0.0), 1, 0)]
)
def test_littles_law(load: Load, response_s: float, want: float) -> None:
    """Users keep their number busy; at a rate it depends on the server."""
    assert load.in_flight(response_s) == want


@pytest.mark.parametrize(
    ("users", "rate_per_s", "want"),
    [(8, 0.0, Users(8)), (0, 20.0, Rate(20.0)), (2000, 20.0, Rate(20.0)), (0, 0.0, Users(0))],
)
def test_a_load_from_a_file(users: int, rate_per_s: float, want: Load) -> None:
    """Lines of levels.jsonl have the count of a rate in `users`, levels of result.json have 0."""
    assert recorded_load(users, rate_per_s) == want


@pytest.mark.parametrize(
    ("unit", "text", "want"),
    [
        (CONCURRENT, "8", 8),
        (SESSIONS, " 8 ", 8),
        (REQUESTS_PER_S, "20/s", 2000),
        (REQUESTS_PER_S, "0.29", 29),
        (REQUESTS_PER_S, "1e3/s", 100_000),
    ],
)
def test_an_option(unit: LoadUnit, text: str, want: int) -> None:
    """Into a count."""
    assert unit.load.parser("--load")(text) == want


@pytest.mark.parametrize(
    ("unit", "text", "said"),
    [
        (CONCURRENT, "8.5", "--x is '8.5': expected a whole number from 1 up; try --x 1."),
        (REQUESTS_PER_S, "0", "--x is '0': expected requests per second, from 0.01/s up in steps"),
        (REQUESTS_PER_S, "0.005", "try --x 0.01/s."),
        (REQUESTS_PER_S, "nan", "try --x 20/s."),
        (REQUESTS_PER_S, "2e6", "try --x 2/s."),
        (REQUESTS_PER_S, "3rps", "try --x 3/s."),
        (REQUESTS_PER_S, "180/min", "try --x 3/s."),
        (REQUESTS_PER_S, "many", "try --x 20/s."),
    ],
)
def test_an_option_that_is_no_load(unit: LoadUnit, text: str, said: str) -> None:
    """A sentence with what was probably meant."""
    with pytest.raises(ConfigError) as error:
        unit.load.parser("--x")(text)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("unit", "number", "text", "short"),
    [
        (CONCURRENT, 1, "1 concurrent request", "1 user"),
        (CONCURRENT, 1200, "1,200 concurrent requests", "1,200 users"),
        (THINKING, 16, "16 users", "16 users"),
        (SESSIONS, 1, "1 session", "1 session"),
        (SESSIONS, 41, "41 sessions", "41 sessions"),
        (REQUESTS_PER_S, 20, "20 requests/s", "20 requests/s"),
        (REQUESTS_PER_S, 1234.5, "1,234.5 requests/s", "1,234.5 requests/s"),
    ],
)
def test_a_load_in_words(unit: LoadUnit, number: float, text: str, short: str) -> None:
    """In sentences, and in tables, which have less room."""
    assert unit.text(number) == text
    assert unit.short(number) == short


@pytest.mark.parametrize(
    ("unit", "numbers", "want"),
    [
        (CONCURRENT, [8, 8], "8 concurrent requests"),
        (SESSIONS, [1], "1 session"),
        (THINKING, [1, 2], "1 and 2 users"),
        (REQUESTS_PER_S, [5, 10.5, 5, 20], "5, 10.5 and 20 requests/s"),
    ],
)
def test_several_loads_in_words(unit: LoadUnit, numbers: list[float], want: str) -> None:
    """Each once."""
    assert unit.list_text(numbers) == want


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_is_found_by_its_names(unit: LoadUnit) -> None:
    """That of a result, and that of its knee, which knows no pauses."""
    assert unit_named(unit.one) == unit
    assert unit_named(unit.short_many).short_many == unit.short_many
    assert unit_named(unit.short_many).load is unit.load


def test_which_unit_counts_users() -> None:
    """By what they do between two requests; --load knows only how they are sent."""
    assert unit_of_users(talk=False, pause=False) == CONCURRENT
    assert unit_of_users(talk=False, pause=True) == THINKING
    assert unit_of_users(talk=True, pause=True) == SESSIONS
    assert UNIT_OF_OPTION == {"users": CONCURRENT, "rate": REQUESTS_PER_S}
    assert [unit.by_schedule for unit in UNITS] == [False, False, False, True]
