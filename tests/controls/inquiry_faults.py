"""Planted faults in what a branch learns from its home group, and in how long home remembers its decisions.

``followed-after-done`` needs a copy of a branch's PREPARE that opens after the branch's group has forgotten
the transaction. Two guards stand against that: the group refuses such copies, and home's answer tells that
they are late. The fault removes the second guard, and its world the first.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from escrowmq.actors.client.replica_calls import OnAnswer
from escrowmq.replication.calling.answers import Reply, Standing
from escrowmq.replication.format.codec import Op, decode_ops
from escrowmq.replication.format.operation import OpType
from escrowmq.replication.format.ops import PrepareExtra
from escrowmq.replication.format.settings import Settings
from escrowmq.replication.replica import branches
from escrowmq.replication.replica.replica import Replica
from escrowmq.replication.state.machine import Result, StateMachine
from escrowmq.replication.state.transactions import TransactionTable, standings
from tests.controls.branch_faults import APART
from tests.controls.planting import plant
from tests.controls.scenes import ALL_ACROSS, FORGETFUL, world
from tests.sim.across import wire, workload
from tests.sim.across.branching import CALL_S, SimBranches
from tests.sim.across.scene import Scene
from tests.sim.across.simulation import Part
from tests.sim.across.wire import Wire
from tests.sim.group.broker_app import number_of

SHORT_MS = 100


# ------------------------------------------------------------------ branches that have to ask
def left_to_the_groups(patch: pytest.MonkeyPatch) -> None:
    """Branches come due after a tenth of a second. Half of the decisions that clients send them are lost, so
    that they hear them from home or ask. Where two replicas of home believe that they lead, branches ask the
    one of the earlier term."""
    world(ALL_ACROSS | {"act_every_s": 0.05})(patch)
    settings, call = workload.topic_settings, Wire.call

    def short(partitions: int, **options: int | str) -> dict[str, int | str]:
        return settings(partitions, **options | {"transaction_timeout_ms": SHORT_MS})

    def lossy(self: Wire, gid: int, rid: int, method: str, args: tuple[Any, ...], done: OnAnswer) -> None:
        if self._parts[gid].calm or method != "submit" or not _is_lost(args[0], gid):
            call(self, gid, rid, method, args, done)

    patch.setattr(workload, "topic_settings", short)
    patch.setattr(Wire, "call", lossy)
    _ask_the_earlier(patch)


def _is_lost(request: bytes, gid: int) -> bool:
    """Whether the request tells this branch group what home has decided, and is in the half that is lost."""
    for op in decode_ops(request):
        if op.type in (OpType.COMMIT, OpType.ROLLBACK) and op.meta.home_group >= 0:
            return bool(zlib.crc32(f"{op.meta.tx_ids[0]}/{gid}".encode()) % 2)
    return False


def _ask_the_earlier(patch: pytest.MonkeyPatch) -> None:
    made, call = SimBranches.__init__, SimBranches.call

    def init(self: SimBranches, app: Any, context: Any, clients: Any) -> None:
        made(self, app, context, clients)
        setattr(self, "clients", clients)  # noqa: B010  (it has none by itself)

    def to_the_earlier(
        self: SimBranches, gid: int, method: str, args: tuple[Any, ...], done: Callable[[Any], None]
    ) -> None:
        clients: workload.AcrossWorkload = getattr(self, "clients")  # noqa: B009
        rid = _deposed(clients.many.parts[gid]) if method == "submit" else None
        if rid is None:
            call(self, gid, method, args, done)
            return
        waits = [done]

        def ended(answer: Any) -> None:
            for waiting in waits:
                waiting(answer)
            waits.clear()

        def answered(answer: Any, error: BaseException | None) -> None:
            told = answer[1] if type(answer) is tuple and answer[0] == "ok" else None
            self._context.later(0.0, lambda: ended(told))

        clients.wire.call(gid, rid, method, args, answered)
        self._context.later(CALL_S, lambda: ended(None))

    patch.setattr(SimBranches, "__init__", init)
    patch.setattr(SimBranches, "call", to_the_earlier)


def _deposed(part: Part) -> int | None:
    """The replica that still believes it leads an earlier term, if there is one."""
    leading = sorted((r.node.term, number_of(r.name)) for r in part.replicas if r.up and r.node.ready)
    return leading[0][1] if len(leading) > 1 else None


@plant(
    "inquire-from-state",
    *APART,
    *("lost-write", "unresolved"),  # a branch that is gone keeps a check from committing
    groups=3,
    chaos_s=10.0,
    start=125,
    often={"partition": 80},
    conditions=left_to_the_groups,
    long=True,
)
def inquire_from_state(patch: pytest.MonkeyPatch) -> None:
    """A leader answers a branch's INQUIRE from its current state, and not through its log, so that a deposed
    leader answers "unknown" for a transaction that its successor has."""
    submit = Replica.submit

    def at_once(self: Replica, request: bytes, ops: Sequence[Op], done: Callable[[Reply], None]) -> None:
        assert self.raft is not None
        if self.raft.ready and all(op.type == OpType.INQUIRE for op in ops):
            done(("ok", [standings(self.state.transactions, op.meta) for op in ops]))
        else:
            submit(self, request, ops, done)

    patch.setattr(Replica, "submit", at_once)


@plant(
    *("home-forgets-too-early", *APART, "lost-write", "torn"),
    groups=3,
    chaos_s=10.0,
    start=2,
    often={"partition": 80},
    conditions=left_to_the_groups,
    long=True,
)
def home_forgets_too_early(patch: pytest.MonkeyPatch) -> None:
    """Home treats a decision as done as soon as one branch of several has carried it out."""
    done = TransactionTable.done

    def one_for_all(
        self: TransactionTable,
        now_ms: int,
        app: str,
        tx_ids: Sequence[str],
        home_indexes: Sequence[int],
        group: int,
    ) -> bool:
        turned = done(self, now_ms, app, tx_ids, home_indexes, group)
        for tx_id, index in zip(tx_ids, home_indexes, strict=True):
            decided = self.look(app).decided.get(tx_id)
            for other in decided.waiting if decided is not None and decided.home_index == index else ():
                turned |= done(self, now_ms, app, [tx_id], [index], other)
        return turned

    patch.setattr(TransactionTable, "done", one_for_all)


# ------------------------------------------------------------------ branches that should not be there
def late_branches_open(patch: pytest.MonkeyPatch) -> None:
    """All groups but one forget ids all the time. A copy of each branch's PREPARE arrives seconds later and
    opens the branch again; only home's answer closes it."""
    world(FORGETFUL | {"across": 1.0, "late_copies": 1.0, "crowd": False})(patch)
    patch.setattr(wire, "COPY_LATER_S", (1.5, 3.0))
    patch.setattr(Wire, "may_repeat", lambda self, request: _prepares_a_branch(request))
    patch.setattr(Scene, "tables_of", lambda scene, gid: scene.tables if gid else Settings())
    refusal = StateMachine._refusal_of_new

    def only_at_home(self: StateMachine, extra: PrepareExtra, count: int) -> Result | None:
        if extra.home_index and self.forgotten_ms >= extra.heard_ms:
            extra = msgspec.structs.replace(extra, heard_ms=self.forgotten_ms + 1)
        return refusal(self, extra, count)

    patch.setattr(StateMachine, "_refusal_of_new", only_at_home)


def _prepares_a_branch(request: bytes) -> bool:
    return any(op.type == OpType.PREPARE and op.meta.home_group >= 0 for op in decode_ops(request))


@plant(
    *("followed-after-done", "committed-twice", "duplicate"),
    groups=2,
    start=10,
    conditions=late_branches_open,
    long=True,
)
def followed_after_done(patch: pytest.MonkeyPatch) -> None:
    """A branch follows home's decision although home has it as done in that group, so the branch is a late
    copy."""
    judge = branches.judge

    def credulous(home: Standing, gid: int) -> tuple[int | None, bool]:
        return judge(home._replace(groups=[*home.groups, gid]), gid)

    patch.setattr(branches, "judge", credulous)
