"""Delayed messages in transactions over several groups, of the real producers.

Some transactions get delayed messages beside the others, in a topic that lies in all groups and that nobody
else uses. At the end each must be readable in its group if its transaction was committed and its time has
come, and not otherwise; see ``delayed_end.py`` for the anomalies. A delay is counted from the COMMIT of the
message's own group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from escrowmq.actors.admin.topic_creation import topic_settings
from escrowmq.replication.format.codec import Op
from escrowmq.replication.format.operation import OpType
from escrowmq.replication.model import Message
from tests.history.events import Sent, body
from tests.sim.clients.delayed import AHEAD_MS, DELAYS_MS
from tests.sim.clients.delayed_end import Item, judge, readable
from tests.sim.clients.producers import SIZES
from tests.sim.clients.topics import Topics
from tests.sim.group.broker_app import BrokerApplication
from tests.sim.group.replica import WALL_S
from tests.support.places import by_name

if TYPE_CHECKING:
    from tests.sim.across.producers import AcrossProducer
    from tests.sim.across.workload import AcrossWorkload

TOPIC = "later-across"
SHARE = {"worlds": 0.6}  # of the worlds in which producers use delays
OF_TRANSACTIONS = 0.3


class LaterAcross:
    """All such messages of one world."""

    def __init__(self, clients: AcrossWorkload) -> None:
        self._clients, self._scene = clients, clients.scene
        self._rng = clients.many.world.stream("later-across")
        self._works = self._rng.random() < SHARE["worlds"]
        settings = topic_settings(self._scene.groups, transaction_timeout_ms=500)
        self._topics = Topics(clients.desks, {TOPIC: settings})
        #: Transaction -> its delayed messages.
        self._items: dict[tuple[str, str], list[Item]] = {}
        #: (group, app, id on the wire) -> time of the first COMMIT in that group's log.
        self._committed: dict[tuple[int, str, str], int] = {}

    # -------------------------------------------------------------- the topic

    def partitions(self, topic: str) -> int:
        """As the clients' catalog: the number of a topic's partitions."""
        return self._scene.groups if topic == TOPIC else self._scene.topics[topic]

    def group_of(self, topic: str, partition: int) -> int:
        """As the clients' catalog: the group of a partition."""
        if topic == TOPIC:
            return by_name(TOPIC, partition, self._scene.groups)
        return self._scene.group_of(topic, partition)

    # -------------------------------------------------------------- what producers send

    def messages(self, producer: AcrossProducer, name: str, sent: Sequence[Sent]) -> list[Message]:
        """Delayed messages for the transaction ``name``, in the groups of its other messages."""
        rng = self._rng
        if not self._works or not self._topics.are_there() or rng.random() >= OF_TRANSACTIONS:
            return []
        groups = {message.group for message in sent}
        at = [n for n in range(self._scene.groups) if self.group_of(TOPIC, n) in groups]
        items, made = self._items.setdefault((producer.app, name), []), list[Message]()
        now_ms = int((WALL_S + self._clients.many.world.now) * 1000)
        for number in rng.choices(at, k=rng.choice((1, 1, 2))):
            id = f"{name}.later{len(items)}"
            value = body(id, rng.choice(SIZES))
            if rng.random() < 0.5:
                delay_ms = rng.choice(DELAYS_MS)
                items.append(Item(id, (TOPIC, number), 0, len(items), -delay_ms))
                made.append(Message(TOPIC, value, partition=number, delay_s=delay_ms / 1000))
            else:
                at_ms = now_ms + rng.choice(AHEAD_MS)
                items.append(Item(id, (TOPIC, number), 0, len(items), at_ms))
                made.append(Message(TOPIC, value, partition=number, deliver_at=at_ms))
        return made

    def heard(self, gid: int, now_ms: int, found: Sequence[Op]) -> None:
        """An entry is applied."""
        for op in found:
            if op.type == OpType.COMMIT:
                for tx_id in op.meta.tx_ids:
                    self._committed.setdefault((gid, op.meta.app, tx_id), now_ms)

    # -------------------------------------------------------------- at the end

    def check(self, gid: int, leader: BrokerApplication) -> bool:
        """Compare with what is readable in a group; False: its replica found damage, and has ended."""
        if TOPIC not in leader.replica.state.topics.topics:
            return True
        found: dict[str, list[tuple[tuple[str, int], int]]] = {}
        here = [n for n in range(self._scene.groups) if self.group_of(TOPIC, n) == gid]
        for number in here:
            read = readable(leader, (TOPIC, number))
            if read is None:
                return False
            for id, time_ms in read:
                found.setdefault(id, []).append(((TOPIC, number), time_ms))
        now_ms = leader.replica.group_ms(leader.now_ms())
        for (app, name), items in self._items.items():
            there = [item for item in items if item.partition[1] in here]
            self._settle(gid, app, name, there)
            for item in there:
                judge(item, found.get(item.id, ()), now_ms)
        return True

    def _settle(self, gid: int, app: str, name: str, items: Sequence[Item]) -> None:
        """What the group's log says of the transaction that these are part of."""
        tx = self._clients.ledger.transactions.get((app, name))
        wire = name if tx is None else self._clients.ledger.of(app, name).wire
        committed = tx is not None and self._clients.ledger.of(app, name).ended_in.get(gid, False)
        for item in items:
            if committed:
                item.counts_from(self._committed[gid, app, wire])
            else:
                item.rolled_back = True
