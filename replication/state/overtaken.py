"""Open transactions under a claim about which nobody is asked, and those that a newer claim has overtaken.

There is no local transaction beside such a one, so nothing speaks for keeping it open once its producer is
fenced: the leader rolls it back at once, instead of when its time has passed. Only transactions that this
group decides are here: a branch that was rolled back by itself, while its home commits, would be torn off.

``of`` is in snapshots; the rest follows from it and the claims. A CLAIM costs the same however many it
overtakes, unless earlier ones of that name still wait.
"""

from __future__ import annotations

from escrowmq.replication.state.transactions import TransactionTable

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
