"""Becoming the only producer of a name: from then on whatever an earlier one sends is refused in every group.

First the claim's group: there an epoch is taken by one claimant only, and the answer to one that comes too
late says which epoch is the newest. Then, with this epoch, all groups. A name that nobody has used for long
may be forgotten in some groups and not in others: then those that remember say so, and it is claimed again
with an epoch above theirs.

``steps`` is pure: the caller sends the questions and brings the answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from escrowmq.actors.client.client_loop import ClientLoop
from escrowmq.actors.client.router import result_of
from escrowmq.replication.errors import (
    InvalidMessage,
    OutcomeUnknown,
    Overloaded,
    ProducerFenced,
    Unavailable,
)
from escrowmq.replication.format import ops
from escrowmq.replication.format.ops import OF_DELAYED, claim_group
from escrowmq.replication.limits import CLAIM_NAME_CHARS_MAX, has_control_characters
from escrowmq.replication.model import ResultCode

#: How often a higher epoch is tried: others claim the name at the same time, and each of them gets one.
TRIES = 20
#: Suggested pause for a caller that finds as many names in use as are kept.
LIMIT_RETRY_AFTER_S = 60.0


class Claimed(NamedTuple):
    """A name that is this producer's. ``number``: of its last committed numbered transaction, 0: none."""

    name: str
    epoch: int
    number: int


class Ask(NamedTuple):
    """Send CLAIM with this epoch to these groups."""

    groups: Sequence[int]
    epoch: int


def check_name(name: object) -> str:
    """Returns a name for a producer; raises InvalidMessage if it is not allowed."""
    if type(name) is not str or not 0 < len(name) <= CLAIM_NAME_CHARS_MAX:
        raise InvalidMessage(
            f"transactional_id must be a str of 1 to {CLAIM_NAME_CHARS_MAX} characters, not {name!r:.80}"
        )
    if has_control_characters(name) or name.endswith(OF_DELAYED):
        raise InvalidMessage(
            f"transactional_id {name!r:.80} has control characters or ends in {OF_DELAYED!r}; choose another"
        )
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(f"transactional_id {name!r:.80} is not valid Unicode: {error.reason}") from error
    return name


def fenced(what: str, newest: int) -> ProducerFenced:
    """The error of a producer whose name has another epoch in a group, ``newest``; 0: the group knows none.
    ``what``: was refused."""
    if newest == 0:
        return ProducerFenced(
            f"{what}: the broker has forgotten this producer's transactional_id, which was not used for "
            "long; close this producer and create a new one"
        )
    return ProducerFenced(
        f"{what}: another producer has claimed this one's transactional_id (with epoch {newest}); close this "
        "producer, and see that only one at a time has the id"
    )


def steps(name: str, groups: int) -> Generator[Ask, Mapping[int, Sequence[Any]], Claimed]:
    """Yields what to ask; is sent the result of each group's CLAIM; returns what is claimed.

    Raises ProducerFenced if another one claims the name meanwhile, Overloaded if no more names can be kept,
    Unavailable.
    """
    home = claim_group(name, groups)
    others = [gid for gid in range(groups) if gid != home]
    epoch = 1
    for _ in range(TRIES):
        answer = (yield Ask([home], epoch))[home]
        newest = _newest(answer)
        if newest > epoch or answer[0] == ResultCode.FENCED:
            epoch = newest + 1
            continue
        number: int = answer[1][1]
        answers = (yield Ask(others, epoch)) if others else {}
        if all(answer[0] == ResultCode.OK for answer in answers.values()):
            return Claimed(name, epoch, number)
        newest = max(map(_newest, answers.values()))
        answer = (yield Ask([home], epoch))[home]
        if answer[0] == ResultCode.FENCED:
            raise fenced(f"producer {name!r}", _newest(answer))
        epoch = newest + 1  # home had forgotten the name
    raise Unavailable(f"other producers claimed {name!r} {TRIES} times meanwhile", 1.0)


def _newest(answer: Sequence[Any]) -> int:
    """The newest epoch, from the result of a CLAIM."""
    code, info = answer
    if code == ResultCode.TOO_MANY_CLAIMS:
        text = f"the broker keeps {info} names of producers, and all were used in the last seven days"
        raise Overloaded(text, LIMIT_RETRY_AFTER_S)
    newest: int = info if code == ResultCode.FENCED else info[0]
    return newest


def claim(
    router: ClientLoop,
    name: str,
    claimant: str,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> Claimed:
    """Claims ``name`` in all groups, for ``claimant``, and returns when all of them have it.

    Raises what ``steps`` does, and Unavailable if a group does not answer within ``timeout_s``: earlier
    producers may be refused in some groups then, and not in others.
    """
    until = clock() + timeout_s
    asking = steps(name, router.info.groups)
    ask = next(asking)
    while True:
        request, left_s = ops.claim(name, ask.epoch, claimant), max(until - clock(), 0.0)
        futures = {gid: router.submit(gid, request, left_s) for gid in ask.groups}
        answers = {gid: _answer_of(future, name, gid, left_s) for gid, future in futures.items()}
        try:
            ask = asking.send(answers)
        except StopIteration as ended:
            claimed: Claimed = ended.value
            return claimed


def _answer_of(future: Future[Any], name: str, gid: int, timeout_s: float) -> Sequence[Any]:
    try:
        (answer,) = result_of(future, timeout_s)
    except (OutcomeUnknown, Unavailable) as error:
        raise Unavailable(
            f"broker group {gid} did not take the claim of {name!r} in time: nobody may write under the name "
            "until it does. 'escrowmq status' shows whether the group has a leader; then create the producer "
            "again",
            1.0,
        ) from error
    result: Sequence[Any] = answer
    return result
