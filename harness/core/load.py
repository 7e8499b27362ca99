"""How much load a level holds, and what the levels of a run count.

A `Load` is one of two sorts, and answers for itself whatever differs between them:

    Users  closed loop: so many users, each of whom sends when their last answer has ended
    Rate   open loop: requests per second, sent by a schedule whatever the server does

A search knows neither. It doubles, halves and fits whole numbers, the `count` of a load: users, or
hundredths of a request per second. `LoadUnit` turns a count into a load, and has the words for it.
What a load becomes at the senders is in search/controller.py (`LoadTarget`).
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final, Self

from harness.core.typed_json import whole_or
from harness.core.value_parsers import whole_number
from harness.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Number = int | float  # users are whole, rates need not be

RATE_STEP_PER_S: Final = 0.01  # a search by rate knows no smaller difference
STEPS_PER_UNIT: Final = 100  # so many of them are 1/s
ROUNDING: Final = 1e-6  # steps: a decimal number is hardly ever exact
MAX_RATE_PER_S: Final = 1_000_000


class Load(ABC):
    """What a level is held at."""

    __slots__ = ()

    option: ClassVar[str]  # its name on the command line, in drills and in names of metrics
    column: ClassVar[str]  # its name in tables for programs
    heading: ClassVar[str]  # of a narrow column
    mark: ClassVar[str]  # behind a number, in messages
    there: ClassVar[str]  # the metric of what it keeps busy
    less: ClassVar[str]  # in sentences about the level before
    more: ClassVar[str]
    finest: ClassVar[int]  # the difference that no search can look into

    @classmethod
    @abstractmethod
    def of_count(cls, count: int) -> Self:
        """The load that a search calls `count`."""

    @classmethod
    @abstractmethod
    def of_number(cls, number: float) -> Self:
        """The nearest one to so many users, or requests per second."""

    @classmethod
    @abstractmethod
    def exactly(cls, number: float) -> Self:
        """The load of that number, even where no search would hold it."""

    @staticmethod
    @abstractmethod
    def parser(option: str) -> Callable[[str], int]:
        """A parser of an option's value into a count."""

    @staticmethod
    @abstractmethod
    def digits(number: float) -> str:
        """`1,200`, `20.5`."""

    @staticmethod
    @abstractmethod
    def noun(number: float, one: str, many: str) -> str:
        """Which of both goes with the number."""

    @staticmethod
    @abstractmethod
    def floor(number: float) -> float:
        """The highest load that is no more: what lies between two cannot be promised."""

    @property
    @abstractmethod
    def count(self) -> int:
        """What a search calls it."""

    @property
    @abstractmethod
    def number(self) -> Number:
        """Users, or requests per second."""

    @property
    @abstractmethod
    def users(self) -> int:
        """Who is there at once; 0: a schedule sends."""

    @property
    @abstractmethod
    def rate_per_s(self) -> float:
        """What a schedule sends; 0: it is users who send."""

    @property
    def by_schedule(self) -> bool:
        return self.rate_per_s > 0

    @abstractmethod
    def in_flight(self, response_s: float) -> float:
        """Requests at once while each takes so long, by Little's law."""

    def __lt__(self, other: Load) -> bool:
        """Of loads of one run."""
        return self.number < other.number


@dataclass(frozen=True, slots=True)
class Users(Load):
    n: int

    option = "users"
    column = "concurrency"
    heading = "users"
    mark = " users"
    there = "users_running"
    less = "fewer users"
    more = "more"
    finest = 1

    @classmethod
    def of_count(cls, count: int) -> Self:
        return cls(count)

    @classmethod
    def of_number(cls, number: float) -> Self:
        return cls(round(number))

    @classmethod
    def exactly(cls, number: float) -> Self:
        return cls(round(number))

    @staticmethod
    def parser(option: str) -> Callable[[str], int]:
        return whole_number(option)

    @staticmethod
    def digits(number: float) -> str:
        return f"{number:,.0f}"

    @staticmethod
    def noun(number: float, one: str, many: str) -> str:
        return one if number == 1 else many

    @staticmethod
    def floor(number: float) -> float:
        return math.floor(number)

    @property
    def count(self) -> int:
        return self.n

    @property
    def number(self) -> int:
        return self.n

    @property
    def users(self) -> int:
        return self.n

    @property
    def rate_per_s(self) -> float:
        return 0.0

    def in_flight(self, response_s: float) -> float:  # noqa: ARG002 - however long it takes
        return float(self.n)

    def __str__(self) -> str:
        return f"{self.n} users"


@dataclass(frozen=True, slots=True)
class Rate(Load):
    per_s: float  # a search holds whole steps only, a drill may hold any

    option = "rate"
    column = "rate_per_s"
    heading = "1/s"
    mark = "/s"
    there = "in_flight"
    less = "a lower rate"
    more = "a higher one"
    finest = 0

    @classmethod
    def of_count(cls, count: int) -> Self:
        return cls(round(count * RATE_STEP_PER_S, 6))

    @classmethod
    def of_number(cls, number: float) -> Self:
        return cls.of_count(round(number / RATE_STEP_PER_S))

    @classmethod
    def exactly(cls, number: float) -> Self:
        return cls(number)

    @staticmethod
    def parser(option: str) -> Callable[[str], int]:
        """A parser of `20/s` or `20`."""

        def read(text: str) -> int:
            word = text.strip().removesuffix("/s")
            try:
                steps = float(word) / RATE_STEP_PER_S
            except ValueError:
                steps = 0.0
            is_in_range = 1 <= steps <= MAX_RATE_PER_S / RATE_STEP_PER_S
            if not is_in_range or abs(steps - round(steps)) > ROUNDING:
                raise ConfigError(
                    f"{option} is {text!r}: expected requests per second, from "
                    f"{RATE_STEP_PER_S:g}/s up in steps of it; try {option} {_rate_meant(word)}/s."
                )
            return round(steps)

        return read

    @staticmethod
    def digits(number: float) -> str:
        return f"{number:,}"

    @staticmethod
    def noun(number: float, one: str, many: str) -> str:  # noqa: ARG004 - 1 requests/s, too
        return many

    @staticmethod
    def floor(number: float) -> float:
        return math.floor(STEPS_PER_UNIT * number) / STEPS_PER_UNIT

    @property
    def count(self) -> int:
        return round(self.per_s / RATE_STEP_PER_S)

    @property
    def number(self) -> Number:
        return whole_or(self.per_s)

    @property
    def users(self) -> int:
        return 0

    @property
    def rate_per_s(self) -> float:
        return self.per_s

    def in_flight(self, response_s: float) -> float:
        return self.per_s * response_s

    def __str__(self) -> str:
        return f"{self.per_s:g} requests/s"


def _rate_meant(word: str) -> str:
    """The number of a rate in other words, in steps: 3 of `3rps`, and of `180/min`; else 20."""
    number = re.match(r"[0-9]{1,6}(\.[0-9]{1,6})?", word, re.ASCII)
    by_minute = re.search(r"(/|per ?)(m|min|minute)$", word)
    if number is None:
        return "20"
    per_s = float(number[0])
    if by_minute:
        per_s /= 60
    if not per_s:
        return "20"
    steps = max(round(per_s / RATE_STEP_PER_S), 1)
    return f"{steps * RATE_STEP_PER_S:g}"


def recorded_load(users: int, rate_per_s: float) -> Load:
    """Of the two columns that files have."""
    return Rate(rate_per_s) if rate_per_s else Users(users)


@dataclass(frozen=True, slots=True)
class LoadUnit:
    """What all levels of a run count."""

    load: type[Load]
    one: str  # in a result's `unit` and in sentences
    many: str
    short_one: str  # in tables, where a concurrent request is a user
    short_many: str  # in tables, and the unit of a knee
    title: str  # of a column of tables
    plotted: str  # what figures are drawn against
    in_server: str  # what the server has so many of

    def of_count(self, count: int) -> Load:
        return self.load.of_count(count)

    def number(self, count: int) -> Number:
        """The level that a search calls `count`: users, or requests per second."""
        return self.load.of_count(count).number

    @property
    def by_schedule(self) -> bool:
        """Whether it is an open loop."""
        return self.of_count(1).by_schedule

    def text(self, number: float) -> str:
        """`16 concurrent requests`, `1 session`, `20 requests/s`."""
        return f"{self.load.digits(number)} {self.load.noun(number, self.one, self.many)}"

    def list_text(self, numbers: Iterable[float]) -> str:
        """`8 concurrent requests`, `5, 10 and 20 requests/s`: each number once."""
        once = list(dict.fromkeys(numbers))
        if len(once) == 1:
            return self.text(once[0])
        *others, last = map(self.load.digits, once)
        return f"{', '.join(others)} and {last} {self.many}"

    def short(self, number: float) -> str:
        """`16 users`, `1 session`, `20 requests/s`."""
        return f"{self.load.digits(number)} {self.short_noun(number)}"

    def short_noun(self, number: float) -> str:
        """`users`, `session`, `requests/s`."""
        return self.load.noun(number, self.short_one, self.short_many)


CONCURRENT: Final = LoadUnit(
    Users,
    one="concurrent request",
    many="concurrent requests",
    short_one="user",
    short_many="users",
    title="Users",
    plotted="users",
    in_server="users",
)
THINKING: Final = replace(CONCURRENT, one="user", many="users")
SESSIONS: Final = LoadUnit(
    Users,
    one="session",
    many="sessions",
    short_one="session",
    short_many="sessions",
    title="Sessions",
    plotted="sessions",
    in_server="sessions",
)
REQUESTS_PER_S: Final = LoadUnit(
    Rate,
    one="request/s",
    many="requests/s",
    short_one="request/s",
    short_many="requests/s",
    title="Rate, 1/s",
    plotted="rate",
    in_server="in flight",
)
UNITS: Final = (CONCURRENT, THINKING, SESSIONS, REQUESTS_PER_S)


UNIT_OF_OPTION: Final = {unit.load.option: unit for unit in (CONCURRENT, REQUESTS_PER_S)}


def unit_named(text: str) -> LoadUnit:
    """Of a name in a result: its `unit`, or that of its knee."""
    return next((unit for unit in UNITS if text in (unit.one, unit.short_many)), CONCURRENT)


def unit_of_users(*, talk: bool, pause: bool) -> LoadUnit:
    """Of a closed loop: users who pause are more than their requests."""
    if talk:
        return SESSIONS
    return THINKING if pause else CONCURRENT
