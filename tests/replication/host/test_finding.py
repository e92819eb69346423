"""What a search finds is what a scan finds, whatever happens in between; and what a search may cost."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from escrowmq.cluster.testing.memory_disk import MemoryDisk
from escrowmq.replication.errors import CorruptLog, InvalidMessage, Overloaded, UnknownVersion
from escrowmq.replication.format import find_rows, find_table
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.format.find_table import BUSINESS_KEY, KEY, TX_ID
from escrowmq.replication.host import finding
from escrowmq.replication.host.finding import SAVED_S, Finder, FindFiles, Sought, WorkBudget
from escrowmq.replication.host.reads import Reads
from escrowmq.replication.model import NO_ID, ResultCode
from escrowmq.testing import InMemoryCluster
from tests.controls import finding_faults
from tests.support.finding import BLOCK, TOPIC, SearchWorld

START = datetime(2026, 7, 1, tzinfo=UTC)


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """So small that the few entries of a small block fill many."""
    monkeypatch.setattr(find_table, "PAGE_ENTRIES", 4)


@pytest.fixture
def cluster(small_pages: None) -> Iterator[InMemoryCluster]:
    with InMemoryCluster(start=START) as made:
        yield made


@pytest.mark.parametrize("seed", range(30))
def test_a_search_finds_what_a_scan_finds(cluster: InMemoryCluster, seed: int) -> None:
    rng = random.Random(seed)
    world = SearchWorld(cluster, rng, cache_bytes=rng.choice([1 << 20, 2_000, 0]))
    for _ in range(40):
        world.step()


PLANTED = [
    finding_faults.block_kept_before_it_is_full,
    finding_faults.find_files_of_any_partition,
    finding_faults.no_checksum,
    finding_faults.one_page_of_a_hash,
    finding_faults.the_first_of_several_keys,
    finding_faults.an_answer_ends_too_late,
    finding_faults.a_hash_is_an_answer,
]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_planted_faults_are_found(
    small_pages: None, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    for seed in range(40):
        with InMemoryCluster(start=START) as cluster:
            world = SearchWorld(cluster, random.Random(seed))
            try:
                for _ in range(40):
                    world.step()
            except AssertionError:
                return
    pytest.fail(f"nothing noticed {plant.__name__}")


def test_equal_hashes_are_told_apart(cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    finding_faults.hashes_are_equal(monkeypatch)
    world = SearchWorld(cluster, random.Random(1))
    for _ in range(30):
        world.step()


def test_blocks_are_read_once_and_grow(cluster: InMemoryCluster) -> None:
    world = SearchWorld(cluster, random.Random(1))
    world.send(5 * BLOCK)
    _, end = world.bounds()
    world.found(KEY, b"k1", 0, end, 1_000)
    built = world.finder.built
    assert built == (end + BLOCK - 1) // BLOCK
    for kind in (KEY, TX_ID, BUSINESS_KEY):
        world.found(kind, b"k1", 0, end, 1_000)
    assert world.finder.built == built
    world.send(1)
    world.found(KEY, b"k1", 0, world.bounds()[1], 1_000)
    assert world.finder.built == built + 1
    world.restart()
    world.found(KEY, b"k1", 0, end // BLOCK * BLOCK, 1_000)
    assert world.finder.built == 0  # the files are still there


def test_what_searches_cost_is_counted(cluster: InMemoryCluster) -> None:
    world = SearchWorld(cluster, random.Random(1))
    world.send(3 * BLOCK)
    _, end = world.bounds()
    blocks, whole = -(-end // BLOCK), end // BLOCK
    assert blocks == whole + 1, "the last block is in memory"
    for _ in range(2):
        world.found(KEY, b"no such key", 0, end, 1_000)
    told = world.finder.report()
    assert (told.misses, told.hits, told.files, told.damaged) == (blocks, blocks, whole, 0)
    assert told.bytes > 40 * whole and told.memory_bytes > 0
    assert world.finder.built == blocks


def test_files_go_with_their_messages(cluster: InMemoryCluster) -> None:
    world = SearchWorld(cluster, random.Random(1))
    world.send(5 * BLOCK)
    _, end = world.bounds()
    world.found(KEY, b"k1", 0, end, 1_000)
    before = len(world.disk.names())
    cluster.admin.trim_topic(TOPIC, 2 * BLOCK + 1, 0)
    world.finder.sweep()
    assert len(world.disk.names()) == before - 2
    world.recreate()
    world.finder.sweep()
    assert world.disk.names() == []


def test_damaged_and_half_written_files_are_dropped_and_made_anew(cluster: InMemoryCluster) -> None:
    world = SearchWorld(cluster, random.Random(1))
    world.send(4 * BLOCK)
    until = world.bounds()[1] // BLOCK * BLOCK
    wanted = world.found(KEY, b"k1", 0, until, 1_000)
    (name, *_) = world.disk.names()
    sound = world.disk.read_all(name)
    for broken in (b"", sound[:10], sound[:-1], sound + b"x", b"EMQF" + b"\xff" * 60):
        world.disk.write_atomic(name, [broken])
        world.restart()
        assert world.found(KEY, b"k1", 0, until, 1_000) == wanted
        assert world.files.dropped == 1 and world.finder.built == 1
        assert world.disk.read_all(name) == sound
    world.disk.open("0-0.find.tmp", create=True).append([b"half"])
    world.disk.open("stranger", create=True)
    world.restart()
    assert world.disk.names() == sorted(world.disk.names()) and "0-0.find.tmp" not in world.disk.names()


def test_the_cache_is_bounded_and_what_is_used_stays() -> None:
    disk = MemoryDisk()
    files = FindFiles(disk, 5_000)
    for block in range(20):
        assert files.put((1, block), 0, 9, [find_table.entry_of(KEY, b"k", 1)] * 100)
        assert files.candidates((1, 0), find_table.entry_of(KEY, b"k", 0), 1 << 40) == [1] * 100
        assert files.bytes <= 5_000
    assert (1, 0) in files and (1, 19) in files and (1, 5) not in files
    assert not files.put((1, 30), 0, 9, list(range(1_000)))


def test_a_file_that_begins_behind_what_is_there_is_not_used() -> None:
    """Retention had removed offsets 0 to 4 when it was written; then a power cut took that away again."""
    disk, low = MemoryDisk(), find_table.entry_of(KEY, b"k", 0)
    files = FindFiles(disk, 5_000)
    assert files.put((1, 0), 5, 9, [low | 6])
    assert files.candidates((1, 0), low, 5) == [6]
    assert files.candidates((1, 0), low, 4) is None
    assert (1, 0) not in files and not disk.names() and files.dropped == 0


def test_heads_of_other_files_are_refused() -> None:
    parts = find_table.encode(0, 9, [1, 2, 3])
    data = b"".join(parts)
    assert find_table.decode_head(data, len(data)).entries == 3
    for wrong, error in (
        (b"", CorruptLog),
        (b"XXXX" + data[4:], CorruptLog),
        (data[:4] + b"\x02" + data[5:], UnknownVersion),
        (data[:20] + b"\xff" + data[21:], CorruptLog),
        (data[:-1], CorruptLog),
    ):
        with pytest.raises(error):
            find_table.decode_head(wrong, len(wrong))


def test_rows_that_are_none_hide_only_themselves() -> None:
    good = [encode_row(b"k", b"v", None, None)] * 3
    (one, two) = [encode_row(b"k", b"", {"keys": b"a"}, "t"), b"\x94\x01\x02\x03\x04"]
    assert len(find_rows.entries_of(b"".join(good), 3, 0)) == 3
    assert len(find_rows.entries_of(good[0] + two + one, 3, 0)) == 4
    with pytest.raises(CorruptLog):
        find_rows.entries_of(b"\xc1\xc1", 2, 0)
    assert not find_rows.is_sought(two, KEY, b"k") and not find_rows.is_sought(b"\xc1", KEY, b"k")


def test_other_topics_and_unknown_kinds_are_refused(cluster: InMemoryCluster) -> None:
    finder = SearchWorld(cluster, random.Random(1)).finder
    assert finder.find(Sought("no", 0, NO_ID, KEY, b""), 0, 9, 1, 0).code == ResultCode.UNKNOWN_TOPIC
    assert finder.find(Sought(TOPIC, 5, NO_ID, KEY, b""), 0, 9, 1, 0).code == ResultCode.BAD_PARTITION
    other = finder.find(Sought(TOPIC, 0, 999, KEY, b""), 0, 9, 1, 0)
    assert other.code == ResultCode.OTHER_TOPIC and other.end not in (0, 999)
    with pytest.raises(InvalidMessage, match="upgrade"):
        finder.find(Sought(TOPIC, 0, NO_ID, 99, b""), 0, 9, 1, 0)


def test_work_is_bounded_to_its_share_and_saved_up() -> None:
    now = 0.0
    budget = WorkBudget(0.05, lambda: now)
    budget.spend(SAVED_S)
    assert budget.pause_s() == 0
    budget.spend(1.0)
    assert budget.pause_s() == pytest.approx(20.0)
    now = 20.0
    assert budget.pause_s() == pytest.approx(0.0)
    now = 10_000.0
    budget.spend(SAVED_S + 0.5)
    assert budget.pause_s() == pytest.approx(10.0)


def threaded(world: SearchWorld, share: float = 1.0, clock: Callable[[], float] = time.monotonic) -> Finder:
    return Finder(
        world.running.replica.state,
        Reads(world.running).fetch,
        lambda: world.files,
        share=share,
        name="find",
        clock=clock,
        block_offsets=BLOCK,
    )


def test_a_thread_reads_the_blocks_and_ends(cluster: InMemoryCluster) -> None:
    world = SearchWorld(cluster, random.Random(1))
    world.send(10 * BLOCK)
    _, end = world.bounds()
    before = set(threading.enumerate())
    world.finder = finder = threaded(world)
    try:
        at, found = 0, list[int]()
        while at < end:
            answer = finder.find(Sought(TOPIC, 0, NO_ID, KEY, b"k1"), at, end, 1_000, 1.0)
            at, found = answer.reached, found + list(answer.offsets)
        assert found == world.scanned(KEY, b"k1", 0, end)
    finally:
        assert finder.stop()
    assert not any(thread.name == "find" for thread in set(threading.enumerate()) - before)


def test_without_a_budget_an_answer_says_how_far_it_came(cluster: InMemoryCluster) -> None:
    world = SearchWorld(cluster, random.Random(1))
    world.send(10 * BLOCK)
    finder = threaded(world, share=0.001)
    try:
        finder.budget.spend(SAVED_S + 1.0)
        for kind in (KEY, find_rows.IN_HEADER):
            began = time.monotonic()
            answer = finder.find(Sought(TOPIC, 0, NO_ID, kind, b"1", "h"), 0, 100, 1_000, 0.1)
            assert answer.reached == 0 and time.monotonic() - began < 20.0
    finally:
        assert finder.stop()


def test_there_are_few_searches_at_a_time(cluster: InMemoryCluster) -> None:
    world = SearchWorld(cluster, random.Random(1))
    for _ in range(finding.SEARCHES_MAX):
        assert world.finder._free.acquire(blocking=False)
    with pytest.raises(Overloaded):
        world.finder.find(Sought(TOPIC, 0, NO_ID, KEY, b"k"), 0, 9, 1, 0.0)
