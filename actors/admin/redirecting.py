"""Sends dead letters into a topic, each once: as transactions that are decided where the letters lie.

The PREPARE holds the letters in their own broker group, which opens it only if all of them are open and
nobody else holds one. The COMMIT makes them final there, in the entry in which it is decided; whatever of the
topic lies in other broker groups follows it, as in any transaction. So a letter is in the topic if, and only
if, this redrive has made it final, whoever else redrives or drops it at the same time.

A transaction that its client has left is rolled back by the leader when its time is over: nobody is asked.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

import google_crc32c

from escrowmq.actors.admin.share_types import DeadLetter
from escrowmq.actors.client.background import Background
from escrowmq.actors.client.failures import Failure
from escrowmq.actors.client.router import Router
from escrowmq.actors.client.share_level import await_level
from escrowmq.actors.producer.blocks import Outcome
from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.actors.producer.core import ProducerCore
from escrowmq.actors.producer.encoder import TxPlan, crc32c
from escrowmq.actors.producer.offset_blocks import first_block
from escrowmq.actors.producer.transaction import Transaction
from escrowmq.replication.errors import EscrowMQError, TransactionSettled
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.format.share_ops import LEVEL_OF_LETTERS, pre_letters
from escrowmq.replication.model import ResultCode, TransactionState

#: The app of these transactions.
APP = "escrowmq-redrive"
#: For so long the letters are held if the client dies; others who want them wait for longer.
HOLD_S = 10.0
#: No message that was ever sent is too large for the way out.
BYTES_MAX = 1 << 30
#: Refusals that say that letters are held, perhaps for a moment only, or are final.
_HELD = (ResultCode.OFFSETS_PENDING, ResultCode.RETRY)
_GONE = (ResultCode.OFFSETS_MOVED, ResultCode.OUT_OF_RANGE)


class LettersTaken(EscrowMQError):
    """Nothing was done: somebody else has settled one of the letters meanwhile, or (``held``) is about to."""

    def __init__(self, held: bool) -> None:
        super().__init__("another operator has, or is about to settle, one of these dead letters")
        self.held = held


class Redirects:
    """What sending needs, made when it is first needed: a producer in the admin's own router."""

    def __init__(self, router: Router, timeout_s: float, background: Background | None) -> None:
        self._router, self._timeout_s, self._background = router, timeout_s, background
        self._core: ProducerCore | None = None
        self._lock = threading.Lock()

    def into(self, topic: str) -> Redirecting:
        """Raises NotSupported while a replica runs older software, UnknownTopic."""
        await_level(self._router, self._timeout_s, level=LEVEL_OF_LETTERS, what="redriving into topics")
        with self._lock:
            if self._core is None:
                config = ProducerConfig(
                    linger_ms=0.0,
                    transaction_linger_ms=0.0,
                    delivery_timeout_s=self._timeout_s,
                    transaction_timeout_s=HOLD_S,
                    message_bytes_max=BYTES_MAX,
                    transaction_bytes_max=BYTES_MAX,
                    buffer_bytes=BYTES_MAX,
                )
                self._core = ProducerCore(
                    self._router.info,
                    APP,
                    config,
                    turns=self._router,
                    answers_checks=False,
                    background=self._background,
                )
        self._core.catalog.forget(topic)
        return Redirecting(self._core, topic)


class Redirecting:
    """Sends into one topic."""

    def __init__(self, core: ProducerCore, topic: str) -> None:
        self._core, self._topic, self._partitions = core, topic, core.catalog.partitions(topic)

    def send(
        self, group: str, partition: int, letters: Sequence[tuple[int, DeadLetter]], topic_id: int, by: str
    ) -> None:
        """Returns when all of them (offsets, in order, and content) can be read there, and are final.

        Raises LettersTaken: nothing was done. OutcomeUnknown: all of it or nothing will have been done, in a
        few seconds.
        """
        held = pre_letters(
            group, partition, ranges_of(offset for offset, _ in letters), topic_id, self._topic, by
        )
        tx = _Redrive(self._core, partition, held)
        for _, letter in letters:
            key = f"{topic_id}-{letter.id}".encode() if letter.key is None else letter.key
            row = encode_row(letter.key, letter.value, letter.headers, tx.tx_id)
            tx.place(self._topic, crc32c(key) % self._partitions, row)
        try:
            tx.prepare()
            tx.commit()
        except TransactionSettled as settled:
            if settled.recorded_state != TransactionState.ROLLBACK.value:
                raise
            raise LettersTaken(held=False) from settled  # its time was over


class _Redrive(Transaction):
    """A transaction with the copies of dead letters that lie in the broker group ``gid``, its home."""

    __slots__ = ("_frame", "_gid")

    def __init__(self, core: ProducerCore, gid: int, frame: bytes) -> None:
        super().__init__(core, None, None, HOLD_S, False, local=False)
        self._gid, self._frame = gid, frame

    def place(self, topic: str, partition: int, row: bytes) -> None:
        """Adds a message that is encoded already."""
        self._placed.append((topic, partition, row))
        self._size += len(row)

    def _made_plan(self, home_group: int | None = None) -> TxPlan:
        plan = super()._made_plan(self._gid)
        block = first_block(plan)
        block.offsets = (self._frame,)
        block.size, plan.size = block.size + len(self._frame), plan.size + len(self._frame)
        block.digests = (google_crc32c.extend(block.digests[0], self._frame),)
        self._size = plan.size
        return plan

    def _after_prepare(self, plan: TxPlan, outcome: Outcome) -> TransactionState | None:
        if not isinstance(outcome, Failure) and outcome and outcome[0][0] in (*_HELD, *_GONE):
            self._not_prepared()
            raise LettersTaken(held=outcome[0][0] in _HELD)
        return super()._after_prepare(plan, outcome)


def ranges_of(offsets: Iterable[int]) -> list[int]:
    """First, last, first, last, ... of offsets in ascending order."""
    flat: list[int] = []
    for offset in offsets:
        if flat and flat[-1] == offset - 1:
            flat[-1] = offset
        else:
            flat += [offset, offset]
    return flat
