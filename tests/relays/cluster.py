"""The broker: a cluster in memory of one group or three, whose requests are lost, refused, and come late.

Everything that decides is the product's. Broker groups bring transactions that span them to their end with
the product's own code (``Branches``), which a cluster in memory does not run by itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar

from escrowmq import ConsumerRecord, TransactionState, TxStatusQuerier
from escrowmq.actors.client.replica_calls import OnAnswer
from escrowmq.cluster.testing.calls import ANSWERS
from escrowmq.cluster.testing.replica import MemoryReplica
from escrowmq.replication.calling.answers import Reply
from escrowmq.replication.replica.branches import Branches
from escrowmq.replication.replica.validation import parse_request
from escrowmq.replication.state.machine import Result
from escrowmq.testing import InMemoryCluster
from tests.history.outbox import Seen

#: Shares of the requests that change something: they never arrive, arrive late and are not answered, are
#: carried out and not answered, or are refused, e.g. because the disk is full.
LOST, LATE, UNANSWERED, REFUSED = 0.02, 0.03, 0.03, 0.01
LATE_MAX = 20  # of them at a time
VALUE_BYTES = 12  # of a value, its name; the rest is for its size


#: The same time in every run of a seed.
START = datetime(2030, 1, 1, tzinfo=UTC)


class ThreeGroups(InMemoryCluster):
    """Three broker groups in place of one."""

    _GROUPS: ClassVar[int] = 3


class _NeverAsked(TxStatusQuerier):
    """A cluster in memory has its feedback process once a producer can be asked. It rolls back what a relay
    has left open, whose outcome no local transaction decides."""

    def query_status(self, tx_id: str, query_id: str) -> TransactionState:
        raise AssertionError(f"{query_id} has no local transaction, and somebody asks about it")


class MemoryBranches:
    """One group's work on transactions over several groups."""

    def __init__(self, broker: RelayBroker, replica: MemoryReplica) -> None:
        self._broker, self._replica = broker, replica
        self.branches = Branches(replica.replica.state, self, lambda text: None)

    def step(self) -> None:
        self.branches.step(self._replica.now_ms())
        self._replica.driver.submit(lambda: None)  # what was written is applied

    def call(self, gid: int, method: str, args: tuple[Any, ...], done: Callable[[Any], None]) -> None:
        """See ``Links``."""
        reply = self._broker.direct(gid, method, args)
        done(reply[1] if reply is not None and reply[0] == "ok" else None)

    def write(self, request: bytes, done: Callable[[Sequence[Result] | None], None]) -> None:
        """See ``Links``."""
        ops = parse_request(request, from_broker=True)
        told = lambda reply: done(reply[1] if reply[0] == "ok" else None)  # noqa: E731
        self._replica.replica.submit(request, ops, told)


class RelayBroker:
    """A cluster, its faults, and what has ever been readable. ``lives``: how often each topic was created."""

    def __init__(self, rng: random.Random, groups: int, app: str) -> None:
        self._rng, self.cluster = rng, (ThreeGroups if groups > 1 else InMemoryCluster)(start=START)
        self.calm, self._watching = False, False
        self._network = self.cluster.network
        self._execute = self._network._execute
        self._network._execute = self._perhaps  # type: ignore[method-assign]
        self.late: list[tuple[int, str, tuple[Any, ...]]] = []
        self.lives: dict[str, int] = {}
        self._seen: dict[tuple[str, int], Seen] = {}
        self._reads = 0
        replicas = [broker._running().running for broker in self._network.brokers]  # type: ignore[attr-defined]
        self.cluster.producer(app, tx_status_querier=_NeverAsked())
        self._branches = [MemoryBranches(self, replica) for replica in replicas] if groups > 1 else []

    # ------------------------------------------------------------ requests

    def _perhaps(
        self, gid: int, method: str, args: tuple[Any, ...], done: OnAnswer, dropped: Callable[[], bool]
    ) -> None:
        luck = 1.0 if self.calm or self._watching or method != "submit" else self._rng.random()
        if luck < LOST:
            return
        if luck < LOST + LATE and len(self.late) < LATE_MAX:
            self.late.append((gid, method, args))
        elif luck < LOST + LATE + UNANSWERED:
            self._execute(gid, method, args, lambda answer, error: None, dropped)
        elif luck < LOST + LATE + UNANSWERED + REFUSED:
            done(self._rng.choice(list(ANSWERS.values())), None)
        else:
            self._execute(gid, method, args, done, dropped)

    def deliver(self, at: int) -> None:
        """One of the requests that are late arrives; its sender may be gone."""
        gid, method, args = self.late.pop(at)
        with self.cluster.stage.lock:
            self._execute(gid, method, args, lambda answer, error: None, lambda: False)
        self.cluster.stage.run()

    def direct(self, gid: int, method: str, args: tuple[Any, ...]) -> Reply | None:
        """Another group's call, which is answered at once or not at all."""
        answers: list[Reply] = []
        if not self.down:
            self._execute(gid, method, args, lambda answer, error: answers.append(answer), lambda: False)
        return answers[0] if answers else None

    @property
    def down(self) -> bool:
        """Whether no broker can be reached."""
        return self._network.down

    @down.setter
    def down(self, down: bool) -> None:
        self._network.down = down

    def step(self, seconds: float) -> None:
        """Let time pass, and groups tell each other what they have decided."""
        self.cluster.clock.advance(seconds)
        if self._branches and not self.down:
            with self.cluster.stage.lock:
                for one in self._branches:
                    one.step()
            self.cluster.stage.run()

    # ------------------------------------------------------------ topics, and what is in them

    def create(self, topic: str, partitions: int) -> None:
        with _Watch(self):
            self.cluster.admin.create_topic(topic, partitions=partitions)
            self.lives[topic] = self.lives.get(topic, 0) + 1

    def delete(self, topic: str) -> None:
        """The messages that are readable until then are remembered."""
        with _Watch(self):
            self.read()
            self.cluster.admin.delete_topic(topic)

    def topics(self) -> list[str]:
        with _Watch(self):
            return sorted(topic.name for topic in self.cluster.admin.topics())

    def read(self) -> list[Seen]:
        """All that is readable, or was before its topic was deleted."""
        with _Watch(self):
            names = [topic.name for topic in self.cluster.admin.topics() if topic.name in self.lives]
            if names:
                self._reads += 1
                with self.cluster.consumer(
                    f"checker-{self._reads}", names, auto_offset_reset="earliest"
                ) as consumer:
                    while records := consumer.poll(max_records=1000, timeout_s=0.1):
                        for record in records:
                            self._note(record)
            return list(self._seen.values())

    def _note(self, record: ConsumerRecord) -> None:
        life, value = self.lives[record.topic], record.value[:VALUE_BYTES].decode().rstrip()
        partition = f"{record.topic}.{life}[{record.partition:03}]"
        self._seen[partition, record.offset] = Seen(value, partition, record.offset)

    def open_transactions(self) -> list[Any]:
        with _Watch(self):
            return self.cluster.admin.list_transactions()

    def close(self) -> None:
        self.cluster.close()


class _Watch:
    """For what the schedule itself asks: nothing goes wrong meanwhile."""

    def __init__(self, broker: RelayBroker) -> None:
        self._broker = broker

    def __enter__(self) -> None:
        broker = self._broker
        self._before = broker._watching, broker.down
        broker._watching, broker.down = True, False

    def __exit__(self, *_: object) -> None:
        self._broker._watching, self._broker.down = self._before
