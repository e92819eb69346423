"""The crash points of share groups, each at every byte at which the power can fail, and what else may end."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from escrowmq.replication.format import ops
from escrowmq.replication.format.share_ops import REJECT
from escrowmq.replication.model import ResultCode
from tests.support.shared_single import DEAD, RETRY, Shared


def newest_log(path: Path) -> Path:
    return max(path.glob("*.log"))


def restarts(path: Path, step: Callable[[Shared], object]) -> Iterator[tuple[Shared, bool]]:
    """A replica on the files of each length of the step's last write, and whether all of it is there."""
    single = Shared(path / "whole")
    single.begin("a", "b", "c")
    begin = newest_log(path / "whole").stat().st_size
    step(single)
    end = newest_log(path / "whole").stat().st_size
    single.close()
    assert end > begin
    for size in [*range(begin, end, 7), end]:
        copy = path / "cut"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(path / "whole", copy)
        with newest_log(copy).open("r+b") as file:
            file.truncate(size)
        again = Shared(copy)
        yield again, size == end
        again.close()


def test_an_acknowledgement_counts_once_it_is_durable(tmp_path: Path) -> None:
    for single, durable in restarts(tmp_path, lambda s: s.submit(s.acks(0, 1))):
        assert single.done() == [2 if durable else 0]
        assert single.submit(single.acks(0, 1)) == [[0]] and single.done() == [2], "the client repeats it"


def test_the_retry_exists_and_the_original_is_final_or_neither(tmp_path: Path) -> None:
    for single, durable in restarts(tmp_path, lambda s: s.nack(0, 2)):
        waiting = single.state.timers.counts.total
        assert (single.done(), waiting) == (([1, 2, 2], 2) if durable else ([0], 0))
        assert single.nack(0, 2) == [0] and single.state.timers.counts.total == 2


def test_the_dead_letter_exists_and_the_original_is_final_or_neither(tmp_path: Path) -> None:
    for single, durable in restarts(tmp_path, lambda s: s.nack(1, delay_ms=REJECT)):
        assert (single.done(), len(single.rows(DEAD))) == (([0, 1, 1], 1) if durable else ([0], 0))
        assert single.nack(1, delay_ms=REJECT) == [0] and len(single.rows(DEAD)) == 1


def test_retention_that_passes_the_start_is_counted(tmp_path: Path) -> None:
    single = Shared(tmp_path)
    single.begin(*"abcdef")
    single.submit(single.acks(1, 1))
    single.submit(ops.trim("t", {0: 4}, single.id_of("t")))
    (pair,) = single.state.shares.pairs.values()
    assert (pair.start, pair.expired, pair.waiting) == (4, 3, 2)
    assert single.nack(2, delay_ms=0) == [0] and not single.rows(RETRY), "it is gone, as if it were final"
    assert single.submit(single.acks(0, 5)) == [[0]]
    (pair,) = single.state.shares.pairs.values()
    assert (pair.start, pair.expired, pair.waiting) == (6, 3, 0)
    single.close()


def test_retries_outlive_their_topic(tmp_path: Path) -> None:
    single = Shared(tmp_path)
    single.begin("a", "b", delays_ms=[30])
    single.nack(1)
    topic_id, slots = single.id_of("t"), [key[1] for key in single.state.shares.pairs]
    single.submit(ops.delete_topic("t", topic_id))
    assert not any(slot in slots for _, slot in single.state.shares.pairs)
    single.topic(partitions=1)
    late = single.acks(0, 0)
    assert single.submit(late) == [[ResultCode.OUT_OF_RANGE, [0, 0]]]
    single.pass_ms(40)
    ((value, headers),) = single.rows(RETRY)
    assert value == "b" and headers["escrowmq-origin"].startswith("t/0/1/")
    assert single.nack(0, topic=RETRY, delay_ms=REJECT) == [0]
    assert single.rows(DEAD)[0][1]["escrowmq-origin"] == headers["escrowmq-origin"]
    single.close()


def test_waiting_retries_keep_what_they_lie_in(tmp_path: Path) -> None:
    """The copy lies in the entry that made it, until it is released."""
    single = Shared(tmp_path, segment_bytes=3_000)
    single.begin("a", delays_ms=[500])
    single.nack(0)
    index = single.journal.last_index
    for _ in range(40):
        single.put("x" * 300)
    oldest = single.state.timers.counts.oldest_index()
    assert oldest is not None and oldest <= index
    single.submit(single.acks(1, 40))
    single.pass_ms(560)
    assert single.rows(RETRY)[0][0] == "a" and single.state.timers.counts.oldest_index() is None
    single.close()
