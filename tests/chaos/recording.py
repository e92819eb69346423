"""Records the operations of producers in the history: before they begin, and as they ended.

Only this module decides what an error means for the history: ``fail`` if the client is promised that nothing
was done and nothing will be, otherwise ``unknown``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from escrowmq import (
    DiskFull,
    EscrowMQError,
    Overloaded,
    TopicRecreated,
    TransactionConflict,
    TransactionState,
)
from escrowmq.actors.producer.transactions.results import TransactionResult
from escrowmq.replication.errors import TooManyOpenTransactions
from tests.history.events import Recorder, Sent

#: Errors that mean "nothing was done", after which the client does not send the request again.
REFUSALS = (Overloaded, DiskFull, TooManyOpenTransactions)

Decision = tuple[int, TransactionState]


class Recorded:
    """Wraps calls of one process. Thread-safe, as its recorder is."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def prepare(self, app: str, tx: str, sent: Sequence[Sent]) -> int:
        """Record that a PREPARE is about to be sent; returns the number of the operation."""
        return self.recorder.invoke("prepare", app=app, tx=tx, messages=list(sent))

    def prepared(self, op: int, call: Callable[[], Any], generated: tuple[str, str] | None = None) -> str:
        """Run the PREPARE; returns ok, fail or unknown.

        ``generated``: app and id of a transaction whose id the client made up. Without an answer the client
        rolls it back itself, so a ROLLBACK that may or may not take place belongs to the history.
        """
        try:
            call()
        except REFUSALS as error:
            self.recorder.fail(op, repr(error))
            return "fail"
        except EscrowMQError as error:
            self._unknown(op, error)
            if generated is not None:
                undo = self.deciding(*generated, TransactionState.ROLLBACK)
                self.recorder.unknown(undo, "sent by the client, not waited for")
            return "unknown"
        self.recorder.ok(op)
        return "ok"

    def deciding(self, app: str, tx: str, outcome: TransactionState, by: str = "producer") -> int:
        """Record that a decision is about to be sent; returns the number of the operation."""
        return self.recorder.invoke("decide", app=app, tx=tx, outcome=outcome.value, by=by)

    def decide(
        self,
        app: str,
        tx: str,
        outcome: TransactionState,
        call: Callable[[], Any],
        *,
        by: str = "producer",
        answered: bool = True,
    ) -> bool:
        """Send a decision; True if it is in force. ``answered``: whether a return of ``call`` shows that."""
        op = self.deciding(app, tx, outcome, by)
        try:
            call()
        except TransactionConflict as conflict:
            self.recorder.ok(op, outcome=conflict.recorded_state)
        except EscrowMQError as error:
            self.recorder.unknown(op, repr(error))
        else:
            if answered:
                self.recorder.ok(op, outcome=outcome.value)
                return True
            self.recorder.unknown(op, "sent one way")
        return False

    def callback(self, prepare: int, decided: list[Decision], call: Callable[[], Any]) -> None:
        """Run a whole transaction by callback; the callback appends to ``decided`` when it decides."""
        conflict: str | None = None
        try:
            call()
        except TransactionConflict as error:
            conflict = error.recorded_state
        except REFUSALS as error:
            assert not decided, "a refusal after the local transaction would be a lie"
            self.recorder.fail(prepare, repr(error))
            return
        except EscrowMQError as error:
            self._unknown(decided[0][0] if decided else prepare, error)
            return
        for op, outcome in decided:
            self.recorder.ok(op, outcome=conflict or outcome.value)

    def bulk(self, results: Sequence[TransactionResult], decided: Mapping[str, Decision]) -> None:
        """Record the results of ``send_transactions``."""
        for result in results:
            if result.tx_id not in decided:
                continue  # left to the check, or not prepared: then the end of its prepare is unknown
            op, outcome = decided[result.tx_id]
            if isinstance(result.error, TransactionConflict):
                self.recorder.ok(op, outcome=result.error.recorded_state)
            elif result.error is not None:
                self.recorder.unknown(op, repr(result.error))
            else:
                assert result.state is outcome, f"{result} where {outcome} was wanted"
                self.recorder.ok(op, outcome=outcome.value)

    def stored(self, op: int, future: Future[Any]) -> None:
        """Wait for the place of a plain message, and record it."""
        try:
            place = future.result()
        except REFUSALS as error:
            self.recorder.fail(op, repr(error))
        except EscrowMQError as error:
            self._unknown(op, error)
        else:
            self.recorder.ok(op, places=[[place.topic, place.partition, place.offset]])

    def _unknown(self, op: int, error: EscrowMQError) -> None:
        """After ``TopicRecreated`` a message may be in an earlier topic of that name, but in no later one."""
        self.recorder.unknown(op, repr(error), earlier=isinstance(error, TopicRecreated))
