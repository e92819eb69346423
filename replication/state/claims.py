"""Named producers: who of a name's claimants is the newest, and which number of theirs was committed last.

At most one numbered transaction of a claim is open. So the decision on it is the decision on its number, and
nothing has to be refused at a commit. Whoever repeats a number learns from the claim whether it is in,
however long ago that was. Deterministic, as everything in the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from escrowmq.replication.format.ops import UNNUMBERED, ClaimOp, claimed_epoch, first_epoch
from escrowmq.replication.model import ResultCode, TransactionState
from escrowmq.replication.state.transactions import TransactionTable

# ------------------------------------------------------------------------------------------------------------
# Open transactions under a claim about which nobody is asked, and those that a newer claim has overtaken.
#
# There is no local transaction beside such a one, so nothing speaks for keeping it open once its producer is
# fenced: the leader rolls it back at once, instead of when its time has passed. Only transactions that this
# group decides are here: a branch that was rolled back by itself, while its home commits, would be torn off.
#
# ``of`` is in snapshots; the rest follows from it and the claims. A CLAIM costs the same however many it
# overtakes, unless earlier ones of that name still wait.

#: App and transaction.
TxKey = tuple[str, str]


class Overtaken:
    """``of``: name and epoch under which each was prepared last. Changed in the applying thread only."""

    def __init__(self) -> None:
        self.of: dict[TxKey, tuple[str, int]] = {}
        # By name, none of them empty: those under the present claim, and those that have still to be taken.
        self._present: dict[str, dict[TxKey, None]] = {}
        #: Those that ``take`` finds, as they were not taken yet.
        self.waiting: dict[str, dict[TxKey, None]] = {}
        self._taken: dict[TxKey, int] = {}  # -> when they are taken again, if they are still open

    # -------------------------------------------------------------- every replica

    def note(self, key: TxKey, name: str, epoch: int, *, overtaken: bool = False) -> None:
        """It is open from now on, or was prepared again."""
        self.forget(key)
        self.of[key] = name, epoch
        (self.waiting if overtaken else self._present).setdefault(name, {})[key] = None

    def forget(self, key: TxKey) -> None:
        """It is no longer open, or not under a claim, or somebody is asked about it."""
        under = self.of.pop(key, None)
        if under is None:
            return
        self._taken.pop(key, None)
        for by_name in (self._present, self.waiting):
            keys = by_name.get(under[0], {})
            keys.pop(key, None)
            if not keys:
                by_name.pop(under[0], None)

    def claimed(self, name: str) -> None:
        """The name has a higher epoch from now on."""
        keys = self._present.pop(name, None)
        if keys is not None:
            fewer, more = sorted((keys, self.waiting.get(name, {})), key=len)
            more.update(fewer)
            self.waiting[name] = more

    def drop(self, name: str) -> None:
        """The name is forgotten: what is open under it is left to its time-out."""
        taken = [key for key in self._taken if self.of[key][0] == name]
        for key in (*self._present.get(name, ()), *self.waiting.get(name, ()), *taken):
            self.forget(key)

    # -------------------------------------------------------------- the leader

    def take(
        self, limit: int, again_ms: int, now_ms: int, table: TransactionTable
    ) -> dict[str, dict[str, int]]:
        """Up to ``limit`` overtaken ones, to be rolled back: app -> id -> log index of its newest PREPARE.
        Those that are still open after ``again_ms`` come again."""
        keys: list[TxKey] = []
        while self._taken and len(keys) < limit:
            key = next(iter(self._taken))
            if self._taken[key] > now_ms:
                break
            del self._taken[key]
            keys.append(key)
        while self.waiting and len(keys) < limit:
            name, waiting = self.waiting.popitem()
            while waiting and len(keys) < limit:
                keys.append(waiting.popitem()[0])
            if waiting:
                self.waiting[name] = waiting
        newest: dict[str, dict[str, int]] = {}
        for app, tx_id in keys:
            self._taken[app, tx_id] = now_ms + again_ms
            newest.setdefault(app, {})[tx_id] = table.look(app).open[tx_id].newest_index
        return newest

    def resign(self) -> None:
        """This replica no longer leads: whatever it has taken may be open for ever."""
        for key in self._taken:
            self.waiting.setdefault(self.of[key][0], {})[key] = None
        self._taken.clear()


#: Names that are kept; beyond, those used longest ago go first.
CLAIMS_KEPT = 50_000
#: But none that was used so recently: then no new name is taken.
KEPT_MS = 7 * 86_400_000
#: Plain messages note that a name is used only so often: they are many.
NOTED_MS = 3_600_000
#: The lowest epoch that a message under a claim has.
FIRST_CLAIMED = first_epoch(1)
#: Name, epoch, number (``UNNUMBERED``: none) and digest: as a PREPARE tells it.
Claimed = tuple[str, int, int, bytes]


class Claim(NamedTuple):
    """``claimant``: who has claimed the name with ``epoch``. ``number`` and ``digest``: of the numbered
    transaction that was committed last; ``UNNUMBERED``: none was."""

    epoch: int
    claimant: str
    number: int
    digest: bytes
    used_ms: int


class Claims:
    """``by_name``: in the order of their last use. ``open``: the numbered transactions that are open here;
    ``overtaken``: those about which nobody is asked. ``kept``: names, at most; the same on every replica.
    Changed in the applying thread only."""

    def __init__(self, kept: int = CLAIMS_KEPT) -> None:
        self._kept = kept
        self.by_name: dict[str, Claim] = {}
        self.open: dict[TxKey, Claimed] = {}
        self._busy: dict[str, TxKey] = {}  # name -> the one of ``open``
        self.overtaken = Overtaken()

    @property
    def any_open(self) -> bool:
        """Whether ``settled`` has anything to do: lets the hot path skip it."""
        return bool(self.open or self.overtaken.of)

    def rows(self) -> list[tuple[TxKey, Claimed]]:
        """The open ones, for a snapshot."""
        alone = self.overtaken.of.items()
        return [*self.open.items(), *((key, (*under, UNNUMBERED, b"")) for key, under in alone)]

    def claim(self, claim: ClaimOp, now_ms: int) -> list[object]:
        """The result of a CLAIM. It takes the name only with a higher epoch than
        the last one had: so of two claimants one gets it, and a late copy of a CLAIM changes nothing."""
        name, epoch, claimant = claim.name, claim.epoch, claim.claimant
        known = self.by_name.pop(name, None)
        if known is None:
            if not self._make_room(now_ms):
                return [int(ResultCode.TOO_MANY_CLAIMS), self._kept]
            known = Claim(0, "", UNNUMBERED, b"", now_ms)
        if epoch > known.epoch:
            known = known._replace(epoch=epoch, claimant=claimant)
            self.overtaken.claimed(name)
        self.by_name[name] = known._replace(used_ms=now_ms)
        if (epoch, claimant) != (known.epoch, known.claimant):
            return [int(ResultCode.FENCED), known.epoch]
        return [int(ResultCode.OK), [epoch, known.number]]

    def fenced(self, producer: str, epoch: int, now_ms: int) -> list[object] | None:
        """The result of messages that are not under the present claim of ``producer``, or None. ``epoch``:
        theirs, see ``claimed_epoch``. A name that is not known here any more is fenced, too: who has claimed
        it since cannot be told."""
        if not self.by_name and epoch < FIRST_CLAIMED:
            return None
        known, claimed = self.by_name.get(producer), claimed_epoch(epoch)
        if known is None:
            return [int(ResultCode.FENCED), 0] if claimed else None
        if claimed != known.epoch:
            return [int(ResultCode.FENCED), known.epoch]
        if known.used_ms < now_ms - NOTED_MS:
            self._use(producer, known, now_ms)
        return None

    def _use(self, name: str, known: Claim, now_ms: int) -> None:
        del self.by_name[name]
        self.by_name[name] = known._replace(used_ms=now_ms)

    def refusal(self, app: str, tx_id: str, claimed: Claimed, home: bool, now_ms: int) -> list[object] | None:
        """Why a PREPARE under a claim opens nothing, or None. ``home``: this group decides it."""
        name, epoch, number, digest = claimed
        known = self.by_name.get(name)
        if known is None or epoch != known.epoch:
            return [int(ResultCode.FENCED), 0 if known is None else known.epoch]
        self._use(name, known, now_ms)
        if number == UNNUMBERED or not home:
            return None
        if (number, digest) == (known.number, known.digest):
            done = [0, int(ResultCode.DUPLICATE), TransactionState.COMMITTED.value]
            return [int(ResultCode.PARTIAL), [done]]
        if number <= known.number:
            return [int(ResultCode.OUT_OF_STEP), known.number]
        key = self._busy.get(name)
        if key is None or (key == (app, tx_id) and self.open[key][2:] == (number, digest)):
            return None
        return [int(ResultCode.CLAIM_OPEN), list(key)]

    def opened(self, app: str, tx_ids: Sequence[str], claimed: Claimed, *, alone: bool) -> None:
        """Transactions that this group decides are open from now on; one, if it has a number. ``alone``:
        nobody is asked about them."""
        if claimed[2] != UNNUMBERED:
            self.open[app, tx_ids[0]] = claimed
            self._busy[claimed[0]] = app, tx_ids[0]
        elif alone:
            for tx_id in tx_ids:
                self.overtaken.note((app, tx_id), *claimed[:2])

    def prepared_again(self, app: str, tx_id: str, claimed: Claimed | None, *, alone: bool) -> None:
        """Perhaps by another producer, whose transaction it is from now on."""
        if alone and claimed is not None and claimed[2] == UNNUMBERED:
            self.overtaken.note((app, tx_id), *claimed[:2])
        else:
            self.overtaken.forget((app, tx_id))

    def settled(self, app: str, tx_ids: Iterable[str], committed: bool) -> None:
        """These are no longer open."""
        alone = self.overtaken.of
        for tx_id in tx_ids:
            claimed = self.open.pop((app, tx_id), None)
            if claimed is None:
                if (app, tx_id) in alone:
                    self.overtaken.forget((app, tx_id))
                continue
            name, _, number, digest = claimed
            self._busy.pop(name, None)
            if committed:  # it is kept while it has an open transaction, so it is there
                self.by_name[name] = self.by_name[name]._replace(number=number, digest=digest)

    def restore(self, claims: Sequence[tuple[str, Claim]], opened: Sequence[tuple[TxKey, Claimed]]) -> None:
        """What a snapshot has."""
        self.by_name.update(claims)
        for (app, tx_id), claimed in opened:
            if claimed[0] not in self.by_name:
                raise ValueError(f"transaction {tx_id!r} of {claimed[0]!r}, which nobody has claimed")
            if claimed[2] != UNNUMBERED:
                self.opened(app, [tx_id], claimed, alone=False)
            else:
                name, epoch = claimed[:2]
                self.overtaken.note((app, tx_id), name, epoch, overtaken=epoch != self.by_name[name].epoch)

    def _make_room(self, now_ms: int) -> bool:
        """Forget claims until there is room for one; False if none may be forgotten."""
        while len(self.by_name) >= self._kept:
            for name, claim in self.by_name.items():
                if claim.used_ms > now_ms - KEPT_MS:
                    return False
                if name not in self._busy:
                    break
            else:
                return False
            del self.by_name[name]
            self.overtaken.drop(name)
        return True
