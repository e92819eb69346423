"""From messages to requests without threads or clock: bytes, grouping, lingers, taking answers apart."""

from __future__ import annotations

import random
from typing import Any

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escrowmq.actors.client.failures import Failure, FailureKind
from escrowmq.actors.producer.batcher import BuiltRequest, GroupBatcher
from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.actors.producer.encoding.block_answers import COMMITS_AGAIN, problems_of
from escrowmq.actors.producer.encoding.blocks import DecisionBlock, Outcome, PrepareBlock
from escrowmq.actors.producer.encoding.encoder import Encoder
from escrowmq.actors.producer.plain.partition_stream import PartitionStream
from escrowmq.actors.producer.plain.record_batch import SendFuture
from escrowmq.replication.errors import OutcomeUnknown, Unavailable, UnknownTopic
from escrowmq.replication.format.codec import decode_ops, decode_rows
from escrowmq.replication.format.operation import OpType
from escrowmq.replication.model import Message, ResultCode
from escrowmq.replication.replica.validation import parse_request
from tests.support.places import by_name
from tests.support.plain import queued

CONFIG = ProducerConfig(request_bytes=10_000, linger_ms=3.0, transaction_linger_ms=1.0)
MESSAGES = st.lists(
    st.builds(
        Message,
        topic=st.sampled_from(["a", "b", "c"]),
        value=st.binary(max_size=50),
        key=st.none() | st.binary(max_size=8),
        headers=st.dictionaries(st.text(max_size=4), st.binary(max_size=4), max_size=2),
        partition=st.none() | st.integers(0, 2),
    ),
    min_size=1,
    max_size=12,
)


#: Where home has opened each transaction.
HOME_INDEX = 7


def encoder(groups: int = 1, config: ProducerConfig = CONFIG) -> Encoder:
    return Encoder(config, lambda topic: 3, lambda topic, partition: by_name(topic, partition, groups))


def a_batcher() -> GroupBatcher:
    return GroupBatcher("shop", CONFIG, "producer-1")


def block(tx_id: str, *messages: Message, config: ProducerConfig = CONFIG) -> PrepareBlock:
    encoded, size = encoder(config=config).encode(messages or [Message("a", b"x", b"k")], tx_id)
    plan = encoder(config=config).plan(tx_id, f"q-{tx_id}", encoded, size, 0, True)
    assert plan.single is not None
    plan.single.deadline = 1e9
    return plan.single


def collecting(made: PrepareBlock | DecisionBlock) -> list[Outcome]:
    outcomes: list[Outcome] = []
    made.deadline = 1e9
    made.done = outcomes.append
    return outcomes


def payload(request: BuiltRequest) -> bytes:
    return b"".join(request.frames)


# ---------------------------------------------------------------- bytes


@settings(max_examples=60, deadline=None)
@given(transactions=st.lists(MESSAGES, min_size=1, max_size=6), groups=st.integers(1, 3))
def test_what_is_encoded_is_what_a_broker_accepts_and_a_consumer_decodes(
    transactions: list[list[Message]], groups: int
) -> None:
    batchers = [a_batcher() for _ in range(groups)]
    made = encoder(groups)
    for number, messages in enumerate(transactions):
        encoded, size = made.encode(messages, f"tx-{number}")
        plan = made.plan(f"tx-{number}", "q", encoded, size, 0, False)
        for gid, blocks in (plan.parts or {plan.groups[0]: [plan.single]}).items():
            for part in blocks:
                assert part is not None
                part.deadline = 1.0
                if part.home_group >= 0:
                    part.home_index = [HOME_INDEX]
                batchers[gid].prepare(part, 0.0)
    found: dict[str, list[tuple[str, bytes]]] = {}
    for batcher in batchers:
        while (request := batcher.build()) is not None:
            buffer = payload(request)
            for op in parse_request(buffer):  # raises for anything a broker would refuse
                if op.type == OpType.PRE_MESSAGE:
                    body = buffer[op.body_pos : op.body_pos + op.body_size]
                    for row in decode_rows(body, len(op.meta.txs)):
                        assert row[3] is not None
                        found.setdefault(row[3], []).append((op.meta.topic, row[1]))
    for number, messages in enumerate(transactions):
        assert sorted(found[f"tx-{number}"]) == sorted((m.topic, m.value) for m in messages)


def test_a_key_decides_the_partition_and_a_transaction_without_keys_stays_together() -> None:
    encoded, _ = encoder().encode([Message("a", b"", b"k%d" % i) for i in range(20)], "tx")
    assert [p for _, p, _ in encoded] == [google_crc32c.value(b"k%d" % i) % 3 for i in range(20)]
    keyless, _ = encoder().encode([Message("a")] * 5, "tx")
    assert {p for _, p, _ in keyless} == {google_crc32c.value(b"tx") % 3}


def test_the_same_transaction_always_encodes_to_the_same_blocks() -> None:
    messages = [Message("a", b"%d" % i, None if i % 2 else b"k") for i in range(9)]
    once, again = block("tx", *messages), block("tx", *messages)
    assert once.digests == again.digests and once.columns == again.columns
    assert block("tx", *messages[:-1]).digests != once.digests
    assert block("other", *messages).digests != once.digests


def test_large_transactions_are_split_between_messages_and_one_digest_stands_for_all() -> None:
    config = ProducerConfig(part_bytes=1000)
    messages = [Message("a", b"x" * 400, partition=0) for _ in range(7)]
    made = Encoder(config, lambda topic: 3, lambda topic, partition: 0)
    encoded, size = made.encode(messages, "tx")
    plan = made.plan("tx", "q", encoded, size, 0, True)
    assert plan.single is None and plan.parts is not None
    parts = plan.parts[0]
    assert [p.part for p in parts] == list(range(len(parts))) and len(parts) == 4
    changed = [*encoded[:-1], (encoded[-1][0], encoded[-1][1], encoded[-1][2] + b"!")]
    other = made.plan("tx", "q", changed, size, 0, True)
    assert other.parts is not None and other.parts[0][0].digests != parts[0].digests


# ---------------------------------------------------------------- operations and their answers


def test_transactions_that_wait_together_share_one_operation() -> None:
    batcher = a_batcher()
    outcomes = []
    for number in range(5):
        one = block(f"tx-{number}")
        outcomes.append(collecting(one))
        batcher.prepare(one, 0.0)
    request = batcher.build()
    assert request is not None
    prepare, pre = decode_ops(payload(request))
    assert prepare.meta.tx_ids == [f"tx-{n}" for n in range(5)] and prepare.meta.attached == 1
    assert prepare.meta.query_ids == [f"q-tx-{n}" for n in range(5)] and pre.meta.txs == [0, 1, 2, 3, 4]
    problem = [3, int(ResultCode.TX_CONFLICT), "COMMITTED"]
    batcher.answered(request, ("ok", [[int(ResultCode.PARTIAL), [problem]]]), False)
    assert outcomes == [[{}], [{}], [{}], [{0: (ResultCode.TX_CONFLICT, "COMMITTED")}], [{}]]


def test_an_id_is_never_named_twice_in_one_request() -> None:
    batcher = a_batcher()
    for tx_id in ("a", "b", "a", "c"):
        batcher.prepare(block(tx_id), 0.0)
    named = []
    while (request := batcher.build()) is not None:
        named.append(decode_ops(payload(request))[0].meta.tx_ids)
    assert named == [["a", "b"], ["a", "c"]]


def test_different_home_topics_and_time_outs_are_different_operations() -> None:
    batcher = a_batcher()
    batcher.prepare(block("a"), 0.0)
    batcher.prepare(block("b", Message("b", b"")), 0.0)
    late = block("c")
    late.timeout_ms = 9
    batcher.prepare(late, 0.0)
    request = batcher.build()
    assert request is not None
    prepares = [op for op in decode_ops(payload(request)) if op.type == OpType.PREPARE]
    assert [(op.meta.topic, op.meta.timeout_ms, op.meta.tx_ids) for op in prepares] == [
        ("a", 0, ["a"]),
        ("b", 0, ["b"]),
        ("a", 9, ["c"]),
    ]


def test_commits_and_roll_backs_go_first_and_each_in_one_operation() -> None:
    batcher = a_batcher()
    batcher.prepare(block("p"), 0.0)
    outcomes = {}
    for number, commit in enumerate((True, False, True)):
        decision = DecisionBlock(commit, (f"tx-{number}",))
        outcomes[number] = collecting(decision)
        batcher.decide(decision, 0.0)
    request = batcher.build()
    assert request is not None
    ops = decode_ops(payload(request))
    assert [(op.type, op.meta.tx_ids) for op in ops[:2]] == [
        (OpType.COMMIT, ["tx-0", "tx-2"]),
        (OpType.ROLLBACK, ["tx-1"]),
    ]
    conflict = [1, int(ResultCode.TX_CONFLICT), "ROLLBACK"]
    batcher.answered(request, ("ok", [[int(ResultCode.PARTIAL), [conflict]], [0], [0]]), False)
    assert outcomes == {0: [{}], 1: [{}], 2: [{0: (ResultCode.TX_CONFLICT, "ROLLBACK")}]}


def test_a_commit_that_was_left_out_is_sent_again_and_a_rollback_is_not() -> None:
    """The broker leaves out what another decision of the same entry is about."""
    batcher = a_batcher()
    commit, rollback = DecisionBlock(True, ("a", "b", "c")), DecisionBlock(False, ("d",))
    committed, rolled_back = collecting(commit), collecting(rollback)
    batcher.decide(commit, 0.0)
    batcher.decide(rollback, 0.0)
    left_out, conflict = int(ResultCode.RETRY), int(ResultCode.TX_CONFLICT)
    answers: list[list[Any]] = [[[1, left_out, None], [2, conflict, "ROLLBACK"]], [[0, left_out, None]]]
    sent = []
    while (request := batcher.build()) is not None:
        sent.append([op.meta.tx_ids for op in decode_ops(payload(request))])
        batcher.answered(request, ("ok", [[int(ResultCode.PARTIAL), told] for told in answers]), False)
        answers = [[[0, left_out, None]] if len(sent) < 3 else []]
    assert sent == [[["a", "b", "c"], ["d"]], [["b"]], [["b"]], [["b"]]]
    assert committed == [{2: (ResultCode.TX_CONFLICT, "ROLLBACK")}]
    assert rolled_back == [{0: (ResultCode.RETRY, None)}]


@pytest.mark.parametrize("lost", [True, False])
def test_a_commit_that_is_left_out_again_and_again_ends(lost: bool) -> None:
    batcher = a_batcher()
    commit = DecisionBlock(True, ("a", "b"))
    committed = collecting(commit)
    batcher.decide(commit, 0.0)
    for sent in range(1 + COMMITS_AGAIN):
        request = batcher.build()
        assert request is not None
        if lost and sent:
            batcher.answered(request, Failure(FailureKind.UNKNOWN, "lost"), False)
            break
        told = [[0, int(ResultCode.RETRY), None]]
        batcher.answered(request, ("ok", [[int(ResultCode.PARTIAL), told]]), False)
    assert batcher.build() is None
    assert committed == [{0: (ResultCode.RETRY, None)}]


def test_requests_end_near_their_size_and_the_rest_follows() -> None:
    batcher = a_batcher()
    for number in range(100):
        batcher.prepare(block(f"tx-{number}", Message("a", b"x" * 400)), 0.0)
    sizes = []
    while (request := batcher.build()) is not None:
        sizes.append(len(payload(request)))
    assert len(sizes) >= 5 and max(sizes) < 12_000


def test_one_failure_is_everybodys_failure() -> None:
    batcher = a_batcher()
    prepared, decision = block("a"), DecisionBlock(True, ("b",))
    first, second = collecting(prepared), collecting(decision)
    batcher.prepare(prepared, 0.0)
    batcher.decide(decision, 0.0)
    request = batcher.build()
    assert request is not None
    failure = Failure(FailureKind.UNKNOWN)
    batcher.answered(request, failure, True)
    assert first == [failure] and second == [failure]


def test_an_answer_of_the_wrong_length_is_not_believed() -> None:
    batcher = a_batcher()
    decision = DecisionBlock(True, ("b",))
    outcomes = collecting(decision)
    batcher.decide(decision, 0.0)
    request = batcher.build()
    assert request is not None
    batcher.answered(request, ("ok", []), False)
    (outcome,) = outcomes
    assert isinstance(outcome, Failure) and not outcome.nothing_done


def answer(batcher: GroupBatcher, limit: int, deleted: str = "") -> int:
    """A broker that accepts ``limit`` transactions, and does not know topic ``deleted``."""
    opened = requests = 0
    while (request := batcher.build()) is not None:
        requests += 1
        results: list[Any] = []
        ops = decode_ops(payload(request))
        for at, op in enumerate(ops):
            if op.type != OpType.PREPARE:
                continue
            attached = ops[at + 1 : at + 1 + op.meta.attached]
            if any(pre.meta.topic == deleted for pre in attached):
                results.append([int(ResultCode.UNKNOWN_TOPIC), [deleted]])
            elif opened + len(op.meta.tx_ids) > limit:
                results.append([int(ResultCode.TOO_MANY_OPEN), limit])
            else:
                opened += len(op.meta.tx_ids)
                results.append([0])
        batcher.answered(request, ("ok", results), False)
        assert requests < 1000
    return opened


def test_a_refusal_of_many_is_taken_apart_until_as_many_as_fit_are_in() -> None:
    seed = 7
    rng = random.Random(seed)
    for _ in range(20):
        count, limit = rng.randrange(1, 40), rng.randrange(0, 40)
        batcher = a_batcher()
        outcomes = []
        ids = [f"whole-{n}" for n in range(count)]
        column = (list(range(count)), [1] * count, [b"x"] * count)
        whole = PrepareBlock("a", -1, 0, 0, ids, ids, [1] * count, {("a", 0): column}, count)
        outcomes.append(collecting(whole))
        batcher.prepare(whole, 0.0)
        for number in range(count):
            one = block(f"tx-{number}")
            outcomes.append(collecting(one))
            batcher.prepare(one, 0.0)
        opened = answer(batcher, limit)
        assert opened == min(limit, 2 * count), (seed, count, limit)
        problems = [outcome for (outcome,) in outcomes]
        assert all(not isinstance(p, Failure) for p in problems)
        assert sum(len(p) for p in problems if not isinstance(p, Failure)) == 2 * count - opened


def test_a_topic_that_is_gone_fails_those_who_send_to_it_and_nobody_else() -> None:
    batcher = a_batcher()
    outcomes = {}
    for number in range(6):
        messages = [Message("a", b"x")] + ([Message("gone", b"x")] if number % 3 == 0 else [])
        one = block(f"tx-{number}", *messages)
        outcomes[number] = collecting(one)
        batcher.prepare(one, 0.0)
    answer(batcher, 100, deleted="gone")
    refused = {n for n, (outcome,) in outcomes.items() if outcome}
    assert refused == {0, 3} and all(len(o) == 1 for o in outcomes.values())


def test_results_by_operation_are_read_as_brokers_write_them() -> None:
    assert problems_of([0], 3) == {} == problems_of([int(ResultCode.DUPLICATE), "COMMITTED"], 3)
    assert problems_of([int(ResultCode.PARTIAL), [[2, 6, None], [0, 0]]], 3) == {2: (6, None)}
    assert problems_of([int(ResultCode.MALFORMED)], 2) == {0: (11, None), 1: (11, None)}


# ---------------------------------------------------------------- lingers and deadlines


def test_a_lone_transaction_goes_at_once_and_others_gather_while_it_is_under_way() -> None:
    batcher = a_batcher()
    assert batcher.due(True) == float("inf")
    batcher.prepare(block("a"), 5.0)
    assert batcher.due(nothing_under_way=True) == float("-inf")
    assert batcher.due(nothing_under_way=False) == pytest.approx(5.001)
    for number in range(40):
        batcher.prepare(block(f"tx-{number}", Message("a", b"x" * 300)), 5.0)
    assert batcher.due(nothing_under_way=False) == float("-inf"), "a request is full"


def test_those_who_were_answered_together_are_waited_for_a_moment() -> None:
    batcher = a_batcher()
    for number in range(3):
        batcher.prepare(block(f"tx-{number}"), 0.0)
    request = batcher.build()
    assert request is not None
    batcher.answered(request, ("ok", [[0]]), False)
    batcher.decide(DecisionBlock(True, ("tx-0",)), 5.0)
    assert batcher.due(nothing_under_way=True) == pytest.approx(5.001)
    batcher.decide(DecisionBlock(True, ("tx-1",)), 5.0)
    batcher.decide(DecisionBlock(True, ("tx-2",)), 5.0)
    assert batcher.due(nothing_under_way=True) == float("-inf")


def test_what_waited_past_its_deadline_was_surely_not_sent() -> None:
    batcher = a_batcher()
    one = block("a")
    outcomes = collecting(one)
    one.deadline = 10.0
    batcher.prepare(one, 0.0)
    assert batcher.expire(9.9) == 10.0 and not outcomes
    batcher.expire(10.0)
    assert isinstance(outcomes[0], Failure) and outcomes[0].nothing_done


# ---------------------------------------------------------------- streams of plain messages


class Stream:
    """A partition's stream, and the callbacks it called."""

    def __init__(self) -> None:
        self.released = 0
        self.refused: list[str] = []
        self.heard: list[int] = []
        self.stream = PartitionStream(
            "t", 0, "p", 30.0, self._released, self.refused.append, lambda t, p: None, self.heard.append
        )

    def _released(self, size: int) -> None:
        self.released += size

    def add(self, *row_values: bytes, now: float = 0.0) -> list[SendFuture]:
        return queued(self.stream, *row_values, now=now)

    def take(self) -> tuple[tuple[int, int, int], Any]:
        """((epoch, sequence, rows), batch)."""
        frame, batch = self.stream.take(1000)
        ((_, meta, _, _),) = decode_ops(frame)
        return (meta.epoch, meta.seq, meta.count), batch


def test_one_batch_at_a_time_each_with_the_next_number() -> None:
    box = Stream()
    futures = box.add(b"a", b"b")
    header, batch = box.take()
    assert header == (0, 0, 2) and not box.stream.waits
    box.add(b"c")
    assert not box.stream.waits, "nothing overtakes"
    box.stream.finished(batch, [0, [10, 99]], False)
    assert [f.result(0).offset for f in futures] == [10, 11] and box.released == 2
    assert box.take()[0] == (0, 1, 1)


@settings(max_examples=200, deadline=None)
@given(
    parcels=st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=12), min_size=1, max_size=6),
    rooms=st.lists(st.integers(-5, 200), min_size=1, max_size=5),
    late=st.booleans(),
)
def test_batches_are_filled_row_by_row_however_the_rows_were_handed_over(
    parcels: list[list[int]], rooms: list[int], late: bool
) -> None:
    box = Stream()
    rows = [bytes([number % 256]) * size for sizes in parcels for number, size in enumerate(sizes)]
    futures: list[Any] = []
    for number, sizes in enumerate(parcels):
        futures += box.add(*(bytes([n % 256]) * size for n, size in enumerate(sizes)), now=float(number))
    sent = turn = 0
    while box.stream.waits:
        room, turn = rooms[turn % len(rooms)], turn + 1
        frame, batch = box.stream.take(room)
        expected, size = [], 0
        for row in rows[sent:]:
            if expected and size + len(row) > room:
                break
            expected.append(row)
            size += len(row)
        assert batch.rows == expected and batch.size == size and frame.endswith(b"".join(expected))
        if late and turn == 2:  # the rest expires while a batch is under way
            box.stream.expire(1e9, Failure(FailureKind.UNAVAILABLE))
        box.stream.finished(batch, [0, [100 + sent, 7]], False)
        sent += len(expected)
        assert box.stream.queued_bytes == (0 if late and turn >= 2 else sum(map(len, rows[sent:])))
    assert [f.result(0).offset for f in futures[:sent]] == list(range(100, 100 + sent))
    assert all(isinstance(f.exception(0), Unavailable) for f in futures[sent:])
    assert sent == len(rows) or late
    assert box.released == sum(map(len, rows)) and box.stream.idle


def test_a_repetition_that_was_stored_before_counts_as_stored() -> None:
    box = Stream()
    (future,) = box.add(b"a")
    _, batch = box.take()
    box.stream.finished(batch, [int(ResultCode.DUPLICATE), [5, 99]], True)
    assert future.result(0).offset == 5


def test_after_an_unknown_fate_a_new_epoch_begins() -> None:
    box = Stream()
    (lost,) = box.add(b"a")
    _, batch = box.take()
    box.stream.finished(batch, Failure(FailureKind.UNKNOWN), True)
    assert isinstance(lost.exception(0), OutcomeUnknown)
    box.add(b"b")
    assert box.take()[0] == (1, 0, 1)


@pytest.mark.parametrize(
    "ending", [Failure(FailureKind.UNAVAILABLE), [int(ResultCode.UNKNOWN_TOPIC)]], ids=["not sent", "refused"]
)
def test_the_number_of_a_batch_that_was_refused_is_not_used_again(ending: Any) -> None:
    """A late copy of it may still be stored: the next batch would be answered with its offsets, and be
    lost."""
    box = Stream()
    (refused,) = box.add(b"a")
    _, batch = box.take()
    box.stream.finished(batch, ending, False)
    assert isinstance(refused.exception(0), (Unavailable, UnknownTopic))
    box.add(b"b")
    assert box.take()[0] == (1, 0, 1)


def test_a_broker_that_has_forgotten_the_stream_gets_the_batch_in_a_new_epoch() -> None:
    box = Stream()
    (future,) = box.add(b"a")
    _, batch = box.take()
    box.stream.finished(batch, [int(ResultCode.OUT_OF_SEQUENCE), 0], False)
    box.add(b"b")
    header, again = box.take()
    assert header == (1, 0, 1) and again is batch
    box.stream.finished(again, [0, [0, 1]], False)
    assert future.result(0).offset == 0 and box.take()[0] == (1, 1, 1)


def test_but_not_if_an_earlier_attempt_may_have_been_stored() -> None:
    box = Stream()
    (future,) = box.add(b"a")
    _, batch = box.take()
    box.stream.finished(batch, [int(ResultCode.OUT_OF_SEQUENCE), 0], True)
    assert isinstance(future.exception(0), OutcomeUnknown)


def test_the_end_of_a_producer_ends_what_waits() -> None:
    box = Stream()
    futures = box.add(b"a", b"b")
    box.stream.end_all(Failure(FailureKind.CLOSED))
    assert all(f.exception(0) is not None for f in futures) and box.released == 2 and box.stream.idle
