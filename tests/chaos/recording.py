"""Operations of producers as the history wants them: recorded before they begin and as they ended.

What an error means for the history is decided here alone: ``fail`` only where the client is promised
that nothing was done and never will be, ``unknown`` everywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from escrowmq import DiskFull, EscrowMQError, Overloaded, TransactionConflict, TransactionState
from escrowmq.actors.producer.results import TransactionResult
from escrowmq.replication.errors import TooManyOpenTransactions
from tests.history.events import Recorder, Sent

#: "Nothing was done", and the client does not send it again.
REFUSALS = (Overloaded, DiskFull, TooManyOpenTransactions)

Decision = tuple[int, TransactionState]


class Recorded:
    """Wraps calls of one process. Thread-safe, as its recorder is."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def prepare(self, app: str, tx: str, sent: Sequence[Sent]) -> int:
        """A PREPARE is about to be sent; the number of the operation."""
        return self.recorder.invoke("prepare", app=app, tx=tx, messages=list(sent))

    def prepared(self, op: int, call: Callable[[], Any], generated: tuple[str, str] | None = None) -> str:
        """Run the PREPARE; ok, fail or unknown.

        ``generated``: app and id of a transaction whose id the client made up. Without an answer the client
        rolls it back itself, so a ROLLBACK that may or may not take place belongs to the history.
        """
        try:
            call()
        except REFUSALS as error:
            self.recorder.fail(op, repr(error))
            return "fail"
        except EscrowMQError as error:
            self.recorder.unknown(op, repr(error))
            if generated is not None:
                undo = self.deciding(*generated, TransactionState.ROLLBACK)
                self.recorder.unknown(undo, "sent by the client, not waited for")
            return "unknown"
        self.recorder.ok(op)
        return "ok"

    def deciding(self, app: str, tx: str, outcome: TransactionState, by: str = "producer") -> int:
        """A decision is about to be sent; the number of the operation."""
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
        """Send a decision; True if it stands. ``answered``: whether the return of ``call`` says so."""
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
        """A whole transaction by callback; ``decided`` is filled by the callback when it decides."""
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
            op = decided[0][0] if decided else prepare
            self.recorder.unknown(op, repr(error))
            return
        for op, outcome in decided:
            self.recorder.ok(op, outcome=conflict or outcome.value)

    def bulk(self, results: Sequence[TransactionResult], decided: Mapping[str, Decision]) -> None:
        """The results of ``send_transactions``."""
        for result in results:
            if result.tx_id not in decided:
                continue  # not prepared (then its prepare has no end: unknown), or left to the check
            op, outcome = decided[result.tx_id]
            if isinstance(result.error, TransactionConflict):
                self.recorder.ok(op, outcome=result.error.recorded_state)
            elif result.error is not None:
                self.recorder.unknown(op, repr(result.error))
            else:
                assert result.state is outcome, f"{result} where {outcome} was wanted"
                self.recorder.ok(op, outcome=outcome.value)

    def stored(self, op: int, future: Future[Any]) -> None:
        """Wait for a plain message's place."""
        try:
            place = future.result()
        except REFUSALS as error:
            self.recorder.fail(op, repr(error))
        except EscrowMQError as error:
            self.recorder.unknown(op, repr(error))
        else:
            self.recorder.ok(op, places=[[place.topic, place.partition, place.offset]])
