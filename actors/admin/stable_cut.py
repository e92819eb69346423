"""Asks the leaders of all groups for a stable cut; what is asked when is decided in admin/stable_cut.py."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from typing import NamedTuple

from escrowmq.actors.client.router import Router, result_of
from escrowmq.replication.calling.answers import GroupCut
from escrowmq.replication.errors import (
    ConfigError,
    EscrowMQError,
    OutcomeUnknown,
    TopicRecreated,
    Unavailable,
    UnknownTopic,
)
from escrowmq.replication.format.ops import HOLD_MS_MAX, TOPICS_PER_CUT_MAX, cut
from escrowmq.replication.model import ResultCode

# ------------------------------------------------------------------------------------------------------------
# Finds a stable cut through all broker groups: of every transaction all parts lie below it, or none.
#
# Three rounds of CUT, an entry in each group's log:
#
# 1. every group, until none has a decision over several groups that some branch has not carried out;
# 2. every group: the ends of the partitions, which are the cut;
# 3. every group again: if none has taken such a decision since its round 1, the cut is stable.
#
# What was decided before round 1 is everywhere before round 2 begins, and nothing that was decided later can
# be in a branch in round 2 without being seen in round 3: home decides first. Otherwise it all begins again,
# a limited number of times. Home's leaders keep such commits waiting meanwhile, for a short time, which only
# helps.
#
# Pure: the caller sends the questions and brings the answers.

#: Cuts that are tried. With commits held, one of two is stable on a busy cluster; ten failures in a row mean
#: that something stands still.
TRIES = 10
#: How often decisions that are not carried out everywhere are looked at again: branches follow within
#: milliseconds, after a change of leader within seconds.
WAIT_S = 0.005
WAIT_S_MAX = 0.1
#: For so long a branch may lag behind: a change of leader takes less than a second.
PATIENCE_S = 5.0

Cut = dict[tuple[str, int], int]


class Ask(NamedTuple):
    """Send CUT to these groups, after ``pause_s`` seconds. ``topics``: those whose ends are wanted."""

    groups: Sequence[int]
    topics: Sequence[str]
    hold_ms: int
    pause_s: float = 0.0


def find_stable_cut(topics: Sequence[str], groups: int) -> Generator[Ask, Mapping[int, GroupCut], Cut]:
    """Yields what to ask; is sent the answers, by group; returns the end of each partition.

    Raises Unavailable if no stable cut was found.
    """
    everyone = range(groups)
    if groups == 1:  # one entry, one moment
        return _ends(topics, (yield Ask(everyone, topics, 0)))
    for _ in range(TRIES):
        settled = yield from _settled(everyone)
        found = yield Ask(everyone, topics, HOLD_MS_MAX)
        last = yield Ask(everyone, (), 0)
        if is_unmoved(settled, last):
            return _ends(topics, found)
    raise Unavailable(
        f"no stable cut was found in {TRIES} tries: commits over several groups came in between each time",
        1.0,
    )


def _settled(groups: Sequence[int]) -> Generator[Ask, Mapping[int, GroupCut], dict[int, GroupCut]]:
    """Round 1: for each group an answer that knows of no decision to be carried out."""
    settled: dict[int, GroupCut] = {}
    waited, pause_s = 0.0, 0.0
    while True:
        missing = [gid for gid in groups if gid not in settled]
        answers = yield Ask(missing, (), HOLD_MS_MAX, pause_s)
        settled.update((gid, answer) for gid, answer in answers.items() if is_settled(answer))
        if len(settled) == len(groups):
            return settled
        if waited >= PATIENCE_S:
            behind = ", ".join(str(gid) for gid in groups if gid not in settled)
            raise Unavailable(
                f"transactions that group {behind} has decided are not carried out in other groups yet: "
                "escrowmq status shows a group without a leader",
                1.0,
            )
        pause_s = min(max(2 * pause_s, WAIT_S), WAIT_S_MAX)
        waited += pause_s


def is_settled(answer: GroupCut) -> bool:
    """Whether every branch has carried out what the group has decided."""
    return not answer.undone


def is_unmoved(settled: Mapping[int, GroupCut], last: Mapping[int, GroupCut]) -> bool:
    """Whether no group has decided anything over several groups since it was settled. A decision in the very
    entry of that answer stands behind the question there: before it, the answer would not have been
    settled."""
    return all(answer.decided_index < settled[gid].at for gid, answer in last.items())


def _ends(topics: Sequence[str], found: Mapping[int, GroupCut]) -> Cut:
    cut: Cut = {}
    for i, topic in enumerate(topics):
        ids = {answer.topics[i][0] for answer in found.values()}
        if len(ids) > 1:
            raise TopicRecreated(topic)
        for answer in found.values():
            flat = answer.topics[i][1]
            cut.update(((topic, flat[n]), flat[n + 1]) for n in range(0, len(flat), 2))
    return dict(sorted(cut.items()))


def stable_cut(router: Router, topics: Sequence[str], timeout_s: float) -> Cut:
    """See :meth:`Admin.stable_cut`."""
    if isinstance(topics, str) or not all(type(name) is str for name in topics):
        raise ConfigError(f"topics must be a list of names, not {topics!r}")
    names = list(dict.fromkeys(topics))
    if not names:
        raise ConfigError("name at least one topic: a cut of none has no ends")
    deadline = time.monotonic() + timeout_s
    steps = find_stable_cut(names, router.info.groups)
    ask = next(steps)
    while True:
        time.sleep(min(ask.pause_s, max(deadline - time.monotonic(), 0.0)))
        try:
            ask = steps.send(_asked(router, ask, max(deadline - time.monotonic(), 0.1)))
        except StopIteration as found:
            ends: Cut = found.value
            return ends


def _asked(router: Router, ask: Ask, timeout_s: float) -> Mapping[int, GroupCut]:
    starts = range(0, max(len(ask.topics), 1), TOPICS_PER_CUT_MAX)
    request = b"".join(cut(ask.topics[at : at + TOPICS_PER_CUT_MAX], ask.hold_ms) for at in starts)
    futures = {gid: router.submit(gid, request, timeout_s) for gid in ask.groups}
    found: dict[int, GroupCut] = {}
    for gid, future in futures.items():
        try:
            results = result_of(future, timeout_s)
        except OutcomeUnknown as error:  # it changes nothing, so there is nothing in doubt
            raise Unavailable(f"group {gid} did not say in time how far it goes", 1.0) from error
        for result in results:
            if result[0] == ResultCode.UNKNOWN_TOPIC:
                raise UnknownTopic(result[1][0])
            if result[0] != ResultCode.OK:
                raise EscrowMQError(f"group {gid} refused a cut: {ResultCode(result[0]).name}")
        first = GroupCut(*results[0][1])
        found[gid] = first._replace(topics=[topic for result in results for topic in result[1][3]])
    return found
