"""Planted faults in searching: a reader's message that a search does not find must be reported."""

from __future__ import annotations

import pytest

from escrowmq.replication.host.find_files import FindFiles, Place
from escrowmq.replication.host.finding import Finder, _Young
from tests.controls.planting import plant


@plant("block-kept-before-it-is-full", "find-missed")
def block_kept_before_it_is_full(patch: pytest.MonkeyPatch) -> None:
    """The file of a partition's last block is written while messages are still added to that block."""
    keep = Finder._keep

    def too_early(self: Finder, place: Place, young: _Young, whole: bool) -> None:
        keep(self, place, young, whole=True)

    patch.setattr(Finder, "_keep", too_early)


@plant("find-files-of-any-partition", "find-missed")
def find_files_of_any_partition(patch: pytest.MonkeyPatch) -> None:
    """A file of one partition, or of a topic that was deleted, answers for the same block of another."""
    put, candidates = FindFiles.put, FindFiles.candidates
    patch.setattr(FindFiles, "put", lambda self, place, *rest: put(self, (0, place[1]), *rest))
    patch.setattr(FindFiles, "candidates", lambda self, place, low: candidates(self, (0, place[1]), low))
