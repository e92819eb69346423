"""One client's way to one broker group: sends to its leader, retries, fails over, gives up in time.

A state machine without threads, clock or Ray: ``now`` is passed in, calls go out through ``start``. The
follower (replication/calling/leader.py) decides who leads; this decides what becomes of requests meanwhile.
Requests are sent in order of submission, at most ``calls_in_flight`` at a time, and always retried with
the same arguments: brokers recognise repetitions by ids, so sending again is safe; only an unknown outcome
is dangerous. A request ends with the broker's answer, or at its deadline with a
Failure that says whether it may have been done. It never waits for Ray's report that a process is dead
(which takes 1 to 64 s): if the leader is silent for ``probe_after_s``, all replicas are asked who leads.
"""

from __future__ import annotations

import random
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from escrowmq.actors.client.config import ChannelConfig
from escrowmq.actors.client.failures import Failure, FailureKind
from escrowmq.replication.calling.leader import LeaderFollower, Probing
from escrowmq.replication.calling.patience import Backoff

#: Starts a call: replica, method, arguments, token; ``on_answer`` gets the answer with that token.
Start = Callable[[int, str, tuple[Any, ...], int], None]

RETRY_AFTER_S_MAX = 5.0
#: After an error or an unknown outcome. Grows, so that an error that comes immediately does not cause a busy
#: loop.
RETRY = Backoff(first_s=0.015, longest_s=0.75, jitter=1.0)
#: Calls under way to a slow leader: while it works on one, the next one waits there. More would only wait
#: there longer, in a queue that nothing can inspect, while bigger requests would be cheaper for it.
SLOW_CALLS_MIN = 2
#: Methods that change nothing: without an answer, nothing was done.
READ_ONLY = frozenset(
    (
        "about", "audit", "client_link", "committed", "failed_attempts", "fetch", "fetch_ends", "find",
        "find_transaction", "group_describe", "group_list", "group_places", "held_places", "levels",
        "members", "message_at", "metrics", "offsets", "open_pairs", "partition_bounds",
        "scheduled", "share_final", "share_members",
        "share_places", "share_states", "spans", "status", "topic_names", "topics", "transactions",
        "tx_states", "watch", "whoami",
    )
)  # fmt: skip
_by_number = attrgetter("number")


@dataclass(slots=True, eq=False)
class Request:
    """A call to the group's leader. ``done`` is called once, with the leader's answer tuple or a Failure,
    with whether an earlier sending of it may have been executed, and with how often it was sent.

    ``windowed``: counts against the calls in flight. ``patience_s``: how long the leader may
    take before it answers (long polls). ``awaited``: some caller waits for its end.
    """

    method: str
    args: tuple[Any, ...]
    deadline: float
    done: Callable[[Any, bool, int], None]
    windowed: bool = True
    patience_s: float = 0.0
    awaited: bool = True
    number: int = 0
    attempts: int = 0
    not_before: float = 0.0
    maybe_done: bool = False
    refusal: Failure = field(default_factory=lambda: Failure(FailureKind.UNAVAILABLE))

    @property
    def in_doubt(self) -> bool:
        """Whether it is unknown if it changed anything."""
        return self.maybe_done and self.method not in READ_ONLY


@dataclass(slots=True)
class _Call:
    request: Request
    rid: int
    suspicious: float  # silence from this time on is a reason to ask the other replicas


class GroupChannel:
    """Requests to the leader of one group of ``replicas`` replicas."""

    def __init__(self, replicas: int, config: ChannelConfig, start: Start, rng: random.Random) -> None:
        self._config, self._start, self._rng = config, start, rng
        # Without growing pauses: the caller waits for an answer, and stops asking when it has come.
        repeat = Backoff(first_s=config.probe_timeout_s, longest_s=config.probe_timeout_s)
        self.follower = LeaderFollower(replicas, Probing(config.probe_interval_s, repeat))
        self._waiting: list[Request] = []  # by number
        self._calls: dict[int, _Call] = {}
        self._probes: dict[int, int] = {}  # token -> replica
        self._next_token = self._next_number = 0
        self._paused_until = float("-inf")
        #: Windowed calls under way or waiting to be repeated.
        self.in_flight = 0
        self._window = config.calls_in_flight
        #: Requests that were to be sent once more.
        self.retries = 0

    # ------------------------------------------------------------ the client's side

    @property
    def leader(self) -> int | None:
        """The replica that calls go to, as far as it is known."""
        return self.follower.leader

    @property
    def searching(self) -> bool:
        """Whether requests wait for a leader to be found."""
        return self.follower.leader is None and bool(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether somebody waits for an answer."""
        return any(request.awaited for request in self._waiting) or any(
            call.request.awaited for call in self._calls.values()
        )

    def room(self) -> int:
        """How many more windowed requests may be submitted now."""
        return self._window - self.in_flight

    def submit(self, request: Request, now: float) -> None:
        """Take a request; it is sent as soon as a leader is known and nothing older waits."""
        self._next_number += 1
        request.number = self._next_number
        self.in_flight += request.windowed
        self._waiting.append(request)
        self._advance(now)

    def fail_all(self, kind: FailureKind, detail: str) -> None:
        """End every request now: the client is being closed."""
        for call in self._calls.values():
            call.request.maybe_done = True
            self._waiting.append(call.request)
        self._calls.clear()
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            self._finish(request, Failure(FailureKind.UNKNOWN if request.in_doubt else kind, detail))

    # ------------------------------------------------------------ answers

    def on_answer(self, token: int, answer: Any, error: BaseException | None, now: float) -> None:
        """The answer to a call that ``start`` was given; unknown tokens are late answers and are ignored."""
        call = self._calls.pop(token, None)
        if call is None:
            rid = self._probes.pop(token, None)
            if rid is not None:
                self._on_whoami(rid, answer, error, now)
            return
        late = now >= call.suspicious
        self._adapt(late or error is not None, call.request.windowed)
        if error is not None:
            detail = f"last error of replica {call.rid}: {error}"
            call.request.refusal = Failure(FailureKind.UNAVAILABLE, detail)
            self._lost(call, now)
        else:
            self._on_status(call, answer, late, now)
        self._advance(now)

    def _adapt(self, slow: bool, windowed: bool) -> None:
        """Adapt the window to how fast the leader answers."""
        if windowed:
            most = self._config.calls_in_flight
            if slow:
                self._window = max(self._window - 1, min(SLOW_CALLS_MIN, most))
            else:
                self._window = min(self._window + 1, most)

    def _on_status(self, call: _Call, answer: Any, late: bool, now: float) -> None:
        request, status = call.request, answer[0] if type(answer) is tuple and answer else None
        if status == "not_leader":
            self._retry(request, now)
            self.follower.refused(call.rid, answer[1], answer[2])
            return
        if status == "unknown":
            self._lost(call, now)
            return
        self.follower.answered(call.rid, now, late=late)
        if status in ("overloaded", "disk_full"):
            kind = FailureKind.OVERLOADED if status == "overloaded" else FailureKind.DISK_FULL
            wait = min(max(float(answer[1]), 0.001), RETRY_AFTER_S_MAX)
            request.refusal = Failure(kind, retry_after_s=wait)
            # Half to one and a half times that, so that many clients do not come back together.
            self._paused_until = max(self._paused_until, now + wait * (0.5 + self._rng.random()))
            self._retry(request, now)
        elif status == "malformed":
            self._finish(request, Failure(FailureKind.MALFORMED, str(answer[1])))
        elif status == "unsupported":
            detail = f"the broker group is not at format level {answer[1]}; upgrade every replica first"
            self._finish(request, Failure(FailureKind.UNSUPPORTED, detail))
        else:
            self._finish(request, answer)

    def _lost(self, call: _Call, now: float) -> None:
        """It may or may not have been done: so it is sent again, to the present leader."""
        request = call.request
        request.maybe_done = True
        self._retry(request, now, RETRY.pause_s(request.attempts - 1, self._rng))
        self.follower.failed(call.rid)

    def _on_whoami(self, rid: int, answer: Any, error: BaseException | None, now: float) -> None:
        if error is not None:
            self.follower.unheard(rid)
            return
        ready, hint, term = answer
        if self.follower.heard(rid, ready, term, now, hint):
            self._begin_again(rid, now)

    def _begin_again(self, rid: int, now: float) -> None:
        """A new leader: requests that the old one has not answered are sent again, to this one."""
        for token, call in list(self._calls.items()):
            if call.rid != rid or now >= call.suspicious:  # or the same replica, back after a crash
                del self._calls[token]
                call.request.maybe_done = True
                self._retry(call.request, now)
        for request in self._waiting:
            request.not_before = now
        self._advance(now)

    # ------------------------------------------------------------ sending and time

    def tick(self, now: float) -> None:
        """Handle the passing of time: deadlines, probes, repetitions."""
        self._expire(now)
        self._advance(now)

    def next_wake(self, now: float) -> float:
        """When ``tick`` is due next (infinity: only an answer or a request can change anything)."""
        wake = suspicious = float("inf")
        follower = self.follower
        for call in self._calls.values():  # runs every turn for every call: so no function calls here
            if call.suspicious < suspicious:
                suspicious = call.suspicious
            if call.request.deadline < wake:
                wake = call.request.deadline
        wake = min(wake, max(suspicious, follower.trusted_until, follower.next_round))
        for request in self._waiting:
            wake = min(wake, request.deadline)
        if self._waiting:
            if follower.leader is None:
                wake = min(wake, follower.next_round)
            else:
                wake = min(wake, max(self._waiting[0].not_before, self._paused_until))
        return wake

    def _advance(self, now: float) -> None:
        follower = self.follower
        while self._waiting and follower.leader is not None and now >= self._paused_until:
            if self._waiting[0].not_before > now:
                break
            self._send(self._waiting.pop(0), follower.leader, now)
        if now < follower.next_round:
            return
        silent = now >= follower.trusted_until and any(
            now >= call.suspicious for call in self._calls.values()
        )
        if silent or (self._waiting and follower.leader is None):
            for rid in follower.round(now):
                self._probe(rid)

    def _send(self, request: Request, rid: int, now: float) -> None:
        request.attempts += 1
        self._next_token += 1
        suspicious = now + self._config.probe_after_s + request.patience_s
        self._calls[self._next_token] = _Call(request, rid, suspicious)
        self._start(rid, request.method, request.args, self._next_token)

    def _probe(self, rid: int) -> None:
        for token in [token for token, asked in self._probes.items() if asked == rid]:
            del self._probes[token]  # a repeated question: the earlier answer will not come
        self._next_token += 1
        self._probes[self._next_token] = rid
        self._start(rid, "whoami", (), self._next_token)

    def _retry(self, request: Request, now: float, pause_s: float = 0.0) -> None:
        if now >= request.deadline:
            self._give_up(request)
            return
        self.retries += 1
        if pause_s:
            request.not_before = now + pause_s
        insort(self._waiting, request, key=_by_number)

    def _expire(self, now: float) -> None:
        late = [token for token, call in self._calls.items() if now >= call.request.deadline]
        for token in late:
            call = self._calls.pop(token)
            call.request.maybe_done = True
            silent = f"replica {call.rid} gave no answer in time"
            call.request.refusal = Failure(FailureKind.UNAVAILABLE, silent)
            self._give_up(call.request)
        if any(now >= request.deadline for request in self._waiting):
            expired = [request for request in self._waiting if now >= request.deadline]
            self._waiting = [request for request in self._waiting if now < request.deadline]
            for request in expired:
                self._give_up(request)

    def _give_up(self, request: Request) -> None:
        self._finish(request, Failure(FailureKind.UNKNOWN) if request.in_doubt else request.refusal)

    def _finish(self, request: Request, outcome: Any) -> None:
        self.in_flight -= request.windowed
        request.done(outcome, request.maybe_done, request.attempts)
