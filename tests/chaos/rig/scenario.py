"""The stories of test_machine.py, in a separate process, which moves to the rig and joins Ray there.

Each story inflicts one fault on a running cluster, checks what clients and replicas see meanwhile, and undoes
it. Then all replicas must hold the same entries, and everything acknowledged. To run stories by hand:
``python -m tests.chaos.rig.scenario cut full ...`` (without names: all of them).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import ray

import escrowmq
from escrowmq import Cluster, EscrowMQError, Message
from escrowmq.actors.client.topology import broker_name
from escrowmq.replication.errors import DiskFull
from tests.chaos.rig.machine import MachineRig, wait_until

#: Large enough to fill disks soon, and to make truncation visible.
BODY_BYTES = 32_000
#: Limit (seconds) for the next acknowledged commit after the loss of the leader. The machine may be busy.
FAIL_OVER_S = 15.0
#: The replica with a thin disk.
THIN = 0
#: The reserve that brokers keep free, for small disks.
RESERVE_BYTES = 16 << 20
BEGAN = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - BEGAN:6.1f} s  {text}", flush=True)


class Story:
    """A cluster on a rig, and the numbers that were acknowledged as committed to topic ``t``."""

    def __init__(self, rig: MachineRig, cluster: Cluster) -> None:
        self.rig, self.cluster = rig, cluster
        self.sent, self.acknowledged, self.refused = 0, set[int](), set[int]()
        self.problems: list[EscrowMQError] = []
        self.producer = cluster.producer(app="rig", delivery_timeout_s=20.0)
        wait_until("all are well", self.settled)
        cluster.admin.create_topic("t")

    # ------------------------------------------------------------ reading

    def replicas(self) -> dict[int, Any]:
        """The report of each replica that answers."""
        return {r.replica: r for r in self.cluster.status().groups[0].replicas if r.reachable}

    def leader(self) -> int:
        """The ready leader with the latest term; a deposed leader may not know of a later one yet."""
        ready = wait_until(
            "a leader", lambda: [(r.term, n) for n, r in self.replicas().items() if r.details.get("ready")]
        )
        return int(max(ready)[1])

    def settled(self) -> bool:
        """Whether all replicas answer and have applied the same, and the supervisor reports no problem."""
        found = self.replicas()
        same = len({r.applied_index for r in found.values()}) == 1
        return len(found) == len(self.rig.replicas) and same and self.cluster.health()["ready"]

    def visible(self, replica: int, start: int = 0) -> tuple[int, list[bytes]]:
        """(end, values from ``start``) of the partition, read from this replica."""
        actor = ray.get_actor(broker_name(0, replica), namespace="escrowmq")
        end = ray.get(actor.fetch.remote([("t", 0, start)], 1, 0.0), timeout=5)[0][4]
        blobs: list[bytes] = []
        while start < end:
            answer = ray.get(actor.fetch.remote([("t", 0, start)], 1 << 20, 0.0), timeout=5)[0]
            *_, runs, blob = answer
            assert runs, f"replica {replica} ends at {end} and has nothing at {start}: {answer[:5]}"
            start = runs[-1][0] + runs[-1][1]
            blobs.append(bytes(blob))
        return end, blobs

    # ------------------------------------------------------------ sending

    def body(self, number: int) -> bytes:
        """A value that contains its number."""
        return (b"%08d" % number) * (BODY_BYTES // 8)

    def send(self) -> bool:
        """Send one transaction; returns whether its commit was acknowledged."""
        number = self.sent
        self.sent += 1
        try:
            with self.producer.transaction() as tx:
                tx.send(Message("t", self.body(number)))
        except EscrowMQError as error:
            self.problems.append(error)
            return False
        self.acknowledged.add(number)
        return True

    def committed_within(self, what: str, patience_s: float = FAIL_OVER_S) -> float:
        """Send until a commit is acknowledged; returns the seconds, which must be below ``patience_s``."""
        began = time.monotonic()
        while not self.send():
            assert time.monotonic() - began < patience_s, f"{what}: nothing committed; {self.problems[-1]!r}"
        took = time.monotonic() - began
        assert took < patience_s, f"{what}: the first commit took {took:.1f} s"
        say(f"{what}: committed after {took:.2f} s")
        return took

    def well_again(self, what: str) -> None:
        """Undo all faults. All replicas must then hold the same, and every acknowledged number once."""
        began = time.monotonic()

        def mended() -> bool:
            self.rig.mend()
            return self.settled()

        wait_until(f"well after: {what}", mended, 90.0)
        took = time.monotonic() - began
        self.committed_within(f"well {took:.1f} s after mending {what}")
        wait_until("all have applied it", self.settled)
        views = {replica: self.visible(replica) for replica in self.rig.replicas}
        joined = {replica: (end, b"".join(blobs)) for replica, (end, blobs) in views.items()}
        assert len(set(joined.values())) == 1, f"replicas differ: { {r: v[0] for r, v in joined.items()} }"
        with self.cluster.consumer(auto_offset_reset="earliest") as consumer:
            consumer.assign([("t", 0)])
            end, values = views[0][0], list[bytes]()
            while len(values) < end:
                batch = consumer.poll(timeout_s=10.0)
                assert batch, f"only {len(values)} of {end} can be read"
                values += [record.value for record in batch]
        numbers = [int(value[:8]) for value in values]
        assert all(value == self.body(number) for value, number in zip(values, numbers, strict=True))
        assert len(numbers) == len(set(numbers)), "a message is there twice"
        assert self.acknowledged <= set(numbers), f"lost: {sorted(self.acknowledged - set(numbers))}"
        say(f"{len(numbers)} messages, the same on all replicas")


def cut(story: Story) -> None:
    """A leader that is cut off from its peers, but not from its clients, must neither acknowledge commits nor
    show them to readers."""
    old = story.leader()
    story.send()
    before, _ = story.visible(old)
    story.rig.cut_off(old)
    ahead = _CutOffLeader(story, old, before)
    story.committed_within("leader cut off")
    for _ in range(5):
        assert story.send(), story.problems
    others = [replica for replica in story.rig.replicas if replica != old]
    wait_until("the majority shows its commits", lambda: story.visible(others[0])[0] >= before + 6)
    held = ahead.stop()
    assert story.leader() != old
    assert story.visible(old)[0] == before, "the cut-off replica shows what it cannot know to be committed"
    say(f"cut-off leader: {held} entries in its log without commit, none shown in {ahead.looks} looks")
    assert held > 0 and ahead.looks > 0


class _CutOffLeader:
    """Watches a leader that is cut off: its commit index and what readers see must not change."""

    def __init__(self, story: Story, replica: int, end: int) -> None:
        self._actor = ray.get_actor(broker_name(0, replica), namespace="escrowmq")
        self._end, self.looks, self._held = end, 0, 0
        self._wrong: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        commit = None
        while not self._stop.wait(0.02):
            report = ray.get(self._actor.status.remote(), timeout=5)
            shown = ray.get(self._actor.fetch.remote([("t", 0, self._end)], 1 << 20, 0.0), timeout=5)[0]
            commit = report.commit_index if commit is None else commit
            if report.commit_index != commit or shown[4] != self._end or shown[6]:
                self._wrong.append(f"commit {commit} -> {report.commit_index}, end {shown[4]}")
            self._held = max(self._held, report.last_index - report.commit_index)
            self.looks += 1

    def stop(self) -> int:
        """The number of entries that it held and could not commit."""
        self._stop.set()
        self._thread.join(10)
        assert not self._wrong, self._wrong[:3]
        return self._held


def full(story: Story) -> None:
    """The leader's disk is full: requests get a typed error or are served by another leader; nothing is
    lost."""
    victim = story.leader()
    story.rig.fill_disk(victim)
    before = len(story.problems)
    acknowledged = len(story.acknowledged)
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        story.send()
    errors = {type(error).__name__ for error in story.problems[before:]}
    done = len(story.acknowledged) - acknowledged
    say(f"disk of leader {victim} full for 5 s: {done} commits, refused with {sorted(errors) or 'nothing'}")
    assert errors <= {"DiskFull", "Unavailable", "Overloaded"}, story.problems[before:]
    assert done or "DiskFull" in errors
    story.rig.free_disk(victim)
    story.committed_within("disk freed")


def scarce(story: Story) -> None:
    """Below the leader's reserve new work is refused, but open transactions can be decided."""
    number, victim = story.sent, story.leader()
    story.sent += 1
    with story.producer.transaction() as tx:
        tx.send(Message("t", story.body(number)))
        tx.prepare()
        story.rig.fill_disk(victim, leave=RESERVE_BYTES // 2)
        assert not story.send() and isinstance(story.problems[-1], DiskFull), story.problems
    story.acknowledged.add(number)
    say(f"disk of leader {victim} scarce: decided what was open, refused what is new")


def full_follower(story: Story) -> None:
    """A follower without space delays no one, and catches up once it has space again."""
    leader = story.leader()
    victim = next(replica for replica in story.rig.replicas if replica != leader)
    story.rig.fill_disk(victim)
    for _ in range(20):
        assert story.send(), story.problems
    say(f"disk of follower {victim} full: 20 commits")


def exhaust(story: Story) -> None:
    """The leader's fsync fails: it must leave the group, and nothing acknowledged may be lost."""
    while story.leader() != THIN:
        leader = story.leader()
        story.rig.cut_off(leader)
        wait_until("another leads", lambda old=leader: story.leader() != old)
        story.rig.heal()
        wait_until("all are well", story.settled)
    story.rig.exhaust_disk(THIN)
    story.committed_within("leader's fsync fails")
    # Nothing fails until blocks are needed that were never written, and that is correct.
    deadline = time.monotonic() + 20.0
    while story.replicas().get(THIN) and story.leader() == THIN and time.monotonic() < deadline:
        story.committed_within("leader's fsync may fail")
    assert story.leader() != THIN, "a leader whose fsync fails leads on"


def fail(story: Story) -> None:
    """The leader's disk fails permanently (EIO), and unsynced data are lost."""
    victim = story.leader()
    story.rig.fail_disk(victim)
    story.committed_within("leader's disk failed")
    assert story.leader() != victim


def kill(story: Story) -> None:
    """The leader's whole node is killed."""
    story.rig.kill_node(story.leader())
    story.committed_within("leader's node killed")


def isolate(story: Story) -> None:
    """The leader's node is cut off from everything, so Ray declares it dead."""
    victim = story.leader()
    story.rig.isolate(victim)
    story.committed_within("leader's node isolated")
    host = story.rig.host(victim)
    wait_until(
        "Ray gives the node up",
        lambda: not any(n["name"] == host for n in story.cluster.health()["nodes"]),
    )


def slow(story: Story) -> None:
    """A follower with a latency of a second delays no one; nor do loss and reordering."""
    leader = story.leader()
    near, far = (replica for replica in story.rig.replicas if replica != leader)
    story.rig.delay(leader, far, 1.0, jitter=0.2, loss=0.02)
    story.committed_within("a follower is a second away", 1.5)
    story.rig.delay(leader, near, 0.5)
    story.committed_within("and the other half a second")


def one_way(story: Story) -> None:
    """The leader can send but not receive: it must step down."""
    leader = story.leader()
    for other in story.rig.replicas:
        if other != leader:
            story.rig.cut(other, leader, one_way=True, raft_only=True)
    story.committed_within("leader deaf")


STORIES: dict[str, Callable[[Story], None]] = {
    story.__name__: story
    for story in (cut, full, scarce, full_follower, slow, one_way, kill, isolate, exhaust, fail)
}


def main() -> None:
    """Run the named stories one after the other on one rig."""
    names = sys.argv[1:] or list(STORIES)
    with MachineRig(thin=(THIN,), config={"broker": {"disk_reserve_bytes": RESERVE_BYTES}}) as rig:
        say("three nodes are up")
        rig.enter()
        with escrowmq.connect(rig.address) as cluster:
            story = Story(rig, cluster)
            say("three replicas are well")
            for name in names:
                STORIES[name](story)
                story.well_again(name)
            story.producer.close()
    say("all is well")


if __name__ == "__main__":
    main()
