"""Many transactions over the same broker groups as one unit, with one block per group instead of one plan per
transaction.

The steps are those of one transaction (across_groups.py), taken for all of them at once: home's block, then
the branches' blocks in parallel; likewise for the decision. A transaction that is refused on the way is left
out of the next step and rolled back, and the others continue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from escrowmq.actors.client.failures import Failure
from escrowmq.actors.producer import across_groups
from escrowmq.actors.producer.blocks import Column, Outcome, Placed, PrepareBlock
from escrowmq.actors.producer.bulk_blocks import BulkUnit, Report
from escrowmq.actors.producer.collected import Collected, add_rows
from escrowmq.actors.producer.core import ProducerCore
from escrowmq.actors.producer.delayed_blocks import LaterColumns, add_later, digest_with
from escrowmq.actors.producer.delayed_messages import Later
from escrowmq.actors.producer.encoder import digest_of
from escrowmq.actors.producer.results import prepare_problem, unprepared
from escrowmq.replication.errors import OutcomeUnknown
from escrowmq.replication.model import ResultCode


class SpreadUnit(BulkUnit):
    """Transactions with one part in each of the same groups, and with one home topic. ``given``: ids that the
    caller chose."""

    def __init__(
        self,
        core: ProducerCore,
        groups: Sequence[int],
        blocks: dict[int, PrepareBlock],
        indexes: list[int],
        given: set[str],
        limit_wait_s: float,
    ) -> None:
        home = blocks[groups[0]]
        super().__init__(core, list(home.tx_ids), list(home.query_ids), indexes)
        self.size = sum(block.size for block in blocks.values())
        self._groups, self._given, self._limit_wait_s = groups, given, limit_wait_s
        self._blocks: dict[int, PrepareBlock] | None = blocks
        self._home_index: list[int] | None = None

    def prepare(self, done: Report) -> None:
        """See BulkUnit."""
        assert self._blocks is not None
        parts = {gid: [block] for gid, block in self._blocks.items()}
        self._blocks = None
        staged = across_groups.StagedPrepare(
            self.core, self._groups, parts, self._limit_wait_s, partial(self._prepared, done)
        )
        staged.next_stage()

    def _prepared(self, done: Report, staged: across_groups.StagedPrepare) -> None:
        self.core.release(self.size)
        if staged.tracked:
            self._home_index = staged.home_index
        if any(tx_id in self._given for tx_id in self.tx_ids):
            self.newest = staged.newest_index
            self.repeated = {i for i in staged.repeated if self.tx_ids[i] in self._given}
        named: list[int] = []  # to roll back under home's index
        careful: list[int] = []  # the same, unless someone has continued it: ids that the caller chose
        bare: list[int] = []  # to roll back by id alone, which only this producer uses
        for place, tx_id in enumerate(self.tx_ids):
            problem, opened = staged.problems.get(place), staged.home_index[place] >= 0
            if problem is not None:
                given = tx_id in self._given
                if given and staged.left_open(place):
                    self.refuse(place, unprepared(tx_id, given, across_groups.left_open_failure(problem)))
                    continue
                self.refuse(place, prepare_problem(tx_id, *problem, opened=opened))
                if opened:
                    (careful if given else named).append(place)
                elif not (
                    staged.tracked
                    or problem[0] in across_groups.NOT_OURS
                    or (given and staged.refused_by_home(place))
                ):
                    bare.append(place)
            elif staged.failure is not None:
                given = tx_id in self._given
                nothing_done = staged.failure.nothing_done and not staged.any_prepared
                self.refuse(place, unprepared(tx_id, given and not nothing_done, staged.failure))
                if not given and not nothing_done:
                    (named if opened else bare).append(place)
        for places in (named, careful, bare):
            if places:
                ids = [self.tx_ids[i] for i in places]
                index = None if places is bare else [staged.home_index[i] for i in places]
                newest = [staged.newest_index[i] for i in places] if places is careful else ()
                finished = partial(self._undone, done, careful) if places is careful else _ignore
                across_groups.settle_many(
                    self.core, ids, list(staged.touched), False, finished, index, newest
                )
        if not careful:
            done(self)

    def _undone(self, done: Report, places: Sequence[int], outcome: Outcome) -> None:
        """The rollback of these, whose ids the caller chose, has ended: as for one transaction."""
        for i, place in enumerate(places):
            if isinstance(outcome, Failure):
                unknown = not outcome.nothing_done
            else:
                unknown = i in outcome and outcome[i][0] == ResultCode.RETRY
            if unknown:
                self.refuse(place, OutcomeUnknown(self.tx_ids[place]))
        done(self)

    def decide(self, commit: bool, places: Sequence[int], done: Report) -> None:
        """See BulkUnit."""

        def finished(outcome: Outcome) -> None:
            self.settled(places, outcome)
            done(self)

        known = self._home_index
        index = None if known is None else [known[i] for i in places]
        ids = [self.tx_ids[i] for i in places]
        newest = self.newest_of(commit, places) if index is not None else ()
        across_groups.settle_many(self.core, ids, self._groups, commit, finished, index, newest)


def _ignore(_: Outcome) -> None:
    """The ``done`` of rollbacks whose outcome is ignored."""


class SpreadBuilder(Collected):
    """Collects transactions over the same groups (home first) and with the same home topic into columns."""

    def __init__(self, groups: Sequence[int], home_topic: str) -> None:
        super().__init__(home_topic)
        self.groups = groups
        self._digests: dict[int, list[int]] = {gid: [] for gid in groups}
        self._columns: dict[int, dict[tuple[str, int], Column]] = {gid: {} for gid in groups}
        self._later: dict[int, LaterColumns] = {gid: {} for gid in groups}

    def add(
        self,
        tx_id: str,
        query_id: str,
        placed: Sequence[Placed],
        size: int,
        index: int,
        group_of: Callable[[str, int], int],
        later: Sequence[Later] = (),
    ) -> None:
        """Adds a transaction; ``group_of``: see ``Encoder``."""
        place = self.note(tx_id, query_id, size, index)
        placed_in: dict[int, list[Placed]] = {gid: [] for gid in self.groups}
        for one in placed:
            placed_in[group_of(one[0], one[1])].append(one)
        for gid, of_group in placed_in.items():
            add_rows(self._columns[gid], place, of_group)
        home = self.groups[0]
        # The digest that the home group remembers with the id covers all of its content, in all groups.
        self._digests[home].append(digest_with(digest_of(row for _, _, row in placed), later))
        later_of: dict[int, list[Later]] = {}
        for delayed in later:
            later_of.setdefault(group_of(delayed.topic, delayed.partition), []).append(delayed)
        for gid, items in later_of.items():
            add_later(self._later[gid], place, items)
        for gid in self.groups[1:]:
            rows = [row for _, _, row in placed_in[gid]]
            self._digests[gid].append(digest_with(digest_of(rows), later_of.get(gid, ())))

    def unit(self, core: ProducerCore, timeout_ms: int, given: set[str], limit_wait_s: float) -> SpreadUnit:
        """Everything collected, as a unit."""
        home = self.groups[0]
        blocks: dict[int, PrepareBlock] = {}
        for gid in self.groups:
            columns = self._columns[gid]
            size = sum(sum(column[1]) for column in columns.values())
            size += sum(sum(later[1]) for later in self._later[gid].values())
            blocks[gid] = PrepareBlock(
                self.home_topic,
                -1 if gid == home else home,
                timeout_ms,
                0,
                self.tx_ids,
                self.query_ids,
                self._digests[gid],
                columns,
                size,
                bool(self.ids),
            )
            blocks[gid].later = self._later[gid]
            core.encoder.pack_block(blocks[gid])
        blocks[home].participants = tuple(sorted(self.groups[1:]))
        return SpreadUnit(core, self.groups, blocks, self.indexes, given, limit_wait_s)
