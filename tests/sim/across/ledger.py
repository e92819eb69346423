"""What all clients know about transactions over several groups, and what the groups' logs show about them.

The true outcome of each is in its app's database, as with one group. A transaction has parts in several
groups, and phases that exist only there: prepared only at home, decided at home but not everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from escrowmq.replication.format.codec import decode_command
from escrowmq.replication.format.operation import OpType
from escrowmq.replication.state.machine import Result
from tests.sim.clients.ledger import APART, OF_TRANSACTIONS, ClientTx, Ledger, accepted, with_results
from tests.sim.environment.world import Violation, World
from tests.sim.running.coverage import AcrossPhase, Phase


@dataclass(eq=False, slots=True)
class AcrossTx(ClientTx):
    """A transaction over several groups.

    ``parts_in``: number of parts by group, the home group first. ``here``: the durable (group, part)s.
    ``wire``: its id as brokers know it, which another transaction may have as well.
    """

    wire: str = ""
    shares_id: bool = False
    parts_in: dict[int, int] = field(default_factory=dict)
    here: set[tuple[int, int]] = field(default_factory=set)
    ended_in: dict[int, bool] = field(default_factory=dict)  # group -> whether it committed

    def __post_init__(self) -> None:
        self.wire = self.wire or self.tx

    @property
    def home(self) -> int:
        return next(iter(self.parts_in))

    @property
    def whole(self) -> bool:
        """Whether all of its parts are durable."""
        return len(self.here) >= sum(self.parts_in.values())


class AcrossLedger(Ledger):
    """All transactions of all apps in all groups."""

    def __init__(self, world: World, groups: int) -> None:
        super().__init__(world)
        self._heard_in: dict[int, int] = {}
        self._levels = dict.fromkeys(range(groups), 1)  # the format level of each group
        self._named: dict[tuple[str, str], list[AcrossTx]] = {}  # by app and id on the wire

    def add(self, tx: AcrossTx, parts_in: Mapping[int, int]) -> None:
        """Add a transaction that is about to be prepared, or to be prepared again with the same id."""
        tx.parts_in = dict(parts_in)
        if (tx.app, tx.tx) not in self.transactions:
            self.transactions[tx.app, tx.tx] = tx
            self._named.setdefault((tx.app, tx.wire), []).append(tx)
        self.enter(tx, Phase.PREPARING)

    def of(self, app: str, tx_id: str) -> AcrossTx:
        """The transaction with this name."""
        tx = self.transactions[app, tx_id]
        assert isinstance(tx, AcrossTx)
        return tx

    def on_wire(self, app: str, wire: str, home: int) -> AcrossTx:
        """The transaction with this id at the brokers, decided by this group."""
        named = self._named[app, wire]
        return next((tx for tx in named if tx.home == home), named[0])

    def run_by(self, app: str, wire: str, producer: str) -> AcrossTx:
        """Of the transactions with this id, the one that this producer began."""
        named = self._named[app, wire]
        return next((tx for tx in named if tx.producer == producer), named[0])

    def open_in(self, app: str, wire: str, gid: int) -> AcrossTx:
        """Of the transactions with this id, the one that is open in a group; there can be only one."""
        named = self._named[app, wire]
        found = (tx for tx in named if gid not in tx.ended_in and any(group == gid for group, _ in tx.here))
        return next(found, named[0])

    def heard(self, gid: int, index: int, command: bytes, results: Sequence[Result]) -> None:
        """Replica of group ``gid`` applies an entry; the first replica to do so shows that it is durable."""
        if index <= self._heard_in.get(gid, 0):
            return
        self._heard_in[gid] = index
        if not command:
            return
        now_ms, ops = decode_command(command)
        self.listener(gid, index, now_ms, ops)
        for op, result in with_results(ops, results):
            if op.type in OF_TRANSACTIONS and op.meta.app in APART:
                continue
            if op.type == OpType.LEVEL:
                self._rises(gid, op.meta.level)
            elif op.type == OpType.PREPARE:
                home = op.meta.home_group if op.meta.home_group >= 0 else gid
                for tx_id in accepted(op, result):
                    self._part(self.on_wire(op.meta.app, tx_id, home), gid, op.meta.part)
            elif op.type in (OpType.COMMIT, OpType.ROLLBACK):
                for tx_id in accepted(op, result):
                    self._ended(self.open_in(op.meta.app, tx_id, gid), gid, op.type == OpType.COMMIT)

    def _rises(self, gid: int, level: int) -> None:
        """A group has reached a level: group 0 goes last, so what it answers proves it of all others."""
        self._levels[gid] = level
        behind = [group for group, reached in self._levels.items() if reached < level]
        if gid == 0 and behind:
            raise Violation(f"group 0 is at level {level} before the groups {behind}", "level-order")

    def _part(self, tx: AcrossTx, gid: int, part: int) -> None:
        tx.here.add((gid, part))
        tx.durable.add(len(tx.here))
        if tx.decided or tx.prepared:
            return
        self.leave(tx, Phase.PREPARING)
        if tx.whole:
            self.leave(tx, Phase.PREPARED_IN_PART, *AcrossPhase)
            self.enter(tx, Phase.PREPARED)
            return
        homes = sum(group == tx.home for group, _ in tx.here)
        if homes < tx.parts_in[tx.home]:
            self.enter(tx, Phase.PREPARED_IN_PART)
        else:
            self.leave(tx, Phase.PREPARED_IN_PART)
            self.enter(tx, AcrossPhase.HOME_ONLY if len(tx.here) == homes else AcrossPhase.SOME_BRANCHES)

    def _ended(self, tx: AcrossTx, gid: int, commit: bool) -> None:
        tx.ended_in.setdefault(gid, commit)
        if gid == tx.home and not tx.decided:
            tx.decided = True
            waiting = Phase.COMMITTING in tx.phases or Phase.ROLLING_BACK in tx.phases
            self.leave(tx, *tx.phases)
            if waiting and tx.awaits_answer and tx.told is None:
                self.enter(tx, Phase.COMMITTED if commit else Phase.ROLLED_BACK)
        if not tx.decided or len(tx.parts_in) == 1:
            return
        left = {group for group, _ in tx.here} - tx.ended_in.keys()
        self.leave(tx, AcrossPhase.HOME_DECIDED, AcrossPhase.SOME_FOLLOWED)
        if left:
            only_home = len(tx.ended_in) == 1
            self.enter(tx, AcrossPhase.HOME_DECIDED if only_home else AcrossPhase.SOME_FOLLOWED)
