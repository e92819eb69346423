"""Sends dead letters into a topic, each once: as a transaction whose id names the dead letter's place.

Brokers remember the ids of settled transactions (``remember_ids_s``), so a dead letter that was sent before,
by a redrive that was interrupted, is not sent again.
"""

from __future__ import annotations

from typing import Any

from escrowmq.actors.admin.share_types import DeadLetter
from escrowmq.actors.admin.topic_creation import Submit
from escrowmq.actors.producer.encoder import crc32c, digest_of
from escrowmq.actors.producer.results import TransactionResult, decided, prepare_problem, settled_before
from escrowmq.replication.errors import EscrowMQError
from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import PrepareExtra, encode_row
from escrowmq.replication.model import ResultCode, TopicInfo, first_group, group_of

#: The app of these transactions.
APP = "escrowmq-redrive"


class Redirecting:
    """Sends into one topic."""

    def __init__(self, submit: Submit, groups: int, topic: TopicInfo) -> None:
        self._submit, self._groups, self._topic = submit, groups, topic

    def send(self, tx_id: str, letter: DeadLetter) -> None:
        """Returns when it can be read there, now or since an earlier call with that id."""
        name, row = self._topic.name, encode_row(letter.key, letter.value, letter.headers, tx_id)
        partition = crc32c(tx_id.encode() if letter.key is None else letter.key) % self._topic.partitions
        gid = group_of(first_group(self._topic), partition, self._groups)
        prepare = ops.prepare(
            APP, name, [tx_id], None, 0, 0, [digest_of([row])], -1, 1, PrepareExtra("", given=True)
        ) + ops.pre_message(name, partition, [0], [len(row)], [row], self._topic.topic_id)
        code, info = self._first(gid, prepare)
        if code != ResultCode.OK:
            problem = prepare_problem(tx_id, code, info)
            if isinstance(problem, EscrowMQError):
                raise problem
            settled_before(TransactionResult(tx_id, problem))
            return
        code, info = self._first(gid, ops.commit(APP, [tx_id]))
        if code in (ResultCode.OK, ResultCode.DUPLICATE):
            return
        refused = decided(tx_id, {0: (code, info)})
        assert refused is not None
        raise refused

    def _first(self, gid: int, request: bytes) -> tuple[int, Any]:
        """The result of the only transaction of a request."""
        code, info = self._submit(gid, request)
        if code != ResultCode.PARTIAL:
            return code, info
        _, code, *rest = info[0]
        return code, rest[0] if rest else None
