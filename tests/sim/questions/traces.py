"""What a leader says about the life of one message, compared with the log and with what clients did.

It names the row, since when it can be read, the entry that made it readable, and by whom its transaction was
decided. A contradiction is ``trace-false``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from escrowmq.replication.calling.answers import Reply
from escrowmq.replication.calling.finding_answers import MessageAt, MessageOrigin
from escrowmq.replication.errors import Unavailable
from escrowmq.replication.format.internal_topics import is_internal
from escrowmq.replication.host.running_replica import RunningReplica
from escrowmq.replication.host.tracing import Messages, ShareTraces
from escrowmq.replication.state.index import PartitionIndex
from escrowmq.replication.state.topics import Partition
from tests.sim.across.wire import SimRunning
from tests.sim.clients.decisions import WIRE_NAMES
from tests.sim.clients.ledger import ClientTx
from tests.sim.environment.world import Violation
from tests.sim.group.broker_app import BrokerApplication
from tests.sim.group.replica import SimReplica
from tests.sim.questions.log_model import Entry, LogModel
from tests.sim.questions.searches import Row, rows_between

#: How a COMMIT begins to say that it follows another broker group, which decided.
HOME = "home:"


class SimMessages(Messages):
    """With the finder that the replica has already."""

    def __init__(self, replica: SimReplica, app: BrokerApplication) -> None:
        running = cast(RunningReplica, SimRunning(replica, app))
        self._running, self._finder = running, app.searching.finder
        self.shares = ShareTraces(running, self._finder)


def _index_of(partition: Partition, offset: int) -> int:
    """The entry with the bytes of this message."""
    index: PartitionIndex = partition.index
    return index.runs_from(offset, 1)[0].log_index


class Tracing:
    """The questions of one world, and what is known to judge the answers."""

    def __init__(self, log: LogModel, transactions: Mapping[tuple[str, str], ClientTx]) -> None:
        self._log, self._transactions = log, transactions
        #: Who asked for the commit of a transaction, by its app and its name in the history.
        self.asked_by: dict[tuple[str, str], set[str]] = {}

    def ask(
        self, replica: SimReplica, app: BrokerApplication, partition: Partition, offset: int
    ) -> Row | None:
        """The message, if its leader could be asked about it."""
        rows = rows_between(app, partition, offset, offset + 1)
        if not rows:
            return None
        reply: Reply | None = replica.guarded(lambda: _message_at(replica, app, partition, offset))
        if reply is None or reply[0] != "ok":
            return None
        found: MessageAt = reply[1]
        (row,) = rows
        about = f"{replica.name}: {partition.topic}/{partition.number}/{offset}"
        if (found.code, found.time_ms, found.row) != (0, row.time_ms, row.raw):
            raise Violation(f"{about}: {found}, where readers get {row}", "trace-false")
        gid = app.replica.state.gid
        if found.origin is None:
            self._untold(about, gid, app, partition, row)
        else:
            self._judge(about, gid, row, found.origin)
        return row

    def _untold(self, about: str, gid: int, app: BrokerApplication, partition: Partition, row: Row) -> None:
        """No entry was named: so none may be in the log."""
        first, last = app.replica.journal.first_index, app.applied_index
        if is_internal(partition.topic):
            return  # brokers write into it, by entries of other kinds
        if row.tx_id is not None:
            entries: Sequence[int] = self._log.committing(gid, row.tx_id, row.time_ms, first, last)
        else:
            index = _index_of(partition, row.offset)
            entry = self._log.at(gid, index)
            is_it = entry is not None and entry.sends and entry.time_ms == row.time_ms
            entries = [index] if is_it and first <= index <= last else []
        if entries:
            text = f"{about}: no entry is named, and {entries} of the log made it readable"
            raise Violation(text, "trace-false")

    def _judge(self, about: str, gid: int, row: Row, origin: MessageOrigin) -> None:
        entry = self._log.at(gid, origin.index)
        if entry is None or entry.time_ms != row.time_ms:
            raise Violation(f"{about}: {origin}, where the log has {entry} ({row.time_ms})", "trace-false")
        if origin.stored_ms is not None and origin.stored_ms > row.time_ms:
            raise Violation(f"{about}: {origin} is stored after {row.time_ms}", "trace-false")
        if origin.how == "sent":
            sound = entry.sends and row.tx_id is None
        elif origin.how == "released":
            sound = entry.releases
        else:
            sound = row.tx_id is not None and self._decided(entry, row.tx_id, origin)
        if not sound:
            text = f"{about} of {row.tx_id}: {origin}, where the log has {entry}"
            raise Violation(text, "trace-false")

    def _decided(self, entry: Entry, tx_id: str, origin: MessageOrigin) -> bool:
        """Whether the log has that COMMIT, and somebody of that kind had asked for it."""
        if not any(
            tx_id in commit.tx_ids and (commit.app, commit.by) == (origin.app, origin.by)
            for commit in entry.commits
        ):
            return False
        names = self._names(origin.app, tx_id)
        if not names or origin.by.startswith(HOME):
            return True
        return any(origin.by == WIRE_NAMES[by] for name in names for by in self.asked_by.get(name, ()))

    def _names(self, app: str, tx_id: str) -> list[tuple[str, str]]:
        """The transactions that brokers know by this id: two with different homes may have one."""
        known = self._transactions
        names = [(app, tx_id)] * ((app, tx_id) in known)
        return names + [
            key for key, tx in known.items() if tx.app == app and getattr(tx, "wire", "") == tx_id
        ]


def _message_at(replica: SimReplica, app: BrokerApplication, partition: Partition, offset: int) -> Reply:
    which = partition.topic, partition.number, partition.topic_id
    try:
        return SimMessages(replica, app).message_at(*which, offset, True)
    except Unavailable:  # it is being mended
        return ("unknown",)
