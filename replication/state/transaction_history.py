"""What is kept about settled transactions: when prepared, how often checked, decided by whom, and when.

The memory of settled transactions has an id, a digest and an outcome for each, some hundred bytes, and holds
a million. The rest of a transaction's history takes several times that, and only people ask for it, about
few. So it is kept for the most recent ones only. One ring has those decided by their producers or their home
group, the usual case; another has those decided by a check, an operator or a policy, so that the usual case
does not push out the ones that people ask about. Kept from format level 5 on, since older snapshots do not
hold it.

A ring stores the records of one decision unchanged, and interprets them only when asked: deciding costs
one ring entry for all of its transactions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias, overload

from escrowmq.replication.state.open_tx import OpenTx, Run

#: Transactions in each ring, the usual case first: records kept there longer leave the processor's caches
#: (20,000 cost a producer's transactions 3 to 6 % of the time to apply them, 2,000 at most 1 %). The other
#: ring is off the hot path: 20,000 take 8 to 16 MB.
LIVES_KEPT = 2_000, 20_000


class Life(NamedTuple):
    """A transaction as it was when it was settled. Times in ms since the epoch; ``checked_ms`` 0: no check
    was answered without a decision."""

    topic: str
    query_id: str
    messages: int
    prepared_ms: int
    checks: int
    checked_ms: int


class Lived(Sequence[OpenTx]):
    """The records of one decision. Those of a block are made when somebody asks for them."""

    __slots__ = ("_runs",)

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    @overload
    def __getitem__(self, at: int) -> OpenTx: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[OpenTx]: ...

    def __getitem__(self, at: int | slice) -> OpenTx | Sequence[OpenTx]:
        return list(self)[at]

    def __iter__(self) -> Iterator[OpenTx]:
        return chain.from_iterable(self._runs)


class Settling(NamedTuple):
    """One decision: the ids of its transactions and, in the same order, their records."""

    at_ms: int
    by: str
    app: str
    outcome: int
    tx_ids: Sequence[str]
    records: Sequence[OpenTx | Life]


Copy: TypeAlias = list[list[Settling]]


class TransactionHistory:
    """Changed in the applying thread only; any thread may read."""

    __slots__ = ("_counts", "_rings")

    def __init__(self) -> None:
        self._rings: tuple[deque[Settling], deque[Settling]] = deque(), deque()
        self._counts = [0, 0]

    def add(self, settling: Settling, *, rule: bool) -> None:
        """``rule``: decided in the usual way. Beyond the ring's bound the oldest decisions are dropped,
        whole; the newest one stays even if it alone is larger."""
        which = 0 if rule else 1
        ring = self._rings[which]
        ring.append(settling)
        count = self._counts[which] + len(settling.tx_ids)
        while count > LIVES_KEPT[which] and len(ring) > 1:
            count -= len(ring.popleft().tx_ids)
        self._counts[which] = count

    def find(self, app: str, tx_id: str) -> tuple[Settling, Life] | None:
        """The newest with that id: an id may be used again. Searches both rings."""
        found: tuple[Settling, Life] | None = None
        for ring in self._rings:
            for settling in reversed(list(ring)):  # a copy in one step: the ring may change meanwhile
                if settling.app == app and tx_id in settling.tx_ids:
                    if found is None or settling.at_ms > found[0].at_ms:
                        place = list(settling.tx_ids).index(tx_id)
                        found = settling, life_of(settling.records[place])
                    break
        return found

    # -------------------------------------------------------------- snapshots

    def copy(self) -> Copy:
        """Both rings as they are now; their items never change."""
        return [list(ring) for ring in self._rings]

    def restore(self, which: int, settlings: Iterable[Settling]) -> None:
        """Load a snapshot's items of one ring, in order, into rings that are not in use yet."""
        for settling in settlings:
            self._rings[which].append(settling)
            self._counts[which] += len(settling.tx_ids)


def life_of(record: OpenTx | Life) -> Life:
    """A record's history."""
    if isinstance(record, Life):
        return record
    return Life(
        record.topic,
        record.query_id,
        record.messages,
        record.prepared_ms,
        record.checks,
        record.checked_ms,
    )


def to_snapshot(settling: Settling) -> list[object]:
    """Its form in a snapshot."""
    return [*settling[:5], [life_of(record) for record in settling.records]]


def from_snapshot(fields: Sequence[object]) -> Settling:
    """Inverse of ``to_snapshot``. Raises ValueError or TypeError for anything else."""
    at_ms, by, app, outcome, tx_ids, lives = fields
    records = [Life(*life) for life in lives]  # type: ignore[attr-defined]
    if len(records) != len(tx_ids):  # type: ignore[arg-type]
        raise ValueError("a decision has a life for each of its transactions")
    return Settling(at_ms, by, app, outcome, tx_ids, records)  # type: ignore[arg-type]
