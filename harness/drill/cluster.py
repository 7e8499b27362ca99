"""What a drill does in a Kubernetes cluster, by kubectl, in the one context that its file names.

What was there before is looked up first and remembered, so that it can be brought back.
"""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from harness.errors import ConfigError, ServerUnreachable, one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from gevent.lock import BoundedSemaphore

    from harness.drill.plan import Drill

PATIENCE_S: Final = "20s"  # kubectl's own, for one request to the API server


def _semaphore() -> BoundedSemaphore:
    """Of gevent, as what waits are greenlets; `drill --dry-run` never imports it."""
    from gevent.lock import BoundedSemaphore  # noqa: PLC0415

    return BoundedSemaphore()


@dataclass(slots=True)
class Cluster:
    """A context and a namespace. A call waits for kubectl; other greenlets go on meanwhile."""

    context: str
    namespace: str
    _replicas: dict[str, str] = field(default_factory=dict)  # of scaled workloads, before
    _cordoned: set[str] = field(default_factory=set)  # nodes that were schedulable before
    # What undoes an event waits for the end of what it undoes. Where Ctrl-C ends that, kubectl is
    # killed, and what was before is known already.
    _one_at_a_time: BoundedSemaphore = field(default_factory=_semaphore)

    def delete_pod(self, pod: str) -> None:
        with self._one_at_a_time:
            self._kubectl("delete", "pod", pod, "--wait=false")

    def restart(self, workload: str) -> None:
        with self._one_at_a_time:
            self._kubectl("rollout", "restart", workload)

    def scale(self, workload: str, replicas: int) -> None:
        with self._one_at_a_time:
            if workload not in self._replicas:
                asked = ("get", workload, "--output=jsonpath={.spec.replicas}")
                self._replicas[workload] = self._kubectl(*asked)
            self._kubectl("scale", workload, f"--replicas={replicas}")

    def scale_back(self, workload: str) -> None:
        """As it was; nothing if it was not scaled."""
        with self._one_at_a_time:
            if workload in self._replicas:
                self._kubectl("scale", workload, f"--replicas={self._replicas[workload]}")
                del self._replicas[workload]

    def cordon(self, node: str) -> None:
        with self._one_at_a_time:
            asked = ("get", "node", node, "--output=jsonpath={.spec.unschedulable}")
            if self._kubectl(*asked) != "true":
                self._cordoned.add(node)
                self._kubectl("cordon", node)

    def uncordon(self, node: str) -> None:
        """Not one that somebody else had cordoned before."""
        with self._one_at_a_time:
            if node in self._cordoned:
                self._kubectl("uncordon", node)
                self._cordoned.remove(node)

    def check(self, objects: Sequence[tuple[str, ...]]) -> None:
        """Raises ServerUnreachable for one that is not there, before anything happens."""
        for words in dict.fromkeys(objects):
            self._kubectl("get", *words, "--output=name")

    def _kubectl(self, *words: str) -> str:
        """Its output. Raises ServerUnreachable."""
        command = [*self.prefix, f"--request-timeout={PATIENCE_S}", *words]
        try:
            done = subprocess.run(  # noqa: S603 - fixed words, and names that the file gives
                command,
                check=False,
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for us: it must not end what undoes an event
            )
            wrong = done.stderr.strip() or f"exit code {done.returncode}"
        except OSError as error:
            raise ServerUnreachable(
                f"kubectl cannot be run ({error.strerror}): expected it on PATH for events in a "
                "cluster; try `kubectl version`."
            ) from None
        if done.returncode:
            raise ServerUnreachable(
                f"`{shlex.join([*self.prefix, *words])}` fails ({one_line(wrong, 200)}): expected "
                f"what the drill's file names to be there; try `kubectl config get-contexts`."
            )
        return done.stdout.strip()

    @property
    def prefix(self) -> tuple[str, ...]:
        """The beginning of each command."""
        return ("kubectl", f"--context={self.context}", f"--namespace={self.namespace}")


def cluster_of(servers: Mapping[str, Any]) -> Cluster | None:
    """The one that [servers] names."""
    context = servers.get("context", "")
    return Cluster(context, servers.get("namespace", "default")) if context else None


def check_context(drill: Drill, allowed: Sequence[str]) -> None:
    """Raises ConfigError for a context that was not allowed on the command line."""
    context = drill.servers.get("context", "")
    if context and context not in allowed:
        raise ConfigError(
            f"the drill acts on the cluster of context {context}: expected --allow-context "
            f"{context}, as a drill breaks what it acts on; try --dry-run, which prints it all."
        )


def commands_of(drill: Drill) -> list[str]:
    """Each command that events run, for a person to read before."""
    cluster = cluster_of(drill.servers)
    if cluster is None:
        return []
    return [
        f"{event.name}: {shlex.join([*cluster.prefix, *words])}"
        for event in drill.events
        for words in event.commands
    ]
