"""Planted faults in share consumers that want tags, and in share groups that are deleted under them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from escrowmq.actors.share_consumer import held_batches, session
from escrowmq.actors.share_consumer.held_batches import Acquired
from escrowmq.actors.share_consumer.session import Asking
from escrowmq.replication.format import forwarded
from escrowmq.replication.message_headers import TAG
from escrowmq.replication.replica.lease_dispatcher import LeaseDispatcher
from escrowmq.replication.replica.share_admission import ShareAdmission
from tests.controls.planting import plant
from tests.controls.scenes import world
from tests.controls.share_faults import shared
from tests.sim.sharing import deletions, layout, tags

_SEVERAL = world({"across": 0.0, "tables": None, "crowd": False})


def clients_share(patch: pytest.MonkeyPatch) -> None:
    """Members of share groups are the clients' own code: there are several broker groups."""
    shared(patch)
    _SEVERAL(patch)


def tagged(patch: pytest.MonkeyPatch) -> None:
    """One of the groups wants tags."""
    clients_share(patch)
    patch.setattr(tags, "SHARE", 1.0)


@plant("any-tag-is-handed-out", "other-tag", groups=2, conditions=tagged)
def any_tag_is_handed_out(patch: pytest.MonkeyPatch) -> None:
    """A consumer that wants tags hands out every message with a tag."""
    is_tagged = Acquired._is_tagged

    def loosely(self: Acquired, headers: Mapping[str, bytes] | None, *rest: Any) -> bool:
        return TAG in (headers or {}) or is_tagged(self, headers, *rest)

    patch.setattr(Acquired, "_is_tagged", loosely)


@plant("tag-of-the-row-before", "other-tag", "passed-over", groups=2, conditions=tagged)
def tag_of_the_row_before(patch: pytest.MonkeyPatch) -> None:
    """A consumer decides about the first message that it was given by the tag of the row in front of it."""
    headers = held_batches._headers
    patch.setattr(held_batches, "_headers", lambda rows, at: headers(rows, max(at - 1, 0)))


@plant("retries-lose-their-tags", "passed-over", groups=2, conditions=tagged, start=4)
def retries_lose_their_tags(patch: pytest.MonkeyPatch) -> None:
    """The copy of a message that failed has no tag any more."""
    patch.setattr(forwarded, "_SENDERS", frozenset())


def deleted_often(patch: pytest.MonkeyPatch) -> None:
    """One of the groups is deleted again and again."""
    shared(patch)
    patch.setattr(deletions, "SHARE", 1.0)
    patch.setattr(deletions, "EVERY_S", 0.7)


@plant("topics-outlive-their-group", "acked-again", conditions=deleted_often, start=6)
def topics_outlive_their_group(patch: pytest.MonkeyPatch) -> None:
    """A share group is deleted without its topics of retries and dead letters."""
    patch.setattr(deletions, "delete_topics", lambda *asked: True)


@plant("deleted-while-members-hold", "double-lease", conditions=deleted_often, start=44, long=True)
def deleted_while_members_hold(patch: pytest.MonkeyPatch) -> None:
    """A leader deletes a share group although members hold messages of it."""
    patch.setattr(LeaseDispatcher, "members", lambda self, group: [])


def woken_by_the_deletion(patch: pytest.MonkeyPatch) -> None:
    """One of the groups is deleted again and again, and all of its members wake up and ask as soon as an
    operator sends the request."""
    deleted_often(patch)
    another_life = deletions.GroupDeletions._another_life

    def waking(self: deletions.GroupDeletions) -> None:
        another_life(self)
        for member in self._world._members:
            if member.group == self.group and self.busy:
                member._paused_until = 0.0
                member._later(0.02 * member._rng.random(), member._take)

    patch.setattr(deletions.GroupDeletions, "_another_life", waking)


@plant(
    "handed-out-while-deleted",
    "double-lease",
    conditions=woken_by_the_deletion,
    often={"slow-fsync": 60, "storm": 60},
    start=120,
    within=60,
    long=True,
)
def handed_out_while_deleted(patch: pytest.MonkeyPatch) -> None:
    """A leader goes on handing out messages of a share group whose deletion is in its log."""
    patch.setattr(ShareAdmission, "is_deleting", lambda self, group: False)


def narrowed(patch: pytest.MonkeyPatch) -> None:
    """The topic that stays has its only partition in group 0, and the other one is soon deleted for good."""
    clients_share(patch)
    patch.setattr(layout, "NARROW", (layout.TOPIC,))
    patch.setattr(layout, "FOR_GOOD", 0.7)


@plant("others-not-asked", "stuck", groups=2, conditions=narrowed, start=12, long=True)
def others_not_asked(patch: pytest.MonkeyPatch) -> None:
    """A share consumer asks only broker groups that had partitions of its topics when it began."""

    def alone(gids: Iterable[int], at_a_time: int, wait_s: float, others: Iterable[int] = ()) -> Asking:
        return Asking(gids, at_a_time, wait_s)

    patch.setattr(session, "Asking", alone)
