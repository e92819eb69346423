"""What is told of settled transactions: prepared when, checked how often, decided by whom, and when.

The memory of settled transactions has an id, a digest and an outcome for each, some hundred bytes, and holds
a million. The rest of a life takes several times that, and is asked for by people, about few. So it is kept
for the last ones only: in one ring those that their producers decided, or their home group, which is the
rule; in another one those that a check, an operator or a policy decided, so that the rule does not push out
what is asked about. Kept from format level 5 on, since older snapshots do not hold it.

A ring has the records of one decision as they were, and takes them apart when somebody asks: deciding costs
one entry for all of its transactions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from escrowmq.replication.state.open_table import OpenTx

#: Transactions in each ring, first that of the rule: what is held on to there leaves the processor's caches
#: (20,000 cost a producer's transactions 3 to 6 % of what applying them takes, 2,000 at most 1 %). The other
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


class Settling(NamedTuple):
    """One decision: of each of its transactions the id and, in the same order, what it was."""

    at_ms: int
    by: str
    app: str
    outcome: int
    tx_ids: Sequence[str]
    records: Sequence[OpenTx | Life]


Copy: TypeAlias = list[list[Settling]]


class Lives:
    """Changed in the applying thread only; any thread may ask meanwhile."""

    __slots__ = ("_counts", "_rings")

    def __init__(self) -> None:
        self._rings: tuple[deque[Settling], deque[Settling]] = deque(), deque()
        self._counts = [0, 0]

    def add(self, settling: Settling, *, rule: bool) -> None:
        """``rule``: decided as nearly all are. What is beyond the ring's bound goes, whole decisions at a
        time; a last one that is larger by itself stays."""
        which = 0 if rule else 1
        ring = self._rings[which]
        ring.append(settling)
        count = self._counts[which] + len(settling.tx_ids)
        while count > LIVES_KEPT[which] and len(ring) > 1:
            count -= len(ring.popleft().tx_ids)
        self._counts[which] = count

    def find(self, app: str, tx_id: str) -> tuple[Settling, Life] | None:
        """The newest of that id: one may have come before. Looks through both rings."""
        found: tuple[Settling, Life] | None = None
        for ring in self._rings:
            for settling in reversed(list(ring)):  # a copy in one step: the ring goes on meanwhile
                if settling.app == app and tx_id in settling.tx_ids:
                    if found is None or settling.at_ms > found[0].at_ms:
                        place = list(settling.tx_ids).index(tx_id)
                        found = settling, life_of(settling.records[place])
                    break
        return found

    # -------------------------------------------------------------- snapshots

    def copy(self) -> Copy:
        """Both rings as they are now; what is in them never changes."""
        return [list(ring) for ring in self._rings]

    def restore(self, which: int, settlings: Iterable[Settling]) -> None:
        """What a snapshot has of one ring, in its order, into rings that are not in use yet."""
        for settling in settlings:
            self._rings[which].append(settling)
            self._counts[which] += len(settling.tx_ids)


def life_of(record: OpenTx | Life) -> Life:
    """What is told of a record."""
    if isinstance(record, Life):
        return record
    return Life(
        record.topic,
        record.query_id,
        sum(record.refs[4::5]),
        record.prepared_ms,
        record.checks,
        record.checked_ms,
    )


def to_snapshot(settling: Settling) -> list[object]:
    """As it stands in a snapshot."""
    return [*settling[:5], [life_of(record) for record in settling.records]]


def from_snapshot(fields: Sequence[object]) -> Settling:
    """Inverse of ``to_snapshot``. Raises ValueError or TypeError for what is none."""
    at_ms, by, app, outcome, tx_ids, lives = fields
    records = [Life(*life) for life in lives]  # type: ignore[attr-defined]
    if len(records) != len(tx_ids):  # type: ignore[arg-type]
        raise ValueError("a decision has a life for each of its transactions")
    return Settling(at_ms, by, app, outcome, tx_ids, records)  # type: ignore[arg-type]
