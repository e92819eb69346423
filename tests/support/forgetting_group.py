"""The state of a group that has settled so much that it has begun to forget ids."""

from __future__ import annotations

from typing import Any

from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import decode_ops, encode_command
from escrowmq.replication.model import ResultCode
from escrowmq.replication.replica.validation import parse_request
from escrowmq.replication.state.machine import StateMachine

TOPIC = "t"


class ForgettingGroup:
    """The state of one group that remembers one settled transaction at least, and two at most."""

    def __init__(self, groups: int = 8) -> None:
        self.state, self._groups, self._index = StateMachine(0, groups), groups, 1
        self.apply(ops.settings({"settled_generation": 1}))
        self.apply(ops.create_topic(TOPIC, {"partitions": 4}, first_group=0))

    def apply(self, request: bytes) -> Any:
        self._index += 1
        (*_, result) = self.state.apply(
            self._index, encode_command([request], len(decode_ops(request)), 1_000 * self._index)
        )
        return result

    def forget(self) -> None:
        for number in range(6):
            tx_ids = [f"x{number}"]
            extra = ops.PrepareExtra(heard_ms=1_000 * self._index)
            assert self.apply(ops.prepare("app", TOPIC, tx_ids, None, 0, 0, [1], -1, 0, extra)) == [0]
            self.apply(ops.Rollback("app", tx_ids, ops.BY_PRODUCER, [], [], -1).frame())
        assert self.state.forgotten_ms > 0

    def opens(self, request: bytes) -> bool:
        parse_request(request, group_and_count=(0, self._groups))
        return self.apply(request)[0] == ResultCode.OK
