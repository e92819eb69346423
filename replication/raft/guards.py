"""The guards between pysyncobj's core and the network: they ensure that no acknowledged entry is ever lost.

Each guard closes a way in which the stock core loses data (the letters are those of the defect
list in docs/decisions.md). They only rewrite, hold back or drop messages; they never create one,
and they never touch the core's state. ``FollowerGuard`` handles AppendEntries and the
answers to them, ``VoteGuard`` handles votes.

Three more guards are where they act: a leader counts its own log only as far as it is durable (K,
``RaftNode.tick``), an acknowledgement of another term does not count (L, ``Replicator.answered``), and a
success does not rewind what was already sent (A, for speed: ``PeerProgress.accepted``).

None of them can be switched off here. tests/controls/guards.py removes each by name and shows that the
simulator, or a scenario, then fails.
"""

from __future__ import annotations

from escrowmq.replication.errors import SafetyViolation
from escrowmq.replication.format.wire import RaftMessage
from escrowmq.replication.raft.types import Log


def sound_index(journal: Log, commit_index: int) -> int:
    """Up to where this replica may count its own log: what is durable, and before the first entry that it
    knows to be damaged and does not know to be committed.

    Nothing reads an entry before it is committed. A disk on which the entry is damaged
    must not provide one of the copies that commit it: it would be lost with the leader's disk. A committed
    entry has its majority already, so damage to it blocks nothing. Never below the commit index.
    """
    durable = journal.durable_index
    damaged = journal.damaged_after(commit_index) if journal.damaged else None
    return durable if damaged is None else min(durable, damaged - 1)


class FollowerGuard:
    """AppendEntries on their way in, acknowledgements on their way out."""

    def __init__(self, journal: Log) -> None:
        self._journal = journal
        self.held: dict[str, RaftMessage] = {}

    # -------------------------------------------------------------- in
    def admit(self, message: RaftMessage, commit_index: int) -> int | None:
        """Rewrite an AppendEntries of the current term (or a newer one) so that the core may process it.

        Returns up to which index the message proves that our log equals the leader's; None: it proves
        nothing.
        """
        if "prevLogIdx" not in message:
            message["commit_index"] = min(message["commit_index"], commit_index)  # B: it proves nothing
            return None
        journal = self._journal
        previous, entries = message["prevLogIdx"], message["entries"]
        last_new: int = previous + len(entries)
        if previous < journal.first_index:
            self._skip_retained_away(message, commit_index)
        elif journal.term_at(previous) != message["prevLogTerm"]:
            return None  # the core refuses it; ``_hint`` improves its answer
        else:
            self._skip_held(message)
        if message["commit_index"] > last_new:  # A: it commits only what it proves to match
            message["commit_index"] = last_new
        return last_new

    def _skip_held(self, message: RaftMessage) -> None:
        """A: drop the prefix of entries that the log holds with the same term (Log Matching, Raft 5.3).

        The core truncates everything after the previous index before it appends. If nothing new is
        left, the message is changed to refer to the log's own tail, where there is nothing to truncate.
        """
        journal, previous, entries = self._journal, message["prevLogIdx"], message["entries"]
        last = journal.last_index
        if previous == last:
            return  # the common case: appends at the tail
        held = 0
        while held < len(entries) and journal.term_at(previous + 1 + held) == entries[held][2]:
            held += 1
        if held == len(entries):
            message["prevLogIdx"], message["prevLogTerm"], message["entries"] = last, journal.last_term, ()
        elif held:
            message["prevLogIdx"] = previous + held
            message["prevLogTerm"] = entries[held - 1][2]
            message["entries"] = entries[held:]

    def _skip_retained_away(self, message: RaftMessage, commit_index: int) -> None:
        """The message starts before our log does. What retention dropped was committed, so it matches.

        So does our first entry, because retention keeps the last applied one. This is essential, so it is
        checked.
        """
        journal = self._journal
        if journal.first_index > commit_index:
            raise SafetyViolation(
                f"the log starts at {journal.first_index}, but is only committed up to {commit_index}"
            )
        first, previous, entries = journal.first_index, message["prevLogIdx"], message["entries"]
        if previous + len(entries) < first:
            message["entries"] = ()
        else:
            message["entries"] = entries[first - previous :]
        message["prevLogIdx"], message["prevLogTerm"] = first, journal.term_at(first)
        self._skip_held(message)

    # -------------------------------------------------------------- out
    def answer(
        self, peer: str, ack: RaftMessage, proved: int | None, commit_index: int, *, heartbeat: bool
    ) -> RaftMessage | None:
        """The core's answer to a message that ``admit`` let in, capped; None while it waits for the disk.

        ``proved``: what ``admit`` returned. ``heartbeat``: the message brought no entries.
        """
        if not ack["success"]:
            if ack["reset"]:
                ack["next_node_idx"] = self._hint(ack["next_node_idx"], commit_index)
            return ack
        if proved is not None and ack["next_node_idx"] > proved + 1:
            ack["next_node_idx"] = proved + 1  # A: it claims only what the message proved
        sound = sound_index(self._journal, commit_index)
        if ack["next_node_idx"] - 1 <= sound:
            return ack
        return self._hold(peer, ack, sound, heartbeat)

    def _hold(self, peer: str, ack: RaftMessage, sound: int, heartbeat: bool) -> RaftMessage | None:
        """K: acknowledge what this replica's own fdatasync has covered, and hold the rest until it is
        covered."""
        held = self.held.get(peer)
        if held is None or held["term"] != ack["term"] or held["next_node_idx"] < ack["next_node_idx"]:
            self.held[peer] = dict(ack)
        if not heartbeat:
            return None
        # A heartbeat is answered immediately with what is already durable: a slow disk must not look like
        # a dead follower, or a long fsync would cost the leader its quorum.
        ack["next_node_idx"] = sound + 1
        return ack

    def _hint(self, index: int, commit_index: int) -> int:
        """Where the leader should try next: stock goes back one entry per round trip, this goes back one
        term."""
        if index > self._journal.last_index:
            return index
        return max(2, commit_index + 1, self._journal.first_of_term(index))

    def release(self, term: int, commit_index: int) -> list[tuple[str, RaftMessage]]:
        """After an fdatasync or the mending of an entry: the acknowledgements that are now covered, wholly or
        (partial progress) in part."""
        if not self.held:
            return []
        durable, out = sound_index(self._journal, commit_index), []
        for peer, ack in list(self.held.items()):
            if ack["term"] != term:  # L: the entries may have been cut off since
                del self.held[peer]
            elif ack["next_node_idx"] - 1 <= durable:
                del self.held[peer]
                out.append((peer, ack))
            else:
                out.append((peer, {**ack, "next_node_idx": durable + 1}))
        return out

    def forget(self, peer: str) -> None:
        """The connection is gone, and with it the answers held for it."""
        self.held.pop(peer, None)


class VoteGuard:
    """Counts every voter once per term: the core counts every delivery."""

    def __init__(self) -> None:
        self._term = 0
        self._voters: set[str] = set()

    def admit(self, peer: str, term: int) -> bool:
        """Whether the core may process this vote of the current term."""
        if term != self._term:
            self._term, self._voters = term, set()
        if peer in self._voters:
            return False
        self._voters.add(peer)
        return True
