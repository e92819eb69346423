"""What is fetched ahead, under random networks: order, no gaps, no duplicates, bounded memory. No threads."""

from __future__ import annotations

import random
from typing import Any

import pytest

from escrowmq.actors.consumer.arrow_batches import take_batch
from escrowmq.actors.consumer.config import ConsumerConfig
from escrowmq.actors.consumer.fetcher import BRIEF_WAIT_S, PENALTY, Fetches, ReplicaChoice
from escrowmq.actors.consumer.positions import PartitionState, Positions
from escrowmq.actors.consumer.records import Chunk
from escrowmq.replication.errors import ConfigError, CorruptLog
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.model import ConsumerRecord, ResultCode

REPLICAS = 3


class Log:
    """One partition: runs of messages, some of which each replica has applied."""

    def __init__(self, rng):
        self.runs, self.applied = [], [0] * REPLICAS
        self.rng = rng

    @property
    def end(self):
        return self.runs[-1][0] + self.runs[-1][1] if self.runs else 0

    def append(self):
        count = self.rng.randrange(1, 30)
        rows = b"".join(encode_row(None, b"%d" % (self.end + i), None, None) for i in range(count))
        self.runs.append((self.end, count, 1_000 + self.end, rows))

    def fetch(self, rid, offset, max_bytes):
        known = self.runs[: self.applied[rid]]
        end = known[-1][0] + known[-1][1] if known else 0
        if offset > end:
            return int(ResultCode.OUT_OF_RANGE), 0, end, [], b""
        picked, size = [], 0
        for run in known:
            if run[0] + run[1] > offset:
                if picked and size + len(run[3]) > max_bytes:
                    break
                picked.append(run)
                size += len(run[3])
        return 0, 0, end, [(b, c, ts, len(r)) for b, c, ts, r in picked], b"".join(r[3] for r in picked)


class Network:
    """Calls under way, answered in any order, late, twice as errors, or never."""

    def __init__(self, logs, rng):
        self.logs, self.rng, self.under_way, self.dead = logs, rng, {}, set()
        self.asked = []

    def start(self, gid, rid, args, token):
        self.asked.append(rid)
        requests, max_bytes, _ = args
        if rid not in self.dead:
            self.under_way[token] = rid, requests, max_bytes

    def answer(self, token):
        rid, requests, max_bytes = self.under_way.pop(token)
        return [(t, p, *self.logs[p].fetch(rid, offset, max_bytes)) for t, p, offset in requests]


def one_full_partition(seed):
    """A log with one run of records, which every replica has applied."""
    log = Log(random.Random(seed))
    log.append()
    log.applied = [1] * REPLICAS
    return log, Network([log], random.Random(seed))


def take_from(positions, limit, rng=None):
    """Records, at most ``limit``; with ``rng``, some of them by way of Arrow."""
    records = []

    def take(state, chunk, left):
        if rng is None or rng.random() < 0.5:
            part = chunk.take(state.topic, state.partition, left)
        else:
            rows = take_batch(state, chunk, left).to_pylist()
            part = [ConsumerRecord(**{**row, "headers": dict(row["headers"])}) for row in rows]
        records.extend(part)
        return len(part)

    assert positions.hand_out(limit, take) == len(records) <= limit
    return records


def consumer(network, partitions, **settings):
    config = ConsumerConfig(**{"fetch_bytes": 500, "buffer_bytes": 4_000, **settings})
    positions = Positions(fetch_bytes=config.fetch_bytes, buffer_bytes=config.buffer_bytes, linger_s=0.001)
    positions.assign({("t", p): 0 for p in range(partitions)}, ())
    for state in positions.states():
        positions.resolve(state.tp, state.epoch, 0)
    return positions, Fetches(positions, ReplicaChoice(REPLICAS), config, network.start, first_bytes=100)


def test_news_of_one_partition_does_not_keep_the_others_from_being_asked_for_at_once():
    """An answer comes early because of the news in it. The partitions without any have done nothing that
    calls for a pause; after different pauses, each would need a call of its own, of which there are few."""
    _, network = one_full_partition(1)
    network.logs += [Log(random.Random(1)) for _ in range(3 * REPLICAS)]
    positions, fetches = consumer(network, 3 * REPLICAS)

    def asked():
        return {token: {p for _, p, _ in requests} for token, (_, requests, _) in network.under_way.items()}

    fetches.advance(0.0)
    (token,) = (token for token, partitions in asked().items() if 0 in partitions)
    others = asked()[token] - {0}
    assert len(others) == 2
    fetches.answered(token, network.answer(token), None, 0.01)
    assert take_from(positions, 1000), "the news of partition 0"
    fetches.advance(0.01)
    assert any(others <= partitions for partitions in asked().values())


@pytest.mark.parametrize("seed", range(120))
def test_every_record_once_in_order_whatever_the_network_does(seed):
    rng = random.Random(seed)
    logs = [Log(rng) for _ in range(3)]
    network = Network(logs, rng)
    positions, fetches = consumer(network, 3)
    now, expected = 0.0, [0, 0, 0]

    def take():
        for record in take_from(positions, rng.randrange(1, 40), None if seed % 8 else rng):
            assert record.offset == expected[record.partition], f"seed {seed}"
            assert record.value == b"%d" % record.offset
            expected[record.partition] += 1

    def step(chaos):
        nonlocal now
        now += rng.random() * 0.1
        fetches.advance(now)
        for token in list(network.under_way):
            if chaos and rng.random() < 0.1:
                del network.under_way[token]  # lost
            elif chaos and rng.random() < 0.1:
                network.under_way.pop(token)
                fetches.answered(token, None, ConnectionError("dead"), now)
            elif rng.random() < 0.6:
                fetches.answered(token, network.answer(token), None, now)
        if rng.random() < 0.7:
            take()
        if chaos and rng.random() < 0.05:
            partition = rng.randrange(3)
            state = positions.get(("t", partition))
            if state.position is not None:
                expected[partition] = rng.randrange(expected[partition] + 1)
                state.restart(expected[partition])
        for state in positions.unresolved():  # the membership thread would ask the leader
            positions.resolve(state.tp, state.epoch, state.suspect)
        buffered = sum(state.buffered for state in positions.states())
        assert buffered <= 4_000 + 3 * 500 * 2, f"seed {seed}: {buffered} bytes"

    for _ in range(150):
        for log in logs:
            if rng.random() < 0.3:
                log.append()
            for rid in range(REPLICAS):
                log.applied[rid] = rng.randrange(log.applied[rid], len(log.runs) + 1)
        if rng.random() < 0.05:
            network.dead = {rid for rid in range(REPLICAS) if rng.random() < 0.4}
        step(chaos=True)
    network.dead = set()
    for log in logs:
        log.applied = [len(log.runs)] * REPLICAS
    for _ in range(2_000):
        step(chaos=False)
        if expected == [log.end for log in logs]:
            return
    pytest.fail(f"seed {seed}: read {expected} of {[log.end for log in logs]}")


def test_a_silent_replica_is_left_after_the_wait_and_a_quarter_second():
    log, network = one_full_partition(1)
    positions, fetches = consumer(network, 1, fetch_wait_s=0.25)
    network.dead = {0}
    wake = fetches.advance(0.0)
    assert network.asked == [0]
    assert wake == pytest.approx(0.5)
    wake = fetches.advance(0.5)
    fetches.advance(wake)
    assert network.asked == [0, 1]
    (token,) = network.under_way
    assert fetches.answered(token, network.answer(token), None, 0.6)
    assert len(take_from(positions, 100)) == log.end
    fetches.advance(0.7)
    assert network.asked[-1] == 1, "it is not asked again while its penalty lasts"


def test_a_late_answer_counts_if_it_is_the_first():
    log, network = one_full_partition(2)
    positions, fetches = consumer(network, 1)
    fetches.advance(0.0)
    (late,) = network.under_way
    fetches.advance(fetches.advance(0.5))
    (second,) = set(network.under_way) - {late}
    answers = network.answer(late), network.answer(second)
    assert fetches.answered(late, answers[0], None, 0.7)
    assert not fetches.answered(second, answers[1], None, 0.8)
    assert len(take_from(positions, 100)) == log.end


def test_damaged_answers_are_asked_of_another_replica():
    log, network = one_full_partition(3)
    positions, fetches = consumer(network, 1)
    fetches.advance(0.0)
    (token,) = network.under_way
    ((topic, partition, code, start, end, runs, blob),) = network.answer(token)
    fetches.answered(token, [(topic, partition, code, start, end, runs, blob[:-1])], None, 0.1)
    assert isinstance(fetches.last_error, CorruptLog)
    fetches.advance(0.2)
    (token,) = network.under_way
    fetches.answered(token, network.answer(token), None, 0.3)
    assert len(take_from(positions, 100)) == log.end
    assert network.asked == [0, 1]


def test_rows_that_cannot_be_decoded_raise_and_are_fetched_anew():
    log = Log(random.Random(4))
    network = Network([log], random.Random(4))
    positions, fetches = consumer(network, 1)
    log.append()
    log.applied = [1] * REPLICAS
    fetches.advance(0.0)
    (token,) = network.under_way
    ((*head, runs, blob),) = network.answer(token)
    fetches.answered(token, [(*head, runs, b"\xc1" * len(blob))], None, 0.1)
    with pytest.raises(CorruptLog, match="t/0 at offset 0"):
        take_from(positions, 10)
    fetches.advance(0.2)
    (token,) = network.under_way
    fetches.answered(token, network.answer(token), None, 0.3)
    assert len(take_from(positions, 100)) == log.end


def test_runs_must_join():
    rows = encode_row(None, b"x", None, None)
    n = len(rows)
    for runs, blob, offset in (
        ([(0, 1, 5, n), (2, 1, 5, n)], rows * 2, 0),
        ([(0, 1, 5, n)], rows, 1),
        ([(3, 1, 5, n)], rows, 2),
        ([(0, 1, 5, n)], rows * 2, 0),
        ([(0, 0, 5, 0)], b"", 0),
    ):
        with pytest.raises(CorruptLog):
            Chunk(runs, blob, offset)


@pytest.mark.parametrize(("last", "expected"), [(None, [1, 2, 0, 1]), (1, [2, 0, 1, 2]), (2, [1, 0, 2, 1])])
def test_turns_go_round_and_come_to_the_one_that_is_spared_in_the_end(last, expected):
    choice = ReplicaChoice(3, 1, last)
    assert [choice.pick(0, turn, 0.0) for turn in range(4)] == expected
    for rid in {0, 1, 2} - {last}:
        choice.failed(0, rid, 0.0)
    assert last is None or choice.pick(0, 0, 0.1) == last
    assert ReplicaChoice(1, 0, 0).pick(0, 5, 0.0) == 0


def test_penalties_double_and_end():
    choice = ReplicaChoice(2)
    assert [choice.pick(0, turn, 0.0) for turn in range(3)] == [0, 1, 0]
    choice.failed(0, 0, 0.0)
    assert choice.pick(0, 0, 0.5) == 1
    assert choice.pick(0, 0, 1.5) == 0
    choice.failed(0, 0, 1.5)
    assert choice.pick(0, 0, 3.0) == 1
    choice.failed(0, 1, 3.0)
    assert choice.pick(0, 0, 3.1) == 0, "all are bad: the one that is due first"
    for _ in range(20):
        choice.failed(0, 0, 1e6)
    assert choice.pick(0, 0, 1e6 + PENALTY.longest_s) == 0
    choice.answered(0, 1)
    assert choice.pick(0, 1, 3.1) == 1


def test_fetches_that_nobody_awaits_do_not_hold_up_others():
    """They park at the broker after ``seek``, and their answers are of no use."""
    sent = []
    positions = Positions(fetch_bytes=1000, buffer_bytes=100_000, linger_s=0.0)
    config = ConsumerConfig(fetch_calls_in_flight=2, fetch_wait_s=30.0, fetch_bytes=1000)
    fetches = Fetches(positions, ReplicaChoice(1), config, lambda gid, rid, args, token: sent.append(args[0]))
    positions.assign({("t", 0): 0, ("u", 0): 0}, [])
    state, other = positions.states()
    for offset in range(6):
        state.restart(offset)
        fetches.advance(offset / 10)
    assert [offset for ((_, _, offset),) in sent] == [*range(6)]
    other.restart(3)
    fetches.advance(0.7)
    assert sent[-1] == [("u", 0, 3)]
    state.restart(9)
    state.paused = True
    assert fetches.in_flight == 7 and positions.awaits([(other.tp, other.epoch, 3)])


class Parks:
    """A consumer of four partitions at one replica, of which all messages are fetched: three calls park."""

    def __init__(self) -> None:
        self.sent: list[tuple[list[str], float]] = []
        self.positions = Positions(fetch_bytes=1000, buffer_bytes=8_000, linger_s=0.0)
        config = ConsumerConfig(fetch_calls_in_flight=3, fetch_wait_s=30.0, fetch_bytes=1000)
        self.fetches = Fetches(self.positions, ReplicaChoice(1), config, self.start)
        self.positions.assign({(topic, 0): 0 for topic in "abcd"}, [])
        for state in self.positions.states():
            state.log_start, state.log_end = 0, 5
        for topics in "a", "b", "cd":
            for topic in topics:
                self.at(topic).restart(5)
            self.fetches.advance(0.0)
        assert self.asked == [["a"], ["b"], ["c", "d"]]

    def at(self, topic: str) -> PartitionState:
        state = self.positions.get((topic, 0))
        assert state is not None
        return state

    def start(self, gid: int, rid: int, args: tuple[Any, ...], token: int) -> None:
        self.sent.append(([topic for topic, *_ in args[0]], args[2]))

    @property
    def asked(self) -> list[list[str]]:
        return [topics for topics, _ in self.sent]

    def goes_back(self, topic: str, now: float) -> list[str]:
        """To offset 0. What is asked for at once, in one call."""
        before = len(self.sent)
        self.at(topic).restart(0)
        self.fetches.advance(now)
        return [name for topics in self.asked[before:] for name in topics]


def test_a_parked_fetch_makes_way_for_a_partition_that_went_back():
    parks = Parks()
    assert parks.goes_back("d", 1.0) == ["d", "a"], "the call that has parked longest is replaced"
    assert parks.goes_back("c", 2.0) == ["c"], "nobody awaits the call of both any more"


def test_idle_partitions_wait_for_the_end_of_a_call():
    """Otherwise each message that trickles in would leave a parked call behind."""
    parks = Parks()
    parks.at("d").restart(5)
    parks.fetches.advance(1.0)
    assert len(parks.sent) == 3
    parks.at("d").log_end = 6
    parks.fetches.advance(2.0)
    assert parks.asked[3:] == [["d", "a"]]


def test_a_call_that_was_replaced_harms_nobody_by_its_silence_or_error():
    parks = Parks()
    parks.goes_back("d", 1.0)
    state = parks.at("a")
    token = state.in_flight
    parks.fetches.advance(30.4)
    assert parks.fetches.in_flight == 4 - 3, "the three that began at 0.0 were silent for too long"
    parks.fetches.answered(1, None, OSError("gone"), 30.5)
    assert (state.in_flight, state.turn, state.troubled_since) == (token, 0, None)


def test_calls_park_briefly_while_slots_change_faster_than_they_end():
    """So that there is always a call for whoever goes back."""
    parks = Parks()
    for turn in range(100):
        now = 1 + turn / 50
        assert "d" in parks.goes_back("d", now), turn
        for token, call in list(parks.fetches._calls.items()):
            if call.sent + call.wait_s <= now:
                answer = [(topic, 0, 0, 0, 5, [], b"") for (topic, _), _, _ in call.asked]
                parks.fetches.answered(token, answer, None, now)
    assert parks.sent[0][1] == 30.0 and parks.sent[-1][1] == BRIEF_WAIT_S


def test_calls_grow_while_full_answers_come_swiftly_and_begin_anew_after_silence():
    sizes: list[int] = []
    settings = ConsumerConfig(fetch_calls_in_flight=1, fetch_bytes=4 << 20, buffer_bytes=16 << 20)
    positions = Positions(fetch_bytes=settings.fetch_bytes, buffer_bytes=settings.buffer_bytes, linger_s=0.0)

    def start(gid: int, rid: int, args: tuple[Any, ...], token: int) -> None:
        sizes.append(args[1])

    fetches = Fetches(positions, ReplicaChoice(1), settings, start)
    positions.assign({("t", 0): 0}, [])
    (state,) = positions.states()
    now = 0.0

    def answer(size: int, after_s: float) -> None:
        nonlocal now
        state.restart(0)
        fetches.advance(now)
        now += after_s
        part = ("t", 0, ResultCode.OK, 0, 1 << 40, [], bytes(size))  # what is in it does not matter here
        fetches.answered(len(sizes), [part], None, now)

    answer(1 << 20, 0.01)
    answer(1 << 20, 0.01)  # half of what was asked for: the end of the log is near
    answer(2 << 20, 0.30)  # full, and slow
    answer(2 << 20, 0.20)
    answer(4 << 20, 0.01)
    answer(4 << 20, 0.01)
    assert [size >> 20 for size in sizes] == [1, 2, 2, 2, 4, 4]
    state.restart(0)
    fetches.advance(now)
    fetches.advance(now + 60.0)
    fetches.advance(now + 120.0)
    assert [size >> 20 for size in sizes[6:]] == [4, 1], "a replica is silent: the way may be slow"


def test_a_small_buffer_bounds_the_default_of_a_fetch_and_contradicts_a_larger_one():
    assert ConsumerConfig(buffer_bytes=1 << 20).fetch_bytes == 1 << 20
    with pytest.raises(ConfigError, match="fetch_bytes must not exceed"):
        ConsumerConfig(buffer_bytes=1 << 20, fetch_bytes=2 << 20)


def test_calls_that_park_at_idle_replicas_leave_room_for_a_busy_one():
    """Eight broker groups: while one of them is read with calls of 4 MiB, those that wait at the others hold
    no more memory than they would bring."""
    settings = ConsumerConfig(fetch_calls_in_flight=2)
    positions = Positions(fetch_bytes=settings.fetch_bytes, buffer_bytes=settings.buffer_bytes, linger_s=0.0)
    sent: dict[int, tuple[int, int]] = {}  # token -> group, bytes

    def start(gid: int, rid: int, args: tuple[Any, ...], token: int) -> None:
        sent[token] = gid, args[1]

    fetches = Fetches(positions, ReplicaChoice(1), settings, start)
    positions.assign({("busy", 0): 0, **{(f"idle{gid}", 0): gid for gid in range(1, 8)}}, [])
    for state in positions.states():
        positions.resolve(state.tp, state.epoch, 0)
        if state.gid:
            state.log_start = state.log_end = 0

    def answered(token: int, size: int, now: float) -> None:
        gid, _ = sent.pop(token)
        topic = f"idle{gid}" if gid else "busy"
        fetches.answered(
            token, [(topic, 0, ResultCode.OK, 0, 1 << 40 if size else 0, [], bytes(size))], None, now
        )

    now, busy_calls = 0.0, 0
    for turn in range(120):
        fetches.advance(now)
        for token, (gid, size) in list(sent.items()):
            if gid == 0:
                busy_calls += 1
                answered(token, size, now + 0.005)
                positions.states()[0].restart(0)
            elif turn % 50 == 49:
                answered(token, 0, now + 0.005)  # it has waited for a quarter of a second
        now += 0.005
    assert busy_calls >= 110, "nearly one in each turn"
    assert max(size for gid, size in sent.values() if gid) <= 1 << 20
