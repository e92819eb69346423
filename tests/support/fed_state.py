"""The replicated state by itself, fed entry by entry as a leader would: no log, no Raft, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from escrowmq.replication.format import ops, share_ops, timer_ops
from escrowmq.replication.format.codec import decode_ops, encode_command, encode_row
from escrowmq.replication.format.ops import PrepareExtra
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.snapshot import Snapshot
from escrowmq.replication.state.transactions import to_snapshot
from escrowmq.replication.timers.record import KEY_BYTES, RECORD, TIME_MAX
from escrowmq.replication.timers.sealed_file import SealedFile, encode
from tests.support.stored_bytes import StoredBytes


class FedState:
    """A topic ``t`` of two partitions; one entry per call, one second apart."""

    def __init__(self) -> None:
        self.state = StateMachine(0, 1)
        self.index = 1
        self.now_ms = 1_000_000
        self.state.apply(1, b"")
        assert self.add(ops.create_topic("t", {"partitions": 2, "check_max": 3})) == [[0, 1]]

    def add(self, *frames: bytes) -> list[list[object]]:
        self.index += 1
        self.now_ms += 1_000
        count = sum(len(decode_ops(frame)) for frame in frames)
        return self.state.apply(self.index, encode_command(frames, count, self.now_ms))

    def prepare(
        self,
        tx_ids: Sequence[str],
        part: int = 0,
        digest: int = 7,
        timeout_ms: int = 0,
        *,
        app: str = "app",
        home_group: int = -1,
    ) -> list[list[object]]:
        rows = [encode_row(None, tx.encode(), None, tx) for tx in tx_ids]
        return self.add(
            ops.prepare(app, "t", tx_ids, None, timeout_ms, part, [digest] * len(tx_ids), home_group, 1),
            ops.pre_message("t", 0, list(range(len(tx_ids))), [len(r) for r in rows], rows),
        )

    def commit(self, tx_ids: Sequence[str]) -> list[list[object]]:
        """References and COMMIT as a leader writes them."""
        table = self.state.transactions.app("app")
        flat = [n for tx in tx_ids if tx in table.open for n in table.open[tx].refs]
        refs = [n for i, n in enumerate(flat) if i % 5]
        return self.add(ops.reference("t", 0, refs), ops.Commit("app", tx_ids, "producer", 1, [], -1).frame())

    def end(self, partition: int = 0) -> int:
        return self.state.topics.topics["t"].partitions[partition].index.end


def busy_state() -> FedState:
    """Plain messages, and transactions in every state; a small part of what a snapshot holds."""
    log = FedState()
    rows = [encode_row(b"k", b"v", None, None)] * 3
    for seq in range(6):
        log.add(ops.message("t", 1, "p", 0, seq, rows))
    log.prepare(["open", "done", "undone"])
    log.prepare(["open"], part=1, digest=3)
    log.commit(["done"])
    log.add(ops.rollback("app", ["undone"], by="operator:eve"))
    log.add(ops.checked("app", ["open"]))
    log.add(ops.group_offsets("g", "t", {0: 1, 1: 5}))
    return log


def state_with_branches() -> FedState:
    """The same, with transactions over several groups, ids of the application's, and an altered topic."""
    log = busy_state()
    log.add(ops.settings({"groups_kept": 7}))
    home = PrepareExtra(instance="producer-1", participants=[1, 2], parts=2, given=True, heard_ms=5)
    log.state.forgotten_ms, log.state.turned_ms, log.state.transactions.given.turned_ms = 3, 4, 5
    log.add(ops.prepare("app", "t", ["given"], None, 0, 0, [1], -1, 0, PrepareExtra(given=True, heard_ms=9)))
    log.add(ops.rollback("app", ["given"]))
    log.add(ops.prepare("app", "t", ["home"], None, 0, 0, [1], -1, 0, home))
    branch = PrepareExtra(instance="producer-1", home_index=[17], heard_ms=log.now_ms)
    log.add(ops.prepare("app", "t", ["branch"], None, 0, 0, [1], 3, 0, branch))
    told = PrepareExtra(participants=[1, 2], heard_ms=log.now_ms + 1)
    log.add(ops.prepare("app", "t", ["told", "untold"], None, 0, 0, [1, 2], -1, 0, told))
    log.add(ops.rollback("app", ["told", "untold"]))
    log.add(ops.done("app", ["told"], [log.index - 1], 2))
    again = PrepareExtra(instance="producer-2", heard_ms=log.now_ms + 1)
    log.add(ops.prepare("app", "t", ["open"], None, 0, 0, [7], -1, 0, again))
    log.add(ops.alter_topic("t", {"check_max": 5, "retention_ms": 60_000}, 0))
    log.state.producers.forgotten_ms, log.state.producers.turned_ms = 6, 7
    return log


def state_with_history() -> FedState:
    """The same, with a topic whose creator chose where it begins, transactions that were checked, and settled
    ones of which more is told."""
    log = state_with_branches()
    log.add(ops.create_topic("placed", {"partitions": 2}, 0))
    extra = PrepareExtra(heard_ms=log.now_ms)
    ids = ["plain", "asked", "by hand", "waits"]
    rows = [encode_row(None, tx.encode(), None, tx) for tx in ids]
    log.add(
        ops.prepare("app", "t", ids, None, 0, 0, [7] * 4, -1, 1, extra),
        ops.pre_message("t", 0, [0, 1, 2, 3], [len(row) for row in rows], rows),
    )
    log.add(ops.checked("app", ["asked", "waits"]))
    log.commit(["plain"])
    log.add(ops.rollback("app", ["asked"], by="feedback"))
    log.add(ops.rollback("app", ["by hand"], by="operator:eve"))
    return log


def state_with_ids() -> FedState:
    """The same, with a topic that was created again, and a consumer group that was deleted."""
    log = state_with_history()
    ((_, topic_id),) = log.add(ops.create_topic("again", {"partitions": 2}, 0))
    log.add(ops.delete_topic("again", topic_id), ops.create_topic("again", {"partitions": 3}, 0))
    log.add(ops.group_offsets("gone", "again", {0: 1}), ops.delete_group("gone", 1 << 32 | 5))
    return log


def state_with_timers() -> FedState:
    """The same, with messages that wait, one of them cancelled, some released, some of an open
    transaction."""
    log = state_with_ids()
    row = encode_row(None, b"later", None, None)
    rows, soon, late = [row] * 3, log.now_ms + 1_500, log.now_ms + 90_000
    log.add(timer_ops.scheduled("t", 0, "p", 0, -1, [soon, late, late], rows, 7, 0))
    timed = timer_ops.pre_scheduled("t", 0, [0], [len(row)], [-5_000], [0], [row])
    extra = PrepareExtra(heard_ms=log.now_ms)
    log.add(ops.prepare("app", "t", ["timed"], None, 0, 0, [1], -1, 1, extra) + timed)
    first, _, last = waiting(log.state)
    *_, index, pos, size = RECORD.unpack(first)
    log.add(
        ops.reference("t", 0, [index, pos, size, 1]),
        timer_ops.release(first[:KEY_BYTES], 1, log.state.timers.counts.of([first])),
        timer_ops.cancelled(
            last[:KEY_BYTES], [1], log.state.timers.counts.of([last]), [RECORD.unpack(last)[-3]]
        ),
    )
    return log


def state_with_shares() -> FedState:
    """The same, with two share groups, one with settings, a retry that waits, a dead letter, and attempts at
    an offset."""
    log = state_with_timers()
    row = encode_row(None, b"v", None, None)
    log.add(ops.message("t", 0, "p", 0, -1, [row] * 40))
    for name in ("__retry.mail", "__dead.mail"):
        log.add(ops.create_topic(name, {"partitions": 1}, 0))
    values = {"kind": "share", "max_attempts": 3, "delays_ms": [1_000, 60_000]}
    log.add(share_ops.group_settings("mail", values))
    log.add(share_ops.share_create("mail", "t", 0, share_ops.EARLIEST))
    log.add(share_ops.share_create("sms", "t", 0, share_ops.LATEST))
    end = log.end()
    log.add(share_ops.share_ack("mail", "t", 0, [0, 1, end - 9, end - 7, end - 4, end - 4]))
    log.add(
        share_ops.forward("__retry.mail", 0, [log.now_ms + 90_000], [row]),
        share_ops.forward("__dead.mail", 0, [0], [row]),
        share_ops.share_ack("mail", "t", 0, [end - 2, end - 1]),
    )
    log.add(ops.trim("t", {0: 5}))
    log.add(share_ops.places("billing", "t", [0, 7, 2, 1, 0, 0]))
    return log


def state_with_claims() -> FedState:
    """The same, and named producers: one with a committed number and an open one, and one without."""
    log = state_with_shares()
    log.add(ops.claim("outbox.shop.0", 1, "relay"), ops.claim("other", 7, "p"))
    for number in (1, 2):
        extra = PrepareExtra(
            "p", heard_ms=log.now_ms, claim=("outbox.shop.0", 1, number, bytes([number] * 16))
        )
        log.add(ops.prepare("app", "t", [f"numbered {number}"], None, 0, 0, [1], -1, 0, extra))
        if number == 1:
            log.add(ops.Commit("app", ["numbered 1"], "producer", 0, [], -1).frame())
    return log


def state_with_held_offsets() -> FedState:
    """The same, with a transaction that will move offsets of a group, and one about which nobody is asked."""
    log = state_with_claims()
    moving = PrepareExtra("p", heard_ms=log.now_ms + 1)
    alone = PrepareExtra("p", heard_ms=log.now_ms + 1, on_timeout=ops.ROLLBACK)
    frame = ops.prepare("app", "t", ["moving"], None, 0, 0, [1], -1, 1, moving)
    log.add(frame + ops.pre_offsets("g", "t", {0: (1, 4), 1: (5, 6)}))
    log.add(ops.prepare("app", "t", ["alone"], None, 0, 0, [1], -1, 0, alone))
    return log


def state_with_overtaken() -> FedState:
    """The same, with two transactions under a claim about which nobody is asked: a newer claim has overtaken
    one of them."""
    log = state_with_held_offsets()
    for epoch in (7, 8):
        claim = "other", epoch, ops.UNNUMBERED, b""
        extra = PrepareExtra("p", heard_ms=log.now_ms + 1, claim=claim, on_timeout=ops.ROLLBACK)
        log.add(ops.claim("other", epoch, "p" * (epoch - 6)))
        log.add(ops.prepare("app", "t", [f"alone {epoch}"], None, 0, 0, [1], -1, 0, extra))
    return log


def state_with_fences() -> FedState:
    """The same, with transactions of two fences, and one that was prepared again."""
    log = state_with_overtaken()
    for name in (b"a" * 16, b"b" * 16):
        extra = PrepareExtra("p", heard_ms=log.now_ms + 1, fence=name)
        ids = [f"fenced {name[:1].decode()} {number}" for number in range(3)]
        log.add(ops.prepare("app", "t", ids, None, 0, 0, [1, 2, 3], -1, 0, extra))
    again = PrepareExtra("q", heard_ms=log.now_ms + 1, fence=b"b" * 16)
    log.add(ops.prepare("app", "t", ["fenced b 1"], None, 0, 0, [2], -1, 0, again))
    return log


def state_with_letters() -> FedState:
    """The same, with a transaction that redrives the dead letter into a topic: something of everything that a
    snapshot holds."""
    log = state_with_fences()
    extra = PrepareExtra("", heard_ms=log.now_ms + 1, on_timeout=ops.ROLLBACK)
    frame = ops.prepare("app", "t", ["redrive"], None, 0, 0, [1], -1, 1, extra)
    known = log.state.topics.topics["__dead.mail"].info.topic_id
    assert log.add(frame + share_ops.pre_letters("mail", 0, [0, 0], known, "t", "operator:kim")) == [[0]]
    return log


def waiting(state: StateMachine) -> list[bytes]:
    """The records of all messages that wait for their time, in order."""
    store = state.timers.store
    return store.listed(store.cursor, TIME_MAX, 1 << 40)[0]


def timers_file(state: StateMachine, taken: Snapshot) -> list[SealedFile]:
    """What a checkpoint writes beside this snapshot of the state."""
    parts = [*state.timers.store.to_write(taken.timers)]
    return [SealedFile("one.timers", StoredBytes(b"".join(encode(parts))))] if parts else []


def dump(state: StateMachine) -> dict[str, Any]:
    """All of a state that a restart must bring back; "counts" is separate: it may be counted again."""
    return {
        "altered": (state.topics.altered, {n: t.altered for n, t in state.topics.topics.items()}),
        "topics": {n: (t.info, sorted(t.partitions)) for n, t in state.topics.topics.items()},
        "ids": (state.topics.last_id, {n: t.info.topic_id for n, t in state.topics.topics.items()}),
        "ids of partitions": {s: p.topic_id for s, p in state.topics.slots.items()},
        "deleted groups": (state.deleted_groups.floor, list(state.deleted_groups.generations.items())),
        "bounds": {s: (p.index.start, p.index.end) for s, p in state.topics.slots.items()},
        "runs": {s: p.index.runs_from(p.index.start) for s, p in state.topics.slots.items()},
        "open": {a: t.open for a, t in state.transactions.apps.items()},
        "counts": {a: t.open_by_topic for a, t in state.transactions.apps.items()},
        "decided": {a: t.decided for a, t in state.transactions.apps.items()},
        "settled": {a: t.settled.copy() for a, t in state.transactions.apps.items()},
        "given": {a: t.given.copy() for a, t in state.transactions.apps.items()},
        "audit": state.transactions.audit,
        "lives": [list(map(to_snapshot, ring)) for ring in state.transactions.lives.copy()],
        "producers": (state.producers.copy(), state.producers.forgotten_ms, state.producers.turned_ms),
        "groups": state.group_offsets,
        "level": (state.level, state.settings, state.forgotten_ms, state.turned_ms),
        "timers": (state.timers.released, state.timers.counts.flat(), state.timers.cancelled.copy()),
        "waiting": waiting(state),
        "shares": {key: (*pair.saved(), pair.start) for key, pair in state.shares.pairs.items()},
        "share groups": (state.shares.groups, state.shares.ranges, list(state.attempts.items())),
        "claims": (list(state.claims.by_name.items()), dict(state.claims.rows())),
        "letters": dict(state.letters.by_tx),
        "held": (state.held.by_tx, state.held.holders, list(state.transactions.unattended)),
        "given since": [
            state.transactions.given.turned_ms,
            state.transactions.given.forgotten_ms,
        ],
        "clock": (
            state.applied_index,
            state.now_ms,
            state.transactions.given.age_ms,
            state.first_index,
            state.topics.next_slot,
        ),
    }
