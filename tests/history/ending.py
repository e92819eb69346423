"""The checks at the end of a history: missing messages, and the order of all.

Retention makes one case undecidable: a message that was not read before its segment was removed. A partition
excuses as many missing messages as it has offsets below its start that were never read, and no more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from tests.history.events import Event
from tests.history.lives import Lives, name_of
from tests.history.report import Report
from tests.history.sharing import Sharing
from tests.history.subjects import COMMITTED, NEVER, ROLLBACK, Cut, Message, Partition, Send, Tx

Missing = tuple[str, str, Message, tuple[Event, ...]]  # kind, text, which, evidence


class Ending(ABC):
    """The second half of the checker."""

    report: Report
    messages: dict[str, Message]
    transactions: dict[tuple[str, str], Tx]
    sends: list[Send]
    partitions: dict[tuple[str, int], Partition]
    suspected: dict[Tx, list[tuple[Cut, str]]]
    repeated: dict[Tx, Event]
    answering: set[str]
    lives: Lives
    shares: Sharing

    @abstractmethod
    def close_cut(self, cut: Cut) -> None:
        """Check a cut and forget it."""

    @abstractmethod
    def cuts_still_open(self) -> Iterator[Cut]:
        """Cuts that are not closed yet."""

    def finish(self, expect_resolved: bool) -> Report:
        self._missing: list[Missing] = []
        for cut in self.cuts_still_open():
            self.close_cut(cut)
        for tx, shown in self.repeated.items():
            for id, place in tx.again.items():
                self._duplicate(self.messages[id], place, shown)
        for tx in self.transactions.values():
            if not (self._against_home(tx, expect_resolved) or self._contradicts(tx)):
                self._whole(tx, expect_resolved)
        for send in self.sends:
            self._send(send)
        self.lives.check()
        self.shares.finish()
        self._excuse()
        self._torn_cuts()
        for (topic, number), partition in self.partitions.items():
            self._order(f"{topic}[{number}]", partition)
            highest = max(partition.at, default=-1)
            if partition.end is not None and highest >= partition.end:
                text = f"{topic}[{number}] was read up to offset {highest} and ends at {partition.end}"
                self.report.add("lost-write", text)
        counts = self.report.counts
        counts["messages"], counts["transactions"] = len(self.messages), len(self.transactions)
        counts["partitions"] = len(self.partitions)
        counts["removed by retention"] = sum(p.start for p in self.partitions.values())
        return self.report

    def _duplicate(self, message: Message, place: tuple[str, int, int], shown: Event) -> None:
        text = f"{message.sent.id} of {message.owner} is at {message.place} and {place}"
        self.report.add("duplicate", text, shown)

    # ---------------------------------------------------------------- transactions

    def _against_home(self, tx: Tx, expect_resolved: bool) -> bool:
        """Whether a branch ended differently from its home group, or did not end.

        A copy of a PREPARE may reach a branch that has committed and forgotten the id. The copy is rolled
        back, and the branch remembers that; so a rollback counts only if the branch's messages are missing.
        """
        home, found = next(iter(tx.told), None), False
        for group, event in tx.branches.items():
            branch = event.fields["outcome"]
            text, events = f"{tx}: group {group} says {branch}, its home {home or tx.outcome}", (event,)
            missing = [m for id in tx.ids if (m := self.messages[id]).sent.group == group and not m.place]
            if branch == "PREPARE" and expect_resolved and (home or tx.outcome == "UNKNOWN"):
                self.report.add("orphan-branch", text, *events)
            elif branch == COMMITTED and home == ROLLBACK:
                self.report.add("branch-against-home", text, *events)
            elif branch == ROLLBACK and home == COMMITTED and missing:
                self._miss("branch-against-home", text, missing, events)
            else:
                continue
            found = True
        return found

    def _contradicts(self, tx: Tx) -> bool:
        """Whether a transaction's answers, reads and requested decisions contradict each other."""
        events = tuple(e for e in (tx.event, *tx.told.values(), tx.early, tx.forgotten) if e is not None)

        def found(kind: str, text: str) -> bool:
            self.report.add(kind, f"{tx}: {text}", *events)
            return True

        if len(tx.told) > 1:
            if len(tx.granted) > 1:
                return found("both-decided", "commit and rollback were both acknowledged")
            return found("unstable-outcome", f"first told {next(iter(tx.told))}, then {list(tx.told)[1]}")
        if tx.forgotten is not None:
            if tx.told or tx.seen:
                before = ", ".join(tx.told) or "read"
                return found("unstable-outcome", f"it was {before}, and the broker knows nothing of it")
            return found("lost-write", "its prepare was acknowledged, and the broker knows nothing of it")
        if tx.seen and ROLLBACK in tx.told:
            return found("G1a", "rolled back, and its messages were read")
        if tx.seen and not tx.prepares:
            return found("G1a", "its prepare failed, and its messages were read")
        if tx.early is not None and not tx.live[ROLLBACK]:
            return found("precommitted-read", "its messages were read before anybody asked for a commit")
        outcome = COMMITTED if tx.seen or COMMITTED in tx.told else next(iter(tx.told), None)
        if outcome is not None and (not tx.live[outcome] or tx.early is not None):
            return found("invented-decision", f"it is {outcome}, which nobody had asked for")
        if outcome is not None and tx.local not in (None, outcome) and outcome not in tx.operators:
            return found("invented-decision", f"it is {outcome}; the producer's database says {tx.local}")
        if (split := self._split(tx, outcome)) is not None:
            return found("fence-split", split)
        if tx.seen and tx.outcome == "PREPARE":
            return found("unstable-outcome", "its messages were read, and it is said to be open")
        return False

    @staticmethod
    def _split(tx: Tx, outcome: str | None) -> str | None:
        """How database and broker differ, or None. An operator may decide differently from the database, and
        an open transaction is no split yet."""
        if tx.stored is None or (outcome is not None and outcome in tx.operators):
            return None
        if outcome is None:
            if tx.stored and tx.outcome == "UNKNOWN":
                return "it is in the database, and the broker has never heard of it"
            return None
        if tx.stored == (outcome == COMMITTED):
            return None
        return f"it is {outcome}, and {'is' if tx.stored else 'is not'} in the database"

    def _whole(self, tx: Tx, expect_resolved: bool) -> None:
        """Check that a transaction without contradictions is there completely, or rightly not at all."""
        counts = self.report.counts
        if tx.seen == len(tx.ids) and tx.seen:
            counts["transactions committed"] += 1
            return
        missing = [self.messages[id] for id in tx.ids if self.messages[id].place is None]
        events = tuple(e for e in (tx.event, *tx.told.values()) if e is not None)
        if tx.seen:
            counts["transactions committed"] += 1
            self._miss(self._torn(tx, missing), f"{tx}: read in part", missing, events)
        elif COMMITTED in tx.told:
            counts["transactions committed"] += 1
            self._miss("lost-write", f"{tx} was committed", missing, events)
        elif ROLLBACK in tx.told:
            counts["transactions rolled back"] += 1
        elif tx.prepared:
            if tx.outcome is None and tx.live[ROLLBACK]:
                # A one-way rollback, or one whose answer was lost: whether it was done cannot be seen.
                counts["transactions rolled back, unanswered"] += 1
            elif expect_resolved:
                if tx.live[COMMITTED] and tx.outcome is None:
                    self._miss("unresolved", f"{tx}: a commit was sent", missing, events)
                elif tx.app in self.answering and not tx.checks and tx.outcome == "PREPARE":
                    self.report.add("never-checked", f"{tx}: open, and no producer was asked", *events)
                else:
                    self.report.add("unresolved", f"{tx}: prepared, and nobody decided", *events)
            else:
                counts["transactions open"] += 1
        else:
            counts["transactions without effect"] += 1

    def _torn(self, tx: Tx, missing: list[Message]) -> str:
        """The kind of anomaly: whole broker groups are missing, or parts of what one group decides."""
        without = {message.sent.group for message in missing}
        read = {self.messages[id].sent.group for id in tx.ids if self.messages[id].place}
        return "torn-across" if -1 not in without and without.isdisjoint(read) else "torn"

    def _miss(self, kind: str, text: str, messages: list[Message], events: tuple[Event, ...]) -> None:
        self._missing += [(kind, text, message, events) for message in messages]

    # ---------------------------------------------------------------- plain messages

    def _send(self, send: Send) -> None:
        messages = [self.messages[id] for id in send.ids]
        if not send.attempts and not send.ok:
            for message in messages:
                if message.place is not None:
                    text = f"{send} failed, and {message.sent.id} was read at {message.place}"
                    self.report.add("G1a", text, send.event)
            return
        if not send.ok:
            return
        for at, message in enumerate(messages):
            told = send.places[at] if send.places else None
            if message.place is None:
                partition = self.partitions.get(told[:2]) if told else None
                start = partition.start if partition else None
                if told and partition and told[2] < partition.start and told[2] in partition.at:
                    text = f"{send.ids[at]} was told {told}, where {partition.at[told[2]]} was read"
                    self.report.add("wrong-place", text, send.event)
                elif told is None or start is None or told[2] >= start:
                    text = f"{send} was told {told}"
                    self._missing.append(("lost-write", text, message, (send.event,)))
            elif told is not None and told != (name_of(message.place[0]), *message.place[1:]):
                text = f"{message.sent.id} was told {told} and is at {message.place}"
                self.report.add("wrong-place", text, send.event)

    # ---------------------------------------------------------------- retention, cuts, order

    def _gone(self, message: Message) -> bool:
        """Whether it may have gone with a topic that was deleted. What one transaction has in a topic goes
        together."""
        topic = message.sent.topic
        if topic not in self.lives:
            return False
        owned = [self.messages[id] for id in message.owner.ids] if isinstance(message.owner, Tx) else []
        return self.lives.excuses(message, [one for one in owned if one.sent.topic == topic])

    def _excuse(self) -> None:
        """Match missing messages with the offsets that retention removed before they were read."""
        missing = len(self._missing)
        self._missing = [one for one in self._missing if not self._gone(one[2])]
        self.report.counts["missing, with a deleted topic"] += missing - len(self._missing)
        room = {
            key: partition.start - sum(offset < partition.start for offset in partition.at)
            for key, partition in self.partitions.items()
        }
        for send in self.sends:  # these have known places below the start
            for (topic, number, offset), id in zip(send.places or (), send.ids, strict=False):
                partition = self.partitions.get((topic, number))
                if partition and offset < partition.start and self.messages[id].place is None:
                    room[topic, number] -= 1
        by_topic: dict[str, list[tuple[str, int]]] = {}
        for key in room:
            by_topic.setdefault(key[0], []).append(key)
        # First the messages with a given partition: the others may take offsets that are left in any
        # partition.
        for kind, text, message, events in sorted(self._missing, key=lambda m: m[2].sent.partition < 0):
            sent = message.sent
            named = [(sent.topic, sent.partition)] if sent.partition >= 0 else by_topic.get(sent.topic, [])
            chosen = next((key for key in named if room.get(key, 0) > 0), None)
            if chosen is None:
                self.report.add(kind, f"{text}; {sent.id} is missing", *events)
            else:
                room[chosen] -= 1
                self.report.counts["missing, by retention"] += 1

    def _torn_cuts(self) -> None:
        for tx, suspicions in self.suspected.items():
            for cut, id in suspicions:
                message = self.messages[id]
                if message.place is not None:
                    topic, number, offset = message.place
                else:
                    topic, number, offset = message.sent.topic, message.sent.partition, 0
                low, _ = cut.ranges.get((topic, number), (NEVER, NEVER))
                if offset >= low:
                    text = f"{tx}: {id} is not in the cut {cut.name}, the others are"
                    self.report.add("torn", text, cut.event)
                    break

    def _order(self, name: str, partition: Partition) -> None:
        """Check the order of producers, of messages within a transaction, and of real time where one group
        decides.

        A transaction over several partitions may be in several groups, each of which follows the decision in
        its own time: real time does not order those.
        """
        last: dict[str | Tx, int] = {}
        latest, latest_id = -1, ""
        for offset in sorted(partition.at):
            message = self.messages.get(partition.at[offset])
            if message is None or message.place is None or message.place[2] != offset:
                continue
            owner, id = message.owner, message.sent.id
            who = owner if isinstance(owner, Tx) else owner.producer
            if last.get(who, 0) > message.number:
                text = f"{name}: {id} at offset {offset} was sent before what stands before it by {who}"
                self.report.add("nonmonotonic-send", text)
            elif self._one_partition(owner):
                if owner.acked_at < latest:
                    text = f"{name}: {id} at offset {offset} was acknowledged before {latest_id} was invoked"
                    self.report.add("nonmonotonic-send", text)
                if owner.invoked_at != NEVER and owner.invoked_at > latest:
                    latest, latest_id = owner.invoked_at, id
            last[who] = max(last.get(who, 0), message.number)

    def _one_partition(self, owner: Tx | Send) -> bool:
        if isinstance(owner, Send) or len(owner.ids) == 1:
            return True
        messages = [self.messages[id] for id in owner.ids]
        if any(message.place is None and message.sent.topic in self.lives for message in messages):
            return False  # that part may have been in another group
        if len({message.sent.group for message in messages}) > 1:
            return False  # also if retention removed the other groups' part before it was read
        return len({message.place[:2] for message in messages if message.place}) == 1
