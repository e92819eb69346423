"""Two peers who know each other, and one message of every kind that they send."""

from __future__ import annotations

from escrowmq.replication.log.peer_marks import Incarnation, Incarnations
from escrowmq.replication.net.handshake import PeerIdentity

SECRET = b"right"
ME, PEER = PeerIdentity("cluster", 3, "a"), PeerIdentity("cluster", 3, "b")


def gate(name: str, number: int = 0) -> Incarnations:
    """What a replica knows of incarnations that has met nobody yet; its own is ``number`` on disk
    ``name``."""
    return Incarnations(Incarnation(number, name))


MESSAGES = [
    {"type": "append_entries", "term": 5, "commit_index": 3, "seq": 8, "prevLogIdx": 4, "prevLogTerm": 5,
     "entries": [(b"one", 5, 5), (b"x" * 70_000, 6, 5)]},
    {"type": "append_entries", "term": 5, "commit_index": 3, "seq": 8, "prevLogIdx": 4, "prevLogTerm": 2,
     "entries": [(b"one", 5, 4), (b"two", 6, 5)]},
    {"type": "append_entries", "term": 5, "commit_index": 3, "seq": 8, "prevLogIdx": 4, "prevLogTerm": 5,
     "entries": []},
    {"type": "append_entries", "term": 5, "commit_index": 3, "seq": 8, "serialized": None, "log_start": 77},
    {"type": "next_node_idx", "term": 1 << 60, "seq": 3, "next_node_idx": 9, "reset": True,
     "success": False, "counts": True, "clock_ms": -1},
    {"type": "next_node_idx", "term": 7, "seq": 3, "next_node_idx": 9, "reset": False,
     "success": True, "counts": True, "clock_ms": 1_700_000_000_123},
    {"type": "request_vote", "term": 2, "last_log_index": 8, "last_log_term": 1},
    {"type": "pre_vote", "term": 2, "last_log_index": 8, "last_log_term": 1},
    {"type": "rejoin", "nonce": 77, "term": 2, "last_index": 0, "marks": []},
    {"type": "rejoin_answer", "nonce": 77, "term": 2, "last_index": 9, "marks": [("r0", 3, "d" * 32)]},
    {"type": "superseded", "number": 4, "disk_id": "e" * 32},
    {"type": "marks", "marks": [("r0", 3, "d" * 32), ("r1", 0, "e" * 32)]},
    {"type": "marks_held", "marks": []},
    {"type": "response_vote", "term": 4, "marks": [("r0", 3, "d" * 32)]},
    {"type": "pre_vote_granted", "term": 4},
    {"type": "timeout_now", "term": 4},
    {"type": "stale_term", "term": 4},
]  # fmt: skip
