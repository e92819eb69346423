"""Two operators redrive the dead letters of one group at the same time, into topics and to the group itself.

One of them, or both, or the leader, dies meanwhile; who died is replaced, until nothing is left. Then each
letter must be in one place, once: in a topic, or in the group's retries; and what an operator was told that
it has redriven must be where it wanted it. Nothing may stay open, leased or dead, and what came back to the
group must have been handled.
"""

from __future__ import annotations

import os
import random
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import escrowmq
from escrowmq import Cluster, Message, ShareConsumer
from escrowmq.actors.client.router import Router
from escrowmq.actors.consumer.offsets import OffsetReader
from escrowmq.actors.consumer.reader import PartitionReader
from escrowmq.replication.format.codec import decode_rows
from escrowmq.replication.format.internal_topics import retry_topic
from tests.fence_trials.redriver import LISTED, READY, Redriver, Reported, reports
from tests.fence_trials.staff import Staff, kill_leader, tell
from tests.support.faults.dealing import deal, pick
from tests.support.waiting import wait_until

#: The kind of trial, and what is struck in it. An operator dies during a drawn call.
REDRIVES = "redrives"
OPERATOR, OPERATORS, LEADER = "operator", "both operators", "leader"
DECK = {(OPERATOR, LEADER): 2, (OPERATOR,): 1, (OPERATORS,): 1, (LEADER,): 1}
#: Where the two want the letters, with weights; "": back in the group.
HOME, FOUND, LOST = "", "found", "lost"
WAYS = {(FOUND, HOME): 3, (FOUND, LOST): 1, (HOME, HOME): 1, (FOUND, FOUND): 1}
LETTERS = 120
#: Dead letters of a call; 0: all in one.
MANY = {10: 3, 40: 1, 0: 1}
DIES_AFTER_S = (0.0, 0.02)
PATIENCE_S = 120.0


class Redriving:
    """Trials with one group. ``counted``: for the end of a run."""

    def __init__(self, cluster: Cluster, folder: Path, seed: int) -> None:
        self._cluster, self._folder = cluster, folder
        name = f"redrives-{seed}-{os.getpid()}"
        self._topic, self._group = f"{name}-orders", f"{name}-billing"
        self._places = {HOME: retry_topic(self._group), FOUND: f"{name}-found", LOST: f"{name}-lost"}
        for topic in (self._topic, self._places[FOUND], self._places[LOST]):
            cluster.admin.create_topic(topic, partitions=1)
        cluster.admin.set_group(self._group, max_attempts=1)
        self._staff = Staff(folder / "log")
        self._ways = deal(random.Random(f"{seed}-ways"), WAYS)
        self._trials = self._hired = 0
        self._next: Counter[str] = Counter()  # by place, up to where it has been read
        self._letters: dict[str, str] = {}  # by id: those of this trial
        self._handled: Counter[str] = Counter()
        self._rejects, self._stop = True, threading.Event()
        self._handler = threading.Thread(target=self._handle, name="handler", daemon=True)
        self._handler.start()
        self.counted: Counter[str] = Counter()

    def end(self) -> None:
        self._stop.set()
        self._handler.join(PATIENCE_S)
        self._staff.end()

    def said(self) -> str:
        """By the operators."""
        return self._staff.said()

    # ------------------------------------------------------------ the group

    def _handle(self) -> None:
        """The group's consumer: all that it gets dies, or is handled."""
        with self._cluster.share_consumer(
            self._group, [self._topic], auto_offset_reset="earliest", lease_s=5.0
        ) as queue:
            while not self._stop.is_set():
                try:
                    self._handle_some(queue)
                except escrowmq.EscrowMQError:  # no leader just now
                    time.sleep(0.05)

    def _handle_some(self, queue: ShareConsumer) -> None:
        for record in queue.poll(timeout_s=0.2):
            if self._rejects:
                queue.reject(record, "of a trial")
            else:
                self._handled[record.value.decode()] += 1
                queue.ack(record)

    def _let_die(self) -> None:
        """A trial's letters."""
        self._rejects, self._trials = True, self._trials + 1
        with self._cluster.producer(app=self._group) as producer:
            sent = [
                producer.send(Message(self._topic, f"{self._trials}-{n}".encode())) for n in range(LETTERS)
            ]
            for each in sent:
                each.result(PATIENCE_S)

        def dead() -> bool:
            share = self._cluster.admin.describe_group(self._group).share
            return share is not None and share.dead == LETTERS

        wait_until(dead, PATIENCE_S, "the death of all letters", 0.1)
        self._rejects = False
        letters = self._cluster.admin.dead_letters(self._group, limit=LISTED)
        self._letters = {letter.id: letter.value.decode() for letter in letters}

    # ------------------------------------------------------------ a trial

    def strike(self, victims: tuple[str, ...], rng: random.Random) -> list[str]:
        """One trial; returns its problems."""
        self._let_die()
        operators = [self._operator(to, rng) for to in next(self._ways)]
        doomed = {OPERATORS: 2, OPERATOR: 1}
        for n in rng.sample(range(2), max(doomed.get(victim, 0) for victim in victims)):
            calls = LETTERS // operators[n].many if operators[n].many else 1
            operators[n] = replace(
                operators[n], dies_in=rng.randrange(calls), dies_after_s=rng.uniform(*DIES_AFTER_S)
            )
        working = {told: self._hire(told) for told in operators}
        files = [Path(told.report) for told in operators]
        wait_until(
            lambda: all(f.exists() and f.read_text().startswith(READY) for f in files),
            PATIENCE_S,
            "operators",
        )
        for process in working.values():
            tell(process, "go")
        if LEADER in victims:
            time.sleep(rng.random())
            kill_leader(self._cluster)
        files += self._await_end(working)
        return self._problems(files)

    def _operator(self, to: str, rng: random.Random) -> Redriver:
        self._hired += 1
        name = f"operator{self._hired}"
        return Redriver(
            self._cluster.address, self._cluster.info.namespace, self._group, to and self._places[to],
            pick(rng, MANY), rng.random() < 0.3, -1, 0.0, name, str(self._folder / name),
        )  # fmt: skip

    def _hire(self, told: Redriver) -> subprocess.Popen[bytes]:
        return self._staff.hire("redriver", told.encode())

    def _await_end(self, working: dict[Redriver, subprocess.Popen[bytes]]) -> list[Path]:
        """Until nobody works any more. Who dies is replaced; returns the files of those who came later."""
        later: list[Path] = []
        until = time.monotonic() + PATIENCE_S
        while working:
            if time.monotonic() > until:
                raise TimeoutError(f"operators do not end: {[*working]}")
            for told, process in [*working.items()]:
                code = process.poll()
                if code is None:
                    continue
                del working[told]
                self._staff.fire(process)
                if code == 0:
                    continue
                self.counted["operators died"] += 1
                self._hired += 1
                name = f"operator{self._hired}"
                again = replace(told, dies_in=-1, name=name, report=str(self._folder / name))
                working[again] = self._hire(again)
                tell(working[again], "go")
                later.append(Path(again.report))
            time.sleep(0.02)
        return later

    # ------------------------------------------------------------ comparing

    def _problems(self, files: list[Path]) -> list[str]:
        problems = self._await_calm()
        found = {place: Counter(self._read(topic)) for place, topic in self._places.items()}
        everywhere = sum(found.values(), Counter[str]())
        self.counted["letters"] += len(self._letters)
        for letter in self._letters.values():
            if everywhere[letter] != 1:
                where = {topic or "home": n[letter] for topic, n in found.items() if n[letter]}
                problems.append(f"redriven {everywhere[letter]} times: {letter}, {where}")
        problems += [f"handled-never: {letter}" for letter in found[HOME] if not self._handled[letter]]
        problems += [
            f"handled, though elsewhere: {letter}"
            for letter in self._letters.values()
            if self._handled[letter] and not found[HOME][letter]
        ]
        told = [reports(file) for file in files]
        for reported in (report for answered, _ in told for report in answered):
            problems += self._false_report(reported, found)
        number = sum(report.redriven for answered, _ in told for report in answered)
        every = all(complete for _, complete in told)
        if number > len(self._letters) or (every and number < len(self._letters)):
            problems.append(f"reported as redriven: {number} of {len(self._letters)}")
        self.counted["calls unanswered"] += not every
        return problems

    def _false_report(self, reported: Reported, found: dict[str, Counter[str]]) -> Iterator[str]:
        """If fewer are there than a call has sent there."""
        place = next(place for place, topic in self._places.items() if reported.to in (place, topic))
        there = sum(1 for id in reported.ids if found[place][self._letters[id]])
        if there < reported.redriven:
            yield f"{reported.redriven} redriven to {place or 'the group'}, {there} are there: {reported.ids}"

    def _await_calm(self) -> list[str]:
        """Until nothing is open, waiting, leased or dead."""
        admin = self._cluster.admin

        def calm() -> bool:
            share = admin.describe_group(self._group).share
            assert share is not None
            left = share.dead or share.leased or share.retrying or share.lag
            topics = (self._places[FOUND], self._places[LOST])
            return not left and not any(admin.list_transactions(topic=topic) for topic in topics)

        try:
            wait_until(calm, PATIENCE_S, "an end of what is under way", 0.1)
        except AssertionError as error:
            return [f"stuck: {error}; {admin.describe_group(self._group)}"]
        return []

    def _read(self, topic: str) -> list[str]:
        """What is new in one of the places."""
        info, router = self._cluster.info, Router(self._cluster.info)
        try:
            bounds = OffsetReader(router).bounds([(topic, 0)], PATIENCE_S)[topic, 0]
            assert not isinstance(bounds, Exception), bounds
            start, end = max(self._next[topic], bounds[0]), bounds[1]
            gid = router.placement.group_of(topic, 0)
            with PartitionReader(info, topic, 0, start, end, group=gid, timeout_s=PATIENCE_S) as blocks:
                rows = [row for block in blocks for row in decode_rows(block.rows, block.messages)]
        finally:
            router.close()
        self._next[topic] = end
        return [bytes(value).decode() for _, value, *_ in rows]


@contextmanager
def redriving(cluster: Cluster, seed: int) -> Iterator[Redriving]:
    """For as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="emq-redrives-") as folder:
        shape = Redriving(cluster, Path(folder), seed)
        try:
            yield shape
        finally:
            shape.end()
