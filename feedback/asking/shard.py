"""Feedback of many apps and topics in one process: producers park here once, broker groups are asked once.

The plain class inside a feedback process. Each pair of app and topic belongs to one of ``shards`` processes
(``part_of``) and is a ``TopicFeedback`` there, made when something comes due and forgotten when it has had
nothing to do for long. A pair that raises is thrown away, as if an actor of its own had died: its leases end,
and it is made anew. What one process cannot keep apart is its processor and its memory. It must never let
one pair's queue, bound or error reach another pair, nor refuse anything without saying so.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

from escrowmq.feedback.asking import arguments
from escrowmq.feedback.asking.app_producers import AppProducers, Polled, Present
from escrowmq.feedback.asking.checks import WANTED_MAX
from escrowmq.feedback.asking.due_watch import DueWatch
from escrowmq.feedback.asking.group_feedback import Way
from escrowmq.feedback.asking.poll_pace import PollPace
from escrowmq.feedback.asking.topic_feedback import Handed, Place, TopicFeedback
from escrowmq.feedback.brokers import Brokers, GroupLeader
from escrowmq.feedback.config import FeedbackConfig
from escrowmq.feedback.endless import endless
from escrowmq.replication.calling.answers import LockedRow
from escrowmq.replication.calling.sharing import part_of

log = logging.getLogger(__name__)

#: How often the log repeats that a bound is reached.
SAY_EVERY_S = 60.0
#: Pairs, and apps, that one tick forgets.
FORGET_PER_TICK = 200
#: Apps looked at for one that is silent, when there are too many.
SILENT_AMONG = 100
#: Pairs that ``status`` shows one by one.
PAIRS_SHOWN = 1_000
#: Pairs without a producer online whose branches are looked for at a time.
SWEEPS_AT_ONCE = 4
#: A pair that raised is there again after this.
MADE_ANEW_S = 1.0
#: A producer whose answers all meet full queues comes back after this.
ANSWER_AGAIN_S = 0.5

Pair = tuple[str, str]  # app, topic


class FeedbackShard:
    """Process ``index`` of ``shards``. One event loop. ``start`` before the first poll; ``close`` ends it.

    ``only``: one pair, pinned, instead of all that belong here; ``owned``: see ``DueWatch``.
    """

    def __init__(
        self,
        index: int,
        shards: int,
        groups: int,
        replicas: int,
        brokers: Brokers,
        config: FeedbackConfig,
        rng: random.Random,
        only: Pair | None = None,
        *,
        owned: bool = True,
    ) -> None:
        self.index, self.shards, self.counts = index, shards, Counter[str]()
        self._config, self._rng, self._only = config, rng, only
        leaders = {gid: GroupLeader(gid, replicas, brokers, config.leader, rng) for gid in range(groups)}
        slots = {gid: asyncio.Semaphore(config.submits_at_once) for gid in leaders}
        self._way = Way(f"feedback/{index}/{rng.getrandbits(64):016x}", leaders, slots, config)
        self._watches = {
            gid: DueWatch(leader, self, index, shards, self._way.owner, config, owned=owned)
            for gid, leader in leaders.items()
        }
        self._pace = PollPace(config)
        self._apps: OrderedDict[str, AppProducers] = OrderedDict()  # the longest without a poll first
        self._pairs: dict[Pair, TopicFeedback] = {}
        self._working: dict[TopicFeedback, None] = {}  # those that have deadlines
        self._asleep: OrderedDict[TopicFeedback, None] = OrderedDict()  # the longest ones first
        self._parked = 0
        self._place = asyncio.Event()
        self._place.set()
        self._said: dict[str, float] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._closing: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start the loops."""
        what = f"feedback process {self.index}"
        runs = [watch.run() for watch in self._watches.values()]
        runs.append(endless(self._tick, self.counts, f"{what}, deadlines"))
        runs.append(endless(self._sweep, self.counts, f"{what}, branches"))
        self._tasks = [asyncio.create_task(run) for run in runs]
        if self._only is not None:
            self._host(*self._only)

    async def close(self) -> None:
        """End the loops and send parked producers away. Leases end by themselves."""
        for pair in list(self._pairs.values()):
            self._drop(pair)
        ending = [*self._tasks, *self._closing]
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        for leader in self._way.leaders.values():
            leader.close()
        for app in self._apps.values():
            app.close()

    # ---------------------------------------------------------------- producers call these

    async def poll(
        self, app: str, instance: str, room: int, working: Sequence[tuple[Place, str, int]], wait_s: float
    ) -> Polled:
        """Checks for this producer, of any topic of its app, as soon as there are any: ``("ok", [Handed,
        ...])``, empty after the wait. ``room``: how many it takes; ``working``: (place, transaction, index)
        of those it has not answered yet, and does not run. ``("retry", seconds)``: too many producers are
        parked here, come back later.

        Raises InvalidMessage for arguments that make no sense, as ``answer`` and ``leave`` do.
        """
        app, instance, room = arguments.app_of(app), arguments.instance_of(instance), arguments.room_of(room)
        keys, wait_s = arguments.working_of(working), arguments.wait_of(wait_s)
        self._pace.arrive(instance, self.now())
        if not self._place_for_app(app):
            self.counts["polls_refused"] += 1
            return "retry", self._retry_s()
        producers = self._app(app)
        self._apps.move_to_end(app)
        wanted = instance in producers.owners.wanted or any(p.wants(instance) for p in producers.awake)
        beyond = WANTED_MAX if wanted else 0
        present = producers.arrive(instance, room, self._config.producers_max + beyond)
        parks = present is not None and self._make_place(producers, beyond)
        self._tell(producers, instance, room, keys, parked=parks)
        if present is None or not parks:
            self.counts["polls_refused"] += 1
            return "retry", self._retry_s()
        poll = producers.park(present)
        self._parked += 1
        longest = min(wait_s, self._pace.wait_s()) * self._rng.uniform(0.8, 1.0)
        timer = asyncio.get_running_loop().call_later(longest, producers.end_poll, present, ("ok", []), poll)
        self._match(producers)
        try:
            return await poll
        finally:
            timer.cancel()
            producers.end_poll(present, ("ok", []), poll)

    def answer(
        self, app: str, instance: str, answers: Sequence[tuple[Place, str, str, str, int]]
    ) -> tuple[str, Any]:
        """Answers (place, transaction, state, trouble, index): ``("ok", [number, ...])`` with those, counted
        from 0, that were not taken because too many of their topic wait for their submit; they are to be sent
        again.
        """
        app, instance = arguments.app_of(app), arguments.instance_of(instance)
        refused, touched = [], dict[TopicFeedback, None]()
        for number, (key, state, trouble, index) in enumerate(arguments.answers_of(answers)):
            (gid, topic), tx_id = key
            pair = self._host(app, topic)
            if pair is None:
                continue
            touched[pair] = None
            if self._guarded(pair, pair.answer, instance, (gid, tx_id), state, trouble, index) is False:
                refused.append(number)
        for pair in touched:
            self._guarded(pair, pair.match)
            self._review(pair)
        if refused:
            self.counts["answers_refused"] += len(refused)
            self._say("answers_refused", "answers of app %r wait for a leader: more are sent away", app)
        return "ok", refused

    def leave(self, app: str, instance: str, idle: bool = False) -> None:
        """The producer closes: its checks go to the others at once. ``idle``: those of its own transactions
        too, since it runs none of them; else the others wait until it is gone."""
        app, instance, idle = arguments.app_of(app), arguments.instance_of(instance), arguments.idle_of(idle)
        self._pace.leave(instance)
        producers = self._apps.get(app)
        if producers is None:
            return
        producers.remove(instance, idle=idle)
        for pair in list(producers.awake):
            self._guarded(pair, lambda p=pair: p.leave(instance, idle=idle))
        self._match(producers)

    # ---------------------------------------------------------------- the watches call these (Pairs)

    async def place_for_more(self) -> None:
        """Until there may be further pairs here. What came due meanwhile stays at the leader."""
        while self._asleep and len(self._pairs) >= self._config.pairs_max:
            self._drop(next(iter(self._asleep)))
        if len(self._pairs) >= self._config.pairs_max:
            self.counts["pairs_full"] += 1
            self._say(
                "pairs_full", "%d apps and topics have checks here: further ones wait", len(self._pairs)
            )
            self._place.clear()
            await self._place.wait()

    def due(self, gid: int, app: str, topic: str) -> None:
        """Group ``gid`` says that something is due, or open. Without a producer of the app that is of no
        use: when one comes, the app is looked up."""
        if app not in self._apps and self._only is None:
            return
        pair = self._host(app, topic)
        if pair is not None:
            pair.note_due(gid)
            self._review(pair)

    def room(self, gid: int, pair: TopicFeedback) -> int:
        """How many transactions are worth locking for it at this group now."""
        if pair in self._working:
            return pair.room(gid)
        most = min(self._config.lock_batch, self._config.checks_per_group_max)
        producers = self._app(pair.app)
        room = producers.room(most, self._config.silent_s)
        if room == 0:
            producers.starved = True
        return room

    def take(self, gid: int, pair: TopicFeedback, rows: Sequence[LockedRow]) -> None:
        """These were locked for ``pair``."""
        if self._pairs.get((pair.app, pair.topic)) is not pair:
            return  # they come back when their leases end
        if rows:
            self._guarded(pair, self._wake, pair, self._app(pair.app))
            self._guarded(pair, pair.take, gid, rows)
        self._review(pair)

    # ---------------------------------------------------------------- the pairs call these (Host)

    def now(self) -> float:
        """Seconds of the event loop."""
        return asyncio.get_running_loop().time()

    def hand(self, pair: TopicFeedback, instance: str, checks: list[Handed]) -> None:
        """Checks leave with this producer's poll."""
        self.counts["handed"] += len(checks)
        self._app(pair.app).hand(instance, checks)

    def lost(self, pair: TopicFeedback, instance: str) -> None:
        """It did not confirm what it was handed, or is silent. If it lives, it polls again."""
        producers = self._apps.get(pair.app)
        present = None if producers is None else producers.get(instance)
        if producers is not None and present is not None:
            producers.end_poll(present, ("ok", []))

    def changed(self, pair: TopicFeedback) -> None:
        """Something was settled."""
        self._review(pair)

    # ---------------------------------------------------------------- apps and pairs

    def _app(self, name: str) -> AppProducers:
        producers = self._apps.get(name)
        if producers is None:
            producers = self._apps[name] = AppProducers(name, self._config.owner_gone_s, self._poll_ended)
            for watch in self._watches.values():
                watch.find(name)
        return producers

    def _host(self, app: str, topic: str) -> TopicFeedback | None:
        """The pair, made if there is none yet; None: it does not belong here."""
        pair = self._pairs.get((app, topic))
        if pair is None:
            elsewhere = part_of(app, topic, self.shards) != self.index
            if elsewhere if self._only is None else (app, topic) != self._only:
                return None
            owners = self._app(app).owners
            pair = self._pairs[app, topic] = TopicFeedback(app, topic, self._way, self, owners)
        return pair

    def _review(self, pair: TopicFeedback) -> None:
        """After anything that happened to it: does it wait for time, for producers, for a lock?"""
        if self._pairs.get((pair.app, pair.topic)) is not pair:
            return
        producers = self._app(pair.app)
        if pair.working:
            self._wake(pair, producers)
        elif self._working.pop(pair, True) is None:
            producers.awake.pop(pair, None)
        if pair.may_be_due:
            producers.waiting[pair] = None
        else:
            producers.waiting.pop(pair, None)
        if not pair.working and not pair.may_be_due and self._only is None:
            pair.idle_since = self.now()
            self._asleep[pair] = None
            self._asleep.move_to_end(pair)
            return
        self._asleep.pop(pair, None)
        for gid in pair.may_be_due:
            if self.room(gid, pair) > 0:
                self._watches[gid].want(pair)

    def _wake(self, pair: TopicFeedback, producers: AppProducers) -> None:
        """It has checks on hand from here on, and hears of polls; of those before it has not heard."""
        if pair in self._working:
            return
        self._working[pair] = None
        producers.awake[pair] = None
        online = producers.online(self._config.silent_s)
        pair.forget_but({present.instance for present in online})
        for present in online:
            parked = present.poll is not None
            seen = self.now() if parked else present.last_seen
            pair.arrive(present.instance, present.room, (), seen, parked=parked)

    def _tell(
        self,
        producers: AppProducers,
        instance: str,
        room: int,
        keys: Iterable[arguments.PlacedCheck],
        *,
        parked: bool,
    ) -> None:
        """All topics of the app that have something to do hear of this poll."""
        by_topic: dict[str, list[arguments.AskedCheck]] = {}
        for ((gid, topic), tx_id), index in keys:
            by_topic.setdefault(topic, []).append(((gid, tx_id), index))
        now = self.now()
        for pair in list(producers.awake):
            working = by_topic.get(pair.topic, ())
            self._guarded(pair, lambda p=pair, w=working: p.arrive(instance, room, w, now, parked=parked))

    def _match(self, producers: AppProducers) -> None:
        for pair in list(producers.awake):
            self._guarded(pair, pair.match)
            self._review(pair)
        if producers.starved:
            producers.starved = False
            for pair in list(producers.waiting):
                self._review(pair)

    def _poll_ended(self, producers: AppProducers, present: Present) -> None:
        self._parked -= 1
        now = self.now()
        for pair in list(producers.awake):
            self._guarded(pair, pair.depart, present.instance, now)

    def _guarded(self, pair: TopicFeedback, do: Callable[..., Any], *args: Any) -> Any:
        """What it raises ends this pair, and nothing else."""
        try:
            return do(*args)
        except Exception:
            self.counts["errors"] += 1
            log.exception(
                "feedback of app %r, topic %r stumbled and is made anew; its checks come back in %g s",
                pair.app,
                pair.topic,
                self._config.lock_lease_s,
            )
            self._drop(pair)
            # What the leader named for it would not be named again.
            asyncio.get_running_loop().call_later(MADE_ANEW_S, self._make_anew, pair.app, pair.topic)
            return None

    def _make_anew(self, app: str, topic: str) -> None:
        for gid in self._watches:
            self.due(gid, app, topic)

    def _drop(self, pair: TopicFeedback) -> None:
        if self._pairs.get((pair.app, pair.topic)) is pair:
            del self._pairs[pair.app, pair.topic]
        self._working.pop(pair, None)
        self._asleep.pop(pair, None)
        producers = self._apps.get(pair.app)
        if producers is not None:
            producers.awake.pop(pair, None)
            producers.waiting.pop(pair, None)
        for watch in self._watches.values():
            watch.forget(pair)
        if pair.working:
            closing = asyncio.ensure_future(pair.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        self._place.set()

    # ---------------------------------------------------------------- bounds

    def _make_place(self, producers: AppProducers, beyond: int) -> bool:
        """Whether one more poll may be parked, so many ``beyond`` the app's bound where checks wait for this
        producer alone; others are sent away for it where they must."""
        config = self._config
        if producers.parked >= config.polls_parked_max + beyond:
            self._say(
                "app_polls", "app %r has %d polls parked: more are sent away", producers.app, producers.parked
            )
            return False
        if self._parked >= config.shard_polls_max:
            self._say("polls", "%d polls are parked here: some are sent away for others", self._parked)
            # Of those with as many, the app that polled longest ago: they take turns.
            most = max(self._apps.values(), key=lambda app: app.parked)
            longest = most.longest_parked()
            assert longest is not None
            self.counts["polls_refused"] += 1
            most.end_poll(longest, ("retry", self._retry_s()))
        return True

    def _place_for_app(self, name: str) -> bool:
        if name in self._apps or len(self._apps) < self._config.apps_max:
            return True
        if any(self._forget_app(app) for app in list(islice(self._apps.values(), SILENT_AMONG))):
            return True
        self._say("apps", "%d apps poll here: producers of further ones are sent away", len(self._apps))
        return False

    def _retry_s(self) -> float:
        return self._pace.retry_s() * self._rng.uniform(0.5, 1.5)

    def _say(self, what: str, text: str, *args: Any) -> None:
        now = self.now()
        if now - self._said.get(what, -SAY_EVERY_S) >= SAY_EVERY_S:
            self._said[what] = now
            log.warning("feedback process %d: " + text, self.index, *args)

    # ---------------------------------------------------------------- time

    async def _tick(self) -> None:
        await asyncio.sleep(self._config.tick_s)
        for pair in list(self._working):
            self._guarded(pair, pair.tick)
            self._review(pair)
        self._forget_some()

    def _forget_some(self) -> None:
        """What has had nothing to do for long."""
        before = self.now() - self._config.idle_exit_s
        for pair in list(islice(self._asleep, FORGET_PER_TICK)):
            if pair.idle_since >= before:
                break
            self._drop(pair)
        for app in list(islice(self._apps.values(), FORGET_PER_TICK)):
            if app.last_poll_at >= before:
                break
            self._forget_app(app)

    def _forget_app(self, app: AppProducers) -> bool:
        """With all that the leaders named for it: it is looked up when a producer comes again. False: it is
        in use."""
        if app.parked or app.awake:
            return False
        for pair in list(app.waiting):
            self._drop(pair)
        del self._apps[app.app]
        return True

    async def _sweep(self) -> None:
        """Pairs without a producer online, a few at a time: what have home groups decided meanwhile?"""
        await asyncio.sleep(self._config.branch_sweep_s)
        online = {name for name, app in self._apps.items() if app.online(self._config.silent_s)}
        alone = [pair for pair in list(self._pairs.values()) if pair.app not in online]
        for first in range(0, len(alone), SWEEPS_AT_ONCE):
            sweeps = [pair.sweep() for pair in alone[first : first + SWEEPS_AT_ONCE]]
            for outcome in await asyncio.gather(*sweeps, return_exceptions=True):
                if outcome is not None:
                    self.counts["sweeps_failed"] += 1
            await asyncio.sleep(self._config.tick_s)

    def status(self, app: str | None = None, topic: str | None = None) -> dict[str, Any]:
        """For operators: the process, and the first thousand pairs of this app and topic that are here."""
        shown = (
            pair
            for pair in self._pairs.values()
            if (app is None or pair.app == app) and (topic is None or pair.topic == topic)
        )
        return {
            "shard": self.index,
            "shards": self.shards,
            "apps": len(self._apps),
            "pairs_here": len(self._pairs),
            "pairs_working": len(self._working),
            "polls_parked": self._parked,
            "poll_wait_s": self._pace.wait_s(),
            "counts": dict(self.counts),
            "watches": [watch.status() for watch in self._watches.values()],
            "pairs": [pair.status() for pair in islice(shown, PAIRS_SHOWN)],
        }

    def pair(self, app: str, topic: str) -> TopicFeedback | None:
        """The feedback of this app and topic, made if need be; None: it is another process's."""
        return self._host(app, topic)

    @property
    def silent_s(self) -> float:
        """A producer without a poll for so long is offline."""
        return self._config.silent_s

    def producers(self, app: str) -> AppProducers | None:
        """The producers of this app, if any polled lately."""
        return self._apps.get(app)
