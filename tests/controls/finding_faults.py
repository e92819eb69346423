"""Planted faults in searching and tracing: what is not found, or found or told wrongly, must be reported.

The first two are found by the searches beside readers, the others by operators who ask on their own.
"""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from escrowmq.replication.calling.finding_answers import FoundRows
from escrowmq.replication.format import find_rows, find_table
from escrowmq.replication.format.find_rows import IN_HEADER
from escrowmq.replication.format.internal_topics import RETRY
from escrowmq.replication.format.share_ops import DROPPED
from escrowmq.replication.host import finding, tracing
from escrowmq.replication.host.finding import BlockKey, Finder, FindFiles, Sought, _Young
from escrowmq.replication.host.tracing import ShareTraces
from escrowmq.replication.model import NO_ID
from escrowmq.replication.state.held_letters import Settlement
from tests.controls.planting import plant
from tests.controls.share_faults import shared
from tests.sim.questions import operators
from tests.sim.recreated import topic as recreated_topic
from tests.sim.sharing import redirects


@plant("block-kept-before-it-is-full", "find-missed", start=2)
def block_kept_before_it_is_full(patch: pytest.MonkeyPatch) -> None:
    """The file of a partition's last block is written while messages are still added to that block."""
    keep = Finder._keep

    def too_early(self: Finder, key: BlockKey, young: _Young, whole: bool) -> None:
        keep(self, key, young, whole=True)

    patch.setattr(Finder, "_keep", too_early)


@plant("find-files-of-any-partition", "find-missed", start=2)
def find_files_of_any_partition(patch: pytest.MonkeyPatch) -> None:
    """A file of one partition, or of a topic that was deleted, answers for the same block of another."""
    put, candidates = FindFiles.put, FindFiles.candidates
    patch.setattr(FindFiles, "put", lambda self, key, *rest: put(self, (0, key[1]), *rest))
    patch.setattr(FindFiles, "candidates", lambda self, key, *rest: candidates(self, (0, key[1]), *rest))


def asked(patch: pytest.MonkeyPatch) -> None:
    """Operators ask all the time, and a topic, which has an id, is deleted and created again."""
    patch.setattr(operators, "SHARE", 1.0)
    patch.setattr(operators, "PAUSE_S", 0.1)
    patch.setattr(recreated_topic, "SHARE", 1.0)


def asked_of_shares(patch: pytest.MonkeyPatch) -> None:
    """Operators ask all the time, mostly about share groups."""
    patch.setattr(operators, "SHARE", 1.0)
    patch.setattr(operators, "PAUSE_S", 0.05)
    patch.setattr(operators, "SEARCHES", 0.3)
    shared(patch)


def asked_of_redirects(patch: pytest.MonkeyPatch) -> None:
    """And some redrive dead letters into topics all the time."""
    patch.setattr(redirects, "SHARE", 1.0)
    patch.setattr(redirects, "EVERY_S", 0.1)
    asked_of_shares(patch)


@plant("last-place-of-a-block-is-not-looked-at", "find-missed", conditions=asked, start=1)
def last_place_of_a_block_is_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """Of the messages that a block names, a search passes over the last one."""
    candidates = Finder._candidates

    def fewer(self: Finder, *args: Any) -> list[int] | None:
        found = candidates(self, *args)
        return found if found is None else found[:-1]

    patch.setattr(Finder, "_candidates", fewer)


@plant("search-in-whatever-has-the-name", "find-false", conditions=asked, start=11)
def search_in_whatever_has_the_name(patch: pytest.MonkeyPatch) -> None:
    """A search for messages of a topic that was deleted looks through the topic that has its name now."""
    find = Finder.find

    def anywhere(self: Finder, sought: Sought, *args: Any) -> FoundRows:
        return find(self, sought._replace(topic_id=NO_ID), *args)

    patch.setattr(Finder, "find", anywhere)


@plant("header-found-in-any-part-of-a-row", "find-false", conditions=asked_of_shares, start=9, long=True)
def header_found_in_any_part_of_a_row(patch: pytest.MonkeyPatch) -> None:
    """A search for a header finds each row that has these bytes anywhere."""
    is_sought = finding.is_sought

    def anywhere(row: Any, kind: int, needle: bytes, name: str = "") -> bool:
        return needle in bytes(row) if kind == IN_HEADER else is_sought(row, kind, needle, name)

    patch.setattr(finding, "is_sought", anywhere)


@plant("find-files-outlive-their-offsets", "find-left", conditions=asked, start=13)
def find_files_outlive_their_offsets(patch: pytest.MonkeyPatch) -> None:
    """Files about messages that are gone stay."""
    patch.setattr(FindFiles, "keep", lambda self, is_alive: None)


@plant("trace-names-any-commit-of-that-time", "trace-false", conditions=asked, start=9)
def trace_names_any_commit_of_that_time(patch: pytest.MonkeyPatch) -> None:
    """A trace names the first COMMIT with the time at which a message became readable, of whatever it is."""
    patch.setattr(tracing, "_refers", lambda op, row_at: True)


@plant("trace-begins-behind-the-entry", "trace-false", conditions=asked)
def trace_begins_behind_the_entry(patch: pytest.MonkeyPatch) -> None:
    """A trace looks for the entry that made a message readable from the one behind it on."""
    first_at = tracing.first_at
    patch.setattr(tracing, "first_at", lambda *args: first_at(*args) + 1)


@plant("trace-overlooks-retries", "trace-false", conditions=asked_of_shares, start=10)
def trace_overlooks_retries(patch: pytest.MonkeyPatch) -> None:
    """A trace does not look for copies of a message that wait to be delivered again."""
    readable = ShareTraces._readable

    def none(self: ShareTraces, topic: str, *args: Any) -> Any:
        return ([], True) if topic.startswith(RETRY) else readable(self, topic, *args)

    patch.setattr(ShareTraces, "_readable", none)


@plant("trace-takes-redriven-for-dropped", "trace-false", conditions=asked_of_redirects, start=10)
def trace_takes_redriven_for_dropped(patch: pytest.MonkeyPatch) -> None:
    """A trace says of each final dead letter that it was dropped."""
    patch.setattr(tracing, "settlement_of", lambda *args: Settlement(DROPPED))


@plant("trace-overlooks-dead-letters", "trace-false", conditions=asked_of_shares, start=14)
def trace_overlooks_dead_letters(patch: pytest.MonkeyPatch) -> None:
    """A trace does not look for dead letters: it says that their messages are done."""
    readable = ShareTraces._readable

    def none(self: ShareTraces, topic: str, *args: Any) -> Any:
        return readable(self, topic, *args) if topic.startswith(RETRY) else ([], True)

    patch.setattr(ShareTraces, "_readable", none)


# ------------------------------------------------------------------ what only a search against a scan finds
# In tests/replication/host/test_finding.py: small blocks, whose files outlive what was searched with them.


def no_checksum(patch: pytest.MonkeyPatch) -> None:
    """A damaged page of a file is read as it is."""
    patch.setattr(find_table, "decode_page", lambda page, told: array("Q", page[: len(page) // 8 * 8]))


def one_page_of_a_hash(patch: pytest.MonkeyPatch) -> None:
    """A search looks at the first page only that may have a hash."""
    pages = find_table.Head.pages_with
    patch.setattr(find_table.Head, "pages_with", lambda head, low: list(pages(head, low))[:1])


def the_first_of_several_keys(patch: pytest.MonkeyPatch) -> None:
    """A search knows the first business key of a message only."""
    keys = find_rows.keys_of
    patch.setattr(find_rows, "keys_of", lambda header: keys(header)[:1])


def an_answer_ends_too_late(patch: pytest.MonkeyPatch) -> None:
    """An answer says that it has looked at one message more than it has."""
    find = Finder.find

    def one_more(self: Finder, *arguments: Any) -> Any:
        found = find(self, *arguments)
        return type(found)(
            found.code, found.end, found.reached + 1, found.offsets, found.times_ms, found.rows
        )

    patch.setattr(Finder, "find", one_more)


def hashes_are_equal(patch: pytest.MonkeyPatch) -> None:
    """Of all keys, whatever their kind. Searches must tell them apart, so this breaks nothing by itself."""
    for module in (find_table, find_rows):
        patch.setattr(module, "crc32c", lambda kind, needle: 7)
        patch.setattr(module, "crc32", lambda needle, kind: 7)


def a_hash_is_an_answer(patch: pytest.MonkeyPatch) -> None:
    """A search takes whatever has the hash for what it looks for."""
    hashes_are_equal(patch)
    patch.setattr(finding, "is_sought", lambda *arguments: True)
