"""Dead letters: listing them, sending them back to their group or to another topic, dropping them.

The dead letters of a group are an internal topic with one partition in each broker group. Which of them are
left is share state, like that of any topic that a group reads: one that was redriven or dropped is final. A
broker copies a redriven letter into the group's topic of retries and makes it final with one entry of its
log. Into another topic it is sent by a transaction, whose decision makes it final (``Redirecting``). So it is
redriven once and to one topic, however often, by whomever and to whatever topics that is asked for.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from heapq import merge
from itertools import islice
from typing import Any, NamedTuple

import google_crc32c

from escrowmq.actors.admin.types import DeadLetter, Redriven
from escrowmq.actors.client.background import Background
from escrowmq.actors.client.call_arguments import check_by, check_group, check_reason
from escrowmq.actors.client.failures import Failure
from escrowmq.actors.client.router import Router, result_of
from escrowmq.actors.consumer.records import trim_runs
from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.actors.producer.core import ProducerCore
from escrowmq.actors.producer.encoding.blocks import Outcome
from escrowmq.actors.producer.encoding.encoder import TxPlan, crc32c
from escrowmq.actors.producer.transactions.offset_blocks import first_block
from escrowmq.actors.producer.transactions.transaction import Transaction
from escrowmq.replication.calling.answers import FinalRanges
from escrowmq.replication.errors import (
    ConfigError,
    EscrowMQError,
    InvalidMessage,
    TransactionSettled,
    Unavailable,
    UnknownDeadLetter,
    UnknownGroup,
)
from escrowmq.replication.format.codec import Row, decode_lazily, encode_row
from escrowmq.replication.format.forwarded import BY, FIRST_FAILED, REASON, UNDECODABLE, history
from escrowmq.replication.format.internal_topics import dead_topic
from escrowmq.replication.format.packing import PackedRows, UnsoundValue
from escrowmq.replication.format.share_ops import (
    BY_TABLE,
    DROPPED,
    LETTER_RANGES_MAX,
    nack,
    pre_letters,
    share_ack,
)
from escrowmq.replication.message_headers import REPLY_TO, TAG
from escrowmq.replication.model import NO_ID, ResultCode, TransactionState

# ------------------------------------------------------------------------------------------------------------
# Sends dead letters into a topic, each once: as transactions that are decided where the letters lie.
#
# The PREPARE holds the letters in their own broker group, which opens it only if all of them are open and
# nobody else holds one. The COMMIT makes them final there, in the entry in which it is decided; whatever of
# the topic lies in other broker groups follows it, as in any transaction. So a letter is in the topic if, and
# only if, this redrive has made it final, whoever else redrives or drops it at the same time.
#
# A transaction that its client has left is rolled back by the leader when its time is over: nobody is asked.

#: The app of these transactions.
APP = "escrowmq-redrive"
#: For so long the letters are held if the client dies; others who want them wait for longer.
HOLD_S = 10.0
#: No message that was ever sent is too large for the way out.
BYTES_MAX = 1 << 30
#: Refusals that say that letters are held, perhaps for a moment only, or are final.
_HELD = (ResultCode.OFFSETS_PENDING, ResultCode.RETRY)
_GONE = (ResultCode.OFFSETS_MOVED, ResultCode.OUT_OF_RANGE)


class LettersTaken(EscrowMQError):
    """Nothing was done: somebody else has settled one of the letters meanwhile, or (``held``) is about to."""

    def __init__(self, held: bool) -> None:
        super().__init__("another operator has, or is about to settle, one of these dead letters")
        self.held = held


class Redirects:
    """What sending needs, made when it is first needed: a producer in the admin's own router."""

    def __init__(self, router: Router, timeout_s: float, background: Background | None) -> None:
        self._router, self._timeout_s, self._background = router, timeout_s, background
        self._core: ProducerCore | None = None
        self._lock = threading.Lock()

    def into(self, topic: str) -> Redirecting:
        """Raises UnknownTopic."""
        with self._lock:
            if self._core is None:
                config = ProducerConfig(
                    linger_ms=0.0,
                    transaction_linger_ms=0.0,
                    delivery_timeout_s=self._timeout_s,
                    transaction_timeout_s=HOLD_S,
                    message_bytes_max=BYTES_MAX,
                    transaction_bytes_max=BYTES_MAX,
                    buffer_bytes=BYTES_MAX,
                )
                self._core = ProducerCore(
                    self._router.info,
                    APP,
                    config,
                    turns=self._router,
                    answers_checks=False,
                    background=self._background,
                )
        self._core.catalog.forget(topic)
        return Redirecting(self._core, topic)


class Redirecting:
    """Sends into one topic."""

    def __init__(self, core: ProducerCore, topic: str) -> None:
        self._core, self._topic, self._partitions = core, topic, core.catalog.partitions(topic)

    def send(
        self, group: str, partition: int, letters: Sequence[tuple[int, DeadLetter]], topic_id: int, by: str
    ) -> None:
        """Returns when all of them (offsets, in order, and content) can be read there, and are final.

        Raises LettersTaken: nothing was done. OutcomeUnknown: all of it or nothing will have been done, in a
        few seconds.
        """
        held = pre_letters(
            group, partition, ranges_of(offset for offset, _ in letters), topic_id, self._topic, by
        )
        tx = _Redrive(self._core, partition, held)
        for _, letter in letters:
            key = f"{topic_id}-{letter.id}".encode() if letter.key is None else letter.key
            row = encode_row(letter.key, letter.value, letter.headers, tx.tx_id)
            tx.add_row(self._topic, crc32c(key) % self._partitions, row)
        try:
            tx.prepare()
            tx.commit()
        except TransactionSettled as settled:
            if settled.recorded_state != TransactionState.ROLLBACK.value:
                raise
            raise LettersTaken(held=False) from settled  # its time was over


class _Redrive(Transaction):
    """A transaction with the copies of dead letters that lie in the broker group ``gid``, its home."""

    __slots__ = ("_frame", "_gid")

    def __init__(self, core: ProducerCore, gid: int, frame: bytes) -> None:
        super().__init__(core, None, None, HOLD_S, False, local=False)
        self._gid, self._frame = gid, frame

    def add_row(self, topic: str, partition: int, row: bytes) -> None:
        """Adds a message that is encoded already."""
        self._encoded.append((topic, partition, row))
        self._size += len(row)

    def _made_plan(self, home_group: int | None = None) -> TxPlan:
        plan = super()._made_plan(self._gid)
        block = first_block(plan)
        block.offsets = (self._frame,)
        block.size, plan.size = block.size + len(self._frame), plan.size + len(self._frame)
        block.digests = (google_crc32c.extend(block.digests[0], self._frame),)
        self._size = plan.size
        return plan

    def _after_prepare(self, plan: TxPlan, outcome: Outcome) -> TransactionState | None:
        if not isinstance(outcome, Failure) and outcome and outcome[0][0] in (*_HELD, *_GONE):
            self._not_prepared()
            raise LettersTaken(held=outcome[0][0] in _HELD)
        return super()._after_prepare(plan, outcome)


def ranges_of(offsets: Iterable[int]) -> list[int]:
    """First, last, first, last, ... of offsets in ascending order."""
    flat: list[int] = []
    for offset in offsets:
        if flat and flat[-1] == offset - 1:
            flat[-1] = offset
        else:
            flat += [offset, offset]
    return flat


#: Upper bound of ``limit``.
LIST_MAX = 100_000
#: Bytes of one fetch, and for how long its answer is waited for: a process that died may give none.
FETCH_BYTES, FETCH_S = 1 << 20, 5.0
#: Dead letters of one request: each is read, copied and written by a leader.
AT_A_TIME = 500
#: Requests of a redrive with a rate: so many a second, so that consumers see an even stream.
STEPS_PER_S = 5
RATE_MAX = 1_000_000
#: Attempts of a request that found no room in an entry, and the pause between them.
TRIES_MAX, RETRY_S = 100, 0.05
#: The pause if another redrive holds a letter: all attempts together outlast a client that has died.
HELD_S = 0.3
#: Dead letters of one transaction into another topic, by their size: each stays in memory until it is sent.
PORTION_BYTES = 4 << 20

#: Answers to a request that passes later.
_NOT_YET = (ResultCode.RETRY, ResultCode.OFFSETS_PENDING)

#: Called with how many are done, and how many there are.
Progress = Callable[[int, int], object]


class LetterId(NamedTuple):
    """Of a dead letter: partition (as the broker group that hosts it) and offset in the topic."""

    partition: int
    offset: int

    @property
    def text(self) -> str:
        """As operators write it."""
        return f"{self.partition}-{self.offset}"


class DeadLetters:
    """Those of all groups, through the leaders of all broker groups. Thread-safe."""

    def __init__(
        self,
        router: Router,
        timeout_s: float,
        *,
        pause: Callable[[float], None],
        exists: Callable[[str], bool],
    ) -> None:
        """``exists``: whether there is a consumer group of this name, with dead letters or without."""
        self._router, self._timeout_s, self._pause, self._exists = router, timeout_s, pause, exists

    # ------------------------------------------------------------ listing

    def listed(self, group: str, limit: int, since_ms: int, reason: str | None) -> list[DeadLetter]:
        """See :meth:`Admin.dead_letters`."""
        if type(limit) is not int or not 1 <= limit <= LIST_MAX:
            raise ConfigError(f"limit must be 1 to {LIST_MAX}, not {limit!r}")
        check_reason(reason)
        left = self._left(group)
        every = (self._of_partition(group, p, final) for p, final in left.items())
        found = merge(*every, key=lambda letter: letter.died)
        wanted = (
            letter
            for letter in found
            if letter.died >= since_ms and (reason is None or reason in letter.reason)
        )
        return list(islice(wanted, limit))

    def one(self, group: str, id: str) -> DeadLetter:
        """The dead letter with this id. Raises UnknownDeadLetter if it is not there (any more)."""
        letter = _parsed(group, id)
        final = self._left(group).get(letter.partition)
        if final is None or not final.start <= letter.offset < final.end or final.has(letter.offset):
            raise UnknownDeadLetter(group, [id])
        return self._letter_at(group, letter, final.topic_id)

    def _letter_at(self, group: str, letter: LetterId, topic_id: int) -> DeadLetter:
        """Raises UnknownDeadLetter if retention has removed it meanwhile."""
        found = next(
            self._read(group, letter.partition, [(letter.offset, letter.offset + 1)], topic_id), None
        )
        if found is None:
            raise UnknownDeadLetter(group, [letter.text])
        return found

    def _left(self, group: str) -> dict[int, FinalRanges]:
        """For each partition of the group's topic, which of its dead letters are final; none of a group that
        has never had retries. Raises UnknownGroup."""
        if type(group) is not str:
            raise ConfigError(f"a group's name is a str, not {group!r}")
        check_group(group)
        asked = [self._ask_final(group, gid) for gid in range(self._router.info.groups)]
        answers: list[FinalRanges | None] = [result_of(future, self._timeout_s) for future in asked]
        found = {gid: answer for gid, answer in enumerate(answers) if answer is not None}
        if not found and not self._exists(group):
            raise UnknownGroup(group)
        return found

    def _ask_final(self, group: str, gid: int) -> Future[FinalRanges | None]:
        what = group, dead_topic(group), gid
        return self._router.leader_call(gid, "share_final", *what, timeout_s=self._timeout_s)

    def _of_partition(self, group: str, partition: int, final: FinalRanges) -> Iterator[DeadLetter]:
        return self._read(group, partition, final.left(), final.topic_id)

    def _read(
        self, group: str, partition: int, ranges: Iterable[tuple[int, int]], topic_id: int
    ) -> Iterator[DeadLetter]:
        for begin, end in ranges:
            at = begin
            while at < end:
                start, runs, blob = self._fetched(group, partition, at, end, topic_id)
                if start > at:  # retention has removed them since they were listed
                    at = start
                    continue
                kept, rows = trim_runs(runs, memoryview(blob), at, end)
                times = [ts_ms for _, count, ts_ms, _ in kept for _ in range(count)]
                for row, problem in _rows(bytes(rows), len(times)):
                    yield _letter(LetterId(partition, at), row, times[at - kept[0][0]], problem)
                    at += 1

    def _fetched(self, group: str, gid: int, start: int, end: int, topic_id: int) -> tuple[int, Any, bytes]:
        """``start``, and runs and rows from there on, from the leader, which has all of them. If it has them
        only from a later offset on, that one and no rows.

        A replica that is taken for the leader may lag, and may still have the topic of an earlier group of
        the name: so ``topic_id`` is named. Raises UnknownGroup if there is a later one."""
        topic, router = dead_topic(group), self._router
        request = (topic, gid, start, end, *([] if topic_id == NO_ID else [topic_id]))
        for _ in range(TRIES_MAX):
            leader = router.channels[gid].leader
            if leader is not None:
                code, first, runs, blob = _fetch(
                    router.replica_call(gid, leader, "fetch", [request], FETCH_BYTES, 0.0)
                )
                if code == ResultCode.OTHER_TOPIC and first > topic_id:
                    raise UnknownGroup(group)
                if code == ResultCode.OUT_OF_RANGE and first > start:
                    return first, (), b""
                if code == ResultCode.OK and runs:
                    return start, runs, blob
            self._pause(RETRY_S)
            # Any call that only leaders answer finds the one that leads now.
            result_of(router.leader_call(gid, "topics", [topic], timeout_s=self._timeout_s), self._timeout_s)
        raise Unavailable(f"no leader of group {gid} serves {topic!r}", 1.0)

    # ------------------------------------------------------------ redriving and dropping

    def redrive(
        self,
        group: str,
        ids: Sequence[str] | None,
        to: Redirecting | None,
        rate: float | None,
        by: str,
        progress: Progress,
    ) -> Redriven:
        """See :meth:`Admin.redrive`."""
        if rate is not None and (type(rate) not in (int, float) or not 0 < rate <= RATE_MAX):
            raise ConfigError(f"rate must be messages per second, up to {RATE_MAX}, not {rate!r}")
        signed, left = _signed(by), self._left(group)
        wanted, already = self._wanted(group, ids, left)
        total = sum(map(len, wanted.values()))
        progress(0, total)
        done, unreadable, looked_at, begun = 0, 0, 0, self._router.clock()
        for partition, offsets in _portions(wanted, rate):
            topic_id = left[partition].topic_id
            if to is None:
                sent, lost = self._nacked(group, partition, offsets, signed, topic_id), 0
            else:
                sent, lost = self._sent(group, partition, offsets, to, topic_id, signed)
            done, unreadable = done + sent, unreadable + lost
            already += len(offsets) - sent - lost
            looked_at += len(offsets)
            progress(looked_at, total)
            if rate is not None and looked_at < total:
                self._pause(max(begun + done / rate - self._router.clock(), 0.0))
        return Redriven(done, already, unreadable)

    def _still_left(self, group: str, partition: int, offsets: Sequence[int], topic_id: int) -> list[int]:
        """Those that no other operator has redriven or dropped since they were listed, which may be long ago.
        Raises UnknownGroup."""
        final = result_of(self._ask_final(group, partition), self._timeout_s)
        if final is None or final.topic_id != topic_id:
            raise UnknownGroup(group)
        return [offset for offset in offsets if not final.has(offset)]

    def _sent(
        self, group: str, partition: int, offsets: Sequence[int], to: Redirecting, topic_id: int, by: str
    ) -> tuple[int, int]:
        """Sends those that can be read to another topic; returns how many, and how many cannot be read."""
        sent = unreadable = failures = 0
        while offsets := self._still_left(group, partition, offsets, topic_id):
            letters, seen = self._portion(group, partition, offsets, topic_id)
            try:
                if letters:
                    to.send(group, partition, letters, topic_id, by)
            except LettersTaken as taken:
                failures += 1
                if failures == TRIES_MAX:
                    raise _held(group) from taken
                self._pause(HELD_S if taken.held else 0.0)
                continue
            sent, unreadable = sent + len(letters), unreadable + seen - len(letters)
            offsets = offsets[seen:]
        return sent, unreadable

    def _portion(
        self, group: str, partition: int, offsets: Sequence[int], topic_id: int
    ) -> tuple[list[tuple[int, DeadLetter]], int]:
        """The first of these that can be read, and up to which one of ``offsets`` they go."""
        letters, size, ranges = list[tuple[int, DeadLetter]](), 0, 0
        flat = ranges_of(offsets)
        spans = [(flat[at], flat[at + 1] + 1) for at in range(0, len(flat), 2)]
        for letter in self._read(group, partition, spans, topic_id):
            offset = _parsed(group, letter.id).offset
            size += len(letter.value)
            ranges += not letters or letters[-1][0] != offset - 1
            if letters and (size > PORTION_BYTES or ranges > LETTER_RANGES_MAX):
                return letters, bisect_left(offsets, offset)
            if letter.problem is None:
                letters.append((offset, letter))
        return letters, len(offsets)

    def drop(self, group: str, ids: Sequence[str] | None, by: str) -> int:
        """See :meth:`Admin.drop_dead_letters`."""
        signed = _signed(by)
        left = self._left(group)
        wanted, _ = self._wanted(group, ids, left)
        dropped = 0
        for partition, offsets in _portions(wanted, None):
            topic_id = left[partition].topic_id
            if waiting := self._still_left(group, partition, offsets, topic_id):
                self._acked(group, partition, waiting, topic_id, f"{DROPPED} {signed}")
            dropped += len(waiting)
        return dropped

    def _wanted(
        self, group: str, ids: Sequence[str] | None, left: Mapping[int, FinalRanges]
    ) -> tuple[dict[int, list[int]], int]:
        """The offsets of each partition in order, and how many of those named are final already. Raises
        UnknownDeadLetter if one was never there."""
        if ids is None:
            return {p: [n for span in final.left() for n in range(*span)] for p, final in left.items()}, 0
        if isinstance(ids, str) or not isinstance(ids, Sequence):
            raise ConfigError(f"ids must be a list of ids of dead letters, not {ids!r}")
        named = {_parsed(group, id) for id in ids}
        unknown = [n.text for n in named if n.partition not in left or n.offset >= left[n.partition].end]
        if unknown:
            raise UnknownDeadLetter(group, sorted(unknown))
        wanted: dict[int, list[int]] = {}
        for letter in sorted(named):
            if not left[letter.partition].has(letter.offset):
                wanted.setdefault(letter.partition, []).append(letter.offset)
        return wanted, len(named) - sum(map(len, wanted.values()))

    def _nacked(self, group: str, partition: int, offsets: Sequence[int], signed: str, topic_id: int) -> int:
        """Gives them to their group again; returns how many there were that were not final yet."""
        redriven = 0
        for _ in range(TRIES_MAX):
            many = len(offsets)
            where = group, dead_topic(group), partition
            code, told = self._submit(
                partition, nack(*where, offsets, [BY_TABLE] * many, [""] * many, "", signed, topic_id)
            )
            if code == ResultCode.OK:
                return redriven + many
            if code != ResultCode.PARTIAL:
                raise _refused(group, partition, offsets, code, told)
            problems = {at: (code, info) for at, code, info in told}
            again = [at for at, (code, _) in problems.items() if code in _NOT_YET]
            final = sum(code == ResultCode.DUPLICATE for code, _ in problems.values())
            if len(again) + final < len(problems):
                known = (*_NOT_YET, ResultCode.DUPLICATE)
                code, info = next(found for found in problems.values() if found[0] not in known)
                raise _refused(group, partition, offsets, code, info)
            redriven += many - len(problems)
            if not again:
                return redriven
            held = any(code == ResultCode.OFFSETS_PENDING for code, _ in problems.values())
            offsets = [offsets[at] for at in sorted(again)]
            self._pause(HELD_S if held else RETRY_S)
        if held:
            raise _held(group)
        raise Unavailable(f"broker group {partition} has no room to redrive dead letters of {group!r}", 1.0)

    def _acked(self, group: str, partition: int, offsets: Sequence[int], topic_id: int, audited: str) -> None:
        request = share_ack(group, dead_topic(group), partition, ranges_of(offsets), topic_id, audited)
        for _ in range(TRIES_MAX):
            code, told = self._submit(partition, request)
            if code in (ResultCode.OK, ResultCode.DUPLICATE):
                return
            if code not in _NOT_YET:
                raise _refused(group, partition, offsets, code, told)
            self._pause(HELD_S)
        raise _held(group)

    def _submit(self, gid: int, request: bytes) -> tuple[int, Any]:
        (result,) = result_of(self._router.submit(gid, request, self._timeout_s), self._timeout_s)
        return result[0], result[1] if len(result) > 1 else None


def _fetch(asked: Future[Any]) -> tuple[int, int, Any, bytes]:
    """Code, first offset, runs and rows of an answer. One that does not come, or not as it should, is
    UNKNOWN_TOPIC: there is no such topic to be had there."""
    try:
        ((_, _, code, first, _, runs, blob),) = asked.result(FETCH_S)
    except Exception:  # a call of a dead or dying actor can fail in any way
        return ResultCode.UNKNOWN_TOPIC, 0, (), b""
    return code, first, runs, blob


def _signed(by: object) -> str:
    return f"operator:{check_by(by)}"


def _parsed(group: str, id: object) -> LetterId:
    partition, dash, offset = str(id).partition("-")
    numbers = (partition, offset)
    if (
        type(id) is not str
        or not dash
        or not all(n.isascii() and n.isdecimal() and len(n) < 16 for n in numbers)
    ):
        raise InvalidMessage(f"the id of a dead letter of {group!r} is like 0-17, not {id!r:.80}")
    return LetterId(int(partition), int(offset))


def _portions(wanted: Mapping[int, Sequence[int]], rate: float | None) -> Iterator[tuple[int, Sequence[int]]]:
    size = AT_A_TIME if rate is None else max(1, min(AT_A_TIME, int(rate / STEPS_PER_S)))
    for partition, offsets in wanted.items():
        for at in range(0, len(offsets), size):
            yield partition, offsets[at : at + size]


def _held(group: str) -> Unavailable:
    text = f"another redrive of dead letters of {group!r} is under way; try again when it is done"
    return Unavailable(text, 10.0)


def _refused(group: str, partition: int, offsets: Sequence[int], code: int, info: object) -> EscrowMQError:
    if code in (ResultCode.OTHER_TOPIC, ResultCode.UNKNOWN_TOPIC):
        return UnknownGroup(group)
    if code == ResultCode.OUT_OF_RANGE:
        return UnknownDeadLetter(group, [LetterId(partition, offset).text for offset in offsets])
    return EscrowMQError(
        f"the broker refused it for dead letters of {group!r}: {ResultCode(code).name} {info!r}"
    )


def _rows(blob: bytes, count: int) -> Iterator[tuple[Row, str | None]]:
    """Each row, and why its value cannot be shown, or None."""
    rows = decode_lazily(blob, count)
    if not isinstance(rows, PackedRows):
        yield from ((row, None) for row in rows)
        return
    for at, bare in enumerate(rows.without_values()):
        try:
            yield rows.unpacked(at, at + 1)[0], None
        except UnsoundValue as error:
            yield bare, error.reason


def _letter(id: LetterId, row: Row, died: int, problem: str | None) -> DeadLetter:
    key, value, headers, tx_id = row
    told = headers or {}
    past = history(told)
    if UNDECODABLE in told:
        problem = "the log has something else than a message there; the value is its bytes"
    return DeadLetter(
        id=id.text,
        origin=past.origin,
        attempts=past.attempt,
        first_failed=past.first_failed_ms if FIRST_FAILED in told and past.first_failed_ms >= 0 else None,
        died=died,
        reason=told.get(REASON, b"").decode(errors="replace"),
        by=told.get(BY, b"").decode(errors="replace"),
        key=key,
        value=value,
        headers={k: v for k, v in told.items() if not k.startswith("escrowmq-") or k in (TAG, REPLY_TO)},
        tx_id=tx_id,
        problem=problem,
    )
