"""``OutboxRelay``: threads that bring the rows of an outbox to the broker.

Any number of services may run one for the same outbox: each shard is sent by one of them, and another one
takes over if it stops. One thread looks for rows of all shards, in one statement that only reads: when a
commit of its own process or PostgreSQL tells it to, and by itself after a pause that grows while nothing
comes. Others take the steps of the shards that have rows. What one step does, and in which order, is in
``feedback/database/relaying``.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Self

from escrowmq.actors.outbox.shipping import BrokerShipping, RelayCluster, claim_name
from escrowmq.actors.producer.claiming import check_name
from escrowmq.actors.producer.encoding.encoder import check_app
from escrowmq.feedback.database.errors import OutboxBehind
from escrowmq.feedback.database.outbox import SHARDS_MAX, Outbox
from escrowmq.feedback.database.outbox_admin import OutboxShard
from escrowmq.feedback.database.outbox_shards import LEASE_MS, LEASE_MS_MAX, Notices, OutboxShards
from escrowmq.feedback.database.relaying import Relay, Step
from escrowmq.replication.errors import Closed, ConfigError, Unavailable

log = logging.getLogger(__name__)

#: The longest pause between two looks while nothing comes: one statement a second for all shards. A row of
#: another process waits no longer, and no longer than the shards were idle before it.
POLL_S = 1.0
#: The same while PostgreSQL's notifications arrive. They miss only what a transaction inserts that has looked
#: at the shards before they slept.
NOTIFIED_POLL_S = 5.0
#: The first pause after there was something: it is doubled with each look that finds nothing.
PAUSE_MIN_S = 0.001
#: After so long without rows shards sleep: who inserts rows notifies their relay. While there is traffic
#: nobody does.
DOZE_S = 0.1
#: Pauses of one shard after a step that did not send: the broker is away or the database fails (doubled from
#: one to the other); another relay has it; a person has to decide.
AWAY_MIN_S, AWAY_MAX_S, NOT_MINE_S, STOPPED_S = 0.1, 5.0, 1.0, 5.0
#: How often a relay looks whether there are rows in more shards than it knows.
SHARDS_LOOK_S = 5.0
THREADS_MAX = 4
#: For what is under way when a relay is closed: as long as the broker is waited for, and the database's part.
CLOSE_S = 20.0


class _Shard:
    """One shard as this relay's threads see it."""

    def __init__(self, number: int, relay: Relay) -> None:
        self.number, self.relay = number, relay
        self.not_before, self.pause_s = 0.0, AWAY_MIN_S
        self.due, self.renew_at = True, 0.0  # there may be something to do now; at the latest then
        self.busy = self.asleep = False  # rows were sent since it was idle; see DOZE_S
        self.said = ""  # the problem that was logged last

    def is_due(self, now: float) -> bool:
        """Whether to take a step."""
        has = self.relay.lease is not None
        return now >= self.not_before and (self.due or (has and now >= self.renew_at))

    def put_off(self, now: float, step: Step | None, renew_s: float) -> None:
        """After a step; None: the database failed. ``renew_s``: how often the lease is extended."""
        if step not in (Step.IDLE, Step.NOT_MINE, Step.STOPPED):
            self.due = self.busy = True
        if step is not Step.IDLE:
            self.asleep = False
        self.renew_at = now + renew_s
        if step in (Step.IDLE, Step.SENT, Step.REFUSED):
            self.pause_s = AWAY_MIN_S
        elif step is Step.NOT_MINE:
            self.not_before = now + NOT_MINE_S
        elif step is Step.STOPPED:
            self.not_before = now + STOPPED_S
        else:
            self.not_before = now + self.pause_s
            self.pause_s = min(self.pause_s * 2, AWAY_MAX_S)

    def say(self, step: Step | None, problem: str) -> None:
        """Log a problem, once for as long as it lasts."""
        if step in (Step.SENT, Step.IDLE):
            if self.said:
                log.info("shard %d of the outbox: rows are sent again", self.number)
            self.said = ""
        elif step not in (Step.NOT_MINE, None) and problem != self.said:
            level = logging.ERROR if step is Step.STOPPED else logging.WARNING
            log.log(level, "shard %d of the outbox: %s", self.number, problem)
            self.said = problem


class OutboxRelay:
    """Sends the rows of an outbox, in threads of its own. A context manager.

    ::

        outbox = Outbox(engine)
        with OutboxRelay(outbox, cluster, app="shop"):
            ...                                       # the service: outbox.send(db, Message(...))

    ``outbox``: an Outbox, or what an Outbox is made of. With the service's own Outbox, a commit wakes the
    relay, and on PostgreSQL a commit of any process; otherwise it finds the rows within ``poll_s``, sooner if
    there were rows a moment ago. Give it an Engine, whose connections are kept: a
    function that opens connections is called for each step. ``cluster``: a cluster of ``connect``, which
    must stay open. ``app``: names this outbox in the broker, so each table needs its own; the relay's
    producers are named ``outbox.<app>.<shard>``. Rows of all shards are sent, whatever number of them is
    given.

    Raises DatabaseMisused, InvalidMessage (``app``), ConfigError. Source of the rules: SEMANTICS 5.3.
    """

    def __init__(
        self,
        outbox: Outbox | Any,
        cluster: RelayCluster,
        *,
        app: str,
        poll_s: float = POLL_S,
        lease_s: float = LEASE_MS / 1000,
    ) -> None:
        """``poll_s``: the longest pause between two looks, from 0.001 to 60; it is 5 while PostgreSQL's
        notifications arrive. ``lease_s``: another relay takes
        a shard over when this one has been silent for so long, from 1 to 600."""
        if not 1 <= lease_s <= LEASE_MS_MAX / 1000:
            raise ConfigError(f"lease_s must be from 1 to 600, not {lease_s!r:.80}")
        if not PAUSE_MIN_S <= poll_s <= 60:
            raise ConfigError(f"poll_s must be from {PAUSE_MIN_S} to 60, not {poll_s!r:.80}")
        self.outbox: Outbox = outbox if isinstance(outbox, Outbox) else Outbox(outbox)
        check_name(claim_name(check_app(app), SHARDS_MAX - 1))  # or no shard could ever be claimed
        self._app, self._poll_s = app, float(poll_s)
        self._shipping = BrokerShipping(cluster, app)
        owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._database = OutboxShards(
            self.outbox.database,
            self.outbox.statements,
            owner,
            lambda: int(time.time() * 1000),
            int(lease_s * 1000),
        )
        self._shards: dict[int, _Shard] = {}
        self._count = self.outbox.shards
        self._renew_s = lease_s / 3
        self._threads: list[threading.Thread] = []
        self._wakes: list[threading.Event] = []
        self._others: list[threading.Thread] = []
        self._making = threading.Lock()
        self._look, self._loses = threading.Event(), False  # shards are another relay's
        self._notices: Notices | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()

    # ------------------------------------------------------------ for users

    def start(self) -> Self:
        """Start the threads."""
        with self._lock:
            if self._ended.is_set():
                raise Closed("this relay was closed; create a new one")
            if self._threads:
                return self
            self._look_for_shards()
            count = min(self._count, THREADS_MAX)
            self._wakes = [threading.Event() for _ in range(count)]
            for worker in range(count):
                thread = threading.Thread(
                    target=self._run, args=(worker,), name=f"escrowmq-outbox-{worker}", daemon=True
                )
                self._threads.append(thread)
            watching = threading.Thread(target=self._watch, name="escrowmq-outbox-watch", daemon=True)
            self._others = [watching]
            if self.outbox.database.dialect == "postgresql":
                self._notices = Notices(
                    self.outbox.database, self.outbox.statements, self._look.set, time.monotonic
                )
                listening = threading.Thread(
                    target=self._notices.run, name="escrowmq-outbox-listen", daemon=True
                )
                self._others.append(listening)
            for thread in [*self._threads, *self._others]:
                thread.start()
            self.outbox.tell(self._look.set)
        return self

    def run(self, stop: threading.Event) -> None:
        """Start, and return when ``stop`` is set. Raises OutboxBehind when no shard is left that has not
        stopped."""
        self.start()
        while not stop.wait(1.0):
            if any(shard.relay.lease is not None for shard in list(self._shards.values())):
                continue
            _, stopped = self._database.free()
            if len(stopped) >= self._count:
                raise OutboxBehind(*min(stopped.items()))

    def send_waiting(self) -> int:
        """Send in this thread what is waiting now, without starting others; how many rows that were.

        For tests, and for jobs that run now and then. Raises Unavailable if the broker does not answer, or
        another relay has a shard; OutboxBehind. What is refused waits, or is dead: see ``status``.
        """
        if self._threads:
            raise ConfigError("this relay has been started, and sends by itself; use another one")
        self._look_for_shards()
        before = self.rows_sent
        for number in range(self._count):
            shard = self._shard(number)
            while (step := shard.relay.step()) is not Step.IDLE:
                if step is Step.AWAY:
                    raise Unavailable(f"shard {number} of the outbox: {shard.relay.problem}", AWAY_MAX_S)
                if step in (Step.NOT_MINE, Step.STOPPED):
                    self.outbox.desk.refuse_stopped()
                    raise Unavailable(f"another relay has shard {number} of the outbox", NOT_MINE_S)
        return self.rows_sent - before

    def status(self) -> list[OutboxShard]:
        """Rows that wait, are dead, and the rest, by shard; see ``Outbox.status``."""
        return self.outbox.status()

    @property
    def rows_sent(self) -> int:
        """How many rows this relay has sent."""
        return sum(shard.relay.rows_sent for shard in list(self._shards.values()))

    def adopt(self, shard: int, *, hold: bool) -> int:
        """Go on with a shard that has stopped (OutboxBehind), behind the number that the broker has.

        ``hold=True``: every row that waits in the shard becomes dead, so that you ``retry`` or ``drop`` each;
        ``hold=False``: all are sent, those too that may have been sent before. Returns how many rows were
        held, or were being sent when the shard stopped. Raises OutboxRowBusy if it has not stopped.
        """
        return self.outbox.desk.adopt(shard, lambda: self._shipping.last_batch(shard), hold=hold)

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Stop after what is under way, and let other relays have the shards. Rows that wait stay."""
        with self._lock:
            if self._ended.is_set():
                return
            self._ended.set()
            if self._threads:
                self.outbox.tell_no_more(self._look.set)
        for event in (*self._wakes, self._look):
            event.set()
        if self._notices is not None:
            self._notices.end()
        until = time.monotonic() + timeout_s
        for thread in [*self._threads, *self._others]:
            thread.join(max(until - time.monotonic(), 0.0))
        if not any(thread.is_alive() for thread in self._threads):
            for shard in self._shards.values():
                _quietly("give up the shard", shard.relay.close)
        self._shipping.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------ the threads

    def _watch(self) -> None:
        """Look for rows, and tell the threads that take the steps."""
        pause, looked, quiet_since = PAUSE_MIN_S, time.monotonic(), time.monotonic()
        while not self._ended.is_set():
            if self._look.wait(pause):
                self._look.clear()
                # Before the commit, not after it: so the next looks follow each other quickly.
                pause, quiet_since = PAUSE_MIN_S, time.monotonic()
                self._ended.wait(pause)
            if time.monotonic() > looked + SHARDS_LOOK_S:
                _quietly("look for shards", self._look_for_shards)
                looked = time.monotonic()
            try:
                self._look_once(time.monotonic() - quiet_since)
            except Exception as error:  # whatever the database raises: it is asked again
                log.warning("the outbox: the database cannot be used: %s", error)
            notified = self._notices is not None and self._notices.works
            longest = max(self._poll_s, NOTIFIED_POLL_S) if notified else self._poll_s
            if self._loses:
                longest = min(longest, NOT_MINE_S)
            pause = min(pause * 2, longest)

    def _look_once(self, quiet_s: float) -> None:
        """Which shards have rows, or can be taken."""
        now = time.monotonic()
        shards = [self._shard(number) for number in range(self._count)]
        idle = [shard for shard in shards if shard.relay.lease is not None and not shard.due]
        found = self._database.waiting([shard.number for shard in idle]) if idle else set()
        lost = [shard for shard in shards if shard.relay.lease is None and not shard.due]
        self._loses = bool(lost)
        if lost and now >= min(shard.not_before for shard in lost):
            found |= self._database.free()[0] & {shard.number for shard in lost}
            for shard in lost:
                shard.not_before = max(shard.not_before, now + NOT_MINE_S)
        for shard in shards:
            if shard.number in found:
                shard.due, shard.not_before = True, min(shard.not_before, now)
                self._wakes[shard.number % len(self._threads)].set()
        if quiet_s >= DOZE_S and self._notices is not None and self._notices.works:
            for shard in idle:
                if shard.number not in found and not shard.asleep and (lease := shard.relay.lease):
                    shard.asleep = True
                    self._database.doze(lease)
                    self._look.set()  # what was committed since the look

    def _run(self, worker: int) -> None:
        wake = self._wakes[worker]
        while not self._ended.is_set():
            if not self._round(worker):
                wake.wait(self._rest_s(worker))
                wake.clear()

    def _rest_s(self, worker: int) -> float:
        """Until one of this thread's shards is due by itself."""
        now, rest = time.monotonic(), self._renew_s
        for number in range(worker, self._count, len(self._threads)):
            shard = self._shard(number)
            at = max(shard.not_before, now if shard.due else shard.renew_at)
            if shard.due or shard.relay.lease is not None:
                rest = min(rest, at - now)
        return max(rest, PAUSE_MIN_S)

    def _round(self, worker: int) -> bool:
        """A step of each shard of this thread that is due; whether there may be more at once."""
        more = False
        for number in range(worker, self._count, len(self._threads)):
            if self._ended.is_set():
                return False
            shard = self._shard(number)
            if not shard.is_due(time.monotonic()):
                continue
            shard.due = False  # before the step: who finds rows meanwhile is heard
            step: Step | None = None
            try:
                step = shard.relay.step()
                shard.say(step, shard.relay.problem)
            except Exception as error:  # whatever the database raises: it is asked again
                log.warning("shard %d of the outbox: the database cannot be used: %s", number, error)
            shard.put_off(time.monotonic(), step, self._renew_s)
            if step is Step.IDLE and shard.busy:
                shard.busy = False
                self._look.set()  # the next rows may come soon: look for them often
            more = more or step in (Step.SENT, Step.REFUSED)
        return more

    def _shard(self, number: int) -> _Shard:
        with self._making:
            if number not in self._shards:
                self._shards[number] = _Shard(number, Relay(self._database, self._shipping, number))
            return self._shards[number]

    def _look_for_shards(self) -> None:
        self._count = min(max(self._count, self._database.highest() + 1), SHARDS_MAX)


def _quietly(what: str, call: Callable[[], None]) -> None:
    """A call that is not needed for what is promised: it is tried once."""
    try:
        call()
    except Exception as error:
        log.warning("outbox: could not %s: %s", what, error)
