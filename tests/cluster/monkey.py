"""The faults of a cluster run, in an order that a seed decides: one after the other, and every third time two at once.

A node is killed, frozen (SIGSTOP of all its processes), filled (its disk) or cut off (its cable). What dies is started
again, as a service manager does. Each fault is recorded with its time.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from deploy.cluster.network import Namespaces
from deploy.cluster.node import Node
from tests.cluster.operators import Operator
from tests.cluster.world import ClusterWorld
from tests.faults.troubles import Fault

BACK_S = 180.0  # until a node that was killed is ready again
_KILLED = ("nats", "postgresql", "storage", "haproxy", "bridge", "api", "worker")
_STOPPED = ("haproxy", "bridge", "api", "worker")
_FILLED = ("nats", "postgresql", "storage", "bridge", "api", "worker")
# Whose faults explain a second copy: a mail server did not learn that its mail was accepted, or the mail was stored
# although the answer was lost.
_ON_THE_WAY = ("bridge", "haproxy", "storage", "postgresql")


@dataclass(frozen=True)
class Trouble:
    """What is done to which nodes; `began` and `ended` do it."""

    name: str
    nodes: tuple[Node, ...]
    began: Callable[[], None]
    ended: Callable[[], None]


class Monkey:
    """Call `start`, and at the end `heal`."""

    def __init__(self, world: ClusterWorld, seed: int, longest_s: float = 10.0) -> None:
        self.world, self._dice, self._longest_s = world, random.Random(seed), longest_s
        self.operator = Operator(lambda: world.cluster.of("nats"))
        self.faults: list[Fault] = []
        self.ends: list[tuple[str, float]] = []  # nodes that were killed or stopped, and when
        self._errors: list[BaseException] = []
        self._stop = threading.Event()
        self._lane = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._lane.start()

    def wait(self, seconds: float) -> None:
        """Returns early if a node did not come back; `heal` then says which one."""
        self._lane.join(seconds)

    def heal(self) -> None:
        self._stop.set()
        self._lane.join(4 * BACK_S)
        assert not self._lane.is_alive(), "a fault does not come to its end"
        if self._errors:
            raise self._errors[0]

    def counts(self) -> Counter[str]:
        return Counter(fault.name for fault in self.faults)

    def nearest(self, began: float, ended: float, words: tuple[str, ...]) -> str:
        """The fault near this period that explains a second copy."""
        near = [
            fault for fault in self.faults
            if fault.began <= ended + 25 and fault.ended >= began - 5 and fault.name.startswith(_ON_THE_WAY)
        ]  # fmt: skip
        return min(near, key=lambda fault: abs(fault.began - began)).name if near else ""

    def _run(self) -> None:
        """Each trouble once in random order, then all over again."""
        try:
            while not self._stop.is_set():
                waiting = self._dice.sample(kinds := self.troubles(), len(kinds))
                while waiting and not self._stop.wait(self._dice.uniform(0.5, 2.0)):
                    count = 2 if len(self.faults) % 3 == 2 else 1
                    self.cause([self._choose(waiting.pop()) for _ in range(min(count, len(waiting)))])
        except BaseException as exc:
            self._errors.append(exc)

    def act(self, troubles: list[tuple[str, str]]) -> None:
        """These, one after the other, instead of `start`."""
        for chosen in troubles:
            self.cause([self._choose(chosen)])
        self._lane.start()

    def cause(self, troubles: list[Trouble], seconds: float | None = None) -> None:
        """All at the same time, for a while; returns when all nodes are ready again."""
        entries = [Fault(trouble.name, time.time()) for trouble in troubles]
        self.faults += entries
        for trouble in troubles:
            trouble.began()
        self._stop.wait(self._dice.uniform(0.5, self._longest_s) if seconds is None else seconds)
        for trouble in troubles:
            trouble.ended()
        for trouble, entry in zip(troubles, entries, strict=True):
            for node in self._affected(trouble):
                self.operator.await_ready(node, BACK_S)
            entry.ended = time.time()

    def _affected(self, trouble: Trouble) -> list[Node]:
        """Its nodes; the fault of one NATS server may leave another one behind."""
        servers = self.world.cluster.of("nats") if any(node.kind == "nats" for node in trouble.nodes) else []
        return [*trouble.nodes, *(node for node in servers if node not in trouble.nodes)]

    # What can be done

    def troubles(self) -> list[tuple[str, str]]:
        """Each way with each kind of node that this cluster has."""
        has = {node.kind for node in self.world.cluster.nodes}
        ways = {"killed": _KILLED, "frozen": _KILLED, "stopped": _STOPPED, "filled": _FILLED}
        if isinstance(self.world.network, Namespaces):
            ways["cut off"] = _KILLED
        found = [(way, kind) for way, kinds in ways.items() for kind in kinds if kind in has]
        return [*found, ("killed", "nats leader"), ("killed", "all workers")]

    def _choose(self, chosen: tuple[str, str]) -> Trouble:
        way, kind = chosen
        if kind == "nats leader":
            return self.trouble(way, self.world.leader(), name=f"{kind} {way}")
        nodes = self.world.cluster.of(kind.removeprefix("all ").removesuffix("s") if kind.startswith("all") else kind)
        if kind.startswith("all"):
            return self.trouble(way, *nodes, name=f"{kind} {way}")
        return self.trouble(way, self._dice.choice(nodes))

    def trouble(self, way: str, *nodes: Node, name: str = "") -> Trouble:
        disks = self.world.disks
        began, ended = {
            "killed": (self._kill, self._revive),
            "stopped": (self._stop_node, self._revive),
            "frozen": (lambda node: node.signal(signal.SIGSTOP), lambda node: node.signal(signal.SIGCONT)),
            "filled": (lambda node: disks[node.name].fill(), lambda node: disks[node.name].heal()),
            "cut off": (lambda node: self._cable(node, "cut"), lambda node: self._cable(node, "join")),
        }[way]  # fmt: skip

        def of_all(action: Callable[[Node], None]) -> Callable[[], None]:
            return lambda: [action(node) for node in nodes] and None

        return Trouble(name or f"{nodes[0].kind} {way}", nodes, of_all(began), of_all(ended))

    def _kill(self, node: Node) -> None:
        self.ends.append((node.name, time.time()))
        node.kill()

    def _stop_node(self, node: Node) -> None:
        self.ends.append((node.name, time.time()))
        node.stop()

    def _revive(self, node: Node) -> None:
        if not node.is_alive():
            node.start()

    def _cable(self, node: Node, action: str) -> None:
        assert isinstance(self.world.network, Namespaces)
        getattr(self.world.network, action)(node.host)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Nothing is done by itself; for measurements after a run."""
        self._stop.clear()
        try:
            yield
        finally:
            self._stop.set()
