"""Transactions over several groups: the groups' leaders alone bring them to their end.

A leader has two jobs, which need no client and no feedback actor:

- **As home** it tells branch groups the decisions (``follow``), until each has carried them out, which
  TX_DONE then records in its own log. A client that has told the branches itself also sends TX_DONE, so
  usually nothing is left to tell after PUSH_AFTER_MS.
- **As branch** it asks the home group about transactions that have been open for too long, by INQUIRE, which
  goes through home's log: a leader that was deposed without knowing it would answer "unknown", and what home
  does not know is rolled back here. Home is prepared first and forgets only what every branch has carried
  out; so a branch that is open although home has recorded it as done, or does not know it, is a late copy. To
  follow a COMMITTED then would publish it twice.

Pure: no thread, no clock, no network. Everything runs in the applying thread; a step handles at most
BATCH transactions for each group. Nothing kept here needs to survive: a new leader finds all of it in
its state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from escrowmq.replication.calling.answers import AcrossReport, Standing
from escrowmq.replication.calling.patience import Backoff
from escrowmq.replication.format import ops as build
from escrowmq.replication.format.ops import BY_HOME, HOLD_MS_MAX
from escrowmq.replication.model import ResultCode, TransactionState
from escrowmq.replication.state.decided import TxKey, Undone
from escrowmq.replication.state.machine import Result, StateMachine
from escrowmq.replication.state.open_tx import OpenTx
from escrowmq.replication.state.transactions import COMMITTED, ROLLED_BACK

#: The client tells the branches itself, within milliseconds; home tells only what the client left undone.
PUSH_AFTER_MS = 100
#: Transactions per call: some milliseconds of the other leader's time.
BATCH = 1_000
#: The minimum, however often calls fail: their ids are 20 KB at most.
FEWEST = 10
#: If its home group does not answer, a branch is asked about again after this time.
ASK_AGAIN_MS = 2_000
#: A home that has not decided yet will tell its decision itself; asking again only catches one that was
#: missed.
UNDECIDED_AGAIN_MS_MAX = 60_000
#: Pauses after failed calls to a group, in seconds.
PAUSE = Backoff(first_s=0.1, longest_s=5.0)
_OUTCOMES = {TransactionState.COMMITTED.value: COMMITTED, TransactionState.ROLLBACK.value: ROLLED_BACK}

Branch = tuple[str, str, OpenTx]  # app, tx_id, record


class Links(Protocol):
    """How a leader reaches groups. ``done`` is called once, later, in the applying thread; with None if
    there is no answer: then the call may or may not have taken effect."""

    def call(self, gid: int, method: str, args: tuple[Any, ...], done: Callable[[Any], None]) -> None:
        """Call a method of another group's leader, through fail-overs and for a bounded time."""

    def write(self, request: bytes, done: Callable[[Sequence[Result] | None], None]) -> None:
        """Write operations into this group's own log."""


class Branches:
    """What the leader of one group does about transactions over several groups. One thread.

    ``counts``, for operators: ``pushed`` and ``followed`` decisions, ``presumed`` rollbacks, decisions that
    the branch had ``forgotten`` when they arrived, and ``against_home``: branches that are recorded
    differently from home's decision, which must never happen.
    """

    def __init__(self, state: StateMachine, links: Links, report: Callable[[str], None]) -> None:
        self.counts: Counter[str] = Counter()
        self._state, self._links, self._report = state, links, report
        self._pushing: dict[int, object] = {}  # branch group -> the round that is under way
        self._asking: dict[int, object] = {}  # home group -> the round that is under way
        self._failures: Counter[int] = Counter()  # of calls to a group, in a row
        self._not_before: dict[int, int] = {}  # group -> ms
        self._fewer: dict[int, int] = {}  # group -> transactions of one call, where that is not BATCH
        self._now_ms = 0

    def with_counts(self, seen: AcrossReport) -> AcrossReport:
        """The replica's report, with these counts."""
        return msgspec.structs.replace(seen, **self.counts)

    def has_work(self) -> bool:
        """Whether a step could do anything. Cheap; any thread."""
        return bool(self._state.transactions.across.undone) or bool(self._state.due.branches.homes())

    def resign(self) -> None:
        """This replica no longer leads: answers that are still under way are ignored."""
        self._pushing.clear()
        self._asking.clear()
        self._failures.clear()
        self._not_before.clear()
        self._fewer.clear()

    def step(self, now_ms: int) -> None:
        """Start what is due; call it a few times a second, at the leader. ``now_ms``: the group's time."""
        self._now_ms = now_ms
        across = self._state.transactions.across
        cut_ms = self._state.stable.asked_ms
        patience = 0 if 0 <= now_ms - cut_ms < HOLD_MS_MAX and cut_ms >= 0 else PUSH_AFTER_MS
        for gid in list(across.undone):
            if gid not in self._pushing and now_ms >= self._not_before.get(gid, 0):
                rows = across.next_undone(gid, self._batch(gid), now_ms - patience)
                if rows:
                    self._push(gid, rows)
        for home in self._state.due.branches.homes():
            if home not in self._asking and now_ms >= self._not_before.get(home, 0):
                found = self._state.due.take_branches(home, self._batch(home), ASK_AGAIN_MS, now_ms)
                if found:
                    self._ask(home, found)

    def _batch(self, gid: int) -> int:
        return self._fewer.get(gid, BATCH)

    def _fitted(self, gid: int, fits: bool, asked: int) -> None:
        """Adapt the batch size to whether a request about ``asked`` transactions of this group was accepted.
        A request that is too large, or makes an entry that is, would never be. So a failed request is
        followed by smaller ones, whatever the reason."""
        count = 2 * self._batch(gid) if fits else max(min(asked, self._batch(gid)) // 2, FEWEST)
        if count < BATCH:
            self._fewer[gid] = count
        else:
            self._fewer.pop(gid, None)

    def _answered(self, gid: int, answer: Any, asked: int) -> bool:
        """Count the outcomes of calls to a group; returns whether this one has an answer."""
        if answer is not None:
            self._failures.pop(gid, None)
            self._not_before.pop(gid, None)
            return True
        self._fitted(gid, False, asked)
        pause_s = PAUSE.pause_s(self._failures[gid])
        self._failures[gid] += 1
        self._not_before[gid] = self._now_ms + int(pause_s * 1000)
        return False

    # ------------------------------------------------------------ as home: tell

    def _push(self, gid: int, rows: Sequence[Undone]) -> None:
        operations: dict[tuple[str, int], list[Undone]] = {}
        for row in rows:
            operations.setdefault((row.app, row.outcome), []).append(row)
        by = f"{BY_HOME}{self._state.gid}"
        frames = [
            decision(
                app, outcome, [r.tx_id for r in those], by, [r.home_index for r in those], self._state.gid
            )
            for (app, outcome), those in operations.items()
        ]
        self._pushing[gid] = turn = object()

        def answered(answer: Any) -> None:
            if self._pushing.get(gid) is turn:
                self._pushed(gid, list(operations.values()), answer)

        self._links.call(gid, "follow", (b"".join(frames),), answered)

    def _pushed(self, gid: int, operations: Sequence[Sequence[Undone]], answer: Any) -> None:
        told = sum(map(len, operations))
        if (
            not self._answered(gid, answer, told)
            or type(answer) is not list
            or len(answer) != len(operations)
        ):
            del self._pushing[gid]
            return
        self._fitted(gid, True, 0)
        done: dict[str, list[Undone]] = {}
        behind: list[TxKey] = []
        for rows, result in zip(operations, answer, strict=True):
            for row, code, info in results_of(rows, result):
                if self._has_done(gid, row, code, info):
                    done.setdefault(row.app, []).append(row)
                else:
                    behind.append((row.app, row.tx_id))
        self._state.transactions.across.put_behind(gid, behind)
        if behind:
            self._not_before[gid] = self._now_ms + PUSH_AFTER_MS
        if not done:
            del self._pushing[gid]
            return
        self.counts["pushed"] += sum(map(len, done.values()))
        frames = [
            build.done(app, [r.tx_id for r in those], [r.home_index for r in those], gid)
            for app, those in done.items()
        ]
        turn = self._pushing[gid]

        def written(_: Any) -> None:
            if self._pushing.get(gid) is turn:
                del self._pushing[gid]

        self._links.write(b"".join(frames), written)

    def _has_done(self, gid: int, row: Undone, code: int, info: Any) -> bool:
        """Whether the branch group need not be told again."""
        if code in (ResultCode.OK, ResultCode.DUPLICATE):
            return True
        if code == ResultCode.UNKNOWN_TX:  # settled and forgotten there, or not prepared: then it asks home
            self.counts["forgotten"] += 1
            return True
        if code == ResultCode.TX_CONFLICT:
            self.counts["against_home"] += 1
            self._report(
                f"branch-against-home: transaction {row.tx_id!r} of app {row.app!r} is recorded as {info} in "
                f"group {gid}, but was decided otherwise here (outcome {row.outcome}, home index "
                f"{row.home_index}); it may be an earlier transaction with the same id"
            )
            return True
        if code != ResultCode.RETRY:
            self._report(f"group {gid} does not follow {row.tx_id!r} of app {row.app!r}: {code} {info!r}")
        return False

    # ------------------------------------------------------------ as branch: ask

    def _ask(self, home: int, found: Sequence[Branch]) -> None:
        by_app: dict[str, list[Branch]] = {}
        for branch in found:
            by_app.setdefault(branch[0], []).append(branch)
        self._asking[home] = turn = object()
        frames = [
            build.inquire(app, [tx_id for _, tx_id, _ in those], [r.home_index for _, _, r in those])
            for app, those in by_app.items()
        ]

        def answered(answer: Any) -> None:
            if self._asking.get(home) is turn:
                self._inquired(home, list(by_app.values()), answer)

        self._links.call(home, "submit", (b"".join(frames),), answered)

    def _inquired(self, home: int, asked: Sequence[Sequence[Branch]], answer: Any) -> None:
        count = sum(map(len, asked))
        if not self._answered(home, answer, count) or type(answer) is not list or len(answer) != len(asked):
            del self._asking[home]
            return
        decided: dict[tuple[str, int], list[Branch]] = {}
        for branches, result in zip(asked, answer, strict=True):
            if result[0] != ResultCode.OK:
                continue
            for branch, row in zip(branches, result[1], strict=True):
                outcome, presumed = judge(Standing(*row), self._state.gid)
                if outcome is None:
                    self._undecided(branch)
                    continue
                self.counts["presumed" if presumed else "followed"] += 1
                decided.setdefault((branch[0], outcome), []).append(branch)
        by = f"{BY_HOME}{home}"
        self._write_decisions(
            home,
            [
                decision(
                    app, outcome, [t for _, t, _ in those], by, [r.home_index for _, _, r in those], home
                )
                for (app, outcome), those in decided.items()
            ],
            count,
        )

    def _write_decisions(self, home: int, frames: Sequence[bytes], asked: int) -> None:
        """Write them into the own log; then the next branches are asked about. Those still open come due
        again."""
        if not frames:
            del self._asking[home]
            self._fitted(home, True, asked)
            return
        turn = self._asking[home]

        def written(results: Sequence[Result] | None) -> None:
            if self._asking.get(home) is turn:
                del self._asking[home]
                self._fitted(home, results is not None, asked)

        self._links.write(b"".join(frames), written)

    def _undecided(self, branch: Branch) -> None:
        """Ask about it again when it is twice as old."""
        app, tx_id, record = branch
        age = self._now_ms - record.prepared_ms
        again_ms = min(max(age, ASK_AGAIN_MS), UNDECIDED_AGAIN_MS_MAX)
        self._state.due.put_off(app, tx_id, self._now_ms + again_ms)


def judge(home: Standing, gid: int) -> tuple[int | None, bool]:
    """What home's record means for the branch in group ``gid``: its outcome (None while it is open), and
    whether that is presumed, because home owes this branch no decision."""
    if home.state == TransactionState.PREPARE.value and gid in home.groups:
        return None, False
    if home.state in _OUTCOMES and gid in home.groups:
        return _OUTCOMES[home.state], False
    return ROLLED_BACK, True


def decision(
    app: str,
    outcome: int,
    tx_ids: Sequence[str],
    by: str,
    home_index: Sequence[int] | None = None,
    home_group: int = -1,
) -> bytes:
    """The operation that commits or rolls back."""
    if home_index is None:
        return (build.commit if outcome == COMMITTED else build.rollback)(app, tx_ids, by)
    return (build.commit if outcome == COMMITTED else build.rollback)(app, tx_ids, by, home_index, home_group)


def results_of(rows: Sequence[Undone], result: Sequence[Any]) -> list[tuple[Undone, int, Any]]:
    """Each row with its own code and info."""
    if result[0] != ResultCode.PARTIAL:
        return [(row, result[0], result[1] if len(result) > 1 else None) for row in rows]
    problems = {problem[0]: problem for problem in result[1]}
    found: list[tuple[Undone, int, Any]] = []
    for i, row in enumerate(rows):
        problem = problems.get(i)
        found.append((row, 0, None) if problem is None else (row, problem[1], problem[2]))
    return found
