"""What the sink asks of the broker groups, with patience: a query should outlive what brokers outlive.

Every call here may be repeated: chunks are recognised by id and content, a decision that stands is a
success. So whatever may pass (a fail-over, a full queue or disk, a missing answer) is waited for, up to
PATIENCE_S; then it is raised, Spark fails the task or the epoch, and nothing is lost by that.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from escrowmq.actors.client.router import Router, result_of
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.producer.blocks import Problems, opened_at, problems_of
from escrowmq.replication.calling.answers import OpenTransactions
from escrowmq.replication.calling.backoff import Backoff
from escrowmq.replication.calling.patience import Answer, Patience, patiently
from escrowmq.replication.errors import (
    DiskFull,
    EscrowMQError,
    InvalidMessage,
    NotSupported,
    OutcomeUnknown,
    Overloaded,
    Unavailable,
)
from escrowmq.replication.format import ops
from escrowmq.replication.model import ResultCode

#: One call, with the channel's own repetitions. A fail-over takes 1 to 2 s, a lost node up to 15.
CALL_S = 30.0
#: In all. Longer than what a supervisor takes to start lost replicas again.
PATIENCE_S = 120.0
#: Between two tries.
RETRY = Backoff(first_s=0.1, longest_s=1.0, jitter=0.5)
#: Ids of one roll-back: nobody needs those to be one entry.
IDS_AT_A_TIME = 5_000
#: Open transactions of a query looked at in one go; what is left is found at the next epoch.
OPEN_MAX = 100_000
PASSING = (Unavailable, Overloaded, DiskFull, OutcomeUnknown)
#: Codes of transactions that are only held up by others: what holds them up is told, or passes.
_HELD_UP = (ResultCode.RETRY, ResultCode.TOO_MANY_OPEN)


class _HeldUp(EscrowMQError):
    """All problems of a request are of transactions that are only held up by others."""

    def __init__(self, problems: Problems) -> None:
        super().__init__(problems)
        self.problems = problems


class NotOpened(EscrowMQError):
    """Home has refused a transaction: a result code, and what came with it."""

    def __init__(self, code: int, info: Any) -> None:
        super().__init__(code, info)
        self.code, self.info = code, info


class SinkLink:
    """The calls of one app. Thread-safe; closing the router is its owner's business."""

    def __init__(
        self,
        router: Router,
        app: str,
        *,
        patience_s: float = PATIENCE_S,
        call_s: float = CALL_S,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.router, self.app = router, app
        self._patience_s, self._call_s, self._sleep = patience_s, call_s, sleep
        self._rng = random.Random()  # jitter only

    @property
    def info(self) -> ClusterInfo:
        """The cluster's shape."""
        return self.router.info

    def start(self, gid: int, request: bytes) -> Future[Any]:
        """Send a request of one operation; hand the future to :meth:`finish`."""
        return self.router.submit(gid, request, self._call_s)

    def finish(self, gid: int, request: bytes, future: Future[Any], count: int) -> Problems:
        """The request's outcome over its ``count`` transactions; sent again as long as patience lasts."""
        calls = [future]

        def attempt() -> Problems:
            call = calls.pop() if calls else self.start(gid, request)
            found = problems_of(result_of(call, self._call_s)[0], count)
            problems = {at: said for at, said in found.items() if said[0] != ResultCode.DUPLICATE}
            if problems and all(code in _HELD_UP for code, _ in problems.values()):
                raise _HeldUp(problems)
            return problems

        try:
            return self._patiently(attempt)
        except _HeldUp as error:
            return error.problems

    def commit(self, gid: int, tx_ids: Sequence[str]) -> Problems:
        """Commit all of these in one entry, or none of them; {}: they are committed."""
        request = ops.commit(self.app, tx_ids, together=True)
        return self.finish(gid, request, self.start(gid, request), len(tx_ids))

    def rollback(
        self, gid: int, tx_ids: Sequence[str], home_index: Sequence[int] | None = None, home_group: int = -1
    ) -> Problems:
        """Roll back what is open of these. Problems are those that are committed, or forgotten.
        ``home_group``: of branches, -1 at home."""
        problems: Problems = {}
        for at in range(0, len(tx_ids), IDS_AT_A_TIME):
            part = tx_ids[at : at + IDS_AT_A_TIME]
            if home_index is None:
                request = ops.rollback(self.app, part)
            else:
                indexes = home_index[at : at + IDS_AT_A_TIME]
                request = ops.rollback_branches(self.app, part, ops.BY_PRODUCER, indexes, home_group)
            found = self.finish(gid, request, self.start(gid, request), len(part))
            problems.update((at + place, problem) for place, problem in found.items())
        return problems

    def states(self, gid: int, tx_ids: Sequence[str]) -> list[str]:
        """ "PREPARE", "COMMITTED", "ROLLBACK", or "UNKNOWN" (also: forgotten) of each."""
        states: list[str] = self._ask(list, gid, "tx_states", self.app, list(tx_ids))
        return states

    def open_ids(self, gid: int) -> list[str]:
        """The app's open transactions in a group, oldest first."""
        return list(self.open_places(gid))

    def open_places(self, gid: int) -> dict[str, int]:
        """The same, each with where its home has opened it; -1: it is in one group, or home does not see to
        it."""
        found = self._ask(OpenTransactions, gid, "transactions", None, self.app, None, OPEN_MAX)
        return dict(zip(found.tx_ids, found.home_indexes, strict=True))

    def open_at_home(self, gid: int, request: bytes) -> int | None:
        """Send a PREPARE of one transaction that names its branches, and wait: where home has opened it.
        None: the group has not reached format level 2. Raises as ``finish`` does, and TransactionConflict,
        ..."""
        opened: list[int] = []

        def attempt() -> Problems:
            result = result_of(self.start(gid, request), self._call_s)[0]
            opened[:], _ = opened_at(result, 1)
            return problems_of(result, 1)

        try:
            problems = self._patiently(attempt)
        except (NotSupported, InvalidMessage):  # the second from brokers with older software
            return None
        return self._opened(problems, opened)

    @staticmethod
    def _opened(problems: Problems, opened: list[int]) -> int:
        if problems or not opened:
            code, info = problems.get(0, (int(ResultCode.UNKNOWN_TX), None))
            raise NotOpened(code, info)
        return opened[0]

    def _ask(self, kind: type[Answer], gid: int, method: str, *args: Any) -> Answer:
        """A leader's answer, which is one of this type."""

        def attempt() -> Answer:
            future = self.router.leader_call(gid, method, *args, timeout_s=self._call_s)
            answer = result_of(future, self._call_s)
            if isinstance(answer, kind):
                return answer
            raise EscrowMQError(f"the broker does not answer {method!r}: {answer!r:.200}")

        return self._patiently(attempt)

    def _patiently(self, attempt: Callable[[], Answer]) -> Answer:
        patience = Patience(self._patience_s, RETRY, self._rng)
        return patiently(attempt, patience, (*PASSING, _HeldUp), clock=self.router.clock, sleep=self._sleep)


def roll_back_chunks(link: SinkLink, gid: int, places: Mapping[str, int], home: int) -> None:
    """Roll back chunks that are open in a group: transactions, each with where group ``home`` has opened it
    (-1: it is in one group, or home does not see to it)."""
    for tracked in (False, True):
        ids = [tx_id for tx_id, index in places.items() if (index >= 0) is tracked]
        if ids:
            indexes = [places[tx_id] for tx_id in ids] if tracked else None
            link.rollback(gid, ids, indexes, -1 if gid == home else home)
