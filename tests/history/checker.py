"""One pass over a history that decides whether the promises were kept.

``feed`` takes events in the order of time and reports contradictions that show at once; ``finish``
(ending.py) checks what can only be decided at the end. Time and memory are proportional to what was sent and
read: a record that was read before costs one lookup.

Assumptions: clients record an invoke before they send anything; the last complete reads are made when nothing
else runs; all processes share one clock; the history contains the deletions and creations of a topic that is
created again (see lives.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from tests.history import sharing
from tests.history.ending import Ending
from tests.history.events import FAIL, INVOKE, OK, READ, BadHistory, Event, Sent
from tests.history.lives import Lives, is_same, name_of, named
from tests.history.offsets import GroupOffsets
from tests.history.report import Report
from tests.history.subjects import COMMITTED, NEVER, Cut, Message, Partition, Send, Tx

PENDING_PER_TX = 4  # suspected torn reads kept for one transaction


class Checker(Ending):
    """State of one pass over a history."""

    def __init__(self) -> None:
        self.report = Report()
        self.messages: dict[str, Message] = {}
        self.transactions: dict[tuple[str, str], Tx] = {}
        self.sends: list[Send] = []
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.suspected: dict[Tx, list[tuple[Cut, str]]] = {}
        self._open: dict[tuple[str, int], Event] = {}
        self._numbers: Counter[str] = Counter()
        self._positions: dict[tuple[str, str, int], int] = {}
        self._cuts: dict[str, Cut] = {}
        self._keys: dict[tuple[str, str], tuple[int, str]] = {}  # (topic, key) -> partition, first message
        self._offsets = GroupOffsets(self.report)
        self.lives = Lives(self.report)
        self.shares = sharing.Sharing(self.report)
        self._asked: dict[tuple[str, int], tuple[bool, bool]] = {}  # surely prepared, surely decided then
        self.repeated: dict[Tx, Event] = {}  # transactions with a message that was read at a second place
        self.answering: set[str] = set()  # apps of which a producer was asked at least once

    # ---------------------------------------------------------------- operations

    def feed(self, event: Event) -> None:
        self.report.counts["events"] += 1
        if event.phase == READ:
            self._read(event)
            return
        key = (event.process, event.op)
        if event.phase == INVOKE:
            if key in self._open:
                raise BadHistory(f"operation {event.op} of {event.process} was invoked twice: {event}")
            self._open[key] = event
            self._count(event.kind, INVOKE)
            if event.kind.startswith(sharing.PREFIX):
                self.shares.invoked(event)
                return
            getattr(self, f"_invoke_{event.kind.replace('-', '_')}")(event)
            return
        invoked = self._open.pop(key, None)
        if invoked is None:
            raise BadHistory(f"operation {event.op} of {event.process} ends and was not invoked: {event}")
        sure = self._asked.pop(key, (False, False))
        self._count(invoked.kind, event.phase)
        if invoked.kind.startswith(sharing.PREFIX):
            if event.phase == OK:
                self.shares.ended(invoked, event)
        elif invoked.kind == "offset-fetch":
            self._offsets.fetch_ended(invoked, event if event.phase == OK else None)
        elif event.phase == OK:
            if invoked.kind == "outcome":
                self._answered(invoked, event, *sure)
            else:
                getattr(self, f"_ok_{invoked.kind.replace('-', '_')}")(invoked, event)
        elif event.phase == FAIL:
            self._failed(invoked)
        elif event.fields.get("earlier"):
            self._owner_of(invoked).refused_at = event.at
            self.report.counts["refused for an earlier topic"] += 1

    def _count(self, kind: str, phase: str) -> None:
        self.report.operations.setdefault(kind, Counter())[phase] += 1

    def _tx(self, event: Event) -> Tx:
        key = (event.fields["app"], event.fields["tx"])
        tx = self.transactions.get(key)
        if tx is None:
            tx = self.transactions[key] = Tx(*key)
        return tx

    def _own(self, sent: Iterable[Sent], owner: Tx | Send, counter: str) -> None:
        for message in sent:
            known = self.messages.get(message.id)
            if known is None:
                self._numbers[counter] += 1
                self.messages[message.id] = Message(message, owner, self._numbers[counter])
                owner.ids.append(message.id)
            elif known.owner is not owner:
                raise BadHistory(f"two operations sent a message {message.id}: {known.owner} and {owner}")

    def _invoke_prepare(self, event: Event) -> None:
        tx = self._tx(event)
        tx.event = tx.event or event
        tx.prepares += 1
        tx.refused_at = NEVER
        self._own(event.fields["messages"], tx, "")

    def _ok_prepare(self, invoked: Event, event: Event) -> None:
        tx = self._tx(invoked)
        tx.prepared = True
        tx.stored_by = min(tx.stored_by, event.at)
        if tx.outcome == "UNKNOWN":
            tx.outcome = None  # the question was asked too early

    def _invoke_decide(self, event: Event) -> None:
        tx, outcome = self._tx(event), event.fields["outcome"]
        tx.live[outcome] += 1
        if event.fields["by"] in ("operator", "policy"):
            tx.operators.add(outcome)
        if outcome == COMMITTED and tx.invoked_at == NEVER:
            tx.invoked_at = event.at

    def _ok_decide(self, invoked: Event, event: Event) -> None:
        tx, told = self._tx(invoked), event.fields["outcome"]
        tx.told.setdefault(told, event)
        tx.outcome = None  # an earlier answer is out of date
        if told == invoked.fields["outcome"]:
            tx.granted.add(told)
        if told == COMMITTED:
            tx.acked_at = min(tx.acked_at, event.at)
            tx.stored_by = min(tx.stored_by, event.at)

    def _invoke_send(self, event: Event) -> None:
        messages = event.fields["messages"]
        known = self.messages.get(messages[0].id) if messages else None
        if known is not None and isinstance(known.owner, Send):
            send = known.owner
        else:
            send = Send(event.fields["producer"], event)
            self.sends.append(send)
        send.attempts += 1
        send.refused_at = NEVER
        self._own(messages, send, send.producer)

    def _ok_send(self, invoked: Event, event: Event) -> None:
        send = self._send_of(invoked)
        send.ok, send.acked_at = True, min(send.acked_at, event.at)
        if (places := event.fields.get("places")) is not None:
            told = [(topic, number, offset) for topic, number, offset in places]
            if send.places not in (None, told):
                self.report.add("wrong-place", f"{send} was told {send.places}, later {told}", event)
            send.places = told

    def _send_of(self, invoked: Event) -> Send:
        owner = self.messages[invoked.fields["messages"][0].id].owner
        assert isinstance(owner, Send)
        return owner

    def _owner_of(self, invoked: Event) -> Tx | Send:
        return self._send_of(invoked) if invoked.kind == "send" else self._tx(invoked)

    def _invoke_local(self, event: Event) -> None:
        self._tx(event).local = event.fields["outcome"]

    def _ok_local(self, invoked: Event, event: Event) -> None: ...

    def _invoke_stored(self, event: Event) -> None: ...

    def _ok_stored(self, invoked: Event, event: Event) -> None:
        self._tx(invoked).stored = event.fields["stored"]

    def _invoke_check(self, event: Event) -> None:
        tx = self._tx(event)
        tx.checks += 1
        self.answering.add(tx.app)

    def _ok_check(self, invoked: Event, event: Event) -> None: ...

    def _invoke_outcome(self, event: Event) -> None:
        tx = self._tx(event)
        self._asked[event.process, event.op] = (tx.prepared, bool(tx.told or tx.seen))

    def _answered(self, invoked: Event, event: Event, prepared: bool, decided: bool) -> None:
        """The broker's answer to a question: COMMITTED, ROLLBACK, PREPARE (open), or UNKNOWN (no such
        transaction).

        An answer may be as old as its question: ``prepared`` and ``decided`` say what was certain when it was
        asked. A broker may forget an outcome after 500,000 later ones; a recorder must not ask for one so
        old.
        """
        tx, outcome = self._tx(invoked), event.fields["outcome"]
        branch = invoked.fields.get("branch")
        if branch is not None:
            tx.branches[branch] = event
            return
        if outcome in tx.live:
            tx.told.setdefault(outcome, event)
        elif not decided and (tx.told or tx.seen):
            return  # decided meanwhile
        elif outcome == "PREPARE" and tx.told:
            before = ", ".join(tx.told)
            self.report.add("unstable-outcome", f"{tx} was {before} and is open again", event)
        elif outcome == "UNKNOWN" and (prepared or decided):
            tx.forgotten = tx.forgotten or event
        elif outcome == "UNKNOWN" and tx.prepared:
            return  # prepared meanwhile
        tx.outcome = outcome

    def _failed(self, invoked: Event) -> None:
        if invoked.kind == "prepare":
            self._tx(invoked).prepares -= 1
        elif invoked.kind == "decide":
            self._tx(invoked).live[invoked.fields["outcome"]] -= 1
        elif invoked.kind == "send" and invoked.fields["messages"]:
            self._send_of(invoked).attempts -= 1
        elif invoked.kind == "offset-commit":
            self._offsets.commit_failed(invoked)

    def _invoke_offset_commit(self, event: Event) -> None:
        self._offsets.commit_invoked(event)

    def _ok_offset_commit(self, invoked: Event, event: Event) -> None:
        self._offsets.commit_acknowledged(invoked)

    def _invoke_offset_fetch(self, event: Event) -> None:
        self._offsets.fetch_invoked(event)

    def _invoke_topic_create(self, event: Event) -> None:
        self.lives.creation_invoked(event)
        self._offsets.topic_begins(event.fields["topic"])

    def _ok_topic_create(self, invoked: Event, event: Event) -> None:
        self.lives.created(invoked, event)

    def _invoke_topic_delete(self, event: Event) -> None: ...

    def _ok_topic_delete(self, invoked: Event, event: Event) -> None:
        self.lives.deleted(invoked, event)

    # ---------------------------------------------------------------- reads

    def _read(self, event: Event) -> None:
        fields = event.fields
        key = (named(fields["topic"], fields.get("life")), fields["partition"])
        records: list[tuple[int, str]] = fields["records"]
        partition = self.partitions.get(key)
        if partition is None:
            partition = Partition()
            if key[0] not in self.lives:  # otherwise one offset has another message in each life
                self.partitions[key] = partition
        self.report.counts["reads"] += 1
        self.report.counts["records read"] += len(records)
        at = partition.at
        for offset, id in records:
            if at.get(offset) != id:
                self._seen(event, key, partition, offset, id)
        if self.repeated:
            self._published_twice()
        start, end, cut = fields.get("start"), fields.get("end"), fields.get("cut")
        if end is not None:
            self._complete(event, partition, start or 0, end)
        elif cut is None:
            self._poll(event, (fields["reader"], *key), records, start)
        if cut is not None:
            self._in_cut(event, cut, key, records, (start or 0, NEVER if end is None else end))

    def _seen(self, event: Event, key: tuple[str, int], partition: Partition, offset: int, id: str) -> None:
        """Take in a record that is read at this place for the first time."""
        place = (*key, offset)
        shown = msgspec.structs.replace(event, fields=event.fields | {"records": [(offset, id)]})
        known = partition.at.get(offset)
        if known is not None:
            text = f"offset {offset} of {key[0]}[{key[1]}] holds {known} and {id}"
            self.report.add("inconsistent-offsets", text, shown)
            return
        partition.at[offset] = id
        message = self.messages.get(id)
        if message is None:
            self.report.add("unknown-message", f"{id} at offset {offset} of {key[0]}[{key[1]}]", shown)
            return
        if key[0] != message.sent.topic and name_of(key[0]) in self.lives:
            self.lives.sighted(message, key[0], shown)
        if message.place is not None and is_same(message.place, place):
            message.place = max(message.place, place)  # the one that names the life
            return
        if message.place == place:
            return  # in a life that is not known
        if message.place is not None:
            if isinstance(message.owner, Tx):
                message.owner.again[id] = place
                self.repeated.setdefault(message.owner, shown)
            else:
                self._duplicate(message, place, shown)
            return
        message.place = place
        wanted = message.sent
        if wanted.topic != name_of(key[0]) or wanted.partition not in (-1, key[1]):
            self.report.add("wrong-place", f"{id} was sent to {wanted} and is at {place}", shown)
        elif wanted.key is not None and wanted.partition < 0:  # otherwise the given partition decides
            kept, first = self._keys.setdefault((wanted.topic, wanted.key), (key[1], id))
            if kept != key[1]:
                text = (
                    f"{first} and {id} have the key {wanted.key!r} and are in partitions {kept} and {key[1]}"
                )
                self.report.add("divided-key", f"{text} of {wanted.topic}", shown)
        if isinstance(message.owner, Tx):
            message.owner.seen += 1
            if not message.owner.live[COMMITTED] and message.owner.early is None:
                message.owner.early = shown

    def _published_twice(self) -> None:
        """Report transactions whose messages in a partition have all been read twice; the others wait."""
        for tx, shown in list(self.repeated.items()):
            first = {id: message.place for id in tx.ids if (message := self.messages[id]).place}
            where = {place[:2] for id, place in first.items() if id in tx.again}
            if all(id in tx.again for id, place in first.items() if place[:2] in where):
                places = ", ".join(f"{id} at {first[id]} and {again}" for id, again in tx.again.items())
                self.report.add("committed-twice", f"{tx}: {places}", shown)
                del self.repeated[tx]

    def _complete(self, event: Event, partition: Partition, start: int, end: int) -> None:
        offsets = [offset for offset, _ in event.fields["records"]]
        if offsets != list(range(start, end)):
            missing = sorted(set(range(start, end)) - set(offsets))[:5]
            where = f"{event.fields['topic']}[{event.fields['partition']}]"
            text = f"a read of {where} from {start} to {end} has {len(offsets)} records; missing {missing}"
            self.report.add("gap", text, event)
        partition.start = max(partition.start, start)
        partition.end = max(partition.end or 0, end)

    def _poll(
        self,
        event: Event,
        position: tuple[str, str, int],
        records: list[tuple[int, str]],
        start: int | None,
    ) -> None:
        expected = self._positions.get(position) if start is None else start
        for offset, _ in records:
            if offset == 0 and position[1] in self.lives:
                expected = 0  # the topic was created again, and is read from its beginning
            if expected is not None and offset != expected:
                kind = "nonmonotonic-poll" if offset < expected else "poll-skip"
                self.report.add(kind, f"{position} got offset {offset} where {expected} was due", event)
            expected = offset + 1
        if expected is not None:
            self._positions[position] = expected

    def _in_cut(
        self,
        event: Event,
        name: str,
        key: tuple[str, int],
        records: list[tuple[int, str]],
        covered: tuple[int, int],
    ) -> None:
        """A reader's next cut closes its previous one, so only one cut of each reader is in memory."""
        reader = event.fields["reader"]
        cut = self._cuts.get(reader)
        if cut is None or cut.name != name:
            if cut is not None:
                self.close_cut(cut)
            cut = self._cuts[reader] = Cut(name, msgspec.structs.replace(event, fields={"cut": name}))
        cut.ranges[key] = covered
        messages = self.messages
        for _, id in records:
            message = messages.get(id)
            if message is not None and isinstance(message.owner, Tx) and len(message.owner.ids) > 1:
                cut.ids.setdefault(message.owner, []).append(id)

    def close_cut(self, cut: Cut) -> None:
        """Suspect transactions that are incomplete in the cut; only the end shows whether retention excuses
        them."""
        for tx, ids in cut.ids.items():
            if len(ids) == len(tx.ids):
                continue
            suspicions = self.suspected.setdefault(tx, [])
            missing = {id for id in tx.ids if self.messages[id].sent.topic not in self.lives} - set(ids)
            suspicions += [(cut, id) for id in sorted(missing)][: PENDING_PER_TX - len(suspicions)]

    def cuts_still_open(self) -> Iterator[Cut]:
        yield from self._cuts.values()


def check(events: Iterable[Event], *, expect_resolved: bool = True) -> Report:
    """Check a history whose events are in the order of time.

    ``expect_resolved``: all apps answered checks and there was enough time, so nothing may be open any more.
    """
    checker = Checker()
    for event in events:
        checker.feed(event)
    return checker.finish(expect_resolved)
