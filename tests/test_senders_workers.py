"""Workers that connect late, and that never answer: Locust's own runners and sockets."""

from __future__ import annotations

import time
from argparse import Namespace
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import gevent
import pytest
from gevent.pool import Group
from locust import User, task
from locust.env import Environment
from locust.event import Events
from locust.exception import StopUser
from locust.runners import STATE_MISSING, STATE_RUNNING, WorkerNode

from harness.load.plan import RequestSpec
from harness.load.workloads import WORKLOADS
from harness.reader.transport import BEAT
from harness.senders import relay
from harness.senders.drive_options import DriveOptions
from harness.senders.driver import Driver
from harness.senders.load_runner import Dispatcher, LoadRunner
from harness.senders.users import ChatUser, LlmClient, StreamingUser, register

if TYPE_CHECKING:
    from collections.abc import Callable

    from locust.runners import WorkerRunner

pytestmark = pytest.mark.process
USERS = 6


class Idle(User):
    """Sends nothing."""

    @task
    def wait(self) -> None:
        """Until it is stopped."""
        gevent.sleep(60)


def environment() -> Environment:
    """One of a process of its own."""
    return Environment(user_classes=[Idle], events=Events(), dispatcher_class=Dispatcher)


def spread(want: list[list[int]]) -> list[list[int]]:
    """Users of each worker, once they are `want` or 5 s have passed; a worker joins each time."""
    master = environment().create_master_runner("127.0.0.1", 0)
    workers: list[WorkerRunner] = []
    found = []
    for expected in want:
        workers.append(environment().create_worker_runner("127.0.0.1", master.server.port))
        while master.worker_count < len(workers):
            gevent.sleep(0.01)
        if len(workers) == 1:
            master.start(USERS, USERS)
        until = time.monotonic() + 5
        while [w.user_count for w in workers] != expected and time.monotonic() < until:
            gevent.sleep(0.01)
        found.append([w.user_count for w in workers])
    for worker in workers:
        worker.stop()
        worker.greenlet.kill(block=True)
    master.greenlet.kill(block=True)
    return found


def test_a_worker_that_connects_later_gets_its_share() -> None:
    """Each of them, and not only the first: what Locust's own dispatcher does for one worker."""
    want = [[6], [3, 3], [2, 2, 2]]
    assert spread(want) == want


def test_the_end_does_not_wait_for_the_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that does not answer is waited for, but not once it is known to be dead."""
    monkeypatch.setattr(relay, "FLUSH_S", 600.0)
    master = environment().create_master_runner("127.0.0.1", 0)
    end = relay.MasterRelay(master, lambda _: None, lambda *_: None)
    port = master.server.port
    good = environment().create_worker_runner("127.0.0.1", port)
    bad = environment().create_worker_runner("127.0.0.1", port)
    good.register_message(
        relay.FINISH, lambda **_: good.send_message(relay.FINISHED, {"worker": good.worker_index})
    )
    while master.worker_count < 2:
        gevent.sleep(0.01)
    dead: list[WorkerRunner] = []
    finishing = gevent.spawn(end.finish, 0.0, lambda: len(dead))
    finishing.join(5 * relay.TICK_S)
    assert not finishing.ready()
    dead.append(bad)
    finishing.join(5)
    assert finishing.ready()
    for runner in (good, bad, master):
        runner.greenlet.kill(block=True)


def test_users_wait_for_a_driver_that_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The master may begin a test while a worker's decoder starts: its users find their driver."""
    monkeypatch.setattr(Driver, "start", lambda _: gevent.sleep(0.1))
    one = environment()
    one.create_local_runner()
    load = LoadRunner(one)
    options = DriveOptions(url="http://127.0.0.1:9", workload=WORKLOADS["chat"], model="m")
    load.attach_session(options, [], interrupt=lambda: None, on_stopping=lambda: None)
    starting = gevent.spawn(load.drive, options)
    gevent.idle()
    load.on_test_start()
    assert starting.dead
    assert StreamingUser(one).driver is load.driver


class Planner(ChatUser):
    """Plans one request and leaves; the first one stays until it is stopped."""

    abstract = True

    @task
    def ask(self) -> None:
        """Sends nothing."""
        self.next_spec()
        if self.number:
            raise StopUser
        gevent.sleep(60)


def test_a_user_who_has_left_takes_no_memory() -> None:
    """However it leaves: the texts of its session are gone, those of others are not."""
    one = environment()
    group = Group()
    work = replace(WORKLOADS["conversation"], think_ms=None)
    driver = Driver(DriveOptions(url="http://127.0.0.1:9", workload=work, model="m"), 0)
    register(one, driver)
    users = [Planner(one) for _ in range(3)]
    for user in users:
        user.start(group)
    while len(group) > 1 or users[0].number not in driver._talks:  # noqa: SLF001 - its memory
        gevent.sleep(0.01)
    assert [*driver._talks] == [*driver._sent_by] == [0]  # noqa: SLF001 - as above
    users[0].stop(force=True)
    group.join()
    assert driver.users == 3
    assert list(driver._talks) == []  # noqa: SLF001
    assert list(driver._sent_by) == []  # noqa: SLF001


class Clients(dict[str, WorkerNode]):
    """Locust's, as far as they are asked here."""

    @property
    def all(self) -> list[WorkerNode]:
        return [*self.values()]


class Master:
    """A runner of five workers: of those that are asked to finish `c` is silent, `d` leaves."""

    def __init__(self) -> None:
        self.clients = Clients({f"host_{name}": WorkerNode(f"host_{name}") for name in "abcde"})
        self.hears: dict[str, Callable[..., None]] = {}

    def register_message(self, name: str, hears: Callable[..., None]) -> None:
        self.hears[name] = hears

    def said(self, name: str, client_id: str, **data: int) -> None:
        """That worker's message."""
        self.hears[name](environment=None, msg=Namespace(node_id=client_id, data=data))

    def send_message(self, _: str, __: object, client_id: str) -> None:
        if client_id == "host_d":
            del self.clients[client_id]
        elif client_id != "host_c":
            self.said(relay.FINISHED, client_id)


def test_who_was_lost() -> None:
    """Silent while the test ran or at its end; who is heard again, or left in order, is not."""
    runner = Master()
    master = relay.MasterRelay(runner, lambda _: None, lambda *_: None)  # type: ignore[arg-type]
    for worker, name in enumerate("cb"):
        beat = {"run": "another", "issued": 0, "worker": worker}
        runner.said(BEAT, f"host_{name}", **beat)  # type: ignore[arg-type]
    for name in "ab":
        runner.clients[f"host_{name}"].state = STATE_MISSING
    master.watch()
    runner.clients["host_a"].state = STATE_RUNNING  # heard again
    master.watch()
    assert [text[: text.index(" ended")] for text in master.lost()] == ["worker 1 (host)"]
    master.finish(0, lambda: 2)
    named = [text[: text.index(" ended")] for text in master.lost()]
    assert named == ["worker 0 (host)", "worker 1 (host)"]
    master.begin("the next run")
    assert master.lost() == ()


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ({}, 20),
        ({"output_tokens": 3}, 20),
        ({"prompt": "a b"}, -1),
        ({"messages": [{"role": "user", "content": "a"}]}, -1),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, -1),
    ],
)
def test_what_an_own_request_plans_of_its_prompt(given: dict[str, Any], want: int) -> None:
    """Only the workload's own prompt has a planned length: no other is compared with it."""
    user: Any = SimpleNamespace(
        api="chat",
        next_spec=lambda: RequestSpec("words", 20, 9),
        send_spec=lambda spec, _: spec,
    )
    sent: Any = LlmClient(user).send(**given)
    assert sent.prompt_tokens == want
