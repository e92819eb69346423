"""How far share groups are: asked of the leaders of all broker groups, and added up."""

from __future__ import annotations

from collections.abc import Sequence

from escrowmq.actors.admin.share_types import ShareDescription, SharePartition, ShareSettings
from escrowmq.actors.client.router import Router, result_of
from escrowmq.replication.calling.share_reports import SharePlace, SharePlaces
from escrowmq.replication.format.internal_topics import dead_topic, retry_topic


def describe_shares(
    router: Router, groups: Sequence[tuple[str, ShareSettings]], timeout_s: float
) -> dict[str, ShareDescription]:
    """One description for each group; asks for all of them at once."""
    asked = {
        name: [
            router.leader_call(gid, "share_places", name, timeout_s=timeout_s)
            for gid in range(router.info.groups)
        ]
        for name, _ in groups
    }
    found: dict[str, ShareDescription] = {}
    for name, settings in groups:
        answers: list[SharePlaces] = [result_of(future, timeout_s) for future in asked[name]]
        found[name] = _described(name, settings, [row for answer in answers for row in answer.rows()])
    return found


def _described(group: str, settings: ShareSettings, rows: Sequence[SharePlace]) -> ShareDescription:
    retries = [row for row in rows if row.topic == retry_topic(group)]
    dead = [row for row in rows if row.topic == dead_topic(group)]
    own = {retry_topic(group), dead_topic(group)}
    places = [
        SharePartition(
            row.topic, row.partition, row.start, row.end, row.waiting, row.leased, row.expired, row.ranges
        )
        for row in sorted(rows)
        if row.topic not in own
    ]
    later = sum(row.later for row in retries)
    return ShareDescription(
        settings,
        tuple(places),
        sum(row.leased for row in rows),
        sum(row.waiting for row in retries) + later,
        later,
        sum(row.waiting for row in dead),
    )
