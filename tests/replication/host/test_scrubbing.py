"""Scrubbing reads everything again in each period, at a limited pace, and what it finds is repaired.

The clock is the test's; the log is real, over a disk in memory. The last test uses three real replicas.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from escrowmq.actors.broker.config import BrokerConfig
from escrowmq.replication.errors import CorruptLog, DiskFull
from escrowmq.replication.host.maintenance import BUSY_MAX, BUSY_S, RATE_MIN, Scrubber, ScrubState
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.log.segment import sidecar_is_sound
from escrowmq.replication.replica.damage import verify_state_file
from tests.sim.environment.disk import SimDisk
from tests.support.broker_group import BrokerGroup, texts
from tests.support.golden_files import RUNS, SNAPSHOT, TIMERS
from tests.support.offered_files import damage_in_bytes
from tests.support.storage import sim_disk, synced_log
from tests.support.waiting import wait_until

WEEK_S = 7 * 86_400.0
BYTES = 50 * 72 + 25 * 32  # fifty entries, two in each segment


class Bench:
    """A log, its scrubber, and a clock that advances only while the scrubber rests."""

    def __init__(self, disk: SimDisk | None = None, **settings: Any) -> None:
        self.now_s, self.took_s, self.is_busy = 0.0, 0.0, False
        self.disk = disk or sim_disk()
        if disk is None:
            synced_log(self.disk, 50, segment_bytes=200)
        self.journal = SegmentJournal(self.disk, segment_bytes=200, cache_bytes=0, mendable=True)
        self.kept, self.reports, self.bad = "", list[str](), list[str]()
        self.read: list[tuple[float, int]] = []
        verify = self.journal.verify

        def watched(index: int, bytes_max: int, *, cold: bool = False) -> tuple[int, int]:
            found = verify(index, bytes_max, cold=cold)
            self.read.append((self.now_s, found[1]))
            self.now_s += self.took_s
            return found

        self.journal.verify = watched  # type: ignore[method-assign]
        self.scrubber = self.made(**settings)

    def made(self, **settings: Any) -> Scrubber:
        chosen: dict[str, Any] = {
            "note": self.keep,
            "period_s": WEEK_S,
            "bytes_per_s": 1 << 30,
            "piece_bytes": 100,
            **settings,
        }
        return Scrubber(
            self.journal,
            self.disk,
            state=ScrubState.decode(self.kept),
            in_loop=lambda fn: fn(),
            damaged=lambda name, error: self.bad.append(name),
            busy=lambda: self.is_busy,
            clock=lambda: self.now_s,
            wall_ms=lambda: 1_000_000 + int(self.now_s * 1000),
            report=self.reports.append,
            **chosen,
        )

    def keep(self, state: ScrubState) -> None:
        self.kept = state.encode()

    def run(self, until: Callable[[], bool], most: int = 20_000) -> None:
        for _ in range(most):
            if until():
                return
            self.now_s += self.scrubber.step()
        raise AssertionError("it never came to that")

    def pass_once(self) -> None:
        done = self.scrubber.state.done_ms
        self.run(lambda: self.scrubber.state.done_ms != done)


def test_everything_is_read_once_in_a_period() -> None:
    bench = Bench()
    bench.pass_once()
    assert sum(size for _, size in bench.read) == bench.scrubber.state.last_bytes == 50 * 72
    first_done = bench.now_s
    assert first_done < WEEK_S
    bench.run(lambda: bench.scrubber.state.begun_ms > 1_000_000)
    assert bench.now_s == pytest.approx(WEEK_S, abs=61.0), "the next pass begins when the period is over"
    assert not bench.journal.holes and not bench.bad


@pytest.mark.parametrize(("limit", "rate"), [(1 << 40, 50 * 72 / 90.0), (20, 20)])
def test_the_pace_is_what_the_period_asks_for_and_never_above_the_limit(limit: int, rate: float) -> None:
    bench = Bench(period_s=100.0, bytes_per_s=limit, rate_min=1)
    bench.pass_once()
    assert 50 * 72 / bench.now_s == pytest.approx(rate, rel=0.25)
    assert 50 * 72 / bench.now_s <= limit * 1.001


def test_a_small_log_is_not_read_more_slowly_than_it_must() -> None:
    bench = Bench()
    bench.pass_once()
    assert bench.now_s <= 2 * BYTES / RATE_MIN


def test_a_busy_replica_is_left_alone_but_not_for_ever() -> None:
    bench = Bench()
    bench.is_busy = True
    pauses = [bench.scrubber.step() for _ in range(BUSY_MAX)]
    assert pauses == [BUSY_S] * BUSY_MAX and not bench.read
    bench.scrubber.step()
    assert len(bench.read) == 1
    assert bench.scrubber.step() == BUSY_S


def test_a_slow_disk_gets_a_long_rest() -> None:
    bench = Bench()
    bench.took_s = 0.5
    assert bench.scrubber.step() >= 10.0


def test_it_can_be_switched_off() -> None:
    bench = Bench(period_s=0.0)
    assert bench.scrubber.step() > 60.0 and not bench.read


def test_after_a_restart_it_goes_on_where_it_was() -> None:
    bench = Bench()
    bench.run(lambda: bench.scrubber.state.next_index > 20)
    bench.keep(bench.scrubber.state)
    read = sum(size for _, size in bench.read)
    bench.scrubber = bench.made()
    bench.pass_once()
    assert sum(size for _, size in bench.read) == 50 * 72
    assert bench.scrubber.state.last_bytes == 50 * 72 > read


@pytest.mark.parametrize("text", ["", "x", "[]", '{"begun_ms": -1}', '{"odd": 1}', '{"bytes": "1"}', None])
def test_a_place_that_makes_no_sense_means_to_begin_again(text: str | None) -> None:
    assert ScrubState.decode(text) == ScrubState()


def test_a_full_disk_does_not_stop_it() -> None:
    def full(state: ScrubState) -> None:
        raise DiskFull("no room")

    Bench(note=full).pass_once()


def test_a_clock_that_is_set_back_begins_another_pass() -> None:
    bench = Bench()
    bench.pass_once()
    bench.now_s -= 1000.0
    bench.scrubber.step()
    assert bench.scrubber.state.begun_ms == 1_000_000 + int(bench.now_s * 1000)


# ------------------------------------------------------------------ what it finds
def test_damaged_entries_become_holes_all_in_one_pass() -> None:
    bench = Bench()
    for name in ("0000000000000003.log", "0000000000000015.log"):
        bench.disk.flip(name, 60)
    bench.pass_once()
    assert [hole.first for hole in bench.journal.holes.all()] == [3, 21]


def test_a_header_and_a_sidecar_are_written_anew() -> None:
    bench = Bench()
    bench.disk.flip("0000000000000003.log", 3)
    bench.disk.flip("0000000000000007.pos", 20)
    bench.disk.remove("0000000000000009.pos")
    bench.pass_once()
    bench.journal.sync()
    assert bench.reports and not bench.bad  # a sidecar is also rebuilt when its segment is opened
    data = bench.disk.read_all("0000000000000003.log")
    assert damage_in_bytes("0000000000000003.log", data) is None
    assert sidecar_is_sound(bench.disk, 7, 8) and sidecar_is_sound(bench.disk, 9, 10)
    bench.journal.close()
    assert len(SegmentJournal(bench.disk, segment_bytes=200)) == 50


FILES_OF_A_STATE = [("03.snap", SNAPSHOT), ("03.runs", RUNS), ("03.timers", TIMERS)]


@pytest.mark.parametrize(("name", "content"), FILES_OF_A_STATE)
def test_state_files_are_looked_through_in_pieces(name: str, content: bytes) -> None:
    def look(data: bytes) -> int:
        disk = sim_disk()
        disk.write_atomic(name, [data])
        return sum(verify_state_file(name, disk.open(name), 50))

    assert 0 < look(content) <= len(content)
    for at in range(len(content)):
        data = bytearray(content)
        data[at] ^= 1 << at % 8
        with pytest.raises(CorruptLog):
            look(bytes(data))
    for size in range(len(content)):
        with pytest.raises(CorruptLog):
            look(content[:size])


def test_a_damaged_snapshot_is_told_and_the_pass_goes_on() -> None:
    bench = Bench()
    for end, good in (("snap", SNAPSHOT), ("runs", RUNS), ("timers", TIMERS)):
        content = bytearray(good)
        content[len(content) // 2] ^= 4
        bench.disk.write_atomic(f"0000000000000003.{end}", [bytes(content)])
    bench.pass_once()
    assert sorted(bench.bad) == [f"0000000000000003.{end}" for end in ("runs", "snap", "timers")]


def test_what_retention_takes_meanwhile_is_passed_over() -> None:
    bench = Bench()
    bench.run(lambda: bench.scrubber.state.next_index > 10)
    bench.journal.drop_before(31)
    bench.journal.sync()
    bench.pass_once()
    assert not bench.bad and not bench.journal.holes


# ------------------------------------------------------------------ a real group
def test_a_group_finds_and_mends_what_nobody_reads(tmp_path: Path) -> None:
    """One replica's old segment and another's snapshot; no replica leaves, and the status reports the
    damage."""
    config = BrokerConfig(segment_bytes=200_000, disk_reserve_bytes=0, scrub_period_s=0.5)
    with BrokerGroup(tmp_path, config) as trio:
        written, victim = trio.stop_a_full_follower()
        path = trio.segments(victim)[0]
        data = bytearray(path.read_bytes())
        data[data.index(b"x9.....")] ^= 8
        path.write_bytes(data)
        other = trio.leader().rid
        snap = max((tmp_path / f"r{other}" / "log").glob("*.snap"))
        spoilt = bytearray(snap.read_bytes())
        spoilt[-3] ^= 1
        snap.write_bytes(spoilt)
        trio.start(victim)

        def report(rid: int) -> Any:
            scrub = trio.alive[rid].parts.inspection.status().scrub
            assert scrub is not None
            return scrub

        wait_until(lambda: report(victim).mended == 1, 10.0, "what was damaged is mended")
        wait_until(lambda: not snap.exists(), 10.0, "the damaged snapshot is gone")
        wait_until(
            lambda: report(victim).done_ms and report(victim).done_bytes > 400_000, 10.0, "a full pass"
        )
        assert damage_in_bytes(path.name, path.read_bytes()) is None
        assert (report(victim).found, report(victim).damaged) == (1, 0)
        for member in list(trio.alive.values()):
            assert texts(member, 100) == written
        assert not trio.ended
