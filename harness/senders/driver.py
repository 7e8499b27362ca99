"""One process's sender: its reader, its request numbers, its pace, and where its records go.

Records do not pass through it: the reader's decoder appends them to the run folder, where this
machine sees it, and sends them to the master. Without a master they come back to `put`.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import gevent
from gevent.event import Event

from harness.errors import MeasurementInvalid
from harness.load.arrivals import Due, Schedule, Stripe
from harness.load.conversations import Talk
from harness.load.own_data import DataSource
from harness.load.plan import RequestSpec, plan, seeded_random
from harness.reader.client_connection import Place
from harness.reader.clock import CLOCK
from harness.reader.raw_batch import Output
from harness.reader.reader import Reader
from harness.records import names
from harness.records.folder_writer import SendJournal
from harness.records.redact import redact_text
from harness.records.request_record import Outcome, RequestRecord, request_id
from harness.senders.drive_options import DriveOptions, request_bytes
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from harness.reader.open_stream import Exchange

LEAST_STAGGER_S: Final = 0.3  # new users start spread over this at least
MOST_STAGGER_S: Final = 10.0
START_S: Final = 0.001  # from one user's start to the next's: a start costs half of it
MOST_PASSES: Final = 1 << 20  # over the rows of own data, in a level
FAILED_PAUSE_S: Final = 5.0  # the controller sees meanwhile that everything fails
SMOOTHING: Final = 0.1  # weight of the latest request in the mean service time


class Driver:
    """Sends requests for any number of users. Numbers count from 0 without gaps."""

    def __init__(
        self,
        options: DriveOptions,
        worker: int,
        put: Callable[[list[RequestRecord]], None] | None = None,
        master: tuple[str, int, str] | None = None,
    ) -> None:
        """`worker`: Locust's index of this process, 0 of the only one.

        `put` takes records and parts on this loop; or they go to the `master` (host, port, and this
        worker's id there).
        """
        self.options = options
        self.worker = worker
        self.issued = 0  # requests begun
        self.users = 0
        self._sent_by: Counter[int] = Counter()  # requests of each user, the next one's number
        known: dict[str, Any] = {"workload": options.workload, "calibration": options.calibration}
        self._data = DataSource(**options.data, **known) if options.data else None
        due = (self._data.due_ns,) if self._data else ()
        self.stripe = Stripe(options.arrivals, options.seed, worker, options.processes, *due)
        self._words = options.salt or options.run_id  # what makes prompts new to the server
        self.told = Event()  # of another schedule
        self._batch_end = 0  # `issued` when all requests of this batch are begun
        self._failed = 0  # requests that failed one after another
        self._resumes_s = 0.0  # when a pause after too many of them is over
        self.mean_s = 0.0  # service time, smoothed
        self.on_trouble: Callable[[str], None] = lambda _: None
        self._put, self._master = put, master
        self._talks: dict[int, Talk] = {}  # by user, if they think or have sessions
        self._ended_before = 0  # by readers before this one
        self._next_start_s = 0.0
        self._access = options.access()
        talk = options.workload.conversation
        self._real = talk is not None and talk.replies == "real"
        self._journal: SendJournal | None = None
        self._reader: Reader | None = None
        self._ready = False  # the first reader runs, or ran
        self._figures: dict[str, Any] = {}
        self._trouble = ""

    @property
    def ended(self) -> int:
        """Whole records that are where records go."""
        return self._ended_before + (self._reader.link.ended if self._reader is not None else 0)

    @property
    def trouble(self) -> str:
        """Why what was recorded must not be believed; "" as long as it may."""
        return self._trouble or (self._reader.link.trouble if self._reader is not None else "")

    def new_user(self) -> int:
        """A number for a user, unique in the run. The first after a batch begins the next."""
        if self.batch_sent:
            self._batch_end = self.issued + self.options.batch
        self.users += 1
        first, step = self.worker, self.options.processes
        if first >= step:  # a worker of Locust's that joined in the middle: no number is like its
            first, step = first << 32, 1
        return first + (self.users - 1) * step

    def forget(self, user: int) -> None:
        """It has left: its number is never used again, and the texts of its session are large."""
        self._talks.pop(user, None)
        self._sent_by.pop(user, None)

    @property
    def batch_sent(self) -> bool:
        """Whether users have nothing left to send, and wait for the end of their batch."""
        return bool(self.options.batch) and self.issued >= self._batch_end

    @property
    def pauses(self) -> bool:
        """Whether users wait, as too many requests failed one after another."""
        return time.monotonic() < self._resumes_s

    def _count_failures(self, outcome: Outcome) -> None:
        limit = self.options.most_failures
        self._failed = 0 if outcome is Outcome.ok else self._failed + 1
        if 0 < limit <= self._failed:
            self._failed = 0
            self._resumes_s = time.monotonic() + FAILED_PAUSE_S

    def stagger_s(self, user: int) -> float:
        """How long a new user waits before its first request.

        Locust starts a second's users at once; without this they would stay in lockstep and each
        level would begin with a wave. Spread over about one service time they come as they will,
        and never so many at once that starting them keeps this process from its reads.
        """
        think = self.options.workload.think_ms
        pause_s = think.mean * MS / SECOND if think else 0.0  # a user may begin with what is left
        window = min(max(self.mean_s, LEAST_STAGGER_S), MOST_STAGGER_S) + pause_s
        window *= not self.options.batch
        drawn = window * seeded_random(self.options.seed, "stagger", user).random()
        now = time.monotonic()
        self._next_start_s = max(self._next_start_s, now) + START_S
        return max(drawn, self._next_start_s - now)

    def next_spec(self, user: int) -> RequestSpec | None:
        """What the user's next request asks for; None when the run's requests are all begun."""
        o, number, words = self.options, self._sent_by[user], self._words
        if self.batch_sent or 0 <= o.quota(self.worker) <= self.issued:
            return None
        if self._data is not None:
            return self._data.spec(self.issued * o.processes + self.worker)
        self._sent_by[user] += 1
        if o.batch:  # the same lengths, so that the times of batches compare, in new words
            user, words, number = 0, f"{words}/{self.issued // o.batch}", self.issued % o.batch
        if o.workload.conversation or o.workload.think_ms:
            if user not in self._talks:
                self._talks[user] = Talk(o.workload, o.seed, user, o.calibration, words)
            return self._talks[user].next_spec(CLOCK.now_ns())
        return plan(o.workload, o.seed, user, number, o.calibration, run_id=words)

    def due_spec(self, due: Due) -> RequestSpec:
        """What a request of the schedule asks for, whichever process sends it."""
        o = self.options
        if self._data is not None:  # each level begins with row 0, in a pass with a salt of its own
            return self._data.spec(due.number + due.level * MOST_PASSES * len(self._data))
        sender = f"schedule {due.level}"
        return plan(o.workload, o.seed, sender, due.number, o.calibration, run_id=self._words)

    def tell(self, schedule: Schedule) -> None:
        self.stripe.tell(schedule)
        self.told.set()

    def drop(self, due: Due, spec: RequestSpec) -> None:
        """Record a request that was due while too many were in flight, and send nothing."""
        reader = self.start()
        reader.drop(self._begin(), due.number, spec.output_tokens, due.at_ns)

    def request(self, user: int, api: str, spec: RequestSpec, scheduled_ns: int = -1) -> Exchange:
        """Send one request and block this greenlet until it has ended; its record follows."""
        reader = self.start()
        number = self.issued
        name = request_id(self.options.run_id, self.worker, number)
        prompt = spec.prompt_tokens if self._data is None else -1  # of own data, an estimate
        planned = (
            spec.session,
            spec.turn,
            spec.think_ns,
            spec.new_tokens,
            spec.mix_row,
            prompt,
        )
        session = f"{user}-{spec.session}" if spec.session >= 0 else str(user)
        who = {"request_id": name, "user": str(user), "session": session}
        data = request_bytes(self.options, self._access, api, spec, **who)
        self._begin()  # only now: a body that is no JSON has failed, and no number is lost
        real = self._real and spec.session >= 0
        sent = reader.request(
            data,
            number,
            user,
            spec.output_tokens,
            scheduled_ns,
            plan=planned,
            keep_text=spec.keep_text or real,
        )
        if sent.error:  # Locust shows it to everybody
            sent = replace(sent, error=redact_text(sent.error, self._access.secrets))
        if user in self._talks:
            self._talks[user].ended(sent.text if real else "", ok=sent.outcome is Outcome.ok)
        self._count_failures(sent.outcome)
        if sent.outcome is Outcome.ok:
            weight = SMOOTHING if self.mean_s else 1.0
            self.mean_s += weight * (sent.e2e_ns / SECOND - self.mean_s)
        return sent

    def _begin(self) -> int:
        """The next request's number. It counts as sent from now on, whatever becomes of us."""
        number = self.issued
        if self._journal is not None:
            self._journal.count(number + 1)
        self.issued = number + 1
        return number

    def start(self) -> Reader:
        """The process's one reader, created when it is first asked for: never before a fork.

        Everybody waits until all of it runs. Raises MeasurementInvalid when its decoder does not.
        """
        reader = self._reader
        if reader is None:
            if self._master is not None and not self._ready:
                self._set_clock(self._master)
            address = self._access.address
            tls = self._access.tls_context() if address.tls else None
            place = Place(address.host, address.port, tls, self.options.timeouts)
            reader = Reader(self.worker, self._put, place, output=self._output())
            # may be set after the start
            reader.link.on_trouble = lambda why: self.on_trouble(why)  # noqa: PLW0108 - as it is then
            self._reader = reader
        if not reader.link.ready():
            raise MeasurementInvalid(reader.link.trouble)
        self._ready = True
        return reader

    def _set_clock(self, master: tuple[str, int, str]) -> None:
        """By the master's, whose windows our records are put into; before there are any."""
        from harness.reader.master_stream import MasterStream  # noqa: PLC0415 - pyzmq: only here

        stream = MasterStream(Output(anchor_ns=CLOCK.anchor_ns), master)
        CLOCK.shift(stream.ask_clock())
        stream.close()

    def _output(self) -> Output:
        """For the decoder: its file is in the run folder, or on another host in one of our own."""
        o, folder, run = self.options, Path(self.options.run_folder), ""
        shared = not o.run_folder or (folder / names.RUN).is_file()
        if not shared:
            folder, run = Path(names.WORKER_FOLDER), o.run_id
        file = ""
        if o.run_folder and (shared or run):
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                self._journal = SendJournal(folder / names.sends(self.worker, run), self.issued)
                file = str(folder.absolute() / names.records(self.worker, run))
        return Output(
            file, self._access.secrets, self.worker, o.run_id, self._master, CLOCK.anchor_ns, shared
        )

    def missing(self) -> dict[int, int]:
        lost = self.issued - self.ended
        return {self.worker: lost} if lost else {}

    @property
    def known_ns(self) -> int:
        """All that happened in this process before this instant is where records go.

        0: it is not ready yet.
        """
        if self._reader is not None:
            return self._reader.link.known_ns
        return CLOCK.now_ns() if self._ready else 0

    def figures(self) -> dict[str, Any]:
        """What this process says about its own measuring: the reader's figures."""
        if self._reader is not None:
            self._figures = self._reader.figures()
        return self._figures

    def close(self) -> None:
        """Stop the reader; what is open becomes `cancelled`. Harmless when repeated."""
        if self._reader is not None:
            self.figures()
            self._reader.close()
            self._trouble = self.trouble
            self._ended_before, self._reader = self.ended, None
            if self._journal is not None:
                self._journal.close()
                self._journal = None

    def flush(self, timeout_s: float) -> bool:
        """Wait until every request begun is recorded; call it when no user runs any more."""
        until = time.monotonic() + timeout_s
        while self._reader is not None and not self.trouble:
            flushed = self._reader.link.flush(until - time.monotonic())
            if (flushed and self.ended >= self.issued) or time.monotonic() >= until:
                break
            gevent.sleep(0.02)
        return self.ended >= self.issued
