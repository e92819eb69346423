"""What stands before a COMMIT or a RELEASE in its entry: where the messages are that it makes readable."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain

from escrowmq.replication.format import ops as build
from escrowmq.replication.replica.entry_writing import EntryWriter
from escrowmq.replication.replica.prefetched_bodies import LogReader
from escrowmq.replication.replica.topics_under_way import TopicsUnderWay
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.open_tx import Run


class References:
    """Builds them at the leader. ``copy_bytes``: smaller messages are copied instead of referred to."""

    def __init__(self, state: StateMachine, log: LogReader, topics: TopicsUnderWay, copy_bytes: int) -> None:
        self._state, self._log, self._topics, self._copy_bytes = state, log, topics, copy_bytes

    def of(self, runs: Sequence[Run], writer: EntryWriter) -> list[bytes]:
        """REF_MESSAGE and TX_MESSAGE frames: as few as preserve the order within each partition, with
        adjacent messages joined. Both kinds alternate within a partition only where copied and referenced
        messages do."""
        segment = self._log.segment_start(self._log.last_index)
        return self.frames(chain.from_iterable(map(partial(self._places, segment), runs)), segment, writer)

    def frames(self, places: Iterable[Sequence[int]], segment: int, writer: EntryWriter) -> list[bytes]:
        """See ``of``. ``places``: each flat as ``OpenTx.refs``."""
        budget = writer.copy_budget
        by_slot: dict[int, list[tuple[bool, list[int]]]] = {}  # copied?, quadruples as in ``reference``
        for refs in places:
            for at in range(0, len(refs), 5):
                slot, entry, pos, size, count = refs[at : at + 5]
                copy = (entry < segment or size <= self._copy_bytes) and size <= budget
                if copy:
                    budget -= size
                pieces = by_slot.get(slot)
                if pieces is None:
                    by_slot[slot] = [(copy, [entry, pos, size, count])]
                    continue
                copied, flat = pieces[-1]
                if copied is not copy:
                    pieces.append((copy, [entry, pos, size, count]))
                elif flat[-4] == entry and flat[-3] + flat[-2] == pos:
                    flat[-2] += size
                    flat[-1] += count
                else:
                    flat += (entry, pos, size, count)
        writer.copy_budget = budget
        slots, frames = self._state.topics.slots, []
        for slot, pieces in by_slot.items():
            if slot in slots and slot not in self._topics.deleting:  # else the topic is gone: drop them
                topic, number = slots[slot].topic, slots[slot].number
                for copied, flat in pieces:
                    build_one = self._copied if copied else build.reference
                    frames.append(build_one(topic, number, flat))
        return frames

    def _places(self, segment: int, run: Run) -> Iterable[tuple[int, ...]]:
        """Where the messages are, in the order of the transactions: a reference for each, or one for a whole
        block that is referred to and not copied."""
        block = run.block
        if block is not None and block.log_index >= segment:
            spans = block.spans() if block.smallest > self._copy_bytes else None
            if spans is not None:
                return [(slot, block.log_index, *span) for slot, *span in spans]
        return run.refs()

    def _copied(self, topic: str, number: int, flat: Sequence[int]) -> bytes:
        places = [flat[at : at + 4] for at in range(0, len(flat), 4)]
        rows = b"".join(self._log.read_range(entry, pos, size) for entry, pos, size, _ in places)
        return build.copied(topic, number, sum(count for *_, count in places), rows)
