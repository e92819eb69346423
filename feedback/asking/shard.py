"""Feedback of many apps and topics in one process: producers park here once, broker groups are asked once.

The plain class inside a feedback process. Each pair of app and topic belongs to one of ``shards`` processes
(``part_of``) and is a ``TopicFeedback`` there, created when something comes due and forgotten when it has had
nothing to do for long. A pair that raises is dropped, as if an actor of its own had died: its leases end,
and it is created again. Pairs of one process share only its processor and its memory. This must never let
one pair's queue, bound or error affect another pair, nor refuse anything without saying so.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import msgspec

from escrowmq.feedback.asking import checks
from escrowmq.feedback.asking.app_producers import AppProducers, PollAdmission, Polled, Present
from escrowmq.feedback.asking.checks import WANTED_MAX
from escrowmq.feedback.asking.due_watch import DueWatch, Pair
from escrowmq.feedback.asking.group_feedback import Way
from escrowmq.feedback.asking.pair_table import PairTable
from escrowmq.feedback.asking.shard_report import ShardReport
from escrowmq.feedback.asking.topic_feedback import GroupTopic, Handed, TopicFeedback
from escrowmq.feedback.brokers import AskMembers, Brokers, GroupLeader
from escrowmq.feedback.config import FeedbackConfig
from escrowmq.feedback.policy import RUNNING_MAX_S, Trouble, endless
from escrowmq.replication.calling.answers import LockedRow, part_of
from escrowmq.replication.model import TransactionState

# ------------------------------------------------------------------------------------------------------------
# Whether this process itself was paused: stopped, swapped out, or without a processor. Pure: takes ``now``.
#
# Silence during such a pause says nothing about others, since their messages wait before the process.

#: Longer than one turn of a busy event loop, and far shorter than any silence that means something.
STOOD_STILL_S = 2.0


class PauseDetector:
    """Call ``beat`` every ``every_s``; ask whether beats are ``missing`` before drawing conclusions from
    silence."""

    def __init__(self, every_s: float) -> None:
        self._late_s = every_s + STOOD_STILL_S
        self._beat_at = float("inf")  # until the first one

    def beat(self, now: float) -> None:
        """The process is running."""
        self._beat_at = now

    def missing(self, now: float) -> bool:
        """Whether it was paused until now; reported once."""
        if now <= self._beat_at + self._late_s:
            return False
        self._beat_at = now
        return True


log = logging.getLogger(__name__)

#: Apps forgotten per tick.
FORGET_PER_TICK = 200
#: Pairs that ``status`` shows individually.
PAIRS_SHOWN = 1_000
#: Tables that no producer has, as far as they are remembered and reported, and for how long after a check of
#: theirs was put off: it comes back within RUNNING_MAX_S.
LACKING_MAX, LACKING_SHOWN, LACKING_S = 256, 8, 3 * RUNNING_MAX_S
#: A producer whose answers all meet full queues comes back after this.
ANSWER_AGAIN_S = 0.5

DECISIVE = (TransactionState.COMMITTED, TransactionState.ROLLBACK)


class FeedbackShard:
    """Process ``index`` of ``shards``. One event loop. ``start`` before the first poll; ``close`` ends it."""

    def __init__(
        self,
        index: int,
        shards: int,
        groups: int,
        replicas: int,
        brokers: Brokers,
        config: FeedbackConfig,
        rng: random.Random,
        *,
        members: AskMembers | None = None,
    ) -> None:
        self.index, self.shards = index, shards
        self._config, self._rng = config, rng
        leaders = {
            gid: GroupLeader(gid, replicas, brokers, config.leader, rng, members) for gid in range(groups)
        }
        slots = {gid: asyncio.Semaphore(config.submits_at_once) for gid in leaders}
        self._way = Way(f"feedback/{index}/{rng.getrandbits(64):016x}", leaders, slots, config)
        self._watches = {
            gid: DueWatch(leader, self, index, shards, self._way.owner, config)
            for gid, leader in leaders.items()
        }
        self._poll_admission = PollAdmission(
            f"feedback process {index}",
            config,
            rng,
            self.now,
            new=self._find,
            ended=self._poll_ended,
            forget=self._forget_app,
        )
        self.apps = self._poll_admission.apps
        #: Event counts, of this class and of the admission.
        self.counts = self._poll_admission.counts
        self._pairs = PairTable(self, self._poll_admission, self._way)
        self._lacking: OrderedDict[tuple[str, bytes], float] = OrderedDict()
        self._news, self._pulse = 0, PauseDetector(config.tick_s)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start the loops."""
        what = f"feedback process {self.index}"
        runs = [endless(self._tick, self.counts, f"{what}, deadlines")]
        runs += [watch.run() for watch in self._watches.values()]
        self._tasks = [asyncio.create_task(run) for run in runs]

    async def close(self) -> None:
        """End the loops and send parked producers away. Leases end by themselves."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._pairs.close()
        for leader in self._way.leaders.values():
            leader.close()
        for app in self.apps.values():
            app.close()

    # ---------------------------------------------------------------- producers call these

    async def poll(
        self,
        app: str,
        instance: str,
        room: int,
        working: Sequence[tuple[GroupTopic, str, int]],
        wait_s: float,
        fence: bytes = b"",
    ) -> Polled:
        """Checks for this producer, of any topic of its app, as soon as there are any: ``("ok", [Handed,
        ...])``, empty after the wait. ``room``: how many it accepts; ``working``: (source, tx_id, index) of
        checks that it has not answered yet, and whose local transactions it does not run. ``fence``: the
        table whose rows it answers from; it is asked about no others' that have one. ``("retry",
        seconds)``: too many producers are parked here, come back later.

        Raises InvalidMessage for invalid arguments, as do ``answer`` and ``leave``.
        """
        app, instance, room = checks.app_of(app), checks.instance_of(instance), checks.room_of(room)
        keys, wait_s = checks.working_of(working), checks.wait_of(wait_s)
        fence = checks.fence_of(fence)
        admission = self._poll_admission
        admission.pace.arrive(instance, self.now())
        if not admission.has_room_for(app):
            return admission.away()
        producers = admission.app(app)
        self.apps.move_to_end(app)
        wanted = instance in producers.owners.wanted or any(p.wants(instance) for p in producers.awake)
        beyond = WANTED_MAX if wanted else 0
        present = producers.arrive(instance, room, self._config.producers_max + beyond)
        parks = present is not None and admission.may_park(producers, beyond)
        if present is not None:
            present.led_elsewhere = present.led_elsewhere and present.fence == fence
            present.fence = fence
        if present is None or not present.led_elsewhere:
            self._lacking.pop((app, fence), None)
        self._tell(producers, instance, room, keys, parked=parks, fence=fence)
        if present is None:
            admission.say("producers", "app %r has too many producers: more are sent away", app)
        if present is None or not parks:
            return admission.away()
        poll = producers.park(present)
        admission.parked += 1
        longest = min(wait_s, admission.pace.wait_s()) * self._rng.uniform(0.8, 1.0)
        timer = asyncio.get_running_loop().call_later(longest, producers.end_poll, present, ("ok", []), poll)
        self._match(producers)
        try:
            return await poll
        finally:
            timer.cancel()
            producers.end_poll(present, ("ok", []), poll)

    def answer(
        self, app: str, instance: str, answers: Sequence[tuple[GroupTopic, str, str, str, int]]
    ) -> tuple[str, Any]:
        """Answers (source, transaction, state, trouble, index): ``("ok", [number, ...])`` with those, counted
        from 0, that were not accepted because too many of their topic wait for their submit; send these
        again.
        """
        app, instance = checks.app_of(app), checks.instance_of(instance)
        refused, touched = [], dict[TopicFeedback, None]()
        producers = self.apps.get(app)
        present = None if producers is None else producers.get(instance)
        for number, (key, state, trouble, index) in enumerate(checks.answers_of(answers)):
            (gid, topic), tx_id = key
            if present is not None and (state in DECISIVE or trouble is Trouble.ELSEWHERE):
                present.led_elsewhere = trouble is Trouble.ELSEWHERE
            pair = self._pairs.get(app, topic)
            if pair is None and state in DECISIVE:  # a late answer: as true as an early one
                if not self._poll_admission.has_room_for(app) or self._pairs.full:
                    refused.append(number)
                    continue
                pair = self._pairs.host(app, topic)
            if pair is None:
                continue
            touched[pair] = None
            if self._pairs.guarded(pair, pair.answer, instance, (gid, tx_id), state, trouble, index) is False:
                refused.append(number)
        for pair in touched:
            self._pairs.guarded(pair, pair.match)
            self._pairs.review(pair)
        if refused:
            self.counts["answers_refused"] += len(refused)
            self._poll_admission.say(
                "answers_refused", "answers of app %r wait for a leader: more are sent away", app
            )
        return "ok", refused

    def leave(self, app: str, instance: str, idle: bool = False) -> None:
        """The producer closes: its checks go to the others at once. ``idle``: also those of its own
        transactions, since it runs none of them; otherwise those wait until it is gone."""
        app, instance, idle = checks.app_of(app), checks.instance_of(instance), checks.idle_of(idle)
        self._poll_admission.pace.leave(instance)
        producers = self.apps.get(app)
        if producers is None:
            return
        producers.remove(instance, idle=idle)
        for pair in list(producers.awake):
            self._pairs.guarded(pair, lambda p=pair: p.leave(instance, idle=idle))
        self._match(producers)

    # ---------------------------------------------------------------- the watches call these (Pairs)

    async def free_slots(self) -> int:
        """Waits until further pairs may be here; returns how many. Meanwhile the leader keeps what is due."""
        return await self._pairs.free_slots()

    def due(self, gid: int, pair: Pair) -> None:
        """Group ``gid`` says that something is due, or open. Ignored if the app has no producer here:
        when one comes, the app is looked up."""
        app, topic = pair
        producers = self.apps.get(app)
        if self.belongs_here(pair) and producers is not None:
            self._news += 1
            producers.due.setdefault(topic, {})[gid] = self._news
            self.want(gid, pair)

    def nothing_due(self, gid: int, pair: Pair, news: int) -> None:
        """Group ``gid`` had fewer than requested, as of its news number ``news``."""
        app, topic = pair
        if self.news(gid, pair) == news:
            due = self.apps[app].due[topic]
            del due[gid]
            if not due:
                del self.apps[app].due[topic]

    def news(self, gid: int, pair: Pair) -> int | None:
        """The number of the group's latest news on the pair; None: nothing is due there."""
        producers = self.apps.get(pair[0])
        return None if producers is None else producers.due.get(pair[1], {}).get(gid)

    def room(self, gid: int, pair: Pair) -> int:
        """How many transactions are worth locking for it at this group now."""
        hosted = self._pairs.get(*pair)
        if hosted is not None and self._pairs.works(hosted):
            return hosted.room(gid)
        producers = self.apps.get(pair[0])
        if producers is None:
            return 0
        most = min(self._config.lock_batch, self._config.checks_per_group_max)
        room = producers.room(most, self._config.silent_s)
        if room == 0:
            producers.starved = True
        return room

    def take(self, gid: int, pair: Pair, rows: Sequence[LockedRow]) -> None:
        """These were locked for ``pair``."""
        hosted = self._pairs.host(*pair) if rows else self._pairs.get(*pair)
        if hosted is None:
            return
        if rows:
            self._pairs.guarded(hosted, self._pairs.wake, hosted, self._poll_admission.app(hosted.app))
            self._pairs.guarded(hosted, hosted.take, gid, rows)
        self._pairs.review(hosted)

    def want(self, gid: int, pair: Pair) -> None:
        """Something is due at this group: lock it if the pair has room."""
        if self.room(gid, pair) > 0:
            self._watches[gid].want(pair)

    # ---------------------------------------------------------------- the table and pairs call these (Keeper)

    def now(self) -> float:
        """Seconds of the event loop."""
        now = asyncio.get_running_loop().time()
        if self._pulse.missing(now):
            for app in self.apps.values():
                app.owners.listen_anew(now)
        return now

    def hand(self, pair: TopicFeedback, instance: str, checks: list[Handed]) -> None:
        """Send these checks with this producer's poll."""
        self.counts["handed"] += len(checks)
        self._poll_admission.app(pair.app).hand(instance, checks)

    def lost(self, pair: TopicFeedback, instance: str) -> None:
        """It did not confirm what it was handed, or is silent. If it is alive, it polls again."""
        producers = self.apps.get(pair.app)
        present = None if producers is None else producers.get(instance)
        if producers is not None and present is not None:
            producers.end_poll(present, ("ok", []))

    def changed(self, pair: TopicFeedback) -> None:
        """Something was settled."""
        self._pairs.review(pair)

    def lacks(self, app: str, fence: bytes) -> None:
        """No producer of this app has the table, and a check waits for one."""
        self._lacking[app, fence] = self.now()
        self._lacking.move_to_end((app, fence))
        if len(self._lacking) > LACKING_MAX:
            self._lacking.popitem(last=False)

    def look_anew(self, pair: Pair) -> None:
        """Ask every group for it again."""
        for gid in self._watches:
            self.due(gid, pair)

    def belongs_here(self, pair: Pair) -> bool:
        """Whether the pair belongs to this process."""
        return part_of(*pair, self.shards) == self.index

    # ---------------------------------------------------------------- apps

    def _find(self, app: str) -> None:
        """Find out what this new app has open: no leader has named it here."""
        for watch in self._watches.values():
            watch.find(app)

    def _tell(
        self,
        producers: AppProducers,
        instance: str,
        room: int,
        keys: Iterable[checks.TopicCheck],
        *,
        parked: bool,
        fence: bytes,
    ) -> None:
        """Tell this poll to all topics of the app that have work."""
        by_topic: dict[str, list[checks.AskedCheck]] = {}
        for ((gid, topic), tx_id), index in keys:
            by_topic.setdefault(topic, []).append(((gid, tx_id), index))
        now = self.now()
        for pair in list(producers.awake):
            working = by_topic.get(pair.topic, ())
            self._pairs.guarded(
                pair, lambda p=pair, w=working: p.arrive(instance, room, w, now, parked=parked, fence=fence)
            )

    def _match(self, producers: AppProducers) -> None:
        for pair in list(producers.awake):
            self._pairs.guarded(pair, pair.match)
            self._pairs.review(pair)
        if producers.starved:
            producers.starved = False
            for topic, due in list(producers.due.items()):
                for gid in due:
                    self.want(gid, (producers.app, topic))

    def _poll_ended(self, producers: AppProducers, present: Present) -> None:
        now = self.now()
        for pair in list(producers.awake):
            self._pairs.guarded(pair, pair.depart, present.instance, now)

    # ---------------------------------------------------------------- time

    async def _tick(self) -> None:
        await asyncio.sleep(self._config.tick_s)
        self._pulse.beat(self.now())
        self._pairs.tick()
        while self._lacking and next(iter(self._lacking.values())) < self.now() - LACKING_S:
            self._lacking.popitem(last=False)
        self._forget_some()

    def _forget_some(self) -> None:
        """Forget what has had nothing to do for long."""
        before = self.now() - self._config.idle_exit_s
        self._pairs.forget_before(before)
        for app in list(islice(self.apps.values(), FORGET_PER_TICK)):
            if app.last_poll_at >= before:
                break
            self._forget_app(app)

    def _forget_app(self, app: AppProducers) -> bool:
        """Forget an app, with its pairs, which rely on its knowledge of owners, and with all that the leaders
        named for it: it is looked up when a producer comes again. False: it is in use."""
        if app.parked or app.awake:
            return False
        for pair in list(app.hosted.values()):
            self._pairs.drop(pair)
        del self.apps[app.app]
        return True

    def report(self) -> ShardReport:
        """For operators: the process, without its pairs."""
        return ShardReport(
            shard=self.index,
            shards=self.shards,
            apps=len(self.apps),
            pairs_here=len(self._pairs),
            pairs_working=self._pairs.at_work,
            pairs_due=sum(len(app.due) for app in self.apps.values()),
            polls_parked=self._poll_admission.parked,
            poll_wait_s=self._poll_admission.pace.wait_s(),
            producers=self._poll_admission.pace.producers,
            tables_missing=tuple(
                f"{app} {fence.hex()}" for app, fence in islice(reversed(self._lacking), LACKING_SHOWN)
            ),
            counts=dict(self.counts),
        )

    def status(self, app: str | None = None, topic: str | None = None) -> dict[str, Any]:
        """``report``, with the first thousand pairs of this app and topic that are here."""
        shown = (
            pair
            for pair in self._pairs
            if (app is None or pair.app == app) and (topic is None or pair.topic == topic)
        )
        return {
            **msgspec.structs.asdict(self.report()),
            "watches": [watch.status() for watch in self._watches.values()],
            "pairs": [pair.status() for pair in islice(shown, PAIRS_SHOWN)],
        }
