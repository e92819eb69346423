"""Many transactions at once: encoded into columns, prepared and decided in whole blocks, pipelined.

Calls one by one cost ten times as much of the caller's CPU as the few microseconds per transaction here:
there is one object per *block* of some hundred transactions, of one group or of the same groups. Transactions
too large for one part are sent individually. Nothing is raised for a single transaction: each has its own
result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from escrowmq.actors.client.wakeup import Waiter
from escrowmq.actors.producer.batcher import TX_OVERHEAD
from escrowmq.actors.producer.bulk.bulk_blocks import (
    BlockBuilder,
    BlockUnit,
    BulkUnit,
    PlanUnit,
    SpreadUnit,
)
from escrowmq.actors.producer.core import ProducerCore
from escrowmq.actors.producer.encoding.blocks import Encoded
from escrowmq.actors.producer.encoding.delayed_messages import Later, Named, by_message, ids_of, together
from escrowmq.actors.producer.encoding.encoder import check_id, check_query_id
from escrowmq.actors.producer.transactions.across_groups import LIMIT_RETRY_S
from escrowmq.actors.producer.transactions.local_transaction import (
    Guards,
    LocalBatch,
    PreparedTransaction,
    Requested,
    comes_of_open,
    decision_of,
    unpack,
)
from escrowmq.actors.producer.transactions.results import TransactionResult
from escrowmq.actors.producer.transactions.transaction import GUARD_S
from escrowmq.actors.producer.transactions.transaction_base import timeout_ms
from escrowmq.replication.errors import (
    Closed,
    EscrowMQError,
    InvalidDecision,
    OutcomeUnknown,
    TransactionRunning,
)
from escrowmq.replication.model import TransactionState

#: Home topic, home group, branch groups.
BlockKey = tuple[str, int, tuple[int, ...]]
#: Transactions of one block: bounds the time for which its answer occupies the client's thread.
BLOCK_TRANSACTIONS = 2_000


def send_transactions(
    core: ProducerCore,
    batch: Iterable[Requested],
    local: LocalBatch | None,
    transaction_timeout_s: float | None,
) -> list[TransactionResult]:
    """See ``Producer.send_transactions``."""
    ms = timeout_ms(transaction_timeout_s, core.config.transaction_timeout_s)
    if core.fence_name is not None and local is not None:
        core.fence_name.check()
    run = BulkRun(core, ms, pipelined=local is None)

    def add_all() -> None:
        for index, item in enumerate(batch):
            run.add(index, item)

    carry_out(run, add_all, local)
    return run.results()


def carry_out(run: BulkRun, add_all: Callable[[], None], local: Callable[[Any], Any] | None) -> None:
    """Everything that one call does: adds, sends, waits, runs the callback, decides."""
    try:
        try:
            add_all()
            run.send_rest()
            run.wait()
        except Exception:  # the iterable raised, or this producer was closed: the callback will not run
            run.abandon()
            raise
        if local is not None:
            _run_local(run, local)
    finally:
        run.end()


def _run_local(run: BulkRun, local: Callable[[Any], Any]) -> None:
    """Runs the callback over everything that was prepared, then decides."""
    opened = run.opened()
    try:
        returned = local(opened) if len(opened) else []
    except BaseException as error:
        run.guards.close()
        if not comes_of_open(error):
            run.decide_all(opened, TransactionState.ROLLBACK)
        raise
    run.guards.close()
    run.take_decisions(opened, returned)


def decisions_of(returned: Any, count: int) -> list[TransactionState]:
    """What a callback's return value decides for each of ``count`` transactions. Raises InvalidDecision."""
    if isinstance(returned, Sequence) and not isinstance(returned, str | bytes):
        if len(returned) != count:
            raise InvalidDecision(
                f"the callback returned {len(returned)} decisions for {count} transactions; the check "
                "decides these: return one decision for all, or one for each in their order"
            )
        return [decision_of(value) for value in returned]
    return [decision_of(returned)] * count


class BulkRun:
    """One call of ``send_transactions``: the caller's thread adds and waits, the router's thread reports."""

    def __init__(self, core: ProducerCore, ms: int, *, pipelined: bool) -> None:
        self._core, self._timeout_ms, self._pipelined = core, ms, pipelined
        self._builders: dict[BlockKey, BlockBuilder] = {}
        self._given: set[str] = set()
        self._none_later: list[Later] = []  # made once for all transactions without delayed messages
        self._units: list[BulkUnit] = []
        self._failed: list[tuple[int, TransactionResult]] = []
        self._delayed: dict[int, tuple[Named | None, ...]] = {}  # of transactions with delayed messages
        self._count = 0
        self._window = threading.Semaphore(core.config.bulk_calls_in_flight)
        self._lock = threading.Lock()
        self._under_way = 0
        self._waiter: Waiter | None = None
        self._give_up_s = core.config.delivery_timeout_s if pipelined else core.config.open_limit_wait_s
        self._give_up = 0.0
        #: Of the fences that the callback enters.
        self.guards = Guards()

    # ------------------------------------------------------------ adding (caller's thread)

    def add(self, index: int, item: Requested) -> None:
        """Encodes one transaction; sends its block when that is full."""
        self._count = index + 1
        core = self._core
        tx_id, later = "", self._none_later
        try:
            messages, query_id, given_id = unpack(item)
            if given_id is None:
                tx_id = next(core.ids)
            else:
                tx_id = check_id(given_id)
                self._hold(tx_id)
            query_id = tx_id if query_id is None else check_query_id(query_id)
            encoded, size = core.encoder.encode(messages, tx_id, later)
        except Closed:
            raise
        except TransactionRunning as error:  # the running transaction decides about its messages
            self._failed.append((index, TransactionResult(tx_id, TransactionState.UNKNOWN, error)))
            return
        except EscrowMQError as error:
            self._failed.append((index, TransactionResult(tx_id, TransactionState.ROLLBACK, error)))
            return
        given = given_id is not None
        every: Sequence[Encoded | Later] = encoded
        if later:
            every, self._none_later = together(encoded, later), []
            self._delayed[index] = by_message(messages, later)
        topic, group_of = every[0][0], core.encoder.group_of
        groups: tuple[int, ...] = (group_of(topic, every[0][1]),)
        if core.info.groups > 1 and len(every) > 1:
            groups = tuple(dict.fromkeys(group_of(m[0], m[1]) for m in every))
        if size > core.config.part_bytes:
            plan = core.encoder.plan(tx_id, query_id, encoded, size, self._timeout_ms, given, later)
            self._send(PlanUnit(core, plan, index, self._give_up_s))
            return
        key: BlockKey = (topic, groups[0], tuple(sorted(groups[1:])) if len(groups) > 1 else ())
        builder = self._builders.get(key)
        if builder is not None and given and tx_id in builder.ids:
            self._send_block(key)  # refused twice in one operation; in the next one it is recognised
            builder = None
        if builder is None:
            builder = self._builders[key] = BlockBuilder(groups, topic)
        if given:
            builder.ids.add(tx_id)
        builder.add(tx_id, query_id, encoded, size, index, group_of, later)
        count = len(builder.tx_ids)
        # Over several groups as large as in one: each group's block is a separate call with a part of it.
        full = builder.size + TX_OVERHEAD * count * len(groups) >= core.config.full_bytes * len(groups)
        if full or count >= BLOCK_TRANSACTIONS:
            self._send_block(key)

    def _hold(self, tx_id: str) -> None:
        """Reserves an id that the application gave: a callback must not get it twice, nor while another call
        runs it. Without a callback it may be repeated, as no local transaction runs here."""
        running = self._core.running
        if tx_id in self._given:
            taken = not self._pipelined
        else:
            taken = running.holds_given(tx_id) if self._pipelined else not running.begin_given(tx_id)
        if taken:
            raise TransactionRunning(tx_id, TransactionState.PREPARE.value)
        self._given.add(tx_id)

    def _send_block(self, key: BlockKey) -> None:
        builder = self._builders.pop(key)
        self._send(builder.unit(self._core, self._timeout_ms, self._given, self._give_up_s))

    def send_rest(self) -> None:
        """Sends what did not fill a block."""
        for key in list(self._builders):
            self._send_block(key)

    def _send(self, unit: BlockUnit | PlanUnit | SpreadUnit) -> None:
        try:
            self._core.reserve(unit.size)
        except Closed:
            raise
        except EscrowMQError as error:
            self._units.append(unit)
            for i in range(len(unit.tx_ids)):
                unit.refuse(i, error)
            return
        try:
            if not self._window.acquire(timeout=self._guard_s()):
                raise OutcomeUnknown(unit.tx_ids[0])
        except BaseException:  # an interrupt, too: what is not sent must be given back here
            self._core.release(unit.size)
            raise
        self._units.append(unit)
        self._core.running.made.update(unit.tx_ids)
        with self._lock:
            self._under_way += 1
        self._give_up = self._core.clock() + self._give_up_s
        unit.prepare(self._prepared)

    def _guard_s(self) -> float:
        return 2 * self._core.config.delivery_timeout_s + self._give_up_s + GUARD_S

    # ------------------------------------------------------------ answers (router's thread)

    def _prepared(self, unit: BulkUnit) -> None:
        if isinstance(unit, BlockUnit):
            full = unit.over_limit()
            if full and self._core.clock() < self._give_up:
                # The others continue: settling them makes room.
                self._prepare_later(unit.take_apart(sorted(full)))
            unit.forget_rows()
        opened = unit.still_open()
        if self._pipelined and opened:
            unit.decide(True, opened, self._finished)
        else:
            self._finished(unit)

    def _prepare_later(self, unit: BlockUnit) -> None:
        def again() -> None:
            # Not counted as buffered again: it was admitted once and has been released.
            unit.size = 0
            unit.prepare(self._prepared)

        unit.windowed = False
        self._units.append(unit)
        with self._lock:
            self._under_way += 1
        self._core.call_later(LIMIT_RETRY_S, again)

    def _finished(self, unit: BulkUnit) -> None:
        if self._pipelined:
            self._core.running.made.difference_update(unit.tx_ids)
        if unit.windowed:
            self._window.release()
        with self._lock:
            self._under_way -= 1
            waiter = self._waiter if self._under_way == 0 else None
        if waiter is not None:
            waiter.done(None)

    # ------------------------------------------------------------ waiting and deciding (caller's thread)

    def wait(self) -> None:
        """Waits until every unit that was sent has reported."""
        waiter = Waiter()
        with self._lock:
            if self._under_way == 0:
                return
            self._waiter = waiter
        if not waiter.wait(self._guard_s()):
            raise OutcomeUnknown("(a batch of transactions)")
        self._waiter = None

    def opened(self) -> Sequence[PreparedTransaction]:
        """All prepared transactions, in the order of the batch."""
        found = [
            PreparedTransaction(unit.tx_ids[i], unit.query_ids[i], unit.indexes[i], self.guards)
            for unit in self._units
            for i in unit.still_open()
        ]
        found.sort(key=lambda tx: tx.index)
        return found

    def take_decisions(self, opened: Sequence[PreparedTransaction], returned: Any) -> None:
        """Settles ``opened`` as the callback's return value says, and waits. Raises InvalidDecision."""
        self.decide(opened, decisions_of(returned, len(opened)))

    def decide_all(self, opened: Sequence[PreparedTransaction], decision: TransactionState) -> None:
        """The same decision for all of ``opened``; waits."""
        self.decide(opened, [decision] * len(opened))

    def decide(self, opened: Sequence[PreparedTransaction], decisions: Sequence[TransactionState]) -> None:
        """Settles ``opened``, which must be all that are, and waits."""
        by_index = dict(zip((tx.index for tx in opened), decisions, strict=True))
        for n, state in self.guards.differing([tx.tx_id for tx in opened], decisions.__getitem__).items():
            by_index[opened[n].index] = state
        for unit in self._units:
            by_decision: dict[TransactionState, list[int]] = {}
            for i in unit.still_open():
                decision = by_index[unit.indexes[i]]
                by_decision.setdefault(decision, []).append(i)
                if decision is not TransactionState.COMMITTED:
                    unit.wanted[i] = decision
            self._send_decisions(unit, by_decision)
        self.wait()

    def _send_decisions(self, unit: BulkUnit, by_decision: Mapping[TransactionState, Sequence[int]]) -> None:
        for decision, chosen in by_decision.items():
            if decision is TransactionState.ROLLBACK and unit.repeated:  # as for one: see _may_roll_back
                for i in unit.repeated.intersection(chosen):
                    unit.leave(i)
                chosen = [i for i in chosen if i not in unit.repeated]
            if decision is not TransactionState.UNKNOWN and chosen:
                unit.windowed = self._window.acquire(timeout=self._guard_s())
                with self._lock:
                    self._under_way += 1
                unit.decide(decision is TransactionState.COMMITTED, chosen, self._finished)

    def abandon(self) -> None:
        """Rolls back what is open; the local transaction was not run. (Without a callback nothing is
        open.)"""
        if not self._pipelined:
            self.wait()
            self.decide_all(self.opened(), TransactionState.ROLLBACK)

    def end(self) -> None:
        """In every case: from here on, checks of these transactions go to the querier."""
        running = self._core.running
        for unit in self._units:
            running.made.difference_update(unit.tx_ids)
        if not self._pipelined:
            running.end_all_given(self._given)

    def results(self) -> list[TransactionResult]:
        """All results, in the order of the batch."""
        found: list[TransactionResult | None] = [None] * self._count
        for index, result in self._failed:
            found[index] = result
        for unit in self._units:
            for index, result in zip(unit.indexes, unit.results(), strict=True):
                found[index] = result
        for index in self._delayed:
            made = found[index]
            assert made is not None
            ids = self._schedule_ids(index, made.tx_id, made.state)
            found[index] = replace(made, schedule_ids=ids)
        assert None not in found
        return found  # type: ignore[return-value]

    def _schedule_ids(self, index: int, tx_id: str, state: TransactionState) -> tuple[str | None, ...]:
        """For the result of one transaction."""
        delayed = self._delayed.get(index)
        if delayed is None or state is TransactionState.ROLLBACK:
            return ()
        return ids_of(self._core.app, tx_id, self._core.info.cluster_id, delayed)
