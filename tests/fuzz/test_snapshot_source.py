"""What a replica takes from a peer or finds at a start: offered files, the install marker, marks.

Whatever the bytes, the files end up as they were, or wholly as they were to become.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from google_crc32c import value as crc32c

from escrowmq.replication.errors import EscrowMQError, Unavailable
from escrowmq.replication.host.repair import may_be_offered
from escrowmq.replication.log.datadir import LEARNER, PORT_FILE, WANTS_COPY, Marks
from escrowmq.replication.log.install import MARKER, finish_install, staged_name
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.log.vote import VoteFile
from tests.fuzz.engine import EXAMPLES, Target, examine, fuzz
from tests.sim.environment.disk import SimDisk
from tests.support.golden_files import mend_runs, mend_segment, mend_snapshot, mend_timers
from tests.support.offered_files import (
    KINDS,
    RUNS_NAME,
    SNAP_NAME,
    TIMERS_NAME,
    Offering,
    content,
    copy,
    damage_in_bytes,
    decided_switches,
    disk_with,
    files,
)
from tests.support.storage import NEWEST, indexes

MENDS = {NEWEST: mend_segment, SNAP_NAME: mend_snapshot, RUNS_NAME: mend_runs, TIMERS_NAME: mend_timers}
GOOD = files()


# ------------------------------------------------------------------ files that a peer offers
def judged(name: str) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        found = damage_in_bytes(name, data)
        if found is not None:
            assert found and data != GOOD[name]
        elif name == NEWEST:  # then a log may be opened with it, and holds every byte of it
            disk = disk_with({name: data})
            VoteFile(disk).close()
            journal = SegmentJournal(disk)
            for index in indexes(journal):
                journal.read(index)
            journal.close()
            assert disk.read_all(name) == data

    return run


def copied(name: str) -> Callable[[bytes], None]:
    """Sound, and taken; or refused, its owner told, and ours as before."""

    def run(data: bytes) -> None:
        own = disk_with(GOOD)
        source = Offering(disk_with({**GOOD, name: data}), KINDS)
        reports: list[str] = []
        try:
            copy(own, source, reports)
        except Unavailable:
            assert reports and content(own, KINDS) == GOOD
            # A log that ends before ours is refused too, and there its owner is not to blame.
            assert source.suspected == [name] or (name == NEWEST and "and we have" in reports[0])
            return
        assert content(own, KINDS) == {**GOOD, name: data}

    return run


def named(data: bytes) -> None:
    """A peer that offers a file of any name, and one that asks for it."""
    name = data.decode(errors="surrogateescape")
    may_be_offered(disk_with(GOOD), name)
    own = disk_with(GOOD)
    kept = content(own)
    try:
        copy(own, Offering(disk_with({**GOOD, name: b"x"}), [*KINDS, name]))
    except Unavailable:
        assert content(own, list(kept)) == kept
    assert own.exists(NEWEST) and not own.exists(MARKER)


# ------------------------------------------------------------------ the marker of a decided switch
def decided() -> SimDisk:
    """A disk on which the switch to ``GOOD`` is decided, and nothing of it done."""
    return next(decided_switches(remove=["old.log"]))


def finished(data: bytes) -> None:
    disk = decided()
    disk.write_atomic(MARKER, [data])
    before = content(disk)
    try:
        finish_install(disk)
    except EscrowMQError:
        assert content(disk) == before
        raise
    after = content(disk)
    assert MARKER not in after and not any(name.startswith(staged_name("")) for name in after)
    # What it says is done as it says it, and a name that it replaces is never left without content.
    assert all(after[name] in (before[staged_name(name)], b"older") for name in after if name in GOOD)


def mend_marker(data: bytes) -> bytes:
    line, end, _ = data.partition(b"\n")
    return line + end + b"%08x\n" % crc32c(line + end) if end else data


MARKED = decided().read_all(MARKER)


# ------------------------------------------------------------------ marks beside the log
def marked(name: str) -> Callable[[bytes], None]:
    """A mark counts by being there, whatever it says."""

    def run(data: bytes) -> None:
        disk = SimDisk(random.Random(0))
        disk.write_atomic(name, [data])
        marks = Marks(disk)
        assert isinstance(marks.read(name), str)
        assert 0 <= marks.port() < 1 << 16

    return run


def of_kinds(what: str, run: Callable[[str], Callable[[bytes], None]]) -> list[Target]:
    """A target per kind of file, and one with checksums put right."""
    plain = [Target(f"{what} {name[17:]}", run(name), [GOOD[name]]) for name in KINDS]
    return plain + [
        Target(f"{what} {name[17:]}, checksums right", run(name), [GOOD[name]], MENDS[name]) for name in KINDS
    ]


TARGETS = [
    *of_kinds("offered", judged),
    *of_kinds("copied", copied),
    Target("name of an offered file", named, [b"raw-state.json", b"0000000000000009.log"]),
    Target(MARKER, finished, [MARKED]),
    Target(f"{MARKER}, checksum right", finished, [MARKED], mend_marker),
    Target(WANTS_COPY, marked(WANTS_COPY), [b"behind", b"damaged"]),
    Target(LEARNER, marked(LEARNER), [b"1"]),
    Target(PORT_FILE, marked(PORT_FILE), [b"40123"]),
]


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_damaged_bytes_are_refused_with_an_error_of_ours(target: Target) -> None:
    fuzz(target, EXAMPLES // 2)


def test_mending_leaves_good_files_as_they_are() -> None:
    for target in TARGETS:
        for seed in target.seeds:
            assert target.mend(seed) == seed, target.name


@pytest.mark.parametrize("target", [t for t in TARGETS if t.name.startswith(MARKER)], ids=lambda t: t.name)
def test_a_marker_nested_without_end_is_refused(target: Target) -> None:
    for deep in (b"[" * 100_000, b'{"a":' * 100_000, b'{"version": 1, "rename": ' + b"[" * 100_000):
        for data in (deep, deep + b"\n"):
            examine(target, data)
