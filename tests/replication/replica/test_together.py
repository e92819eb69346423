"""Many transactions committed by one operation: all of them or none, and no reader sees only a part."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.model import ResultCode
from escrowmq.replication.replica import fetching
from tests.support.single import Single

PARTITIONS = 8
CODES = {code.name: int(code) for code in ResultCode}


def start(path: Path) -> Single:
    single = Single(path)
    single.topic(partitions=PARTITIONS)
    return single


def prepare(tx_ids: Sequence[str], per_partition: int = 1) -> bytes:
    """Every transaction has ``per_partition`` messages in every partition."""
    frames = [ops.prepare("app", "t", tx_ids, None, 0, 0, [1] * len(tx_ids), -1, PARTITIONS)]
    for partition in range(PARTITIONS):
        txs = [i for i in range(len(tx_ids)) for _ in range(per_partition)]
        rows = [encode_row(None, bytes(70), None, tx_ids[i]) for i in txs]
        frames.append(ops.pre_message("t", partition, txs, [len(row) for row in rows], rows))
    return b"".join(frames)


def ends(single: Single) -> list[int]:
    return [end for _, end in sorted(_bounds(single).items())]


def _bounds(single: Single) -> dict[int, int]:
    partitions = single.state.topics.topics["t"].partitions
    return {number: partition.index.end for number, partition in partitions.items()}


def test_all_are_committed_and_a_repetition_changes_nothing(tmp_path: Path) -> None:
    single = start(tmp_path)
    ids = [f"chunk-{i}" for i in range(50)]
    single.submit(prepare(ids))
    entries = single.journal.last_index
    assert single.submit(ops.commit("app", ids, together=True)) == [[0]]
    assert single.journal.last_index == entries + 1, "one entry decides all of them"
    assert ends(single) == [50] * PARTITIONS
    assert single.submit(ops.commit("app", ids, together=True)) == [[0]]
    assert ends(single) == [50] * PARTITIONS


def test_none_is_committed_if_one_was_rolled_back_or_is_not_known(tmp_path: Path) -> None:
    single = start(tmp_path)
    single.submit(prepare(["a", "b", "c"]))
    single.submit(ops.rollback("app", ["b"]))
    (result,) = single.submit(ops.commit("app", ["a", "b", "never", "c"], together=True))
    retry = CODES["RETRY"]
    assert result == [
        CODES["PARTIAL"],
        [
            [0, retry, None],
            [1, CODES["TX_CONFLICT"], "ROLLBACK"],
            [2, CODES["UNKNOWN_TX"], None],
            [3, retry, None],
        ],
    ]
    assert ends(single) == [0] * PARTITIONS
    assert single.submit(ops.commit("app", ["a", "c"], together=True)) == [[0]]
    assert ends(single) == [2] * PARTITIONS


def test_what_is_committed_already_does_not_hinder_the_others(tmp_path: Path) -> None:
    single = start(tmp_path)
    single.submit(prepare(["a", "b"]))
    single.submit(ops.commit("app", ["a"]))
    assert single.submit(ops.commit("app", ["a", "b"], together=True)) == [[0]]
    assert ends(single) == [2] * PARTITIONS


def test_none_is_committed_while_another_decision_over_one_of_them_is_under_way(tmp_path: Path) -> None:
    single = start(tmp_path)
    single.submit(prepare(["a", "b"]))
    single.node.held = []
    rolled_back = single.send(ops.rollback("app", ["b"]))
    together = single.send(ops.commit("app", ["a", "b"], together=True))
    single.node.release()
    single.replica.pump(single.now_ms)
    assert rolled_back == [("ok", [[0]])]
    (answer,) = together
    assert answer[1][0][0] == CODES["PARTIAL"] and ends(single) == [0] * PARTITIONS


def test_without_the_word_together_the_others_are_committed(tmp_path: Path) -> None:
    single = start(tmp_path)
    single.submit(prepare(["a"]))
    (result,) = single.submit(ops.commit("app", ["a", "never"]))
    assert result[0] == CODES["PARTIAL"] and ends(single) == [1] * PARTITIONS


def test_no_reader_sees_a_part_of_what_was_committed_together(tmp_path: Path) -> None:
    """Every commit adds ``size`` messages to each of eight partitions, so their ends must be equal at all
    times."""
    single = start(tmp_path)
    state, size, rounds = single.state, 40, 25
    seen: set[tuple[int, ...]] = set()
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            requests = [("t", partition, 0) for partition in range(PARTITIONS)]
            seen.add(tuple(result[4] for result in single.replica.fetch(requests, 1)))
            counts = []
            for result in single.replica.fetch(requests, 1 << 30):
                counts.append(sum(count for _, count, _, _ in result[5]))
            seen.add(tuple(counts))

    def look_up() -> None:
        while not stop.is_set():
            with state.cut:
                found = [fetching.offset_for_time(state, "t", p, -1)[1] for p in range(PARTITIONS)]
            seen.add(tuple(found))

    watchers = [threading.Thread(target=watch), threading.Thread(target=look_up)]
    for watcher in watchers:
        watcher.start()
    try:
        for number in range(rounds):
            ids = [f"{number}/{i}" for i in range(size)]
            for half in (ids[: size // 2], ids[size // 2 :]):
                single.submit(prepare(half))
            assert single.submit(ops.commit("app", ids, together=True)) == [[0]]
    finally:
        stop.set()
        for watcher in watchers:
            watcher.join()
    torn = {ends for ends in seen if len(set(ends)) > 1 or ends[0] % size}
    assert not torn and len(seen) > 5
