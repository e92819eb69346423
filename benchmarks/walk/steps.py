"""The measured steps: one PREPARE, one COMMIT, one plain send, one poll, one check; each alone, many times.

Before each step the system is idle ("calm"), and recording continues until it is idle again: followers learn
what is committed some milliseconds after the answer, and then apply it. Both counts are reported: until the
answer, and until calm. The latter varies less, because the work done before the answer depends on which disk
was the fastest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median_low

from benchmarks.walk.group import (
    FOLDERS,
    LEFT_OUT,
    OF_THE_CLOCK,
    WATCHES,
    Group,
    Message,
    Producer,
    asked_back,
)
from benchmarks.walk.recorder import Call, Recorder, Tally, by_role

STEPS = ("prepare", "commit", "send", "poll", "check")
#: After this time without calls, all work for a message is done. Lingers and notices wait up to 4 ms.
CALM_S = 0.015
WARM_UP = 5
#: Number of discarded repeats per wanted repeat before the measurement is given up.
SPOILT_MAX = 20
TOPIC = "walk"
BODY = b"x" * 256
#: Time to the first check: longer than a PREPARE takes until calm.
CHECK_AFTER_S = 0.25
#: What the event loop of a driver calls: each ends the tick before it.
CALLBACKS = frozenset(
    ("Driver._tick", "Driver._ring", "Driver._run_calls", "Driver._guarded", "Driver._sync_inline")
) | {"Connection.get_buffer"}
#: Name of the total over all roles.
TOTAL = "all"


@dataclass(frozen=True, slots=True)
class Repeat:
    """One run of a step: all calls by role until calm, and the time of the answer (time.monotonic)."""

    roles: dict[str, list[Call]]
    answered: float

    @property
    def total(self) -> list[Call]:
        return [call for calls in self.roles.values() for call in calls]


@dataclass(frozen=True, slots=True)
class Figure:
    """Medians over the repeats, for one role or all: until the answer, and until calm."""

    answer: Tally
    calm: Tally


@dataclass(frozen=True, slots=True)
class Step:
    """The result for one step. ``typical``: a repeat with the median number of calls. ``least``: until the
    answer, by role, in the repeat with the fewest calls; a busy machine only adds some."""

    name: str
    figures: dict[str, Figure]
    typical: Repeat
    least: dict[str, Tally]
    kept: list[Repeat]
    spoilt: int


class _Tries:
    """Collects repeats of one step until there are enough without ticks or timers."""

    def __init__(self, name: str, wanted: int) -> None:
        self.name, self._wanted = name, wanted
        self._kept: list[Repeat] = []
        self._spoilt = 0

    @property
    def enough(self) -> bool:
        return len(self._kept) >= self._wanted

    def add(self, repeat: Repeat) -> None:
        if any(call.function in OF_THE_CLOCK for call in repeat.total):
            self._spoilt += 1
            if self._spoilt > SPOILT_MAX * self._wanted:
                raise TimeoutError(f"ticks or timers run in nearly every repeat of {self.name}")
        else:
            self._kept.append(repeat)

    def step(self) -> Step:
        kept = sorted(self._kept[: self._wanted], key=lambda repeat: len(repeat.total))
        roles = sorted({role for repeat in kept for role in repeat.roles})
        figures = {TOTAL: _figure([(repeat.total, repeat.answered) for repeat in kept])}
        for role in roles:
            figure = _figure([(repeat.roles.get(role, []), repeat.answered) for repeat in kept])
            if figure.calm.calls:  # otherwise the role was active in a few repeats only, by chance
                figures[role] = figure
        least = min((_until_answer(repeat) for repeat in kept), key=lambda tallies: tallies[TOTAL].calls)
        return Step(self.name, figures, kept[(len(kept) - 1) // 2], least, kept, self._spoilt)


def _until_answer(repeat: Repeat) -> dict[str, Tally]:
    by_name = {TOTAL: repeat.total, **repeat.roles}
    return {
        name: Tally.of(call for call in calls if call.at <= repeat.answered)
        for name, calls in by_name.items()
    }


def _figure(repeats: list[tuple[list[Call], float]]) -> Figure:
    return Figure(
        _median([Tally.of(call for call in calls if call.at <= answered) for calls, answered in repeats]),
        _median([Tally.of(calls) for calls, _ in repeats]),
    )


def _median(tallies: list[Tally]) -> Tally:
    """The median of each count separately."""
    return Tally(*(median_low([getattr(tally, field.name) for tally in tallies]) for field in fields(Tally)))


def ticks(repeat: Repeat, role: str) -> list[list[Call]]:
    """The ticks of a replica's driver, each with all calls from it."""
    found: list[list[Call]] = []
    current: list[Call] = []
    for call in (call for call in repeat.roles[role] if call.thread.startswith("raft")):
        if call.function in CALLBACKS:
            current = []
            if call.function == "Driver._tick":
                found.append(current)
        current.append(call)
    return found


@contextmanager
def stage(folder: Path, repeats: int) -> Iterator[Stage]:
    """A new group with its files in ``folder``, for ``repeats`` measured runs of each step."""
    recorder = Recorder(FOLDERS)
    recorder.install()
    try:
        group = Group(folder)
        try:
            group.topic(TOPIC)
            yield Stage(group, recorder, repeats)
        finally:
            group.stop()
    finally:
        recorder.remove()


class Stage:
    """A group, a recorder, and the measurements made with them."""

    def __init__(self, group: Group, recorder: Recorder, repeats: int) -> None:
        self._group, self._recorder, self._repeats = group, recorder, repeats

    def steps(self, names: tuple[str, ...] = STEPS) -> Iterator[Step]:
        """Measure the named steps, in the order of ``STEPS``."""
        measures: list[tuple[set[str], Callable[[], list[Step]]]] = [
            ({"prepare", "commit"}, self._transactions),
            ({"send"}, self._sends),
            ({"poll"}, self._polls),
            ({"check"}, self._checks),
        ]
        for what, measure in measures:
            if what & set(names):
                yield from (step for step in measure() if step.name in names)

    # -------------------------------------------------------------- one step

    def _once(self, work: Callable[[], object]) -> Repeat:
        self._recorder.rest(CALM_S)
        self._recorder.start()
        work()
        answered = time.monotonic()
        self._recorder.rest(CALM_S)
        return self._repeat(self._recorder.stop(), answered)

    def _repeat(self, calls: list[Call], answered: float) -> Repeat:
        counted = (
            call
            for call in calls
            if call.function not in LEFT_OUT and call.thread.partition("-")[0] not in WATCHES
        )
        return Repeat(by_role(counted, self._group.role_of), answered)

    # -------------------------------------------------------------- the steps

    def _transactions(self) -> list[Step]:
        prepare, commit = _Tries("prepare", self._repeats), _Tries("commit", self._repeats)
        with self._group.producer() as producer:
            for number in self._rounds(lambda: prepare.enough and commit.enough):
                with producer.transaction() as tx:
                    tx.send(Message(TOPIC, BODY))
                    prepared, committed = self._once(tx.prepare), self._once(tx.commit)
                if number >= WARM_UP:
                    prepare.add(prepared)
                    commit.add(committed)
        return [prepare.step(), commit.step()]

    def _sends(self) -> list[Step]:
        send = _Tries("send", self._repeats)
        with self._group.producer() as producer:
            for number in self._rounds(lambda: send.enough):
                sent = self._once(lambda: producer.send(Message(TOPIC, BODY)).result(10.0))
                if number >= WARM_UP:
                    send.add(sent)
        return [send.step()]

    def _polls(self) -> list[Step]:
        """A poll of a message that has already been fetched, as is usual for a busy consumer."""
        poll = _Tries("poll", self._repeats)
        with self._group.producer() as producer, self._group.consumer() as consumer:
            consumer.assign([(TOPIC, 0)])
            while consumer.poll(timeout_s=0.5):
                pass
            for number in self._rounds(lambda: poll.enough):
                producer.send(Message(TOPIC, BODY)).result(10.0)
                self._calm()
                polled = self._once(lambda: _one_record(consumer.poll(timeout_s=1.0)))
                if number >= WARM_UP:
                    poll.add(polled)
        return [poll.step()]

    def _checks(self) -> list[Step]:
        """A check, from the leader's parked ``due_pairs``, which wakes when the check is due, until calm.

        The answer is the one to feedback's ``submit``.
        """
        check = _Tries("check", self._repeats)
        with ExitStack() as stack:
            producer = stack.enter_context(self._group.producer())
            stack.enter_context(asked_back(self._group, TOPIC))
            time.sleep(1.0)  # until both sides have found the leader and each other
            for number in self._rounds(lambda: check.enough):
                checked = self._one_check(producer)
                if checked is not None and number >= WARM_UP:
                    check.add(checked)
        return [check.step()]

    def _one_check(self, producer: Producer) -> Repeat | None:
        """One check; None if this thread started recording too late."""
        settled = threading.Event()
        answered = 0.0

        def note(_: int, method: str) -> None:
            nonlocal answered
            if method == "submit":
                answered = time.monotonic()
                settled.set()

        with self._hearing(note):
            with producer.transaction(transaction_timeout_s=CHECK_AFTER_S) as tx:
                tx.send(Message(TOPIC, BODY))
                tx.prepare()
                tx.unknown()
            self._recorder.start()
            late = settled.is_set()
            if not settled.wait(10.0):
                raise TimeoutError("an open transaction was not checked")
            self._recorder.rest(CALM_S)
        calls = self._recorder.stop()
        # Nothing else calls a replica, so the first call in such a thread is the parked call that was woken.
        woken = next((n for n, call in enumerate(calls) if call.thread.startswith("call-")), None)
        return None if late or woken is None else self._repeat(calls[woken:], answered)

    # -------------------------------------------------------------- around them

    def _calm(self) -> None:
        self._recorder.start()
        self._recorder.rest(CALM_S)

    def _rounds(self, enough: Callable[[], bool]) -> Iterator[int]:
        number = 0
        while not enough():
            yield number
            number += 1

    @contextmanager
    def _hearing(self, note: Callable[[int, str], None]) -> Iterator[None]:
        before, self._group.answered = self._group.answered, note
        try:
            yield
        finally:
            self._group.answered = before


def _one_record(records: Sequence[object]) -> None:
    if len(records) != 1:
        raise AssertionError(f"a poll returned {len(records)} records, although one was waiting")
