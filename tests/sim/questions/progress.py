"""What a leader says that groups have done with a message, compared with the log and with what members did.

A share group's state is computed again from all rows of the group's internal topics; that somebody was done
with a message, or how often it failed, must be so by the history. A contradiction is ``trace-false``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from escrowmq.replication.calling.answers import Reply
from escrowmq.replication.calling.finding_answers import ShareProgress
from escrowmq.replication.format.forwarded import ORIGIN
from escrowmq.replication.format.internal_topics import dead_topic, retry_topic
from escrowmq.replication.state.topics import Partition
from tests.history.events import identify
from tests.history.sharing import Known
from tests.sim.environment.world import Violation
from tests.sim.group.broker_app import BrokerApplication
from tests.sim.group.replica import SimReplica
from tests.sim.questions.searches import Row, rows_between
from tests.sim.questions.traces import SimMessages
from tests.sim.sharing.records import named
from tests.sim.sharing.redirects import TARGETS

if TYPE_CHECKING:
    from tests.history.sharing import Sharing


def ask_progress(
    replica: SimReplica,
    app: BrokerApplication,
    partition: Partition,
    row: Row,
    began: Mapping[str, int | None],
    history: Sharing,
) -> bool:
    """Ask what share groups have done. ``began``: from which offset on a group reads the partition; None: not
    known. False: the leader could not be asked."""
    state = app.replica.state
    origin = f"{partition.topic}/{partition.number}/{row.offset}/{row.time_ms}".encode()
    models = {group: _Model.of(app, group, partition, row.offset, origin) for group in began}
    reply: Reply | None = replica.guarded(
        lambda: SimMessages(replica, app).shares.progress(partition.topic, partition.number, row.offset)
    )
    if reply is None or reply[0] != "ok":
        return False
    about = f"{replica.name}: {origin.decode()}"
    told: dict[str, ShareProgress] = {one.group: one for one in reply[1]}
    for group, model in models.items():
        begun = state.shares.get(group, partition) is not None
        if begun != (group in told):
            raise Violation(f"{about}: of {group}, which has begun: {begun}, it says {told}", "trace-false")
        if not begun or model is None:
            continue
        known, start = history.known(group, identify(row.value)), began[group]
        handled = start is not None and start <= row.offset  # what lies before counts as final from the start
        if not model.allows(told[group]) or (handled and not _by_history(told[group], known)):
            text = f"{about}: {told[group]}, where the log has {model}, and the history {known}"
            raise Violation(text, "trace-false")
    return True


class _Model:
    """What the rows say of a message: whether it is final, offsets of its copies that are not, and where the
    last of its dead letters (as redirects.py names it) was redriven to."""

    def __init__(
        self, final: bool, retries: list[int], dead: list[int], settled: bytes, landed: list[str]
    ) -> None:
        self.final, self.retries, self.dead = final, retries, dead
        self.settled, self.landed = settled, landed

    def __repr__(self) -> str:
        left = f"final: {self.final}, retries: {self.retries}, dead: {self.dead}"
        return f"{left}; the last letter, {self.settled!r}, is in {self.landed}"

    @staticmethod
    def of(
        app: BrokerApplication, group: str, partition: Partition, offset: int, origin: bytes
    ) -> _Model | None:
        """None: some rows cannot be read now."""
        state = app.replica.state
        pair = state.shares.get(group, partition)
        found, letter = list[list[int]](), b""
        for name in (retry_topic(group), dead_topic(group)):
            topic = state.topics.topics.get(name)
            left = list[int]()
            for internal in topic.partitions.values() if topic is not None else ():
                rows = rows_between(app, internal, internal.index.start, internal.index.end)
                if rows is None:
                    return None
                done = state.shares.get(group, internal)
                copies = [row.offset for row in rows if row.headers.get(ORIGIN) == origin]
                left += [at for at in copies if done is None or not done.has(at)]
                if name == dead_topic(group) and copies:
                    letter = f"{group} {named(name, internal.topic_id)} {max(copies)}".encode()
            found.append(left)
        landed = list[str]()
        for to in TARGETS:
            topic = state.topics.topics.get(to)
            for target in topic.partitions.values() if topic is not None else ():
                rows = rows_between(app, target, target.index.start, target.index.end)
                if rows is None:
                    return None
                landed += [to for row in rows if row.key == letter]
        return _Model(pair is not None and pair.has(offset), *found, letter, landed)

    def allows(self, told: ShareProgress) -> bool:
        """Whether this is what the rows say. A copy that waits for its time is in none of them; and who has a
        message, or a copy, only the leader knows."""
        if (told.state == "leased") != (told.member != ""):
            return False
        if not self.final:
            return told.state in ("waiting", "leased")
        if self.retries:
            return told.state in ("retrying", "leased")
        if told.state == "retrying":
            return True
        if self.dead:
            return told.state == "dead"
        if told.state == "redriven":
            return [told.to] == self.landed
        return told.state == "done" or (told.state == "dropped" and not self.landed)


def _by_history(told: ShareProgress, known: Known) -> bool:
    """Whether members did what it takes."""
    if told.state == "done":
        return known.acked
    if told.state == "dead":
        return known.rejected or (told.attempt or 0) >= known.fewest
    if told.state == "retrying" and not known.redriven:
        return (told.attempt or 0) <= known.most and (told.due_ms or 0) >= known.comes_ms.get(
            told.attempt or 0, 0
        )
    return True
