"""Topics that are deleted and created again, and in which life of its topic a message can be.

A life of a topic begins when the request that creates it is sent, and ends when the one that deletes it is
answered. One operator deletes and creates a topic, one request after the other, so lives do not overlap. In a
history, the topic with the id 7 that is called ``t`` is ``t#7``; a read that does not say which life it saw
names only the topic.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.history.events import BadHistory, Event
from tests.history.report import Report
from tests.history.subjects import NEVER, Message, Tx

_MARK = "#"  # no topic's name contains it


def named(topic: str, life: int | None) -> str:
    """The topic with that id; None: it is not known which."""
    return topic if life is None else f"{topic}{_MARK}{life}"


def name_of(topic: str) -> str:
    """The name that all lives of a topic have."""
    return topic.partition(_MARK)[0]


def is_same(known: tuple[str, int, int], place: tuple[str, int, int]) -> bool:
    """Whether two places of a message can be the same one, because a read did not say which life it saw."""
    one, other = known[0], place[0]
    return known[1:] == place[1:] and one != other and (one == name_of(other) or other == name_of(one))


@dataclass(slots=True)
class _Life:
    id: int
    begun: int  # when its creation was requested
    ended: int = NEVER  # when its deletion was acknowledged


class Lives:
    """All topics that the history creates; of other topics nothing is known, and they exist all the time."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._of: dict[str, list[_Life]] = {}
        self._seen: list[tuple[Message, str, Event]] = []
        self._torn: set[Tx] = set()

    def __contains__(self, topic: str) -> bool:
        return topic in self._of

    # ---------------------------------------------------------------- the operator

    def creation_invoked(self, event: Event) -> None:
        self._of.setdefault(event.fields["topic"], [])

    def created(self, invoked: Event, event: Event) -> None:
        name, id = invoked.fields["topic"], event.fields["id"]
        lives = self._of[name]
        if lives and id <= lives[-1].id:
            text = f"{name} was created with the id {id} after {lives[-1].id}"
            self._report.add("namesake", f"{text}: it is not a new topic", invoked, event)
            return
        lives.append(_Life(id, invoked.at))

    def deleted(self, invoked: Event, event: Event) -> None:
        lives = self._of.get(invoked.fields["topic"])
        if not lives:
            raise BadHistory(f"a topic is deleted that was never created: {invoked}")
        lives[-1].ended = event.at

    # ---------------------------------------------------------------- messages

    def sighted(self, message: Message, topic: str, shown: Event) -> None:
        """A message was read in the topic ``topic``, which names the life."""
        self._seen.append((message, topic, shown))

    def _of_name(self, topic: str) -> dict[str, _Life]:
        name = name_of(topic)
        return {named(name, life.id): life for life in self._of.get(name, [])}

    @staticmethod
    def _possible(message: Message, life: _Life) -> bool:
        """Whether a message can have been stored in that life: it was sent before the life ended, and not
        stored before the life began."""
        owner = message.owner
        assert owner.event is not None
        return owner.event.at <= life.ended and life.begun <= min(owner.stored_by, owner.refused_at)

    def check(self) -> None:
        """Report messages in a life that they cannot be in, and transactions that are in two."""
        first: dict[tuple[Tx, str], str] = {}
        for message, topic, shown in self._seen:
            life = self._of_name(topic).get(topic)
            if life is None:
                raise BadHistory(f"{topic} was read, and the history does not create it: {shown}")
            owner, id = message.owner, message.sent.id
            if not self._possible(message, life):
                self._report.add(
                    "namesake", f"{id} of {owner} cannot be in {topic}, and was read there", shown
                )
            elif isinstance(owner, Tx) and message.place is not None and message.place[0] == topic:
                other = first.setdefault((owner, name_of(topic)), topic)
                if other != topic and owner not in self._torn:
                    self._torn.add(owner)
                    self._report.add("torn", f"{owner} is in {other} and in {topic}", shown)

    def excuses(self, message: Message, owned: list[Message]) -> bool:
        """Whether a missing message may have gone with an earlier life of its topic. ``owned``: all messages
        of its owner, which go together."""
        topic = message.sent.topic
        lives = self._of.get(topic)
        if not lives:
            return False
        last = named(topic, lives[-1].id)
        if any(one.place is not None and one.place[0] == last for one in owned):
            return False
        return any(self._possible(message, life) for life in lives if life.ended != NEVER)
