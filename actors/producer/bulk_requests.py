"""What ``send_transactions``, with a list or with a table, and its callback are given: data types only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from escrowmq.actors.producer.local_transaction import Guards
from escrowmq.feedback.database.producing import Guard
from escrowmq.replication.errors import InvalidMessage
from escrowmq.replication.model import Message


@dataclass(frozen=True, slots=True)
class TransactionRequest:
    """One transaction of a batch; ``query_id`` and ``tx_id`` as in ``Producer.transaction``."""

    messages: Message | Sequence[Message]
    query_id: str | None = None
    tx_id: str | None = None


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A prepared transaction of a batch; ``index``: its position in the batch."""

    tx_id: str
    query_id: str
    index: int
    _guards: Guards | None = field(default=None, repr=False, compare=False)

    @property
    def _guard(self) -> Guard | None:
        """See ``TransactionBase``."""
        return None if self._guards is None else self._guards.of(self.tx_id)

    def _guarded_by(self, guard: Guard) -> bool:
        """See ``TransactionBase``."""
        return self._guards is None or self._guards.add(self.tx_id, guard)


class TransactionColumns(NamedTuple):
    """For ``send_transactions_table``: the names of its columns. None: no row has that part."""

    value: str
    key: str | None
    tx_id: str | None
    query_id: str | None


#: An item of a batch.
Requested = TransactionRequest | tuple[Any, ...] | Message | list[Message]
#: Called with all prepared transactions; returns one decision for all, or a sequence with one for each.
LocalBatch = Callable[[list[PreparedTransaction]], Any]


def unpack(item: Requested) -> tuple[Sequence[Message], str | None, str | None]:
    """(messages, query_id, tx_id) of an item of a batch."""
    query_id: Any = None
    tx_id: Any = None
    messages: Any = item
    if type(item) is tuple:
        if not 1 <= len(item) <= 3:
            raise InvalidMessage("an item of a batch is (messages, query_id) or (messages, query_id, tx_id)")
        messages = item[0]
        query_id = item[1] if len(item) > 1 else None
        tx_id = item[2] if len(item) > 2 else None
    elif isinstance(item, TransactionRequest):
        messages, query_id, tx_id = item.messages, item.query_id, item.tx_id
    if isinstance(messages, Message):
        return (messages,), query_id, tx_id
    if not isinstance(messages, list | tuple) or not messages:
        raise InvalidMessage(f"expected a Message or a non-empty list of them, not {messages!r:.80}")
    return messages, query_id, tx_id
