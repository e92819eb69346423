"""Long polls without threads: a call that would wait is put aside, and repeated when there is news."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, TypeVar

from escrowmq.actors.client.replica_calls import OnAnswer
from escrowmq.cluster.testing.stage import NEVER, Stage
from escrowmq.replication.host.running_replica import WAIT_S_MAX

T = TypeVar("T")


class Parked(Exception):
    """A call must wait for news from ``lot``, for at most ``wait_s`` seconds."""

    def __init__(self, lot: StagedLot, wait_s: float) -> None:
        super().__init__("this call must be put aside")
        self.lot, self.wait_s = lot, wait_s


class StagedLot:
    """Replaces a ``ParkingLot``."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._parked: list[PendingCall] = []
        self._worker = stage.worker(self._step, "parked calls")
        self._told = False
        self._started = False

    def wait_for(self, attempt: Callable[[], T | None], wait_s: float) -> T | None:
        """The result of ``attempt()`` if there is one or no time is left to wait. Else raises ``Parked``."""
        found = attempt()
        if found is None and wait_s > 0 and not self._stage.no_waiting:
            raise Parked(self, min(wait_s, WAIT_S_MAX))
        return found

    def park(self, call: PendingCall) -> None:
        """Put the call aside until there is news or its time is over."""
        self._parked.append(call)
        if not self._started:
            self._started = True
            self._worker.start()
        else:
            self._worker.set()

    def announce(self) -> None:
        """Repeat the parked calls: there is news."""
        if self._parked:
            self._told = True
            self._worker.set()

    def close(self) -> None:
        """See ``ParkingLot``."""

    def _step(self) -> float:
        told, self._told = self._told, False
        now = self._stage.now()
        parked, self._parked = self._parked, []
        for call in parked:
            if told or call.until <= now or call.dropped():
                call.attempt()  # parks again if need be
            else:
                self._parked.append(call)
        return min((call.until for call in self._parked), default=NEVER)


class PendingCall:
    """One call of a broker's method. ``dropped()``: whether the client no longer waits for the answer."""

    def __init__(
        self,
        stage: Stage,
        method: Callable[..., Any],
        args: tuple[Any, ...],
        done: OnAnswer,
        dropped: Callable[[], bool],
    ) -> None:
        self._stage, self._method, self._done, self.dropped = stage, method, done, dropped
        self._args = pickle.dumps(args, protocol=5)
        self.until = NEVER

    def attempt(self) -> None:
        """Execute it in this thread. Arguments and answer are copied, as if they had crossed a network."""
        if self.dropped():
            return
        self._stage.no_waiting = self.until <= self._stage.now()
        try:
            args = pickle.loads(self._args)  # noqa: S301 - this process packed them
            answer = pickle.dumps(self._method(*args), protocol=5)
        except Parked as parked:
            if self.until == NEVER:
                self.until = self._stage.now() + parked.wait_s
            parked.lot.park(self)
            return
        except Exception as error:
            self._done(None, error)
            return
        finally:
            self._stage.no_waiting = False
        self._done(pickle.loads(answer), None)  # noqa: S301
