"""The kinds of events that a drill may have: one class for each, with all that is known of it.

A class has the keys that the file must give, what it needs of the servers, its sentence, what it
does and what undoes that. The file, the plan and the stage ask it. So a new kind is a class here,
named in EVENTS, and its row in docs/drills.md.

Times are offsets in ns from the start of the load.
"""

from __future__ import annotations

import random
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, Protocol, Self

from harness.core.value_parsers import duration, duration_or_zero, positive_number, whole_number
from harness.errors import ConfigError
from harness.units import SECOND, exact_ns

SLICE_S: Final = 0.05  # of a slowed server: it runs a part of each
TEXT: Final = "the a of and to in is it on at by we he or an as be do go if me my no so up us "


class ClusterActs(Protocol):
    """What events do in a cluster; drill/cluster.py has it. What undoes remembers what was."""

    def delete_pod(self, pod: str) -> None: ...

    def restart(self, workload: str) -> None: ...

    def scale(self, workload: str, replicas: int) -> None: ...

    def scale_back(self, workload: str) -> None: ...

    def cordon(self, node: str) -> None: ...

    def uncordon(self, node: str) -> None: ...


class Scene(Protocol):
    """What events act on; drill/stage.py has it. A replica is its number from 0."""

    model: str

    def send_signal(self, replica: int, number: signal.Signals) -> None:
        """To all processes of a replica, or to its container."""

    def start(self, replica: int) -> None:
        """Start it again, cold."""

    def is_container(self, replica: int) -> bool:
        """Whether it runs in a container that the file names."""

    def set_fault(
        self, replica: int, *, cut: bool = False, delay_s: float = 0.0, bytes_per_s: float = 0.0
    ) -> None:
        """What happens to the bytes on the way to it and back; without any: nothing."""

    def in_cluster(self, step: Callable[[ClusterActs], object]) -> None:
        """Do that in the cluster that the file names, while the rest of the drill goes on."""

    def sleep(self, seconds: float) -> None:
        """Let the rest of the drill go on."""

    def run_beside(self, event: Event, step: Step) -> None:
        """Run it until the event's time is over; then it is ended where it is."""

    def send_evenly(
        self, bodies: Iterator[dict[str, Any]], pause_s: float, hang_up_s: float
    ) -> None:
        """Requests with a pause after each; those that are open at the end are given up.

        `hang_up_s`: after it a client hangs up; 0: never.
        """


Step = Callable[[Scene], object]


class Key(NamedTuple):
    """A key that a kind of event may have in the file."""

    name: str
    parser: Callable[[str], Callable[[str], Any]]  # by the key's name
    field: str  # of the event


class Refusal(NamedTuple):
    """A key whose value the event cannot do."""

    key: str
    expected: str
    example: str


def _replica(key: str) -> Callable[[str], int]:
    """Its number: from 1 in the file, from 0 in the plan."""
    read = whole_number(key)
    return lambda text: read(text) - 1


def _short_time(key: str) -> Callable[[str], int]:
    return duration_or_zero(key, "200ms")


_OBJECT: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_WORKLOAD: Final = re.compile(r"(deployment|statefulset)/" + _OBJECT.pattern)


def _name(key: str) -> Callable[[str], str]:
    """Of an object of Kubernetes: nothing that kubectl could read as an option."""
    return lambda text: _matching(text, key, _OBJECT, "an object's name", "vllm-0")


def _workload(key: str) -> Callable[[str], str]:
    return lambda text: _matching(
        text, key, _WORKLOAD, "deployment/NAME or statefulset/NAME", "deployment/vllm"
    )


def _matching(text: str, key: str, form: re.Pattern[str], expected: str, example: str) -> str:
    if form.fullmatch(text):
        return text
    raise ConfigError(f"{key} is {text!r}: expected {expected}; try {key} {example}.")


AT: Final = Key("at", duration_or_zero, "at_ns")  # that all events need
REPLICA: Final = Key("replica", _replica, "replica")
FOR: Final = Key("for", duration_or_zero, "lasts_ns")
FACTOR: Final = Key("factor", positive_number, "factor")
COUNT: Final = Key("count", whole_number, "count")
BY: Final = Key("by", _short_time, "by_ns")
# A client that hangs up at once has sent nothing: not zero.
AFTER: Final = Key("by", lambda key: duration(key, "200ms"), "by_ns")


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happens to a server, on the way to it, or to the load."""

    kind: ClassVar[str]  # `do` in the file
    needs: ClassVar[tuple[Key, ...]]  # in the order in which they are said and checked
    may: ClassVar[tuple[Key, ...]] = ()
    # Which keys of [servers] let it act on a server that only a URL names; any one is enough.
    acts_by: ClassVar[tuple[str, ...]] = ()
    # Pieces of data arrive together, as at a client that reads slowly.
    joins_pieces: ClassVar[bool] = False

    name: str
    at_ns: int
    lasts_ns: int = 0  # until it is undone
    replica: int = -1  # its number from 0; -1: none

    @classmethod
    def from_keys(cls, values: Mapping[str, Any]) -> Self:
        """The event that these keys of the file describe, each as its parser reads it."""
        known = (AT, *cls.needs, *cls.may)
        given = [key for key in known if key.name in values]
        fields = {key.field: values[key.name] for key in given}
        name = cls.kind
        if "replica" in fields:
            name = f"{cls.kind} {fields['replica'] + 1}"
        return cls(name=values.get("name", name), **fields)

    @property
    def refusal(self) -> Refusal | None:
        """What is wrong with its values although each may be read."""
        return None

    @property
    def end_ns(self) -> int:
        """When it is undone; `at_ns` if nothing is to be undone."""
        return self.at_ns + self.lasts_ns

    @property
    def length_s(self) -> float:
        return self.lasts_ns / SECOND

    @property
    def has_end(self) -> bool:
        """Whether there is an instant at which it is over."""
        return self.lasts_ns > 0

    @property
    def sentence(self) -> str:
        """It, for the terminal, the report and events.jsonl."""
        who = f" replica {self.replica + 1}" if self.replica >= 0 else ""
        lasts = f" for {exact_ns(self.lasts_ns)}" if self.lasts_ns else ""
        return f"{self.kind}{who}{self.how}{lasts}"

    @property
    def commands(self) -> tuple[tuple[str, ...], ...]:
        """What it runs in a cluster, as words of kubectl; what undoes it comes last."""
        return ()

    @property
    def cluster_object(self) -> tuple[str, ...]:
        """What it acts on there, as words of `kubectl get`."""
        return ()

    @property
    def how(self) -> str:
        """What its own keys say, for the middle of the sentence."""
        return ""

    def changed_load(self, load: float) -> float:
        """The load as long as the event lasts."""
        return load

    def do(self, scene: Scene) -> None:
        """What happens first, at once."""

    def meanwhile(self, scene: Scene) -> None:
        """What goes on until the event is over."""
        scene.sleep(self.length_s)

    def undo(self, scene: Scene) -> None:
        """What happens then; also if it could not be done, as a part of it may have been."""

    def undo_early(self, scene: Scene) -> None:
        """The same if the drill ends before the event's time is over."""
        self.undo(scene)


class Kill(Event):
    """The server's processes die; nothing undoes that."""

    kind = "kill"
    needs = (REPLICA,)
    acts_by = ("pids", "containers")

    def do(self, scene: Scene) -> None:
        scene.send_signal(self.replica, signal.SIGKILL)


class Restart(Event):
    """The server's processes die, and it is started again."""

    kind = "restart"
    needs = (REPLICA,)
    may = (FOR,)
    acts_by = ("containers",)

    @property
    def has_end(self) -> bool:
        return True  # when it is ready again

    def do(self, scene: Scene) -> None:
        scene.send_signal(self.replica, signal.SIGKILL)

    def undo(self, scene: Scene) -> None:
        scene.start(self.replica)

    def undo_early(self, scene: Scene) -> None:
        # servers that the drill started end with it anyway
        if scene.is_container(self.replica):
            self.undo(scene)


class Pause(Event):
    """The server stands still."""

    kind = "pause"
    needs = (REPLICA, FOR)
    acts_by = ("pids", "containers")

    def do(self, scene: Scene) -> None:
        scene.send_signal(self.replica, signal.SIGSTOP)

    def undo(self, scene: Scene) -> None:
        scene.send_signal(self.replica, signal.SIGCONT)


@dataclass(frozen=True, kw_only=True)
class Slow(Event):
    """The server runs one part in `factor` of the time, whatever it is that it computes."""

    kind = "slow"
    needs = (REPLICA, FOR, FACTOR)
    acts_by = ("pids",)

    factor: float  # times as slow

    @property
    def refusal(self) -> Refusal | None:
        if self.factor > 1:
            return None
        return Refusal("factor", "more than 1", "factor = 3, a third as fast")

    @property
    def how(self) -> str:
        return f", {self.factor:g} times as slow"

    def meanwhile(self, scene: Scene) -> None:
        scene.run_beside(self, self._stutter)

    def _stutter(self, scene: Scene) -> None:
        while True:
            scene.send_signal(self.replica, signal.SIGSTOP)
            scene.sleep(SLICE_S * (1 - 1 / self.factor))
            scene.send_signal(self.replica, signal.SIGCONT)
            scene.sleep(SLICE_S / self.factor)

    def undo(self, scene: Scene) -> None:
        # It may have been ended while the server was stopped.
        scene.send_signal(self.replica, signal.SIGCONT)


class FaultOnTheWay(Event):
    """Not a kind itself: something between the balancer and a server, of which that is told."""

    joins_pieces = True

    def undo(self, scene: Scene) -> None:
        scene.set_fault(self.replica)


class Cut(FaultOnTheWay):
    """No byte passes; they pass when the cut is over."""

    kind = "cut"
    needs = (REPLICA, FOR)

    def do(self, scene: Scene) -> None:
        scene.set_fault(self.replica, cut=True)


@dataclass(frozen=True, kw_only=True)
class Delay(FaultOnTheWay):
    """Each piece of data waits, both ways."""

    kind = "delay"
    needs = (REPLICA, FOR, BY)

    by_ns: int

    @property
    def how(self) -> str:
        return f" by {exact_ns(self.by_ns)}"

    def do(self, scene: Scene) -> None:
        scene.set_fault(self.replica, delay_s=self.by_ns / SECOND)


@dataclass(frozen=True, kw_only=True)
class Throttle(FaultOnTheWay):
    """Each connection carries at most this many bytes per second."""

    kind = "throttle"
    needs = (REPLICA, FOR, Key("bytes_per_s", whole_number, "bytes_per_s"))

    bytes_per_s: int

    @property
    def how(self) -> str:
        return f" to {self.bytes_per_s:,} bytes/s"

    def do(self, scene: Scene) -> None:
        scene.set_fault(self.replica, bytes_per_s=self.bytes_per_s)


@dataclass(frozen=True, kw_only=True)
class Burst(Event):
    """Many times the load that the phase has."""

    kind = "burst"
    needs = (FOR, FACTOR)

    factor: float  # times the load

    @property
    def how(self) -> str:
        return f" of {self.factor:g} x the load"

    def changed_load(self, load: float) -> float:
        return load * self.factor


@dataclass(frozen=True, kw_only=True)
class OtherClients(Event):
    """Not a kind itself: other clients' requests, evenly over its time, without a record."""

    count: int  # requests that are sent besides the load

    def meanwhile(self, scene: Scene) -> None:
        pause_s = self.length_s / self.count
        scene.send_evenly(self._bodies(scene.model), pause_s, self.hang_up_s)

    def _bodies(self, model: str) -> Iterator[dict[str, Any]]:
        """Each of its own words, which no prefix cache knows."""
        rng = random.Random(self.at_ns)  # noqa: S311 - no secret
        for _ in range(self.count):
            words = rng.choices(TEXT.split(), k=self.n_words)
            yield {"model": model, "prompt": " ".join(words), **self.options}

    @property
    def n_words(self) -> int:
        """How long each prompt is."""
        raise NotImplementedError

    @property
    def options(self) -> dict[str, Any]:
        """The rest of each request's body."""
        raise NotImplementedError

    @property
    def hang_up_s(self) -> float:
        """From sending to hanging up; 0: they never do."""
        return 0.0


@dataclass(frozen=True, kw_only=True)
class Prompts(OtherClients):
    """Long prompts of other clients."""

    kind = "prompts"
    needs = (COUNT, Key("tokens", whole_number, "tokens"), FOR)

    tokens: int  # of each prompt

    @property
    def how(self) -> str:
        return f": {self.count:,} of {self.tokens:,} tokens"

    @property
    def n_words(self) -> int:
        return self.tokens

    @property
    def options(self) -> dict[str, Any]:
        return {"max_tokens": 1}  # only its prompt matters


@dataclass(frozen=True, kw_only=True)
class Disconnect(OtherClients):
    """Other clients that hang up."""

    kind = "disconnect"
    needs = (COUNT, FOR, AFTER)

    by_ns: int  # from sending to hanging up

    @property
    def how(self) -> str:
        return f": {self.count:,} clients hang up after {exact_ns(self.by_ns)}"

    @property
    def n_words(self) -> int:
        return 8

    @property
    def options(self) -> dict[str, Any]:
        return {"max_tokens": 1024, "stream": True}

    @property
    def hang_up_s(self) -> float:
        return self.by_ns / SECOND


@dataclass(frozen=True, kw_only=True)
class ClusterEvent(Event):
    """Not a kind itself: kubectl does it, in the context that the file names."""

    acts_by = ("context",)

    target: str  # a pod, a workload or a node

    @property
    def how(self) -> str:
        return f" {self.target}"

    @property
    def cluster_object(self) -> tuple[str, ...]:
        return (self.target,)


class DeletePod(ClusterEvent):
    """A pod goes; its controller makes another one."""

    kind = "delete-pod"
    needs = (Key("pod", _name, "target"),)

    @property
    def commands(self) -> tuple[tuple[str, ...], ...]:
        return (("delete", "pod", self.target),)

    @property
    def cluster_object(self) -> tuple[str, ...]:
        return ("pod", self.target)

    def do(self, scene: Scene) -> None:
        scene.in_cluster(lambda cluster: cluster.delete_pod(self.target))


class RolloutRestart(ClusterEvent):
    """All pods of a workload are replaced, as its strategy has it."""

    kind = "rollout-restart"
    needs = (Key("workload", _workload, "target"),)

    @property
    def commands(self) -> tuple[tuple[str, ...], ...]:
        return (("rollout", "restart", self.target),)

    def do(self, scene: Scene) -> None:
        scene.in_cluster(lambda cluster: cluster.restart(self.target))


@dataclass(frozen=True, kw_only=True)
class Scale(ClusterEvent):
    """A workload has this many pods for a time, and then as many as before."""

    kind = "scale"
    needs = (
        Key("workload", _workload, "target"),
        Key("replicas", lambda key: whole_number(key, 0), "replicas"),
        FOR,
    )

    replicas: int

    @property
    def how(self) -> str:
        return f" {self.target} to {self.replicas}"

    @property
    def commands(self) -> tuple[tuple[str, ...], ...]:
        return (
            ("scale", self.target, f"--replicas={self.replicas}"),
            ("scale", self.target, "--replicas=AS_BEFORE"),
        )

    def do(self, scene: Scene) -> None:
        scene.in_cluster(lambda cluster: cluster.scale(self.target, self.replicas))

    def undo(self, scene: Scene) -> None:
        scene.in_cluster(lambda cluster: cluster.scale_back(self.target))


class Cordon(ClusterEvent):
    """No new pod comes to a node for a time."""

    kind = "cordon"
    needs = (Key("node", _name, "target"), FOR)

    @property
    def commands(self) -> tuple[tuple[str, ...], ...]:
        return (("cordon", self.target), ("uncordon", self.target))

    @property
    def cluster_object(self) -> tuple[str, ...]:
        return ("node", self.target)

    def do(self, scene: Scene) -> None:
        scene.in_cluster(lambda cluster: cluster.cordon(self.target))

    def undo(self, scene: Scene) -> None:
        scene.in_cluster(lambda cluster: cluster.uncordon(self.target))


_ALL: Final[tuple[type[Event], ...]] = (
    Kill, Restart, Pause, Slow, Cut, Delay, Throttle, Burst, Prompts, Disconnect,
    DeletePod, RolloutRestart, Scale, Cordon,
)  # fmt: skip
EVENTS: Final = {event.kind: event for event in _ALL}  # by `do` of the file
