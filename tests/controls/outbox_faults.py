"""Planted faults in the outbox and its relay: each must be reported as a difference between rows and log."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from escrowmq.actors.outbox.shipping import BrokerShipping
from escrowmq.actors.producer.encoding.blocks import NO_NUMBER
from escrowmq.actors.producer.transactions.numbered import Numbered
from escrowmq.feedback.database import outbox_shards, outbox_statements, relaying
from escrowmq.feedback.database.outbox_shards import Lease, OutboxShards
from escrowmq.feedback.database.outbox_statements import OutboxRow, OutboxStatements
from escrowmq.feedback.database.relaying import BatchOutOfSequence, BatchRefused, Relay, Step
from escrowmq.replication.state.claims import Claims
from tests.controls.planting import RELAYS, plant
from tests.history.outbox import DUPLICATE, LOST, REORDERED, STOPPED
from tests.relays import schedule


def restores(patch: pytest.MonkeyPatch) -> None:
    """The database is restored from a backup, or fails over to a standby that is behind, in every world."""
    patch.setattr(schedule, "RESTORES", 1.0)


def fails_over(patch: pytest.MonkeyPatch) -> None:
    """The database often fails over to a standby that is behind, and relays live long."""
    restores(patch)
    for what, chance in {"fail over": 0.01, "kill": 0.0, "long stop": 0.001, "end": 0.0}.items():
        patch.setitem(schedule.CHANCES, what, chance)


def equal(patch: pytest.MonkeyPatch) -> None:
    """The database often fails over, and rows are equal to others. They come singly, and so do batches."""
    fails_over(patch)
    patch.setattr(schedule, "EQUAL", 1.0)
    patch.setattr(schedule, "TWINS", 1.0)
    patch.setitem(schedule.CHANCES, "send", 0.02)


def spoils(patch: pytest.MonkeyPatch) -> None:
    """Some rows cannot be read in every world."""
    patch.setattr(schedule, "SPOILS", 1.0)


def changes(patch: pytest.MonkeyPatch) -> None:
    """Topics are deleted and created again in every world, and often."""
    patch.setattr(schedule, "CHANGES", 1.0)
    patch.setitem(schedule.CHANCES, "topic", 0.015)


def _statement(patch: pytest.MonkeyPatch, change: Callable[[OutboxStatements], None]) -> None:
    made = OutboxStatements.__init__

    def init(self: OutboxStatements, *given: Any) -> None:
        made(self, *given)
        change(self)

    patch.setattr(OutboxStatements, "__init__", init)


@plant("relay-by-cursor", LOST, workload=RELAYS, long=True)
def relay_by_cursor(patch: pytest.MonkeyPatch) -> None:
    """Relays remember the id up to which rows are sent, and never look before it."""
    mark, pick = OutboxShards.mark, OutboxShards.pick
    sent: dict[tuple[int, int], int] = {}

    def marked(self: OutboxShards, lease: Lease, rows: Sequence[OutboxRow], placed: Any) -> list[OutboxRow]:
        found = mark(self, lease, rows, placed)
        shard = id(self._statements), lease.shard
        sent[shard] = max(sent.get(shard, 0), *(row.id for row in rows))
        return found

    def behind(self: OutboxShards, shard: int) -> list[OutboxRow]:
        after = sent.get((id(self._statements), shard), 0)
        return [row for row in pick(self, shard) if row.id > after or row.attempts]

    patch.setattr(OutboxShards, "mark", marked)
    patch.setattr(OutboxShards, "pick", behind)


@plant("batch-made-anew", STOPPED, LOST, DUPLICATE, REORDERED, workload=RELAYS, start=3, long=True)
def batch_made_anew(patch: pytest.MonkeyPatch) -> None:
    """A relay that takes a shard over dissolves the marked batch, and sends under its number what is there by
    then."""
    in_batch = OutboxShards.in_batch

    def dissolved(self: OutboxShards, lease: Lease) -> list[OutboxRow]:
        if in_batch(self, lease):
            with self._holding(lease) as link:
                link.run(self._statements.undo_batch, {"shard": lease.shard, "error": b""})
        return []

    patch.setattr(OutboxShards, "in_batch", dissolved)


@plant("removed-before-the-commit", LOST, STOPPED, workload=RELAYS)
def removed_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """The rows of a batch are removed first, and then the batch is committed in the broker."""
    send = Relay._send

    def first(self: Relay, lease: Lease) -> Step:
        number = lease.last + 1
        if all(row.batch == number for row in self._batch):
            done = self._shards.finish(lease, number, self._batch)
            with pytest.MonkeyPatch.context() as once:
                once.setattr(self._shards, "finish", lambda *given: done)
                return send(self, lease)
        return send(self, lease)

    patch.setattr(Relay, "_send", first)


@plant("lease-not-checked", STOPPED, LOST, DUPLICATE, workload=RELAYS, start=14)
def lease_not_checked(patch: pytest.MonkeyPatch) -> None:
    """A relay's database transactions do not look whether the shard is its own still."""

    def any_relay(statements: OutboxStatements) -> None:
        statements.hold = (
            f"UPDATE {statements.shards} SET until_ms = :until, beat = beat + 1 WHERE shard = :shard"
        )

    _statement(patch, any_relay)


@plant("zombie-writes-last", STOPPED, LOST, DUPLICATE, workload=RELAYS, start=4, long=True)
def zombie_writes_last(patch: pytest.MonkeyPatch) -> None:
    """A relay does not look how many rows its statements have changed, neither of its lease nor of its batch:
    one that was paused writes its number over its successor's."""
    patch.setattr(OutboxShards, "_expect", staticmethod(lambda count, changed: None))


@plant("last-not-compared", DUPLICATE, workload=RELAYS, start=35, within=60, conditions=fails_over)
def last_not_compared(patch: pytest.MonkeyPatch) -> None:
    """A relay holds its lease by the epoch alone, which a database that was put back may have, too."""

    def by_epoch(statements: OutboxStatements) -> None:
        statements.hold = statements.hold.replace("AND owner = :owner AND last_batch = :last ", "")

    _statement(patch, by_epoch)


@plant("number-without-digest", LOST, workload=RELAYS, start=4, within=40, conditions=restores)
def number_without_digest(patch: pytest.MonkeyPatch) -> None:
    """The broker takes any batch with the last number for the one that it has."""
    refusal = Claims.refusal

    def by_number(self: Claims, app: str, tx_id: str, claimed: Any, *rest: Any) -> list[object] | None:
        name, epoch, number, digest = claimed
        known = self.by_name.get(name)
        if known is not None and number == known.number:
            digest = known.digest
        return refusal(self, app, tx_id, (name, epoch, number, digest), *rest)

    patch.setattr(Claims, "refusal", by_number)


@plant("digest-of-contents", LOST, workload=RELAYS, within=60, conditions=equal)
def digest_of_contents(patch: pytest.MonkeyPatch) -> None:
    """A batch is known by its contents, and not by its rows: one of new rows may be equal to the last one."""

    def digest(rows: Sequence[OutboxRow]) -> bytes:
        return hashlib.sha256(b"".join(b"%d:%b" % (len(row.content), row.content) for row in rows)).digest()[
            :16
        ]

    patch.setattr(relaying, "digest_of_rows", digest)


@plant(
    "unreadable-batch-not-settled",
    DUPLICATE,
    STOPPED,
    workload=RELAYS,
    start=15,
    within=20,
    conditions=spoils,
)
def unreadable_batch_not_settled(patch: pytest.MonkeyPatch) -> None:
    """A batch with a row that nobody can read is taken apart, although an earlier sending may be in."""

    def refuses(self: BrokerShipping, shard: int, epoch: int, number: int, digest: bytes, why: str) -> None:
        raise BatchRefused(why)

    patch.setattr(BrokerShipping, "settle", refuses)


@plant("out-of-step-is-done", LOST, workload=RELAYS, start=4, conditions=restores)
def out_of_step_is_done(patch: pytest.MonkeyPatch) -> None:
    """A batch whose number the broker has passed counts as sent."""
    ship = BrokerShipping.ship

    def passed(self: BrokerShipping, *given: Any) -> None:
        try:
            ship(self, *given)
        except BatchOutOfSequence:
            return

    patch.setattr(BrokerShipping, "ship", passed)


@plant("dropped-in-a-batch", DUPLICATE, STOPPED, workload=RELAYS)
def dropped_in_a_batch(patch: pytest.MonkeyPatch) -> None:
    """A person may drop a row that has a batch's number."""
    drop = OutboxStatements.drop
    rows_of = "SELECT id, NULL FROM {} WHERE shard = :shard AND tx_group = :group"
    _statement(patch, lambda statements: setattr(statements, "of_group", rows_of.format(statements.table)))

    def whatever(self: OutboxStatements, ids: Sequence[int]) -> str:
        return drop(self, ids).replace(" AND batch IS NULL", "")

    patch.setattr(OutboxStatements, "drop", whatever)


@plant("locked-rows-passed-over", REORDERED, workload=RELAYS, start=1)
def locked_rows_passed_over(patch: pytest.MonkeyPatch) -> None:
    """A relay passes over rows that are locked just now, as SKIP LOCKED does, and sends later ones of their
    keys."""
    pick = OutboxShards.pick
    turn = [0]

    def skipping(self: OutboxShards, shard: int) -> list[OutboxRow]:
        turn[0] += 1
        rows = pick(self, shard)
        first = rows[0].group if rows else b""
        return [row for row in rows if row.group != first or turn[0] % 3 == 0]

    patch.setattr(OutboxShards, "pick", skipping)


@plant("refused-rows-hold-nothing-back", REORDERED, workload=RELAYS, start=4)
def refused_rows_hold_nothing_back(patch: pytest.MonkeyPatch) -> None:
    """Later rows of a key do not wait while an earlier one is tried again."""

    def overtaking(rows: Sequence[OutboxRow], now_ms: int, *, all_seen: bool) -> list[OutboxRow]:
        untried = [row for row in rows if not row.attempts]
        return outbox_statements.pick(untried or rows, now_ms, all_seen=all_seen)

    patch.setattr(outbox_shards, "pick", overtaking)


@plant("refused-and-not-settled", DUPLICATE, workload=RELAYS, start=10, within=40, conditions=changes)
def refused_and_not_settled(patch: pytest.MonkeyPatch) -> None:
    """A relay takes a batch apart that its own process refuses, although an earlier sending may be in."""
    patch.setattr(BrokerShipping, "_settled", lambda self, *given: False)


@plant("sent-without-a-claim", DUPLICATE, STOPPED, LOST, workload=RELAYS, start=1)
def sent_without_a_claim(patch: pytest.MonkeyPatch) -> None:
    """The numbers of batches are not told to the broker, so it takes each sending for a new one."""
    made = Numbered._made_plan

    def unnumbered(self: Numbered, home_group: int | None = None) -> Any:
        plan = made(self, home_group)
        for blocks in (plan.parts or {}).values():
            for block in blocks:
                block.numbered = NO_NUMBER
        return plan

    patch.setattr(Numbered, "_made_plan", unnumbered)
