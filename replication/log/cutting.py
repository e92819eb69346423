"""Cutting the log's tail off its files, because Raft found that it conflicts. Durable at return.

Newest segment first, each removal synced before the next: whatever a power cut leaves is a log
without holes, a little longer than wanted, and Raft cuts it again.
"""

from __future__ import annotations

from bisect import bisect_left

from escrowmq.replication.format.segment_format import sidecar_name
from escrowmq.replication.log.disk import Disk
from escrowmq.replication.log.segment import Segment, SegmentReader, SegmentTable


def cut_files(disk: Disk, reader: SegmentReader, table: SegmentTable, keep: int) -> SegmentTable:
    """Cut everything after entry ``keep``; the returned table's last segment takes new entries."""
    firsts, segments = table
    kept = bisect_left(firsts, keep + 1)
    for segment in reversed(segments[kept:]):
        if segment.opened is None or segment.opened.file is not None:  # else it was never created
            disk.remove(sidecar_name(segment.first))
            disk.remove(segment.name)
            disk.sync_dir()
        segment.opened = None
    if kept:
        _cut_segment(disk, reader, segments[kept - 1], keep)
    return SegmentTable(firsts[:kept], segments[:kept])


def _cut_segment(disk: Disk, reader: SegmentReader, segment: Segment, keep: int) -> None:
    """Cut the segment that holds ``keep`` after it, and open it for appending."""
    opened = reader.open(segment)
    if segment.sealed:
        segment.sealed = False
        disk.remove(sidecar_name(segment.first))
        disk.sync_dir()
    segment.opened = opened
    del opened.positions[keep + 2 - segment.first :]
    end = opened.positions[-1]
    if opened.file is not None and opened.file.size() > end:
        opened.file.truncate(end)
        opened.file.sync()
        segment.durable_size = end
