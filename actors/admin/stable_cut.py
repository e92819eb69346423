"""Asks the leaders of all groups for a stable cut; what is asked when is decided in client/stable_cut.py."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from escrowmq.actors.client.router import Router, result_of
from escrowmq.actors.client.stable_cut import Ask, Cut, find_stable_cut
from escrowmq.replication.calling.answers import GroupCut
from escrowmq.replication.errors import (
    ConfigError,
    EscrowMQError,
    InvalidMessage,
    NotSupported,
    OutcomeUnknown,
    Unavailable,
    UnknownTopic,
)
from escrowmq.replication.format.cut_ops import TOPICS_PER_CUT_MAX, cut
from escrowmq.replication.model import ResultCode


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
        except InvalidMessage as error:  # the question is sound, so this leader does not know it yet
            raise NotSupported(
                f"group {gid} cannot tell a stable cut yet: upgrade every replica first"
            ) from error
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
