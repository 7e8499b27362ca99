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
from harness.load.plan import RequestSpec, plan
from harness.reader.client_connection import Place
from harness.reader.clock import CLOCK
from harness.reader.raw_batch import Output
from harness.reader.reader import Reader
from harness.records import names
from harness.records.folder_writer import SendJournal
from harness.records.redact import redact_text
from harness.records.request_record import Outcome, RequestRecord, request_id
from harness.senders.drive_options import DriveOptions, request_bytes
from harness.senders.stagger import Stagger
from harness.units import SECOND

if TYPE_CHECKING:
    from harness.reader.open_stream import Exchange

MOST_PASSES: Final = 1 << 20  # over the rows of own data, in a level
FAILED_PAUSE_S: Final = 5.0  # the controller sees meanwhile that everything fails
ASK_S: Final = 0.02  # between two looks whether every request is recorded


def _data_source(options: DriveOptions) -> DataSource | None:
    """None: the workload is planned."""
    if not options.data:
        return None
    known: dict[str, Any] = {"workload": options.workload, "calibration": options.calibration}
    return DataSource(**options.data, **known)


def _stripe(options: DriveOptions, worker: int, data: DataSource | None) -> Stripe:
    given = (options.arrivals, options.seed, worker, options.processes)
    if data:
        return Stripe(*given, data.due_ns)
    return Stripe(*given)


class _FailurePause:
    """A pause after too many requests that failed one after another."""

    def __init__(self, most_failures: int) -> None:
        """`most_failures` 0: never."""
        self._most_failures = most_failures
        self._n_failed = 0  # one after another
        self._ends_s = 0.0

    @property
    def is_on(self) -> bool:
        return time.monotonic() < self._ends_s

    def count(self, *, is_ok: bool) -> None:
        self._n_failed = 0 if is_ok else self._n_failed + 1
        if 0 < self._most_failures <= self._n_failed:
            self._n_failed = 0
            self._ends_s = time.monotonic() + FAILED_PAUSE_S


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
        self._data = _data_source(options)
        self.stripe = _stripe(options, worker, self._data)
        self._words = options.salt or options.run_id  # what makes prompts new to the server
        self.has_new_schedule = Event()
        self._batch_end = 0  # `issued` when all requests of this batch are begun
        self._failure_pause = _FailurePause(options.most_failures)
        self._stagger = Stagger(options)
        self.on_trouble: Callable[[str], None] = lambda _: None
        self._put = put
        self._master = master
        self._talks: dict[int, Talk] = {}  # by user, if they think or have sessions
        self._ended_before = 0  # by readers before this one
        self._access = options.access()
        conversation = options.workload.conversation
        self._has_real_replies = conversation is not None and conversation.replies == "real"
        self._journal: SendJournal | None = None
        self._reader: Reader | None = None
        self._ready = False  # the first reader runs, or ran
        self._figures: dict[str, Any] = {}
        self._trouble = ""

    @property
    def ended(self) -> int:
        """Whole records that are where records go."""
        if self._reader is None:
            return self._ended_before
        return self._ended_before + self._reader.link.ended

    @property
    def trouble(self) -> str:
        """Why what was recorded must not be believed; "" as long as it may."""
        if self._trouble or self._reader is None:
            return self._trouble
        return self._reader.link.trouble

    def new_user(self) -> int:
        """A number for a user, unique in the run. The first after a batch begins the next."""
        if self.batch_sent:
            self._batch_end = self.issued + self.options.batch
        nth = self.users
        self.users += 1
        # Interleaved: no two processes share a number, and none has to ask another.
        if self.worker < self.options.processes:
            return self.worker + nth * self.options.processes
        # A worker of Locust's that joined in the middle: nobody else has numbers like its.
        return (self.worker << 32) + nth

    def forget(self, user: int) -> None:
        """It has left: its number is never used again, and the texts of its session are large."""
        self._talks.pop(user, None)
        self._sent_by.pop(user, None)
        self._stagger.forget(user)

    @property
    def batch_sent(self) -> bool:
        """Whether users have nothing left to send, and wait for the end of their batch."""
        return bool(self.options.batch) and self.issued >= self._batch_end

    @property
    def pauses(self) -> bool:
        """Whether users wait, as too many requests failed one after another."""
        return self._failure_pause.is_on

    def stagger_s(self, user: int) -> float:
        """How long a new user waits before it asks this again; 0: it sends its first request."""
        return self._stagger.wait_s(user)

    def next_spec(self, user: int) -> RequestSpec | None:
        """What the user's next request asks for; None when the run's requests are all begun."""
        options = self.options
        quota = options.quota(self.worker)  # below 0: without end
        is_used_up = 0 <= quota <= self.issued
        if self.batch_sent or is_used_up:
            return None
        if self._data is not None:
            # The processes deal the rows out in turn, without a word to each other.
            row = self.issued * options.processes + self.worker
            return self._data.spec(row)
        sender = user
        number = self._sent_by[user]
        words = self._words
        self._sent_by[user] += 1
        if options.batch:  # the same lengths, so that the times of batches compare, in new words
            batch, number = divmod(self.issued, options.batch)
            sender = 0
            words = f"{words}/{batch}"
        if options.workload.conversation or options.workload.think_ms:
            return self._talk(sender, words).next_spec(CLOCK.now_ns())
        return self._plan(sender, number, words)

    def _talk(self, sender: int, words: str) -> Talk:
        if sender not in self._talks:
            o = self.options
            self._talks[sender] = Talk(o.workload, o.seed, sender, o.calibration, words)
        return self._talks[sender]

    def _plan(self, sender: int | str, number: int, words: str) -> RequestSpec:
        o = self.options
        return plan(o.workload, o.seed, sender, number, o.calibration, run_id=words)

    def due_spec(self, due: Due) -> RequestSpec:
        """What a request of the schedule asks for, whichever process sends it."""
        if self._data is not None:  # each level begins with row 0, in a pass with a salt of its own
            first_row = due.level * MOST_PASSES * len(self._data)
            return self._data.spec(first_row + due.number)
        return self._plan(f"schedule {due.level}", due.number, self._words)

    def tell(self, schedule: Schedule) -> None:
        self.stripe.tell(schedule)
        self.has_new_schedule.set()

    def drop(self, due: Due, spec: RequestSpec) -> None:
        """Record a request that was due while too many were in flight, and send nothing."""
        reader = self.start()
        number = self._begin()
        # With a number like any other: the numbers of records have no gaps, so that losses can be
        # counted.
        reader.drop(number, due.number, spec.output_tokens, due.at_ns)

    def request(self, user: int, api: str, spec: RequestSpec, scheduled_ns: int = -1) -> Exchange:
        """Send one request and block this greenlet until it has ended; its record follows."""
        reader = self.start()
        number = self.issued
        has_session = spec.session >= 0
        # Without sessions a user is one: a gateway that routes by session sees as many as users.
        session = f"{user}-{spec.session}" if has_session else str(user)
        data = request_bytes(
            self.options,
            self._access,
            api,
            spec,
            request_id=request_id(self.options.run_id, self.worker, number),
            user=str(user),
            session=session,
        )
        # Only now: where a body is no JSON, request_bytes has failed, and no number is lost. No
        # other greenlet has run since `number` was read.
        self._begin()
        needs_reply = self._has_real_replies and has_session
        sent = reader.request(
            data,
            number,
            user,
            spec.output_tokens,
            scheduled_ns,
            plan=self._recorded_plan(spec),
            keep_text=spec.keep_text or needs_reply,
        )
        if sent.error:  # Locust shows it to everybody
            sent = replace(sent, error=redact_text(sent.error, self._access.secrets))
        is_ok = sent.outcome is Outcome.ok
        if user in self._talks:
            reply = sent.text if needs_reply else ""  # "": the planned answer stays
            self._talks[user].ended(reply, ok=is_ok)
        self._failure_pause.count(is_ok=is_ok)
        if is_ok:
            self._stagger.note_service_time(sent.e2e_ns / SECOND)
        return sent

    def _recorded_plan(self, spec: RequestSpec) -> tuple[int | str, ...]:
        """What the record says of the plan, in the order that the reader expects."""
        prompt_tokens = spec.prompt_tokens if self._data is None else -1  # of own data, an estimate
        return (
            spec.session,
            spec.turn,
            spec.think_ns,
            spec.new_tokens,
            spec.mix_row,
            prompt_tokens,
            spec.name,
        )

    def _begin(self) -> int:
        """The next request's number. It counts as sent from now on, whatever becomes of us."""
        number = self.issued
        # First the count, then the request: of a process that is killed it is known what it began.
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
            output = self._output()
            reader = Reader(self.worker, self._put, place, output=output)
            # may be set after the start
            reader.link.on_trouble = lambda why: self.on_trouble(why)  # noqa: PLW0108 - as it is then
            self._reader = reader
        # Not only where it was made above: another user finds the reader while its decoder still
        # starts.
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
        options = self.options
        folder = Path(options.run_folder)
        run = ""
        # On another machine the same path is missing, or is a folder without the master's run.json.
        is_shared = not options.run_folder or (folder / names.RUN).is_file()
        if not is_shared:
            folder = Path(names.WORKER_FOLDER)
            run = options.run_id
        file = ""
        if options.run_folder and (is_shared or run):
            # A folder that cannot be written ends no run: what has no file goes to the master.
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                sends = folder / names.sends(self.worker, run)
                self._journal = SendJournal(sends, self.issued)
                records = folder.absolute() / names.records(self.worker, run)
                file = str(records)
        return Output(
            file=file,
            secrets=self._access.secrets,
            worker=self.worker,
            run=options.run_id,
            master=self._master,
            anchor_ns=CLOCK.anchor_ns,
            shared=is_shared,
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
            # Only now, as it may be the end that shows that the decoder is lost.
            self._trouble = self.trouble
            self._ended_before = self.ended
            self._reader = None
            if self._journal is not None:
                self._journal.close()
                self._journal = None

    def flush(self, timeout_s: float) -> bool:
        """Wait until every request begun is recorded; call it when no user runs any more."""
        until_s = time.monotonic() + timeout_s
        while self._reader is not None and not self.trouble:
            left_s = until_s - time.monotonic()
            is_flushed = self._reader.link.flush(left_s)
            # A greenlet whose response is over says so a turn of the loop later: then there is
            # nothing to flush, and yet a request without a record.
            is_done = is_flushed and self.ended >= self.issued
            if is_done or time.monotonic() >= until_s:
                break
            gevent.sleep(ASK_S)
        return self.ended >= self.issued
