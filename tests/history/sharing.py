"""What share groups promise: handed out again and again until somebody says that it is done, and never after.

A message is known by its id, which its copies in the topics of retries and of dead letters have, too. The
simulated or real clients record:

- ``share-group`` (``max_attempts``, ``delays_ms``, in the call or its answer): settings of a group, before it
  is used, and when an operator changes them: they may be in force from the call on, and so may earlier ones;
- ``share-acquire`` with ``since_ms``, the highest time that its client has heard from a broker; ok:
  ``leader`` (a leader in one term, whose clock does not jump), ``lease_ms``, and ``records``: topic,
  partition, offset, id, attempt, timestamp;
- ``share-ack`` and ``share-release`` with ``records``: topic, partition, offset;
- ``share-extend`` with ``member``, ``lease_ms``, ``records``; ok: ``leader``, and ``refused`` as for an ack;
- ``share-nack`` with ``records``, ``delays_ms`` (``BY_TABLE``, ``REJECT``) and ``since_ms``;
- ``share-redrive`` with ``records`` in the topic of dead letters, and their ids; unknown if it got no answer;
- ``share-redirect``: the same, into the topic ``to``; ok: all of it is done or, with ``refused``, nothing;
- ``share-poll`` and ``share-pass`` with ``records`` and ``tags``, as their senders set them: the application
  of a member gets them, or the member acks them unasked. A group that wants tags has ``tags`` in its first
  ``share-group``;
- ``share-delete``: an operator deletes the group; ok: nothing of that comes later, and the ``topics`` that
  went with it are gone. Another life of the group
  begins, perhaps several, at any time in between, and everything may come again. Its settings are the
  defaults then. Topics of retries and dead letters are called by their ids, so that each life has its own. A
  failure before the end of a deletion may lose its message: its copy goes with the topics;
- ``share-handle``: an ordered consumer handles a record; ok: it is done; fail: it failed;
- ``share-end``, once nothing is left to do: of a partition its ``start``, ``ranges``, ``end`` and all
  ``records`` that the group had to handle, each an offset and an id; the same with ``of`` "retry" or "dead",
  where a record is offset, id and attempt, or "redirected", where it is an id and the dead letter's place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import comb
from typing import Any, NamedTuple

from escrowmq.replication.format.settings import DEFAULTS
from escrowmq.replication.format.share_ops import BY_TABLE, REJECT
from escrowmq.replication.sharing.window import EXPIRIES_MAX
from tests.history.events import Event
from tests.history.report import Report

Place = tuple[str, int, int]  # topic, partition, offset
NANOS = 1_000_000
#: Clocks of leaders and clients may run so much faster than the others.
DRIFT = 0.97
#: What this module reports.
ANOMALIES = frozenset(
    {"acked-again", "double-lease", "stuck", "dead-early", "over-attempts", "retry-early", "retried-twice"}
    | {"dead-letter-lost", "redriven-twice", "redrive-lost", "order-broken", "other-tag", "passed-over"}
)
#: So many leases of a message run out before its leader takes that for a failure.
LEASES = EXPIRIES_MAX + 1
#: While a leader's clock is behind its group's time, that time runs so fast, and leases do not: they
#: go by another clock (replica/replica.py).
SLOWEST = 0.5
PREFIX = "share-"  # of the kinds of operations


@dataclass(slots=True)
class _Lease:
    """A lease that certainly held in this time, unless its member gave it back; in ns."""

    leader: str
    member: str
    begin: int
    end: int


@dataclass(slots=True)
class _Job:
    """One message of one group."""

    at: dict[Place, int] = field(default_factory=dict)  # where it was handed out -> the attempt
    places: int = 0  # how many of these since the last redrive
    acked: bool = False  # somebody may have said that it is done
    rejected: bool = False
    redriven: set[Place] = field(default_factory=set)  # dead letters that may have been redriven
    redirected: set[Place] = field(default_factory=set)  # those that may have gone into a topic
    comes_ms: dict[int, int] = field(default_factory=dict)  # attempt -> not before this time
    handed: int = -1  # when it was last handed out; it may be with that member still


@dataclass(slots=True)
class _Redirect:
    """A redrive into a topic."""

    places: Sequence[Place]
    to: str
    done: bool | None = None  # as it was answered


class Known(NamedTuple):
    """What may have become of a message by what members did. ``fewest``, ``most``: attempts that settings of
    its group allow; ``comes_ms``: attempt -> not before this time."""

    acked: bool
    rejected: bool
    redriven: bool
    fewest: int
    most: int
    comes_ms: Mapping[int, int]


@dataclass(slots=True)
class _Group:
    attempts: set[int] = field(default_factory=set)  # all settings that may have been in force
    delays_ms: list[Sequence[int]] = field(default_factory=list)
    jobs: dict[str, _Job] = field(default_factory=dict)
    ids: dict[Place, str] = field(default_factory=dict)
    final: dict[Place, int] = field(default_factory=dict)  # since when certainly
    leases: dict[Place, _Lease] = field(default_factory=dict)
    copies: dict[str, Counter[tuple[str, int]]] = field(default_factory=dict)  # id -> kind and attempt
    ends: list[Event] = field(default_factory=list)
    redirects: dict[tuple[str, int], _Redirect] = field(default_factory=dict)  # by their operations
    landed: dict[Place, list[str]] = field(default_factory=dict)  # dead letter -> the topics it is in
    landed_ids: Counter[str] = field(default_factory=Counter)
    handled: dict[tuple[str, int], int] = field(default_factory=dict)  # the next one in an ordered stream
    tags: frozenset[str] = frozenset()  # none: it wants all
    deleting: int = 0  # deletions under way
    deletions: int = 0  # that have begun
    alive_since: int = -1  # when the last deletion was over
    gone: set[str] = field(default_factory=set)  # topics that were deleted with it

    def is_alive(self, at: int) -> bool:
        """Whether what was asked then belongs to the present life, certainly."""
        return not self.deleting and at > self.alive_since

    def note(self, told: Mapping[str, Any]) -> None:
        """These settings may be in force from now on."""
        self.tags |= frozenset(told.get("tags", ()))
        if "max_attempts" in told:
            self.attempts.add(told["max_attempts"])
            self.delays_ms.append(told["delays_ms"])

    def may_have_lost(self, job: _Job) -> bool:
        """Whether this message may have failed for the last time before a deletion was over."""
        return self.deletions > 0 and not self.is_alive(job.handed)

    def forget(self) -> None:
        """Another life may begin now. A failure of the one before may still take effect."""
        self.final.clear()
        for job in self.jobs.values():
            job.places = 0

    def delay_ms(self, attempt: int) -> int:
        """The shortest pause after this attempt, by any of the tables."""
        return min((table[min(attempt, len(table)) - 1] for table in self.delays_ms), default=0)


class Sharing:
    """Feed it each event of these kinds; ``finish`` at the end."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._groups: dict[str, _Group] = {}

    def _group(self, event: Event) -> _Group:
        return self._groups.setdefault(event.fields["group"], _Group())

    def known(self, name: str, id: str) -> Known:
        """What the history says of a message in a group."""
        group = self._groups.get(name, _Group())
        job = group.jobs.get(id, _Job())
        attempts = group.attempts or {1}
        redriven = bool(job.redriven)
        return Known(job.acked, job.rejected, redriven, min(attempts), max(attempts), job.comes_ms)

    def invoked(self, event: Event) -> None:
        """An operation begins: from now on it may have an effect."""
        group, kind = self._group(event), event.kind
        if kind == "share-group":
            group.note(event.fields)
        elif kind == "share-delete":
            group.deleting, group.deletions = group.deleting + 1, group.deletions + 1
            group.note({"max_attempts": DEFAULTS.max_attempts, "delays_ms": DEFAULTS.delays_ms})
            group.forget()
        elif kind == "share-poll" and group.tags:
            for place, tag in zip(_places(event), event.fields["tags"], strict=True):
                if tag not in group.tags:
                    self._report.add(
                        "other-tag", f"{place} has the tag {tag}, not {sorted(group.tags)}", event
                    )
        elif kind in ("share-ack", "share-nack", "share-release", "share-pass"):
            if kind == "share-pass":
                self._passed(group, event)
            for n, place in enumerate(_places(event)):
                group.leases.pop(place, None)
                job = group.jobs.get(group.ids.get(place, ""))
                if job is None or kind == "share-release":
                    continue
                job.acked = job.acked or kind in ("share-ack", "share-pass")
                if kind == "share-nack":
                    since_ms: int = event.fields["since_ms"]
                    self._fails(group, job, job.at[place], event.fields["delays_ms"][n], since_ms)
        elif kind == "share-redrive":
            for place, id in zip(_places(event), event.fields["ids"], strict=True):
                job = group.jobs.setdefault(id, _Job())
                job.redriven.add(place)
                job.places, job.comes_ms = 0, {}
        elif kind == "share-redirect":
            places = list(_places(event))
            group.redirects[event.process, event.op] = _Redirect(places, event.fields["to"])
            for place, id in zip(places, event.fields["ids"], strict=True):
                group.jobs.setdefault(id, _Job()).redirected.add(place)
        elif kind == "share-handle":
            ((topic, partition, offset),) = _places(event)
            wanted = group.handled.setdefault((topic, partition), offset)
            if offset > wanted:
                text = f"{topic}[{partition}]: {offset} is handled before {wanted} is done"
                self._report.add("order-broken", text, event)

    def _passed(self, group: _Group, event: Event) -> None:
        for place, tag in zip(_places(event), event.fields["tags"], strict=True):
            if tag in group.tags or not group.tags:
                self._report.add("passed-over", f"{place} has the tag {tag}, which its group wants", event)

    @staticmethod
    def _fails(group: _Group, job: _Job, attempt: int, delay_ms: int, since_ms: int) -> None:
        """It may fail from that time on: so it may come back that much later."""
        if delay_ms == REJECT:
            job.rejected = True
            return
        if delay_ms == BY_TABLE:
            delay_ms = group.delay_ms(attempt)
        comes_ms = since_ms + delay_ms
        job.comes_ms[attempt + 1] = min(job.comes_ms.get(attempt + 1, comes_ms), comes_ms)

    def ended(self, invoked: Event, event: Event) -> None:
        """An operation was answered with success."""
        group, fields = self._group(invoked), event.fields
        if invoked.kind == "share-group":
            group.note(fields)
        elif invoked.kind == "share-acquire":
            for topic, partition, offset, id, attempt, time_ms in fields["records"]:
                place = topic, partition, offset
                self._handed_out(group, place, id, attempt, time_ms, invoked, event)
        elif invoked.kind == "share-extend":
            self._extended(group, invoked, event)
        elif invoked.kind == "share-delete":
            group.deleting, group.alive_since = group.deleting - 1, event.at
            group.gone.update(fields.get("topics", ()))
            group.forget()
        elif invoked.kind in ("share-ack", "share-nack", "share-pass"):
            refused = set(fields.get("refused", ()))
            for n, place in enumerate(_places(invoked)):
                if n not in refused and group.is_alive(invoked.at):
                    group.final.setdefault(place, event.at)
        elif invoked.kind == "share-handle":
            ((topic, partition, offset),) = _places(invoked)
            group.handled[topic, partition] = max(group.handled[topic, partition], offset + 1)
        elif invoked.kind == "share-redirect":
            group.redirects[invoked.process, invoked.op].done = not fields.get("refused", False)
        elif invoked.kind == "share-end" and fields.get("of") == "redirected":
            for id, place in fields["records"]:
                group.landed.setdefault(tuple(place), []).append(fields["topic"])
                group.landed_ids[id] += 1
        elif invoked.kind == "share-end":
            group.ends.append(event)
            kind: str = fields.get("of", "")
            for _, id, attempt in fields["records"] if kind else ():
                group.copies.setdefault(id, Counter())[kind, attempt] += 1

    @staticmethod
    def _extended(group: _Group, asked: Event, told: Event) -> None:
        """Leases that the member still had run on."""
        member, leader = asked.fields["member"], told.fields["leader"]
        lease_ns = int(asked.fields["lease_ms"] * NANOS * DRIFT)
        for n, place in enumerate(_places(asked)):
            lease = group.leases.get(place)
            if lease and n not in told.fields["refused"] and (lease.member, lease.leader) == (member, leader):
                lease.end = max(lease.end, asked.at + lease_ns)

    def _handed_out(
        self, group: _Group, place: Place, id: str, attempt: int, time_ms: int, asked: Event, told: Event
    ) -> None:
        if group.final.get(place, asked.at) < asked.at:
            self._report.add(
                "acked-again", f"{id} at {place} is handed out after it was settled", asked, told
            )
        if place[0] in group.gone and group.is_alive(asked.at):
            text = f"{id} at {place} is handed out, and was deleted with its group"
            self._report.add("acked-again", text, asked, told)
        lease, leader = group.leases.get(place), told.fields["leader"]
        if lease and lease.leader == leader and lease.begin <= asked.at and told.at < lease.end:
            text = f"{id} at {place} is leased twice by {leader}"
            self._report.add("double-lease", text, asked, told)
        lease_ns = int(told.fields["lease_ms"] * NANOS * DRIFT)
        group.leases[place] = _Lease(leader, asked.fields["member"], told.at, asked.at + lease_ns)
        group.ids[place] = id
        job = group.jobs.setdefault(id, _Job())
        if attempt > max(group.attempts, default=attempt):
            self._report.add("over-attempts", f"{id} comes for the {attempt}th time", told)
        job.handed = asked.at
        if not group.is_alive(asked.at):
            job.at.setdefault(place, attempt)
        if place not in job.at:
            # Leases that ran out count, too, but only as long as their leader leads: after a fail-over an
            # attempt that was seen may come again. At each further place it is a later one all the same.
            if attempt <= job.places and not job.redriven:
                text = f"{id} comes back at {place} as attempt {attempt}, after {job.places} other places"
                self._report.add("over-attempts", text, told)
            if attempt > 1 and time_ms < (comes_ms := job.comes_ms.get(attempt, 0)):
                text = f"{id}, attempt {attempt}, is readable at {time_ms}, before {comes_ms}"
                self._report.add("retry-early", text, told)
            job.at[place], job.places = attempt, job.places + 1
        # Its leases may run out unnoticed: after the third the leader lets it come back by the table.
        fails_ms = time_ms + int(LEASES * told.fields["lease_ms"] * SLOWEST)
        self._fails(group, job, attempt, BY_TABLE, fails_ms)

    # -------------------------------------------------------------- at the end

    def finish(self) -> None:
        """Nothing is left to do: everything must be done, or a dead letter."""
        for name, group in self._groups.items():
            for end in group.ends:
                self._end_of(name, group, end)
            for id, copies in group.copies.items():
                self._copied(group, id, group.jobs.get(id, _Job()), copies)
            self._redirected(group)

    def _end_of(self, name: str, group: _Group, end: Event) -> None:
        fields = end.fields
        if fields.get("of") == "dead":
            return
        at = fields["start"]
        for first, last in (*fields["ranges"], (fields["end"], fields["end"])):
            if at < first:
                text = f"{name}: {at} to {first - 1} of {fields['topic']}[{fields['partition']}] are not done"
                self._report.add("stuck", text, end)
            at = last + 1
        if fields.get("of"):
            return
        ranges = (0, fields["start"] - 1), *fields["ranges"]
        for offset, id in fields["records"]:
            if not any(first <= offset <= last for first, last in ranges):
                continue
            job, copies = group.jobs.get(id, _Job()), group.copies.get(id, Counter())
            dead = sum(n for (kind, _), n in copies.items() if kind == "dead")
            if not job.acked and not dead and not group.may_have_lost(job):
                self._report.add(
                    "dead-letter-lost", f"{name}: {id} is final, and nobody was done with it", end
                )

    def _redirected(self, group: _Group) -> None:
        """Each letter arrived once at most, where it was reported; and what is final is somewhere."""
        asked: dict[Place, set[str]] = {}
        for redirect in group.redirects.values():
            for place in redirect.places:
                if redirect.done is not False:
                    asked.setdefault(place, set()).add(redirect.to)
                if redirect.done and redirect.to not in group.landed.get(place, ()):
                    text = f"{place} was redriven to {redirect.to}, and is in {group.landed.get(place, [])}"
                    self._report.add("redrive-lost", text)
        for place, topics in group.landed.items():
            if len(topics) > 1 or not asked.get(place, set()).issuperset(topics):
                text = f"{place} is in {topics}; asked for, and not undone: {asked.get(place, set())}"
                self._report.add("redriven-twice", text)
        final = self._final_letters(group) if group.redirects and not group.deletions else Counter[str]()
        for id, count in final.items():
            back = group.copies.get(id, Counter())["retry", 1] + group.landed_ids[id]
            if back != count:
                kind = "redrive-lost" if back < count else "redriven-twice"
                self._report.add(kind, f"{id}: {count} dead letters are final, and {back} were redriven")

    @staticmethod
    def _final_letters(group: _Group) -> Counter[str]:
        """How many dead letters of each message are final."""
        found: Counter[str] = Counter()
        for fields in (end.fields for end in group.ends if end.fields.get("of") == "dead"):
            ranges = (0, fields["start"] - 1), *fields["ranges"]
            for offset, id, _ in fields["records"]:
                found[id] += any(first <= offset <= last for first, last in ranges)
        return found

    def _copied(self, group: _Group, id: str, job: _Job, copies: Counter[tuple[str, int]]) -> None:
        rounds, lives = 1 + len(job.redriven), group.deletions  # topics may outlive an interrupted deletion

        def most(attempt: int) -> int:
            """In each life all copies may fail again that there are by then, not only the original."""
            return rounds * comb(lives + attempt - 1, lives)

        for (kind, attempt), count in sorted(copies.items()):
            if kind == "dead" and attempt < min(group.attempts, default=0) and not job.rejected:
                self._report.add("dead-early", f"{id} is a dead letter after {attempt} attempts")
            if attempt > max(group.attempts, default=attempt):
                self._report.add("over-attempts", f"{id}: {kind}, attempt {attempt}")
            if kind == "retry" and attempt == 1:
                if count + group.landed_ids[id] > len(job.redriven | job.redirected) + group.deletions:
                    self._report.add("redriven-twice", f"{id}: {count} times, from {sorted(job.redriven)}")
            elif kind == "retry" and count > most(attempt):
                self._report.add("retried-twice", f"{id}: attempt {attempt} {count} times")
        dead = sum(count for (kind, _), count in copies.items() if kind == "dead")
        if dead > most(1 + max(group.attempts, default=0)):
            self._report.add("retried-twice", f"{id} is {dead} dead letters")


def _places(event: Event) -> Iterable[Place]:
    records: list[Any] = event.fields["records"]
    return [(topic, partition, offset) for topic, partition, offset in records]
