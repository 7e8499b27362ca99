"""Which cells are measured: CELLS of `make bench`, QUICK of `make bench-quick`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from clients import SPREAD_S, Load
from servers import FIRST_MS, Pace

ALL: Final = ("C client", "vllm-harness", "Locust HttpUser", "vllm bench")
TWO: Final = ALL[:2]
STREAMS: Final = (16, 64, 512, 1024, 2048)
LONG_S, SHORT_S = 8.0, 5.0  # of load, about


@dataclass(frozen=True, slots=True)
class Cell:
    """One load and who is measured on it, the C client first: it gives the ceiling."""

    streams: int
    gap_ms: float = 20.0
    per_event: int = 1
    burst: bool = False
    api: str = "chat"
    server: str = "paced"  # or `engine`, `tls`
    clients: tuple[str, ...] = TWO
    seconds: float = SHORT_S
    tokens: int = 128

    @property
    def name(self) -> str:
        """For people."""
        start = "burst" if self.burst else "staggered"
        parts = [f"{self.streams} streams", f"{self.gap_ms:g} ms", start]
        if self.per_event > 1:
            parts.insert(2, f"{self.per_event} tokens an event")
        parts += [what for what in (self.api, self.server) if what not in ("chat", "paced")]
        return ", ".join(parts)

    @property
    def request_s(self) -> float:
        """How long a request takes at this pace."""
        events = -(-self.tokens // self.per_event)
        return (FIRST_MS + (events - 1) * self.gap_ms) / 1e3

    @property
    def load(self) -> Load:
        """At least two rounds: a client meets the end of a burst with the next."""
        rounds = max(2, round(self.seconds / self.request_s))
        return Load(self.streams, rounds, self.tokens, self.api, self.burst)

    @property
    def pace(self) -> Pace:
        """What the server is told."""
        return Pace(self.gap_ms, self.per_event, self.streams if self.burst else 0)

    @property
    def asked_per_s(self) -> float:
        """Tokens per second if nobody is late."""
        load = self.load
        wall_s = load.rounds * self.request_s + (0.0 if self.burst else SPREAD_S)
        return load.requests * load.tokens / wall_s


QUICK: Final = (
    Cell(64, clients=ALL[:3], seconds=LONG_S),
    Cell(512, clients=ALL),
    Cell(512, burst=True),
    Cell(2048),
)

CELLS: Final = (
    *(Cell(n, clients=ALL if n in (64, 512) else TWO, seconds=LONG_S) for n in STREAMS),
    *(Cell(n, burst=True) for n in STREAMS),
    *(Cell(n, per_event=4, burst=burst) for burst in (False, True) for n in STREAMS),
    *(
        Cell(n, 5.0, per_event, burst=burst)
        for per_event in (1, 4)
        for burst in (False, True)
        for n in STREAMS
    ),
    Cell(512, api="completions"),
    Cell(64, server="engine"),
    Cell(512, server="tls", clients=("vllm-harness",)),
)

# Memory: a million tokens against a sixteenth of it, on the same number of streams: half of it in
# answers under way at once; then one and five millions in answers of the usual length.
MEMORY: Final = tuple(
    Cell(512, clients=("vllm-harness",), tokens=tokens, seconds=seconds)
    for tokens, seconds in ((64, 2.8), (1024, 41.0), (128, 42.0), (128, 210.0))
)
