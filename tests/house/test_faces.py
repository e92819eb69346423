"""Each class for asyncio has the calls of its blocking twin, with the same parameters and defaults.

What differs on purpose is listed, with its reason: a call that is added to one side alone fails here.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from escrowmq import AsyncConsumer, AsyncProducer, AsyncShareConsumer, Consumer, Producer, ShareConsumer
from escrowmq.integrations import AsyncFence, AsyncInbox, Fence, Inbox

#: ``aio`` leads from the blocking class to the other one, and ``create`` is a constructor that waits.
WAYS = {"aio", "create"}
#: Parts of fence and inbox that both faces, checks and relays call on the blocking one.
SHARED_CORE = {
    Fence: {
        *("adopt", "answers", "commit_entered", "ended_inside", "entered", "explained", "guard_early"),
        *("knows_identity", "learn_identity", "learned", "over", "raise_unless_rolled_back"),
    },
    Inbox: {"enter", "forget", "forget_committed", "refuse_lost", "refuse_undone"},
}
ONE_SIDE = {
    Producer: {
        *("epoch", "last_number", "send_numbered", "transactional_id"),  # named producers block
        "send_nowait",  # of asyncio: a blocking ``send_async`` returns at once anyway
    },
    Consumer: {"no_group_work"},
    ShareConsumer: {"ack_with"},  # of asyncio: ``ack`` cannot wait there, so a result has a call of its own
}
#: Threads there, tasks here; slices of work that a blocking call is cut into, and its progress.
PARAMETERS = {
    "ShareConsumer.run": {"threads", "tasks"},
    "ShareConsumer.ack": {"result"},
    "Fence.audit": {"slice_rows"},
    "Fence.purge": {"slice_rows", "pause_s", "told"},
    "Inbox.purge": {"slice_rows", "pause_s", "told"},
}
FACES = [
    *((Producer, AsyncProducer), (Consumer, AsyncConsumer), (ShareConsumer, AsyncShareConsumer)),
    *((Fence, AsyncFence), (Inbox, AsyncInbox)),
]


def public(kind: type) -> dict[str, Any]:
    return {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}


def parameters(call: Any) -> set[tuple[str, str, str]]:
    return {(p.name, p.kind.name, repr(p.default)) for p in inspect.signature(call).parameters.values()}


@pytest.mark.parametrize(("blocking", "asyncio"), FACES, ids=[blocking.__name__ for blocking, _ in FACES])
def test_both_faces_have_the_same_calls(blocking: type, asyncio: type) -> None:
    ours, theirs = public(blocking), public(asyncio)
    wanted = WAYS | SHARED_CORE.get(blocking, set()) | ONE_SIDE.get(blocking, set())
    assert (ours.keys() ^ theirs.keys()) - wanted == set()
    assert wanted - WAYS <= ours.keys() ^ theirs.keys(), "what is listed differs"


@pytest.mark.parametrize(("blocking", "asyncio"), FACES, ids=[blocking.__name__ for blocking, _ in FACES])
def test_a_call_has_the_same_parameters_on_both_faces(blocking: type, asyncio: type) -> None:
    ours, theirs = public(blocking), public(asyncio)
    calls = [name for name in ours.keys() & theirs.keys() if inspect.isfunction(ours[name])]
    assert calls
    for name in calls:
        differ = {one for one, *_ in parameters(ours[name]) ^ parameters(theirs[name])}
        assert differ == PARAMETERS.get(f"{blocking.__name__}.{name}", set()), f"{blocking.__name__}.{name}"
