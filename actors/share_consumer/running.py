"""Runs a handler in threads: acks what it has done, nacks what it could not, and goes on when it hangs.

Each thread polls for one message at a time, so a slow handler keeps only its own message from others. A
thread cannot be ended from outside. So one whose handler does not return is left alone, and another thread
takes its place; how many may be lost like that is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable

from escrowmq.actors.client.call_arguments import reason_of
from escrowmq.actors.client.pausing import Concerns, Gate, check_returned
from escrowmq.actors.share_consumer.core import ShareConsumerCore
from escrowmq.actors.share_consumer.held_batches import ShareRecord
from escrowmq.replication.errors import Closed, EscrowMQError, Overloaded, RecordNotHeld

log = logging.getLogger(__name__)

#: How long a thread waits for a message before it looks whether it is to end.
LOOK_S = 0.5
#: Threads whose handlers hang, for each one that works: beyond that something is wrong with all of them.
HANGING_MAX = 4


class _Worker:
    """One thread, and what it is at."""

    def __init__(self, work: Callable[[_Worker], None], number: int) -> None:
        self.record: ShareRecord | None = None
        self.since, self.abandoned = 0.0, False
        self.thread = threading.Thread(
            target=work, args=(self,), name=f"escrowmq-handler-{number}", daemon=True
        )
        self.thread.start()


class Runner:
    """See the module's text. One ``run``."""

    def __init__(
        self,
        core: ShareConsumerCore,
        handler: Callable[[ShareRecord], object],
        threads: int,
        stop: threading.Event,
        concerns: Concerns,
    ) -> None:
        self._concerns, self._gate = concerns, Gate()
        self._core, self._handler, self._threads, self._stop = core, handler, threads, stop
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._workers: list[_Worker] = []
        self._hanging: list[_Worker] = []
        self._started = 0
        self._fatal: BaseException | None = None
        self._ending = False

    def run(self) -> None:
        """See :meth:`ShareConsumer.run`."""
        self._core.check_open()
        try:
            with self._lock:
                for _ in range(self._threads):
                    self._start()
            while not (self._stop.is_set() or self._core.closed or self._fatal is not None):
                self._stop.wait(LOOK_S)
                self._replace_hanging()
        finally:
            self._ending = True
            with contextlib.suppress(Closed):
                self._join()
        if self._fatal is not None:
            raise self._fatal

    def _start(self) -> None:
        self._started += 1
        self._workers.append(_Worker(self._work, self._started))

    def _join(self) -> None:
        """Waits for handlers under way, as long as a handler may take, and for their acks."""
        while any(worker.thread.is_alive() for worker in self._workers):
            for worker in list(self._workers):
                worker.thread.join(LOOK_S / self._threads)
            self._replace_hanging()
        if not self._core.closed:
            self._core.flush(self._core.config.call_timeout_s)

    # ------------------------------------------------------------ one thread

    def _work(self, me: _Worker) -> None:
        try:
            self._take_turns(me)
        except BaseException as error:  # ``run`` raises it: nobody would see that the thread is gone
            self._fatal = error

    def _take_turns(self, me: _Worker) -> None:
        while not (self._ending or self._stop.is_set() or me.abandoned):
            with self._lock:
                left_s = self._gate.left_s(self._core.clock())
            if left_s:
                self._core.pause(min(left_s, LOOK_S))
                continue
            try:
                records = self._core.poll(1, LOOK_S)
            except Closed:
                return
            except Exception as error:
                if not hasattr(error, "retry_after_s"):
                    raise
                log.warning("no messages: %s", error)
                self._core.pause(LOOK_S)
                continue
            for record in records:
                if self._stop.is_set() or self._ending:
                    self._say(record, self._core.release)
                else:
                    self._handle(me, record)

    def _handle(self, me: _Worker, record: ShareRecord) -> None:
        with self._lock:
            me.record, me.since = record, self._core.clock()
        failure: BaseException | None = None
        try:
            check_returned(self._handler(record))
        except BaseException as error:
            failure = error
        with self._lock:
            me.record = None
        if failure is None:
            self._go_on()
            self._say(record, self._core.ack)
            return
        if not isinstance(failure, Exception | asyncio.CancelledError):
            # a signal, or another stop: nothing is known against the record
            self._say(record, self._core.release)
            self._fatal = failure
            return
        reason = reason_of(failure)
        log.info("the handler failed at %s/%d, offset %d", *_address(record), exc_info=failure)
        if self._concerns(failure):
            self._put_off(record, reason)
        else:
            self._go_on()
            self._say(record, self._core.nack, None, reason)

    def _put_off(self, record: ShareRecord, why: str) -> None:
        """Nothing is wrong with the record: others may have it, and no attempt is counted. Nobody here takes
        another one for a while."""
        with self._lock:
            put_off(self._gate, self._core, record, why)
        self._say(record, self._core.release)

    def _go_on(self) -> None:
        with self._lock:
            go_on(self._gate, self._core)

    def _say(self, record: ShareRecord, what: Callable[..., None], *about: object) -> None:
        """Settles the record, unless that was done by the handler itself, or because it was late."""
        try:
            what(record, *about)
        except (RecordNotHeld, Closed):
            pass
        except EscrowMQError as error:  # the lease ends, and the message comes again
            log.warning("%s/%d, offset %d, could not be settled: %s", *_address(record), error)

    # ------------------------------------------------------------ handlers that hang

    def _replace_hanging(self) -> None:
        patience_s = self._core.config.lease_extend_max_s
        late: list[ShareRecord] = []
        with self._lock:
            now = self._core.clock()
            for worker in list(self._workers):
                if worker.record is not None and now - worker.since >= patience_s:
                    worker.abandoned = True
                    late.append(worker.record)
                    self._workers.remove(worker)
                    self._hanging.append(worker)
                    if not self._ending:
                        self._start()
            self._hanging = [worker for worker in self._hanging if worker.thread.is_alive()]
            if len(self._hanging) >= HANGING_MAX * self._threads and self._fatal is None:
                self._fatal = Overloaded(
                    f"{len(self._hanging)} handlers have not returned after {patience_s:g} s; give what they "
                    "call a time-out",
                    patience_s,
                )
        for record in late:
            reason = f"the handler did not return within {patience_s:g} s"
            log.warning("%s/%d, offset %d: %s", *_address(record), reason)
            self._say(record, self._core.nack, None, reason)


def put_off(gate: Gate, core: ShareConsumerCore, record: ShareRecord, why: str) -> None:
    """A handler could not work on this record now."""
    now = core.clock()
    if (pause_s := gate.shut(now)) is None:
        return
    if gate.tells(now):
        log.warning(
            "no handler is called for %g s, and longer each time, without counting an attempt: "
            "%s/%d, offset %d: %s",
            pause_s, *_address(record), why,
        )  # fmt: skip
    core.stand_still(why)


def go_on(gate: Gate, core: ShareConsumerCore) -> None:
    """A handler has worked."""
    if gate.open():
        log.info("handlers are called again")
        core.stand_still("")


def _address(record: ShareRecord) -> tuple[str, int, int]:
    return record.topic, record.partition, record.offset
