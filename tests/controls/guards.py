"""The guards around pysyncobj's core, removed one by one to show that each is needed.

``python -m tests.sim --drop NAME`` runs without one; ``taken_away`` does it for a test. The product has no
such switch: as with all planted faults, its classes are patched for as long as a schedule runs. The letters
refer to the defect list in docs/decisions.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pytest

from escrowmq.replication.format.wire import RaftMessage
from escrowmq.replication.raft import guards, node
from escrowmq.replication.raft.guards import FollowerGuard, VoteGuard
from escrowmq.replication.raft.node import RaftNode
from escrowmq.replication.raft.pysync import Core
from escrowmq.replication.raft.replicator import PeerProgress, Replicator

TakeAway = Callable[[pytest.MonkeyPatch], None]
GUARDS: dict[str, TakeAway] = {}


def _guard(name: str) -> Callable[[TakeAway], TakeAway]:
    def register(take_away: TakeAway) -> TakeAway:
        GUARDS[name] = take_away
        return take_away

    return register


@contextmanager
def taken_away(*names: str) -> Iterator[None]:
    """Remove these guards from the product inside the ``with`` block."""
    with pytest.MonkeyPatch.context() as patch:
        take_away(patch, *names)
        yield


def take_away(patch: pytest.MonkeyPatch, *names: str) -> None:
    """Remove these guards from the product until ``patch`` is undone."""
    for name in names:
        GUARDS[name](patch)


def check_names(names: Iterable[str]) -> None:
    """Raises ValueError if a name is not a guard's."""
    if unknown := set(names) - set(GUARDS):
        raise ValueError(f"no guard {', '.join(sorted(unknown))}; there are {', '.join(GUARDS)}")


# ------------------------------------------------------------------ the follower's log
@_guard("log-matching")
def log_matching(patch: pytest.MonkeyPatch) -> None:
    """A: entries already held are skipped, so nothing is truncated without a conflict."""
    patch.setattr(FollowerGuard, "_skip_held", lambda self, message: None)


@_guard("commit-cap")
def commit_cap(patch: pytest.MonkeyPatch) -> None:
    """A: a message commits only what this same message proved to match."""
    _keep_commit_index(patch, lambda message: "prevLogIdx" in message)


@_guard("snapshot-commit")
def snapshot_commit(patch: pytest.MonkeyPatch) -> None:
    """B: a message without a previous index commits nothing."""
    _keep_commit_index(patch, lambda message: "prevLogIdx" not in message)


def _keep_commit_index(patch: pytest.MonkeyPatch, where: Callable[[RaftMessage], bool]) -> None:
    admit = FollowerGuard.admit

    def uncapped(self: FollowerGuard, message: RaftMessage, commit_index: int) -> int | None:
        said = message["commit_index"] if where(message) else None
        proved = admit(self, message, commit_index)
        if said is not None:
            message["commit_index"] = said
        return proved

    patch.setattr(FollowerGuard, "admit", uncapped)


# ------------------------------------------------------------------ acknowledgements
@_guard("ack-cap")
def ack_cap(patch: pytest.MonkeyPatch) -> None:
    """A: an acknowledgement claims only what this same message proved."""
    answer = FollowerGuard.answer

    def uncapped(
        self: FollowerGuard,
        peer: str,
        ack: RaftMessage,
        proved: int | None,
        commit_index: int,
        *,
        heartbeat: bool,
    ) -> RaftMessage | None:
        return answer(self, peer, ack, None, commit_index, heartbeat=heartbeat)

    patch.setattr(FollowerGuard, "answer", uncapped)


@_guard("hold-acks")
def hold_acks(patch: pytest.MonkeyPatch) -> None:
    """K: a follower acknowledges only what its own fdatasync covered."""
    patch.setattr(FollowerGuard, "_hold", lambda self, peer, ack, sound, heartbeat: ack)


@_guard("sound-acks")
def sound_acks(patch: pytest.MonkeyPatch) -> None:
    """A follower does not acknowledge, and a leader does not count, entries known to be damaged before they
    were committed."""
    for module in (guards, node):
        patch.setattr(module, "sound_index", lambda journal, commit_index: journal.durable_index)


@_guard("held-term")
def held_term(patch: pytest.MonkeyPatch) -> None:
    """L: acknowledgements held back are dropped when the term changes."""
    release = FollowerGuard.release

    def of_every_term(self: FollowerGuard, term: int, commit_index: int) -> list[tuple[str, RaftMessage]]:
        held, kept, out = self.held, {}, []
        for peer, ack in held.items():
            self.held = {peer: ack}
            out += release(self, ack["term"], commit_index)
            kept.update(self.held)
        self.held = kept
        return out

    patch.setattr(FollowerGuard, "release", of_every_term)


@_guard("ack-term")
def ack_term(patch: pytest.MonkeyPatch) -> None:
    """L: an acknowledgement of an earlier term does not count."""
    answered = Replicator.answered

    def of_any_term(self: Replicator, peer: str, message: RaftMessage) -> None:
        answered(self, peer, {**message, "term": self._core.term})

    patch.setattr(Replicator, "answered", of_any_term)


@_guard("keep-next")
def keep_next(patch: pytest.MonkeyPatch) -> None:
    """A: a success does not rewind past what was sent already (this affects only speed)."""
    accepted = PeerProgress.accepted

    def rewinding(self: PeerProgress, index: int) -> None:
        accepted(self, index)
        self.next = index + 1

    patch.setattr(PeerProgress, "accepted", rewinding)


# ------------------------------------------------------------------ the leader's own count, votes
@_guard("self-durable")
def self_durable(patch: pytest.MonkeyPatch) -> None:
    """K: a leader counts itself only for what its own fdatasync covered."""

    cap, tick = RaftNode._commit_cap, Core.tick
    patch.setattr(RaftNode, "_commit_cap", lambda self, own: cap(self, self._journal.last_index))
    patch.setattr(
        Core, "tick", lambda self, commit_cap, apply_limit: tick(self, commit_cap, self._journal.last_index)
    )


@_guard("vote-once")
def vote_once(patch: pytest.MonkeyPatch) -> None:
    """One vote per voter and term, however often the network delivers it."""
    patch.setattr(VoteGuard, "admit", lambda self, peer, term: True)
