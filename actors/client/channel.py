"""One client's way to one broker group: follows its leader, retries, fails over, gives up in time.

A state machine without threads, clock or Ray: ``now`` is passed in, calls go out through ``start``.
Requests are sent in order of submission, at most ``calls_in_flight`` at a time, and always retried with
the same arguments: brokers recognise repetitions by ids, so sending again is safe, and *not* knowing is
the only thing to be afraid of. A request ends with the broker's answer, or at its deadline with a
Failure that says whether it may have been done. Ray's word that a process is dead is never waited for
(it takes 1 to 64 s): whoever is silent for ``probe_after_s`` has the others asked who leads. A leader that
answers something, be it late, or says itself that it leads is merely slow, and is given longer: the questions
of a thousand clients ten times a second would be the rest.
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

#: Starts a call: replica, method, arguments, token; the answer comes to ``on_answer`` with that token.
Start = Callable[[int, str, tuple[Any, ...], int], None]

RETRY_AFTER_S_MAX = 5.0
#: After so many redirections without an answer in between, replicas are asked in turn instead.
REDIRECTS_MAX = 3
#: Longest time for which a sign of life of a slow leader is enough.
TRUST_S_MAX = 1.0
#: Calls under way to a slow leader: while one is worked on, the next one waits there. More would only wait
#: there longer, in a queue that nobody can look into, while bigger requests would be cheaper for it.
SLOW_CALLS_MIN = 2
_by_number = attrgetter("number")


@dataclass(slots=True, eq=False)
class Request:
    """A call for the group's leader. ``done`` gets the leader's answer tuple, or a Failure; once.

    ``windowed``: counts against the calls in flight. ``patience_s``: how long the leader is expected to
    think before it answers (long polls).
    """

    method: str
    args: tuple[Any, ...]
    deadline: float
    done: Callable[[Any], None]
    windowed: bool = True
    patience_s: float = 0.0
    number: int = 0
    attempts: int = 0
    not_before: float = 0.0
    maybe_done: bool = False
    refusal: Failure = field(default_factory=lambda: Failure(FailureKind.UNAVAILABLE))


@dataclass(slots=True)
class _Call:
    request: Request
    rid: int
    suspicious: float  # silence from this time on is worth a question to the others


class GroupChannel:
    """Requests to the leader of one group of ``replicas`` replicas."""

    def __init__(self, replicas: int, config: ChannelConfig, start: Start, rng: random.Random) -> None:
        self._replicas, self._config, self._start, self._rng = replicas, config, start, rng
        self.leader: int | None = None
        self.term = -1
        self._waiting: list[Request] = []  # by number
        self._calls: dict[int, _Call] = {}
        self._probes: dict[int, tuple[int, float]] = {}  # replica -> token, sent
        self._probe_tokens: dict[int, int] = {}
        self._next_token = self._next_number = 0
        self._last_probe = float("-inf")
        self._trust_s, self._trusted_until = config.probe_interval_s, float("-inf")
        self._paused_until = float("-inf")
        self._redirects = 0
        self._windowed = 0
        self._window = config.calls_in_flight

    # ------------------------------------------------------------ the client's side

    @property
    def in_flight(self) -> int:
        """Windowed calls under way or waiting to be repeated."""
        return self._windowed

    def room(self) -> int:
        """How many more windowed requests may be submitted now."""
        return self._window - self._windowed

    def submit(self, request: Request, now: float) -> None:
        """Take a request; it is sent as soon as a leader is known and nothing older waits."""
        self._next_number += 1
        request.number = self._next_number
        self._windowed += request.windowed
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
            self._finish(request, Failure(FailureKind.UNKNOWN if request.maybe_done else kind, detail))

    # ------------------------------------------------------------ answers

    def on_answer(self, token: int, answer: Any, error: BaseException | None, now: float) -> None:
        """The answer to a call that ``start`` was given; unknown tokens are late ones and ignored."""
        rid = self._probe_tokens.pop(token, None)
        if rid is not None:
            self._probes.pop(rid, None)
            if error is None:
                self._on_whoami(rid, answer, now)
            return
        call = self._calls.pop(token, None)
        if call is None:
            return
        request = call.request
        self._adapt(now >= call.suspicious or error is not None, request.windowed)
        if error is not None:
            request.maybe_done = True
            request.refusal = Failure(FailureKind.UNAVAILABLE, f"last error of replica {call.rid}: {error}")
            self._retry(request, now, back_off=True)
            self._lose_leader(call.rid)
        else:
            self._on_status(call, answer, now)
        self._advance(now)

    def _trust(self, now: float) -> None:
        """The leader is slow, and there."""
        self._trust_s = min(2 * self._trust_s, TRUST_S_MAX)
        self._trusted_until = now + self._trust_s

    def _adapt(self, slow: bool, windowed: bool) -> None:
        """To how soon the leader answers."""
        most = self._config.calls_in_flight
        if not slow:
            self._trust_s = self._config.probe_interval_s
            self._window = min(self._window + windowed, most)
        elif windowed:
            self._window = max(self._window - 1, min(SLOW_CALLS_MIN, most))

    def _on_status(self, call: _Call, answer: Any, now: float) -> None:
        request, status = call.request, answer[0] if type(answer) is tuple and answer else None
        if now >= call.suspicious and call.rid == self.leader and status not in ("not_leader", "unknown"):
            self._trust(now)
        if status == "not_leader":
            self._retry(request, now)
            self._redirect(call.rid, answer[1], answer[2])
        elif status == "unknown":
            request.maybe_done = True
            self._retry(request, now, back_off=True)
            self._lose_leader(call.rid)
        elif status in ("overloaded", "disk_full"):
            self._redirects = 0
            kind = FailureKind.OVERLOADED if status == "overloaded" else FailureKind.DISK_FULL
            wait = min(max(float(answer[1]), 0.001), RETRY_AFTER_S_MAX)
            request.refusal = Failure(kind, retry_after_s=wait)
            # Half to one and a half of it, so that many clients do not come back together.
            self._paused_until = max(self._paused_until, now + wait * (0.5 + self._rng.random()))
            self._retry(request, now)
        elif status == "malformed":
            self._finish(request, Failure(FailureKind.MALFORMED, str(answer[1])))
        else:
            self._redirects = 0
            self._finish(request, answer)

    def _on_whoami(self, rid: int, answer: tuple[bool, int | None, int], now: float) -> None:
        ready, _, term = answer
        if ready and (term > self.term or (self.leader is None and term == self.term)):
            self._follow(rid, term, now)
        elif ready and rid == self.leader and term == self.term:
            self._trust(now)

    def _follow(self, rid: int, term: int, now: float) -> None:
        """A new leader: whatever the old one was asked and has not answered is asked here again."""
        self.leader, self.term, self._redirects = rid, term, 0
        self._trust_s, self._trusted_until = self._config.probe_interval_s, float("-inf")
        for token, call in list(self._calls.items()):
            if call.rid != rid or now >= call.suspicious:  # or: the same one, come back after a crash
                del self._calls[token]
                call.request.maybe_done = True
                self._retry(call.request, now)
        for request in self._waiting:
            request.not_before = now
        self._advance(now)

    def _redirect(self, rid: int, hint: int | None, term: int) -> None:
        if rid != self.leader and self.leader is not None:
            return  # an answer from one that is not followed any more
        self._redirects += 1
        usable = hint is not None and hint != rid and 0 <= hint < self._replicas and term >= self.term
        # The term is not taken over: a cut-off candidate counts its term up and up, and the real
        # leader, whose term is lower, would never be believed again.
        self.leader = hint if usable and self._redirects <= REDIRECTS_MAX else None

    def _lose_leader(self, rid: int) -> None:
        if self.leader == rid:
            self.leader = None

    # ------------------------------------------------------------ sending and time

    def tick(self, now: float) -> None:
        """Let time pass: deadlines, probes, repetitions."""
        self._expire(now)
        self._advance(now)

    def next_wake(self, now: float) -> float:
        """When ``tick`` is due next (infinity: only an answer or a request can change anything)."""
        wake = float("inf")
        for call in self._calls.values():
            wake = min(wake, call.request.deadline)
            wake = min(wake, max(call.suspicious, self._trusted_until, self._next_probe()))
        for request in self._waiting:
            wake = min(wake, request.deadline)
        if self._waiting:
            if self.leader is None:
                wake = min(wake, self._next_probe())
            else:
                wake = min(wake, max(self._waiting[0].not_before, self._paused_until))
        return wake

    def _next_probe(self) -> float:
        return self._last_probe + self._config.probe_interval_s

    def _advance(self, now: float) -> None:
        while self._waiting and self.leader is not None and now >= self._paused_until:
            if self._waiting[0].not_before > now:
                break
            self._send(self._waiting.pop(0), self.leader, now)
        silent = now >= self._trusted_until and any(now >= call.suspicious for call in self._calls.values())
        if (silent or (self._waiting and self.leader is None)) and now >= self._next_probe():
            self._probe_all(now)

    def _send(self, request: Request, rid: int, now: float) -> None:
        request.attempts += 1
        self._next_token += 1
        suspicious = now + self._config.probe_after_s + request.patience_s
        self._calls[self._next_token] = _Call(request, rid, suspicious)
        self._start(rid, request.method, request.args, self._next_token)

    def _probe_all(self, now: float) -> None:
        self._last_probe = now
        for rid in range(self._replicas):
            known = self._probes.get(rid)
            if known is not None:
                if now < known[1] + self._config.probe_timeout_s:
                    continue
                self._probe_tokens.pop(known[0], None)
            self._next_token += 1
            self._probes[rid] = (self._next_token, now)
            self._probe_tokens[self._next_token] = rid
            self._start(rid, "whoami", (), self._next_token)

    def _retry(self, request: Request, now: float, back_off: bool = False) -> None:
        if now >= request.deadline:
            self._give_up(request)
            return
        if back_off:  # an error that comes at once must not be answered at once, for ever
            wait = min(0.01 * 2 ** min(request.attempts, 7), 1.0)
            request.not_before = now + wait * (0.5 + self._rng.random())
        insort(self._waiting, request, key=_by_number)

    def _expire(self, now: float) -> None:
        late = [token for token, call in self._calls.items() if now >= call.request.deadline]
        for token in late:
            call = self._calls.pop(token)
            call.request.maybe_done = True
            self._give_up(call.request)
        if any(now >= request.deadline for request in self._waiting):
            expired = [request for request in self._waiting if now >= request.deadline]
            self._waiting = [request for request in self._waiting if now < request.deadline]
            for request in expired:
                self._give_up(request)

    def _give_up(self, request: Request) -> None:
        self._finish(request, Failure(FailureKind.UNKNOWN) if request.maybe_done else request.refusal)

    def _finish(self, request: Request, outcome: Any) -> None:
        self._windowed -= request.windowed
        request.done(outcome)
