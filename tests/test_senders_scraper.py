"""When readings begin: once a second, in simulated time."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from harness.senders import scraper
from harness.units import MS


class Time:
    """A clock that moves only while somebody sleeps or reads."""

    def __init__(self) -> None:
        self.ms = 0

    def now_ns(self) -> int:
        return self.ms * MS

    def sleep(self, seconds: float) -> None:
        self.ms += round(seconds * 1000)


@pytest.mark.parametrize(
    ("took_ms", "began_ms"),
    [
        # each is due a second after the one before it was, however long that one took
        ((100, 300, 100), [0, 1000, 2000]),
        # one took until 6,300: the next comes after a pause of 50, and those missed never
        ((100, 5300, 100, 100, 100), [0, 1000, 6350, 7300, 8300]),
    ],
)
def test_readings_that_were_missed_are_not_caught_up_with(
    took_ms: tuple[int, ...], began_ms: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that hung is not asked for all of them at once when it answers again."""
    time = Time()
    monkeypatch.setattr(scraper, "CLOCK", time)
    monkeypatch.setattr(scraper, "gevent", SimpleNamespace(sleep=time.sleep))
    left_ms = iter(took_ms)
    began = []

    def read() -> None:
        began.append(time.ms)
        time.ms += next(left_ms)

    readings = scraper.once_a_second(read)
    for _ in took_ms:
        next(readings)
    assert began == began_ms
