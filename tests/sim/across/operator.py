"""An operator in a world of several groups: decides at the home group and, like the admin client, checks all
groups before a COMMIT; branches then follow as usual."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from escrowmq.actors.client.config import ChannelConfig
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.replication.calling.answers import Standing
from escrowmq.replication.format import ops
from escrowmq.replication.model import ResultCode
from tests.sim.across.ledger import AcrossTx
from tests.sim.across.turns import WorldTurns

if TYPE_CHECKING:
    from tests.sim.across.workload import AcrossWorkload

NAME = "operator:simulated"


class Operator:
    """An operator. ``waiting``: number of its requests without an answer."""

    def __init__(self, clients: AcrossWorkload) -> None:
        scene, world = clients.scene, clients.many.world
        info = ClusterInfo("sim", "sim", scene.groups, scene.size)
        self._turns = WorldTurns(world, clients.wire, info, ChannelConfig(), world.stream("operator"))
        self._recorder, self._timeout_s = clients.ledger.recorder, scene.delivery_timeout_s
        self.waiting = 0

    def decide(self, tx: AcrossTx, outcome: str) -> None:
        """Decide a transaction. A COMMIT is not sent if the transaction is not prepared everywhere."""
        if outcome == "COMMITTED":
            self._look(tx, [tx.home], lambda index: self._decide_under(tx, outcome, index))
        else:
            self._decide_under(tx, outcome, None)

    def _submit(self, gid: int, request: bytes, told: Callable[[Any], None]) -> None:
        self.waiting += 1

        def ended(future: Any) -> None:
            self.waiting -= 1
            told(future)

        self._turns.submit(gid, request, timeout_s=self._timeout_s).add_done_callback(ended)

    def _look(
        self, tx: AcrossTx, groups: list[int], then: Callable[[int | None], None], index: int = -1
    ) -> None:
        """Look at the transaction in every group, through its log.

        The home group comes first; it reports its index and the other groups. ``then`` gets the index, or
        None if only the home group is involved.
        """
        gid, *others = groups

        def told(future: Any) -> None:
            if future.exception() is not None:
                return
            (result,) = future.result()
            row = Standing(*result[1][0])
            if index >= 0:
                if row.is_branch_of(tx.home):
                    go_on(others, index)
            elif row.state != "PREPARE" or (row.whole and not row.groups):
                then(None)
            elif row.whole:
                go_on(list(row.groups), row.home_index)

        def go_on(left: list[int], home_index: int) -> None:
            if left:
                self._look(tx, left, then, home_index)
            else:
                then(home_index)

        self._submit(gid, ops.inquire(tx.app, [tx.wire], [index]), told)

    def _decide_under(self, tx: AcrossTx, outcome: str, index: int | None) -> None:
        op = self._recorder.invoke("decide", app=tx.app, tx=tx.tx, outcome=outcome, by="operator")
        tx.asked = True
        if index is not None:
            request = ops.commit(tx.app, [tx.wire], NAME, [index])
        else:
            request = (ops.commit if outcome == "COMMITTED" else ops.rollback)(tx.app, [tx.wire], NAME)

        def told(future: Any) -> None:
            if future.exception() is not None:
                self._recorder.unknown(op, "no answer in time")
                return
            (result,) = future.result()
            problem = result[1][0] if result[0] == ResultCode.PARTIAL else [0, ResultCode.OK, None]
            if problem[1] in (ResultCode.OK, ResultCode.DUPLICATE):
                self._recorder.ok(op, outcome=outcome)
            elif problem[1] == ResultCode.TX_CONFLICT:
                self._recorder.ok(op, outcome=problem[2])
            else:
                self._recorder.unknown(op, f"answered {problem}")

        self._submit(tx.home, request, told)
