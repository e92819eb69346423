"""The sink's calls to the broker groups, with retries: a query should survive whatever brokers survive.

Every call here may be repeated: chunks are recognised by id and content, and repeating a decision succeeds.
So a temporary problem (a fail-over, a full queue or disk, a missing answer) is retried for up to PATIENCE_S.
After that the error is raised and Spark fails the task or the epoch, which loses nothing.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from escrowmq.actors.client.router import Router, result_of
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.producer.encoding.block_answers import opened_at, problems_of
from escrowmq.actors.producer.encoding.blocks import Problems
from escrowmq.replication.calling.answers import OpenTransactions
from escrowmq.replication.calling.patience import Answer, Backoff, Patience, patiently
from escrowmq.replication.errors import (
    DiskFull,
    EscrowMQError,
    OutcomeUnknown,
    Overloaded,
    Unavailable,
)
from escrowmq.replication.format import ops
from escrowmq.replication.model import ResultCode

#: Limit of one call, with the channel's own retries. A fail-over takes 1 to 2 s, a lost node up to 15 s.
CALL_S = 30.0
#: Total time of retries: longer than a supervisor takes to restart lost replicas.
PATIENCE_S = 120.0
#: Pauses between tries.
RETRY = Backoff(first_s=0.1, longest_s=1.0, jitter=0.5)
#: Ids per ROLLBACK; a rollback need not be a single log entry.
IDS_AT_A_TIME = 5_000
#: Limit on open transactions of a query listed at once; the next epoch finds the remaining ones.
OPEN_MAX = 100_000
PASSING = (Unavailable, Overloaded, DiskFull, OutcomeUnknown)
#: Result codes of transactions that other transactions hold up for a while.
_HELD_UP = (ResultCode.RETRY, ResultCode.TOO_MANY_OPEN)


class _HeldUp(EscrowMQError):
    """All problems of a request are transactions that others hold up for a while."""

    def __init__(self, problems: Problems) -> None:
        super().__init__(problems)
        self.problems = problems


class NotOpened(EscrowMQError):
    """The home group refused a transaction: the result code and its details."""

    def __init__(self, code: int, info: Any) -> None:
        super().__init__(code, info)
        self.code, self.info = code, info


class SinkLink:
    """The calls of one app. Thread-safe. Its owner closes the router."""

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
        """Send a request with one operation; pass the future to :meth:`finish`."""
        return self.router.submit(gid, request, self._call_s)

    def finish(self, gid: int, request: bytes, future: Future[Any], count: int) -> Problems:
        """The problems of the request's ``count`` transactions; retries the request if necessary."""
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
        """Commit all of these in one log entry, or none; returns the problems, {} if they are committed."""
        request = ops.commit(self.app, tx_ids, together=True)
        return self.finish(gid, request, self.start(gid, request), len(tx_ids))

    def rollback(
        self, gid: int, tx_ids: Sequence[str], home_index: Sequence[int] = (), home_group: int = -1
    ) -> Problems:
        """Roll back those of these that are open; problems are those that are committed or forgotten.

        ``home_group``: the home group of branches; -1 in the home group itself.
        """
        problems: Problems = {}
        for at in range(0, len(tx_ids), IDS_AT_A_TIME):
            part, indexes = tx_ids[at : at + IDS_AT_A_TIME], home_index[at : at + IDS_AT_A_TIME]
            request = ops.rollback(self.app, part, ops.BY_PRODUCER, indexes, home_group)
            found = self.finish(gid, request, self.start(gid, request), len(part))
            problems.update((at + i, problem) for i, problem in found.items())
        return problems

    def states(self, gid: int, tx_ids: Sequence[str]) -> list[str]:
        """The state of each: "PREPARE", "COMMITTED", "ROLLBACK", or "UNKNOWN" (perhaps forgotten)."""
        states: list[str] = self._ask(list, gid, "tx_states", self.app, list(tx_ids))
        return states

    def open_ids(self, gid: int) -> list[str]:
        """The app's open transactions in a group, oldest first."""
        return list(self.open_indexes(gid))

    def open_indexes(self, gid: int) -> dict[str, int]:
        """As :meth:`open_ids`, with the log index at which the home group opened each transaction.

        -1: the transaction is in one group only.
        """
        found = self._ask(OpenTransactions, gid, "transactions", None, self.app, None, OPEN_MAX)
        return dict(zip(found.tx_ids, found.home_indexes, strict=True))

    def open_at_home(self, gid: int, request: bytes) -> int:
        """Send the PREPARE of a transaction that names its branches; the log index where home opened it.

        Raises as ``finish`` does, and NotOpened.
        """
        opened: list[int] = []

        def attempt() -> Problems:
            result = result_of(self.start(gid, request), self._call_s)[0]
            opened[:], _ = opened_at(result, 1)
            return problems_of(result, 1)

        return self._opened(self._patiently(attempt), opened)

    @staticmethod
    def _opened(problems: Problems, opened: list[int]) -> int:
        if problems or not opened:
            code, info = problems.get(0, (int(ResultCode.UNKNOWN_TX), None))
            raise NotOpened(code, info)
        return opened[0]

    def _ask(self, kind: type[Answer], gid: int, method: str, *args: Any) -> Answer:
        """A leader's answer, which must be of this type."""

        def attempt() -> Answer:
            future = self.router.leader_call(gid, method, *args, timeout_s=self._call_s)
            answer = result_of(future, self._call_s)
            if isinstance(answer, kind):
                return answer
            raise EscrowMQError(f"unexpected answer of a broker to {method!r}: {answer!r:.200}")

        return self._patiently(attempt)

    def _patiently(self, attempt: Callable[[], Answer]) -> Answer:
        patience = Patience(self._patience_s, RETRY, self._rng)
        return patiently(attempt, patience, (*PASSING, _HeldUp), clock=self.router.clock, sleep=self._sleep)


def roll_back_chunks(link: SinkLink, gid: int, opened_at: Mapping[str, int], home: int) -> None:
    """Roll back chunks that are open in a group.

    ``opened_at``: transaction id -> log index at which group ``home`` opened it (-1: the transaction is in
    one group only).
    """
    for tracked in (False, True):
        ids = [tx_id for tx_id, index in opened_at.items() if (index >= 0) is tracked]
        if ids:
            indexes = [opened_at[tx_id] for tx_id in ids] if tracked else []
            link.rollback(gid, ids, indexes, home if tracked and gid != home else -1)
