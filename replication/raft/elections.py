"""Elections: asking first, who could lead, votes, and handing over.

**Asking before campaigning**, so that a replica that was cut off does not depose a healthy leader.

Raft thesis, section 9.6. When its election time-out expires, a replica first asks whether the
others would vote for it in the next term. They agree if its log is not behind theirs and they themselves have
not heard from a leader for a minimum election time-out. Only with a majority does the
real election start, and only then is the term raised. An agreement promises nothing and is not
recorded: safety depends on the real vote alone.

When a leader dies, its links break at all followers at once, so they ask at nearly the same time. Two that
both campaign split the vote, and the next attempt begins only after a whole time-out. So who agrees waits for
a moment before it asks; and of two that ask each other with equal logs, the one with the lower id goes first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from escrowmq.replication.format.wire import RaftMessage
from escrowmq.replication.log.peer_marks import Incarnation, Incarnations
from escrowmq.replication.raft.guards import VoteGuard
from escrowmq.replication.raft.members import Circle
from escrowmq.replication.raft.pysync import LEADER, Core
from escrowmq.replication.raft.replicator import Replicator
from escrowmq.replication.raft.types import Clock, Log, RaftConfig

#: A replica with committed entries still to apply looks again this often, and stands for election once it has
#: applied them: as a leader it could not answer anything before, and another one may be ready now. That ends,
#: since nobody commits more without a leader.
APPLY_FIRST_S = 0.01

#: Part of the minimum election time-out for which a replica gives way to one with which it agreed: time for
#: two synced votes and their messages. Below 1, or the other one's next attempt would come first again.
GIVE_WAY = 0.5


class PreVote:
    """The asking and answering sides of one replica."""

    def __init__(
        self,
        circle: Circle,
        core: Core,
        journal: Log,
        send: Callable[[str, RaftMessage], bool],
        clock: Clock,
        quiet_s: float,
        more_to_apply: Callable[[], bool],
    ) -> None:
        self._circle, self._core, self._journal, self._send, self._clock = circle, core, journal, send, clock
        self._quiet_s = quiet_s  # a leader heard from more recently than this is assumed to be alive
        self._more_to_apply = more_to_apply
        #: When a current leader's message arrived last; and the term for which the others were asked since.
        self.leader_seen_at = float("-inf")
        self.asked_term: int | None = None
        self._agreed: set[str] = set()
        self._asked_at = float("-inf")

    def leader_lost(self) -> None:
        """The connection to the leader broke: its process died, or its network reset it.

        This is known long before a time-out, so ask soon; but not all at the same instant, or the candidates
        would split the vote. Nothing is at risk: if only this one link failed, the others
        still hear the leader and do not agree.
        """
        self.leader_seen_at = float("-inf")
        self._core.hasten_election()

    def tick(self, now: float, connected: set[str]) -> None:
        """Before a due election, ask first. A replica that is not a voter (yet, or any more) never
        campaigns."""
        core, circle = self._core, self._circle
        if not core.election_due(now) or core.transfer_requested():
            return
        if not circle.votes:
            core.postpone_election()
            return
        if self._more_to_apply():
            core.hold_election(APPLY_FIRST_S)
            return
        if connected.isdisjoint(circle.voters):
            return
        if self.asked_term == core.term + 1 and self._majority():
            self.asked_term = None
            return  # the core may campaign in this very tick
        core.postpone_election()
        self.asked_term, self._asked_at, self._agreed = core.term + 1, now, set()
        for peer in circle.voters:
            self._ask(peer)

    def _ask(self, peer: str) -> None:
        last = {"last_log_index": self._journal.last_index, "last_log_term": self._journal.last_term}
        self._send(peer, {"type": "pre_vote", "term": self.asked_term, **last})

    def asked(self, peer: str, message: RaftMessage) -> None:
        """Agree, or stay silent. A replica in a later term says so, or the asker could never catch up."""
        core, journal = self._core, self._journal
        if message["term"] <= core.term:
            self._send(peer, {"type": "stale_term", "term": core.term})
            return
        leader_alive = core.role == LEADER or self._clock() - self.leader_seen_at < self._quiet_s
        theirs = message["last_log_term"], message["last_log_index"]
        ours = journal.last_term, journal.last_index
        if leader_alive or theirs < ours:
            return
        if theirs == ours and self._goes_first(peer):
            self._ask(peer)  # it may have heard the leader until now, and been silent the first time
            return
        self.asked_term = None
        core.hold_election(self._quiet_s * GIVE_WAY)
        self._send(peer, {"type": "pre_vote_granted", "term": message["term"]})

    def _goes_first(self, peer: str) -> bool:
        """Whether this replica asks too just now, and has the lower id. It does not insist for long, because
        it may be unable to reach a majority."""
        asks = self.asked_term == self._core.term + 1
        return asks and self._circle.id < peer and self._clock() - self._asked_at < self._quiet_s * GIVE_WAY

    def granted(self, peer: str, message: RaftMessage) -> None:
        if message["term"] == self.asked_term == self._core.term + 1 and peer in self._circle.voters:
            self._agreed.add(peer)
            if self._majority():
                self._core.campaign_at_next_tick()

    def _majority(self) -> bool:
        return (len(self._agreed) + 1) * 2 > len(self._circle.voters) + 1


# ------------------------------------------------------------------ whether it could lead at once
# Whether a replica could lead at once: it has applied what is committed, and its disk has room.


#: A leader that lacks room asks each peer for the minimum election time-out at most, and again only after
#: longer than ``ASKED_FOR_S``. So whoever is asked for this part more has another reason, and is obeyed:
#: before a planned stop, or when the leader's disk hangs, any replica is better.
INSISTS = 1.5
ASKED_FOR_S = 3.0
#: A replica with less than this many times its reserve does not take the lead over for its room.
ROOM_TO_LEAD = 1.25


def room_to_lead(free_bytes: int, reserve_bytes: int) -> bool:
    """Whether a replica with so much free space may take the lead over because it has room."""
    return free_bytes >= ROOM_TO_LEAD * reserve_bytes


class Readiness:
    """One per node. Its caller sets ``disk_full`` while syncs find no room, and calls ``look_at_room``."""

    def __init__(self, core: Core, journal: Log, election_min_s: float) -> None:
        self._core, self._journal = core, journal
        self._insists_s = INSISTS * election_min_s
        self.disk_full = self.short_of_room = self.little_room = False
        self._asked_at = float("-inf")

    def look_at_room(self, free_bytes: int | None, reserve_bytes: int) -> None:
        """So much is free now; None: unknown. ``short_of_room``: new work is refused because less than the
        reserve is left. ``little_room``: it soon might be. A replica that takes the lead over because it has
        room needs some more than that, or the lead would go to and fro."""
        if free_bytes is not None:
            self.short_of_room = free_bytes < reserve_bytes
            self.little_room = not room_to_lead(free_bytes, reserve_bytes)

    @property
    def lacks_room(self) -> bool:
        """Whether the disk is too full for new work."""
        return self.disk_full or self.short_of_room

    def more_to_apply(self) -> bool:
        """Whether another tick right away would apply more."""
        applied = self._core.applied_index
        journal = self._journal
        if applied >= self._core.commit_index or applied >= journal.durable_index:
            return False
        return applied + 1 not in journal.damaged

    def takes_over(self, now: float) -> bool:
        """Whether to take the lead over from a leader that asks for it. Without room only if it insists."""
        if self.more_to_apply():
            return False
        if not (self.lacks_room or self.little_room):
            return True
        if now - self._asked_at > ASKED_FOR_S:
            self._asked_at = now
        return now - self._asked_at >= self._insists_s


# ------------------------------------------------------------------ votes
# Votes sent and received: each counts once, and votes of replaced processes do not count.
#
# A replica that lost its disk counts again once every voter that it knows of refuses its old process
# (rejoin.py). It cannot know all of them. A past leader may have made a learner a voter, in an entry that
# no other replica holds, or holds any more. If that voter still has its link with the old process, it could
# be elected with the vote of that process and of replicas that have heard of no later leader, while the
# others commit with the successor: two majorities.
#
# So a vote carries the incarnations that the voter knows, and in a term in which a candidate has counted
# the vote of a replaced process it counts no further one. A voter that the successor has asked reports it
# with every vote from then on. A voter that had voted before has answered the successor with the term of
# this vote, or a later one: then the successor waits for a leader of such a term, so for the candidate
# itself or for one that the candidate cannot pass. In every group of four and more the candidate needs a
# vote of one of these. In a group of three the candidate and the old process are enough; but then the group
# was one of two before, and in a group of two no replica is ever replaced (``supervisor/member_steps``).


Marks = Sequence[tuple[str, int, str]]


class Votes:
    """State of one replica, as a voter and as a candidate."""

    def __init__(
        self,
        circle: Circle,
        core: Core,
        marks: Incarnations,
        learn: Callable[[Marks], None],
        link: Callable[[str], Incarnation | None],
    ) -> None:
        """``learn``: adopt what a peer says of incarnations. ``link(peer)``: its incarnation at the other end
        of the link, None: not known."""
        self._circle, self._core, self._marks = circle, core, marks
        self._learn, self._link = learn, link
        self._guard = VoteGuard()
        self._term = 0
        self._counted: dict[str, Incarnation | None] = {}  # in that term: voter -> its process

    def going_out(self, message: RaftMessage) -> RaftMessage:
        """A request or a vote of the core's, as it is sent."""
        return message if message["type"] == "request_vote" else {**message, "marks": self._marks.all()}

    def given(self, peer: str, message: RaftMessage) -> None:
        """A vote for us. Raises Superseded if it shows that we were replaced; also the disk's errors."""
        term = message["term"]
        if peer not in self._circle.voters or term != self._core.term:
            return
        self._learn(message["marks"])
        if not self._guard.admit(peer, term):
            return
        if term != self._term:
            self._term, self._counted = term, {}
        self._counted[peer] = self._link(peer)
        if not any(map(self._is_gone, self._counted)):
            self._core.receive(peer, message)

    def _is_gone(self, peer: str) -> bool:
        """Whether the process that voted in this name has been replaced."""
        counted, known = self._counted[peer], self._marks.of(peer)
        return counted is not None and known is not None and known.supersedes(counted)


# ------------------------------------------------------------------ handing over
# Handing over leadership: before a planned stop, and when the leader's own disk does not recover or has no
# room.
#
# It takes milliseconds instead of an election time-out. Meanwhile the leader takes no proposals, so that
# the chosen follower can catch up; once that follower holds the whole log it is told to campaign
# immediately (Raft thesis, section 3.10). If the handover does not succeed in time, proposals flow again.
#
# A leader whose disk hangs still sends heartbeats, so no follower would replace it, while nothing it
# accepts can be applied. It hands over to a follower that holds its log. So does a leader that needs an
# entry which is damaged in its log and could not be mended: it tries each follower in turn, with growing
# pauses, and continues to lead until one of them has taken over. Stepping down could cost the group its
# only leader.
#
# The same holds for a leader whose disk lacks room. It refuses new work, so nothing waits for its disk, and
# only the lack itself shows. It asks each peer for a moment; one that lacks room declines for longer than
# that, so the lead does not wander among full disks, and any other handover still succeeds.


#: Pause between two looks at what a leader hands over for, which it bears for seconds. Shorter than that
#: between regular ticks, so that each of them looks.
WATCH_S = 0.01


class Handover:
    """At most one handover at a time."""

    def __init__(
        self,
        core: Core,
        journal: Log,
        replicator: Replicator,
        connected: set[str],
        circle: Circle,
        config: RaftConfig,
        send: Callable[[str, RaftMessage], bool],
    ) -> None:
        self._core, self._journal, self._replicator = core, journal, replicator
        self._connected, self._circle, self._config, self._send = connected, circle, config, send
        self._durable, self._durable_since = 0, 0.0
        self._damaged_since: float | None = None
        self._damage_pause_s = config.damage_stall_s
        self._asked: list[str] = []  # followers asked to take over since the damage was met
        self._lacking_since: float | None = None
        self._room_pause_s = config.disk_stall_s
        self._to: str | None = None
        self._deadline: float | None = None
        self._began = 0.0
        self.under_way = False
        #: When ``tick`` is to be called next.
        self.due = 0.0

    def begin(self, to: str | None, now: float) -> None:
        """Hand over to ``to``, or to the most advanced follower; does nothing if a handover is under way."""
        if self._deadline is None:
            self._to, self._began, self._deadline = to, now, now + self._config.transfer_timeout_s
            self.under_way, self.due = True, now

    def end(self) -> None:
        self._deadline, self.under_way = None, False

    def tick(self, now: float, *, lacks_room: bool) -> None:
        """Give up when time is up, or when nobody who could take over is connected; otherwise tell a peer
        that holds our whole log to campaign immediately. While this replica leads. ``lacks_room``: its disk
        does."""
        journal, self.due = self._journal, now + WATCH_S
        if journal.durable_index == journal.last_index:
            self._durable, self._durable_since = journal.last_index, now
        else:
            self._watch_disk(now)
        if journal.damaged or self._damaged_since is not None:
            self._watch_damage(now)
        if lacks_room or self._lacking_since is not None:
            self._watch_room(now, lacks_room)
        if self._deadline is None:
            return
        able = self._able() if self._to is None else self._able() & {self._to}
        if now >= self._deadline or not able:
            self.end()
            return
        self.due = now  # any message may be the one that makes a peer ready
        ready = self._replicator.holding(self._journal.last_index, able)
        if ready:  # one that has much to apply declines: then it is the next one's turn
            turn = int((now - self._began) / self._config.election_min_s)
            self._send(ready[turn % len(ready)], {"type": "timeout_now", "term": self._core.term})

    def _able(self) -> set[str]:
        """Peers that could lead: connected voters."""
        return self._connected.intersection(self._circle.voters)

    def begin_watching(self, now: float) -> None:
        """This replica leads from now on; nothing was watched before."""
        self.due = now
        self._durable, self._durable_since = self._journal.durable_index, now
        self._damaged_since, self._damage_pause_s, self._asked = None, self._config.damage_stall_s, []
        self._lacking_since, self._room_pause_s = None, self._config.disk_stall_s

    def _watch_disk(self, now: float) -> None:
        durable = self._journal.durable_index
        if durable != self._durable:
            self._durable, self._durable_since = durable, now
        elif now - self._durable_since >= self._config.disk_stall_s:
            self._durable_since = now
            self.begin(None, now)

    def _watch_room(self, now: float, lacks_room: bool) -> None:
        if not lacks_room:
            self._lacking_since, self._room_pause_s = None, self._config.disk_stall_s
        elif self._lacking_since is None:
            self._lacking_since = now
        elif now - self._lacking_since >= self._room_pause_s and self._deadline is None:
            self._lacking_since = now
            self._room_pause_s = min(2 * self._room_pause_s, self._config.damage_again_s)
            self.begin(None, now)
            # Each peer's turn once: one that lacks room declines for that long (elections.py).
            once_s = self._config.election_min_s * len(self._able())
            self._deadline = now + min(once_s, self._config.transfer_timeout_s)

    def _watch_damage(self, now: float) -> None:
        """Watch for damage in an entry that this leader must apply next, or send next."""
        if not self._needs_damaged():
            self._damaged_since, self._damage_pause_s, self._asked = None, self._config.damage_stall_s, []
        elif self._damaged_since is None:
            self._damaged_since = now
        elif now - self._damaged_since >= self._damage_pause_s and self._deadline is None:
            left = self._able().difference(self._asked)
            if not left:
                self._asked, left = [], self._able()
            best = self._replicator.most_advanced(left)
            if best is not None:
                self._asked.append(best[0])
                self.begin(best[0], now)
            self._damaged_since = now
            self._damage_pause_s = min(2 * self._damage_pause_s, self._config.damage_again_s)

    def _needs_damaged(self) -> bool:
        index, most = self._journal.damaged_after(0), 20
        while index is not None and most:
            if index == self._core.applied_index + 1 or self._replicator.waits_for(index):
                return True
            index, most = self._journal.damaged_after(index), most - 1
        return False
