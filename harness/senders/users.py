"""Locust users that stream completions: subclass one, give it a task, use it from any locustfile.

    class Chat(ChatUser):
        @task
        def ask(self):
            self.send()                       # what the workload plans next
            self.send(prompt="Hello", output_tokens=32)   # or words of your own
            said = self.llm.send(messages=[...], body={"top_p": 0.9})  # and what came back

Each request fires Locust's `request` event once, when it has ended, so Locust's count and rate are
those of requests; its context has the TTFT and the output tokens. All token latencies go to the
records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn
from weakref import WeakKeyDictionary

import gevent
from gevent.pool import Group
from locust import User, task
from locust.exception import StopUser
from locust.user.task import LOCUST_STATE_STOPPING, LOCUST_STATE_WAITING

from harness.errors import ConfigError
from harness.load.plan import NO_FIELDS, RequestSpec
from harness.load.request_fields import CHAT_APIS, OWN_FIELDS
from harness.load.workloads import API_PATHS
from harness.reader.clock import CLOCK
from harness.reader.open_stream import Exchange
from harness.records.request_record import Outcome
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from locust.env import Environment

    from harness.load.arrivals import Due
    from harness.senders.drive_options import DriveOptions
    from harness.senders.driver import Driver


REFUSED_S: Final = 0.1
MAX_NAME: Final = 100  # characters
WAIT_S: Final = 0.2  # between two looks whether a batch, or the run, is over
# Locust makes users with nothing but their environment: they find their driver here.
_drivers: WeakKeyDictionary[Environment, Driver | None] = WeakKeyDictionary()


def register(environment: Environment, driver: Driver | None) -> None:
    """From now on `driver` sends for the users of `environment`.

    None: nothing can be sent, and the reason was said; users leave without a request.
    """
    _drivers[environment] = driver


class RequestFailed(Exception):  # noqa: N818 - Locust shows the name in its failures table
    """Why a request failed, for Locust's failures table: `timeout: no first token in 120 s`."""


class LlmClient:
    """`self.llm` of a user."""

    def __init__(self, user: StreamingUser) -> None:
        self._user = user

    def send(
        self,
        *,
        messages: Sequence[dict[str, Any]] = (),
        prompt: str = "",
        tools: Sequence[dict[str, Any]] = (),
        body: Mapping[str, Any] = NO_FIELDS,
        output_tokens: int | None = None,
        name: str = "",
    ) -> Exchange:
        """Send one request, wait for its end and return what came back, a failure too.

        `name`: as `StreamingUser.send` has it.

        `messages`, in OpenAI's form, or `prompt` take the place of what the workload plans next;
        what is not given stays as planned. `body` has fields of this request, over --body's.
        The answer is read in Python instead of C, and kept until it ends. Its `ttft_ms` and
        `e2e_ms` are from the reads and stamps that the record has, and count from the send.

        Raises ConfigError for what cannot be sent, StopUser as `StreamingUser.send` does.
        """
        user = self._user
        wrong = [f"body has {field!r}" for field in body if field in OWN_FIELDS]
        if (messages or tools) and (prompt or user.api not in CHAT_APIS):
            wrong.append(f"messages or tools are given with a prompt, or to a user of {user.api}")
        if wrong:
            _refuse(
                f"{', and '.join(wrong)}: expected a prompt, or the messages and tools of a "
                "ChatUser, and fields that the harness does not decide; try "
                "send(prompt=..., body={'top_p': 0.9})."
            )
        # also where its content is replaced: the pause and the length are the plan's
        spec = user.next_spec()
        if messages or prompt:
            # -1: how many tokens these are, and no session, whose turns they would not be
            spec = RequestSpec(
                prompt,
                -1,
                spec.output_tokens,
                messages=tuple(messages),
                tools=spec.tools,
                model=spec.model,
                think_ns=spec.think_ns,
            )
        if tools:  # how many tokens they add to the prompt is the server's to say
            spec = spec._replace(tools=tuple(tools), prompt_tokens=-1)
        if output_tokens is not None:
            spec = spec._replace(output_tokens=output_tokens)
        spec = spec._replace(body=body, keep_text=True)
        return user.send_spec(spec, name)


def _refuse(sentence: str) -> NoReturn:
    # Locust logs the error and calls the task again: without a pause, as fast as it can
    gevent.sleep(REFUSED_S)
    raise ConfigError(sentence)


class StreamingUser(User):
    """Sends streamed requests, one at a time. Abstract: `api` and tasks are a subclass's."""

    abstract = True
    api: ClassVar[str] = ""  # a key of API_PATHS; "": the workload's own
    workload: ClassVar[str] = ""  # unless --workload says another; "": the one called like the API
    tells_tokens: ClassVar[bool] = True  # in the `request` event: 40 us of each request

    def __init__(self, environment: Environment) -> None:
        """Join the process's driver. Raises ConfigError where nobody ever registered one."""
        super().__init__(environment)
        if environment not in _drivers:
            raise ConfigError(
                "this user has no driver: expected `from harness.locust import ChatUser` in the "
                "locustfile; try `vllm-harness locustfile chat` as a start."
            )
        self.driver = _drivers[environment]
        self.llm = LlmClient(self)
        self.number = -1
        self._think_ns = -1  # planned after the latest request
        self._leaving = False
        if not self.api and self.driver is not None:
            self.api = self.driver.options.workload.api  # type: ignore[misc]

    def on_start(self) -> None:
        """Wait a moment, each user its own: no lockstep."""
        if self.driver is not None:
            self.number = self.driver.new_user()
            while (wait_s := self.driver.stagger_s(self.number)) > 0:
                gevent.sleep(wait_s)

    def on_stop(self) -> None:
        """Locust's last call, however a user leaves."""
        if self.driver is not None:
            self.driver.forget(self.number)

    def stop(self, force: bool = False) -> bool:
        """As Locust has it, which raises when its end comes to a user that is being stopped."""
        if self._state == LOCUST_STATE_STOPPING and not force:
            return False
        # its pause may end before Locust's kill reaches it
        self._leaving = self._state == LOCUST_STATE_WAITING
        return bool(super().stop(force))

    def wait_time(self) -> float:
        """The workload's think time, in seconds; Locust waits that long between two tasks."""
        return max(self._think_ns, 0) / SECOND

    def send(
        self, prompt: str | None = None, output_tokens: int | None = None, name: str = ""
    ) -> Exchange:
        """Send one request and wait for its end; without a prompt, the workload's next.

        `name` is its row in Locust's statistics and in the report, and is in its record; "": the
        API's path, and no row in the report.

        Raises ConfigError for a name that cannot be kept, StopUser when the run's requests are used
        up, its target was refused or the run is over.
        """
        spec = self.next_spec()
        if prompt is not None:
            spec = RequestSpec(prompt, -1, spec.output_tokens)
        if output_tokens is not None:
            spec = spec._replace(output_tokens=output_tokens)
        return self.send_spec(spec, name)

    def next_spec(self) -> RequestSpec:
        """What the workload plans next. Raises StopUser."""
        spec = None
        if self.driver is not None:
            spec = self.driver.next_spec(self.number)
        if spec is None or self._leaving:
            raise StopUser
        return spec

    def send_spec(self, spec: RequestSpec, name: str = "") -> Exchange:
        """Send it and wait for its end, as `send` does."""
        if name and not (isinstance(name, str) and name.isprintable() and len(name) <= MAX_NAME):
            _refuse(
                f"name is {name!r:.120}: expected one line of text, of at most {MAX_NAME} "
                "characters; try send(name='summarize')."
            )
        self._think_ns = spec.think_ns
        sent = self._exchange(self.number, spec._replace(name=name or ""))
        if sent.outcome is Outcome.connect:
            # Connection refused: back off, or a dead server fills the run folder.
            gevent.sleep(REFUSED_S)
        if sent.outcome is Outcome.cancelled:
            # The reader was closed: there is none to go on with.
            raise StopUser
        return sent

    def _exchange(self, number: int, spec: RequestSpec, scheduled_ns: int = -1) -> Exchange:
        assert self.driver is not None  # noqa: S101 - who sends has one
        try:
            sent = self.driver.request(number, self.api, spec, scheduled_ns)
        except gevent.GreenletExit:  # Locust cuts this user off; its record says `cancelled`
            self._report(Exchange(Outcome.cancelled, 0, 0, "the harness stopped it"), spec.name)
            raise
        self._report(sent, spec.name)
        return sent

    def _report(self, sent: Exchange, name: str = "") -> None:
        """Fire Locust's `request` event; None in its context: not known."""
        failure = None
        if sent.outcome is not Outcome.ok:
            why = f"{sent.outcome.value}: {sent.error}".rstrip(": ")
            failure = RequestFailed(why)
        # A copy: what a subclass returns may be its own dict, the same one each time.
        context = {**self.context()}
        if self.tells_tokens:
            context["ttft_ms"] = sent.ttft_ms
            context["output_tokens"] = sent.output_tokens
        self.environment.events.request.fire(
            request_type="POST",
            name=name or API_PATHS[self.api],
            response_time=sent.e2e_ns / MS,
            response_length=sent.n_bytes,
            exception=failure,
            context=context,
        )


class ChatUser(StreamingUser):
    """Streams from /v1/chat/completions."""

    abstract = True
    api = "chat"


class CompletionsUser(StreamingUser):
    """Streams from /v1/completions."""

    abstract = True
    api = "completions"


class WorkloadUser(StreamingUser):
    """Streams from whichever API the workload is for."""

    abstract = True


class Pacer(StreamingUser):
    """Sends the requests of this process's schedule when they are due: one for each process.

    The number of Locust's users is then no load: each request has a greenlet of its own, and goes
    out whether or not others have ended.
    """

    abstract = True

    def on_start(self) -> None:
        """The schedule says when."""

    @task
    def pace(self) -> None:
        """Until the run is over; then requests in flight may end, or are cut off with this user."""
        driver = self.driver
        if driver is None:
            raise StopUser
        in_flight = Group()
        most_in_flight = driver.options.share(driver.options.max_in_flight, driver.worker)
        planned: Due | None = None
        try:
            while self._state != LOCUST_STATE_STOPPING:
                # Cleared before the look at the schedule: what comes after it ends the wait below.
                driver.has_new_schedule.clear()
                due = driver.stripe.ahead()
                if due is None:
                    driver.has_new_schedule.wait(WAIT_S)
                    continue
                if due != planned:  # before it is due: planning takes a while
                    spec = driver.due_spec(due)
                    planned = due
                wait_s = (due.at_ns - CLOCK.now_ns()) / SECOND
                if wait_s > 0:
                    driver.has_new_schedule.wait(min(wait_s, WAIT_S))
                    continue  # another schedule may have come first
                # Only now: while this waited for the instant, another schedule could still replace
                # it.
                driver.stripe.take()
                if len(in_flight) < most_in_flight:
                    in_flight.spawn(self._insist, due.number, spec, due.at_ns)
                else:
                    driver.drop(due, spec)
                    self._report(Exchange(Outcome.dropped, 0, 0, "too many in flight"))
                gevent.sleep(0)  # it goes out before the next one is planned
            in_flight.join()
        finally:
            in_flight.kill()

    def _insist(self, number: int, spec: RequestSpec, scheduled_ns: int) -> None:
        """Send a request; again, as a request of its own, where it fails and clients retry."""
        assert self.driver is not None  # noqa: S101 - who sends has one
        for _ in range(1 + self.driver.options.retries):
            sent = self._exchange(number, spec, scheduled_ns)
            if sent.outcome in (Outcome.ok, Outcome.cancelled):
                return
            scheduled_ns = CLOCK.now_ns()


def session_user(options: DriveOptions) -> type[StreamingUser]:
    """The concrete user of a session: sends what the workload plans, again and again."""
    api = options.workload.api
    if options.arrivals:
        members = {"abstract": False, "api": api, "tells_tokens": False}
        return type("RateUser", (Pacer,), members)

    class SessionUser(StreamingUser):
        abstract = False
        tells_tokens = False  # nobody listens

        @task
        def ask(self) -> None:
            # all of them in one task: between two, Locust would take as long as planning one
            while self._state != LOCUST_STATE_STOPPING:
                if self.driver is not None and (self.driver.batch_sent or self.driver.pauses):
                    gevent.sleep(WAIT_S)  # one that leaves now is replaced: Locust counts on it
                else:
                    self.send()
                    if self._think_ns > 0:
                        self.wait()  # as between tasks: a user who thinks may leave at once

    SessionUser.api = api
    return SessionUser
