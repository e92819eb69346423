"""What brokers answer to merged blocks, taken apart again.

The broker answers an operation as a whole ("all of it", or a list of exceptions by position). An exception of
one transaction must never become the answer of its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from escrowmq.actors.client.failures import Failure, FailureKind
from escrowmq.actors.producer.encoding.blocks import (
    DecisionBlock,
    InquireBlock,
    Outcome,
    PrepareBlock,
    Problems,
)
from escrowmq.replication.calling.answers import Standing
from escrowmq.replication.model import ResultCode, TransactionState

B = TypeVar("B", DecisionBlock, PrepareBlock)
#: How often a commit that was left out beside another decision is sent again.
COMMITS_AGAIN = 3
_ALL_DONE = (ResultCode.OK, ResultCode.DUPLICATE)
#: Refusals of a whole operation because it brings more than there is room for.
_LIMITS = (ResultCode.TOO_MANY_OPEN, ResultCode.TOO_MANY_SCHEDULED)
#: Refusals of a whole operation because of one topic, which the answer names.
_OF_A_TOPIC = (ResultCode.UNKNOWN_TOPIC, ResultCode.BAD_PARTITION, ResultCode.OTHER_TOPIC)


def not_open(result: Sequence[Any], block: InquireBlock) -> Problems:
    """From an answer to INQUIRE, the transactions that are not open under their home index. A settled one is
    reported as a repeated PREPARE would report it."""
    if result[0] != ResultCode.OK:
        return problems_of(result, len(block.tx_ids))
    problems: Problems = {}
    for i, row in enumerate(result[1]):
        standing = Standing(*row)
        state = standing.state
        if state == TransactionState.UNKNOWN.value or standing.home_group >= 0:
            problems[i] = (ResultCode.UNKNOWN_TX, None)
        elif state != TransactionState.PREPARE.value:
            problems[i] = (ResultCode.DUPLICATE, state)
    return problems


def opened_at(result: Sequence[Any], count: int) -> tuple[list[int], int]:
    """Where home opened each of ``count`` transactions, from its answer to their PREPARE, and the index of
    that PREPARE, which is the same for those that it opened. An empty list: the answer does not say."""
    told = result[-1] if len(result) > (2 if result[0] == ResultCode.PARTIAL else 1) else None
    if type(told) is int:
        return [told] * count, told
    return (told[1:], told[0]) if type(told) is list and len(told) == count + 1 else ([], -1)


def problems_of(result: Sequence[Any], count: int) -> Problems:
    """The exceptions in an operation's result over ``count`` transactions."""
    code = result[0]
    if code in _ALL_DONE:
        return {}
    if code == ResultCode.PARTIAL:
        return {
            problem[0]: (problem[1], problem[2] if len(problem) > 2 else None)
            for problem in result[1]
            if problem[1] != ResultCode.OK
        }
    info = result[1] if len(result) > 1 else None
    return dict.fromkeys(range(count), (code, info))


def _own_parts(blocks: Iterable[B], problems: Problems) -> Iterator[tuple[B, Problems]]:
    """Every block of one operation with its own part of the answer."""
    start = 0
    for block in blocks:
        end = start + len(block.tx_ids)
        yield block, {i - start: problems[i] for i in range(start, end) if i in problems} if problems else {}
        start = end


def finish_decided(blocks: Sequence[DecisionBlock], problems: Problems) -> list[DecisionBlock]:
    """Gives every block of one operation its own part of the answer; returns what must be committed again.

    Beside another decision on its transaction in one entry a commit is left out. If that one was a rollback
    by another instance with the same id, its condition was not met: the transaction is still open, and only
    this commit can give its caller an answer before the check.
    """
    again: list[DecisionBlock] = []
    for block, own in _own_parts(blocks, problems):
        left_out = [i for i, (code, _) in own.items() if code == ResultCode.RETRY]
        if not left_out or not block.commit or block.home_group >= 0 or block.again >= COMMITS_AGAIN:
            block.done(own)
            continue
        part = block.select(left_out)
        part.again, part.deadline = block.again + 1, block.deadline
        part.done = partial(_committed_again, block, own, left_out)
        again.append(part)
    return again


def _committed_again(block: DecisionBlock, own: Problems, left_out: Sequence[int], outcome: Outcome) -> None:
    if not isinstance(outcome, Failure):  # else it was left out, as far as is known
        for n, i in enumerate(left_out):
            own.pop(i)
            if n in outcome:
                own[i] = outcome[n]
    block.done(own)


def finish_prepared(
    blocks: Sequence[PrepareBlock], result: Sequence[Any], heard_ms: int, repeated: bool = False
) -> list[PrepareBlock]:
    """Gives every block its own part of the whole answer; returns what must be prepared again, with the time
    heard since then.

    A PREPARE that was refused as stale opened nothing, and its client has not run the local transaction,
    because it was told of no success: so it may be sent again. For a branch this is not certain: home has
    reported the transaction as open, and may have settled it by now. The branch gets ``heard_ms``, the
    group's time from this answer: a client that then still finds the transaction open at home may repeat the
    branch with that time.

    ``repeated``: an earlier attempt got no answer, and may have opened it. Then an operator or a check may
    have committed it before it was forgotten, so it is not sent again, and its caller is told.
    """
    count = sum(len(block.tx_ids) for block in blocks)
    problems = problems_of(result, count)
    if blocks[0].participants or (blocks[0].given and blocks[0].home_group < 0):
        (indexes, newest), at = opened_at(result, count), 0
        for block in blocks:
            block.opened_at = indexes[at : at + len(block.tx_ids)]
            block.newest_at = [newest] * len(block.opened_at)
            at += len(block.tx_ids)
    again: list[PrepareBlock] = []
    for block, own in _own_parts(blocks, problems):
        stale = [i for i, (code, _) in own.items() if code == ResultCode.STALE]
        if stale and block.home_group < 0 and not repeated:
            again += _divide(block, {i: own[i] for i in own if i not in stale}, [stale])
        else:
            own.update((i, (ResultCode.STALE, heard_ms)) for i in stale)
            block.done(own)
    return again


def retry_apart(blocks: Sequence[PrepareBlock], result: Sequence[Any]) -> list[PrepareBlock]:
    """What to prepare again, more finely divided, after a *whole* operation was refused.

    Refused because of one topic: transactions that touch it end here, the others are tried without them.
    Refused because of a limit (of open transactions, of waiting messages): in halves, down to single ones, so
    that as many as fit get in. Refused for any other reason: each block by itself. What cannot be divided
    further ends here.
    """
    code, info = result[0], result[1] if len(result) > 1 else None
    again: list[PrepareBlock] = []
    for block in blocks:
        count = len(block.tx_ids)
        everyone = range(count)
        if code in _LIMITS:
            if len(blocks) > 1:
                again.append(block)
            elif count == 1:
                block.done({0: (code, info)})
            else:
                again += _divide(block, {}, [everyone[: count // 2], everyone[count // 2 :]])
        elif code in _OF_A_TOPIC and info:
            hit = set(everyone) if block.home_topic == info[0] else block.touching(info[0])
            rest = [i for i in everyone if i not in hit]
            if not rest:
                block.done(dict.fromkeys(everyone, (code, info)))
            elif not hit:
                again.append(block)
            else:
                again += _divide(block, dict.fromkeys(hit, (code, info)), [rest])
        elif len(blocks) > 1:
            again.append(block)
        else:
            block.done(dict.fromkeys(everyone, (code, info)))
    for block in again:
        block.alone = code not in _OF_A_TOPIC
    return again


def _divide(block: PrepareBlock, problems: Problems, pieces: Sequence[Sequence[int]]) -> list[PrepareBlock]:
    """Parts of ``block``; when all of them are done, so is the block, with ``problems`` added."""
    gathered: Problems = dict(problems)
    failures: list[Failure] = []
    parts = [block.select(piece) for piece in pieces]
    left, untold = len(parts), len(block.tx_ids)  # untold: transactions whose part has not failed

    def part_done(part: PrepareBlock, piece: Sequence[int], outcome: Outcome) -> None:
        nonlocal left, untold
        left -= 1
        block.take_opened(part, piece)
        block.perhaps_open |= part.perhaps_open
        if isinstance(outcome, Failure):
            failures.append(outcome)
            untold -= len(piece)
        else:
            gathered.update((piece[i], problem) for i, problem in outcome.items())
        if left == 0:
            block.done(worst_of(failures, prepared=untold > len(gathered)) if failures else gathered)

    for part, piece in zip(parts, pieces, strict=True):
        part.done = partial(part_done, part, piece)
    return parts


def worst_of(failures: Sequence[Failure], *, prepared: bool) -> Failure:
    """The failure of a block some parts of which have no answer; ``prepared``: other parts are prepared.

    One part without an answer leaves the block without one: the rest must not be taken for done. Nor for
    undone: "surely nothing was done" holds only if it holds for every part.
    """
    worst = next((failure for failure in failures if not failure.nothing_done), failures[0])
    if worst.nothing_done and prepared:
        return Failure(FailureKind.UNKNOWN, worst.detail, worst.retry_after_s)
    return worst
