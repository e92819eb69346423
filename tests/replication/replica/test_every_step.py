"""A replica that ends, or has no room, at any step of what it writes: nothing acknowledged is lost.

One story covers all files that a replica writes while it runs: segments and sidecars, run files, snapshots,
the entries of its format level and of replicated settings. It is ended at each step, by a signal
(what was written is in the page cache) or together with the machine; and its disk is made full from each
amount of free space on.
"""

from __future__ import annotations

import random

import pytest

from escrowmq.replication.format import ops
from escrowmq.replication.format.ops import PrepareExtra
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.snapshot import restore
from tests.sim.environment.disk import PowerCut, SimDisk
from tests.support.next_level import NEXT, know_the_next_level, raise_level
from tests.support.requests import APP, prepare
from tests.support.single import Single

SEGMENT_BYTES = 700
MESSAGES = [f"x{number}" for number in range(8)]
#: Left open, with an owner.
OPEN = "open"


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    know_the_next_level(monkeypatch)


class Story:
    """Steps that can be repeated from any of them on, as by a client whose answer was lost."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.done = 0
        self.single = Single(disk, segment_bytes=SEGMENT_BYTES)

    def run(self) -> None:
        """Runs from the first unacknowledged step to the end."""
        steps = [self._topic, self._level, self._open, self._settings]
        while self.done < len(steps) + len(MESSAGES):
            if self.done < len(steps):
                steps[self.done]()
            else:
                self._publish(MESSAGES[self.done - len(steps)])
            self.done += 1

    def again(self) -> None:
        """Starts another process on the same disk."""
        self.single = Single(self.disk, segment_bytes=SEGMENT_BYTES)

    def _topic(self) -> None:
        self.single.topic()

    def _level(self) -> None:
        if self.single.state.level < NEXT:
            raise_level(self.single)

    def _open(self) -> None:
        if OPEN not in self.single.state.transactions.app(APP).open:
            self.single.submit(prepare([OPEN], extra=PrepareExtra(instance="me")))

    def _settings(self) -> None:
        self.single.submit(ops.settings({"groups_kept": 9}))

    def _publish(self, message: str) -> None:
        if message in self.single.texts():
            return
        self.single.submit(prepare([message], 60))
        self.single.submit(ops.commit(APP, [message]))

    def check(self, done: int) -> None:
        """Everything that ``done`` steps have acknowledged is there, and perhaps the next step's result."""
        state, texts = self.single.state, self.single.texts()
        published = max(0, done - 4)
        assert texts in (MESSAGES[:published], MESSAGES[: published + 1])
        if done > 1:
            assert state.level == NEXT
        if done > 2:
            assert OPEN in state.transactions.app(APP).open
        if done > 3:
            assert state.settings.groups_kept == 9


def written() -> SimDisk:
    """The whole story on a disk without faults."""
    story = Story(SimDisk(random.Random(0)))
    story.run()
    story.check(4 + len(MESSAGES))
    story.single.close()
    return story.disk


def test_the_story_writes_every_kind_of_file() -> None:
    disk = written()
    assert {name.partition(".")[2] for name in disk.names()} == {"log", "pos", "snap", "runs", ""}
    newest = max(name for name in disk.names() if name.endswith(".snap"))
    state = StateMachine(0, 1)
    restore(state, newest, disk.read_all(newest))
    assert (state.level, state.settings.groups_kept) == (NEXT, 9)
    assert state.transactions.app(APP).open[OPEN].instance == "me"


@pytest.mark.parametrize("power", [False, True])
def test_a_replica_that_ends_at_any_step_lacks_nothing_that_was_acknowledged(power: bool) -> None:
    steps = written().operations
    assert steps > 60
    for operations in range(steps + 1):
        disk = SimDisk(random.Random(operations))
        disk.stop_after(operations)
        story = None
        try:
            story = Story(disk)
            story.run()
        except PowerCut:
            pass
        done = story.done if story is not None else 0
        disk.power_cut() if power else disk.kill()
        if story is None:
            story = Story(disk)
        story.again()
        story.check(done)
        story.run()
        story.check(4 + len(MESSAGES))
        story.single.close()


def test_a_disk_that_is_full_from_any_byte_on_costs_nothing_but_time() -> None:
    total = written().used_bytes()
    hit: set[str] = set()
    for room in range(0, total, 67):
        disk = SimDisk(random.Random(room))
        story = Story(disk)
        disk.capacity = disk.used_bytes() + room
        disk.on_full = lambda disk=disk: hit.add(under_way(disk))  # type: ignore[misc]
        story.run()
        disk.capacity = None
        story.single.journal.sync()
        story.single.close()
        disk.kill()
        story.again()
        story.check(4 + len(MESSAGES))
        assert not [name for name in disk.names() if name.endswith(".tmp")]
        story.single.close()
    assert hit == {"log", "snap", "runs"}


def under_way(disk: SimDisk) -> str:
    """Which kind of file is being written: complete ones under another name first, the log in place."""
    written = [name.removesuffix(".tmp") for name in disk.names() if name.endswith(".tmp")]
    return written[0].partition(".")[2] if written else "log"
