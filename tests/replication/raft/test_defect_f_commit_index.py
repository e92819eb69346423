"""Defect F: the stored commit index can be ahead of the journal; an isolated leader then needs no quorum."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf
from pysyncobj import syncobj as stock
from pysyncobj.journal import FileJournal, Journal
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from escrowmq.replication.log.disk import RealDisk
from escrowmq.replication.log.journal import SegmentJournal

NOTHING = b"\x01"  # a no-op entry, as pysyncobj writes it


class Isolated(Transport):  # type: ignore[misc]
    """Outgoing messages are lost; the test delivers incoming ones."""

    def send(self, node: Node, message: dict[str, Any]) -> bool:
        return True

    def addNode(self, node: Node) -> None: ...

    def dropNode(self, node: Node) -> None: ...

    def destroy(self) -> None: ...


@pytest.fixture
def leader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Journal], SyncObj]]:
    """Starts the core on a journal, and has it elected by peers that are never heard of again."""
    nodes: list[SyncObj] = []

    def start(journal: Journal) -> SyncObj:
        monkeypatch.setattr(stock, "createJournal", lambda name=None: journal)
        monkeypatch.setattr(stock, "PIPE_NOTIFIER_ENABLED", False)
        transport = Isolated(None, None, None)
        conf = SyncObjConf(autoTick=False, connectionTimeout=60, leaderFallbackTimeout=60)
        node = SyncObj(Node("a"), [Node("b"), Node("c")], conf, nodeClass=Node, transport=transport)
        nodes.append(node)
        transport._onNodeConnected(Node("b"))
        node._SyncObj__raftElectionDeadline = 0
        node.doTick(0)
        transport._onMessageReceived(
            Node("b"), {"type": "response_vote", "term": node._SyncObj__raftCurrentTerm}
        )
        assert node._isLeader()
        return node

    yield start
    for node in nodes:
        node._doDestroy()


def outcome_without_quorum(node: SyncObj) -> Any:
    """Proposes one command while no peer answers; returns what its callback was given, or None."""
    said: list[Any] = []
    node._applyCommand(NOTHING, lambda result, error: said.append(error), stock._COMMAND_TYPE.NO_OP)
    for _ in range(5):
        node.doTick(0)
    return said[0] if said else None


def test_stock_reports_success_that_no_majority_has(
    tmp_path: Path, leader: Callable[[Journal], SyncObj]
) -> None:
    path = tmp_path / "journal"
    journal = FileJournal(str(path))
    for index in range(1, 51):
        journal.add(NOTHING, index, 1)
    before_power_cut = (tmp_path / "journal").read_bytes()[:140]
    journal.setCurrentTerm(1, None)
    journal.setRaftCommitIndex(50)
    journal.onOneSecondTimer()  # stores the commit index; the journal itself is never synced
    journal._destroy()
    lost_tail = bytearray(before_power_cut)
    lost_tail[36:40] = (40 + 4 * 25).to_bytes(4, "little")  # four entries of 25 bytes reached the disk
    path.write_bytes(lost_tail)
    recovered = FileJournal(str(path))
    assert recovered[-1][1] == 4
    assert recovered.getRaftCommitIndex() == 50
    assert outcome_without_quorum(leader(recovered)) == FAIL_REASON.SUCCESS


def test_ours_never_believes_a_stored_commit_index(
    tmp_path: Path, leader: Callable[[Journal], SyncObj]
) -> None:
    journal = SegmentJournal(RealDisk(tmp_path))
    for index in range(1, 5):
        journal.add(NOTHING, index, 1)
    journal.setCurrentTerm(1, None)
    journal.setRaftCommitIndex(50)
    journal.onOneSecondTimer()
    journal.close()
    recovered = SegmentJournal(RealDisk(tmp_path))
    assert recovered.getRaftCommitIndex() == 1
    assert outcome_without_quorum(leader(recovered)) is None, "nobody was told anything"
