"""docs/log-format-operations.md says of each operation what its class says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from escrowmq.replication.format.operation import OpType
from tests.support.format_page import BEGIN, END, PAGE, WIDTH, generated, in_words, renewed

RENEW = "python -m tests.support.format_page writes it again"


def test_the_page_says_what_the_classes_say() -> None:
    page = PAGE.read_text()
    assert renewed(page) == page, RENEW


def test_every_operation_has_a_row_and_a_section() -> None:
    lines = generated().splitlines()
    rows = [line.split(" | ")[1] for line in lines if line.startswith("| ")][2:]
    assert rows == [f"`{kind.name}`" for kind in sorted(OpType)]
    assert [line[4:] for line in lines if line.startswith("### ")] == [kind.name for kind in sorted(OpType)]


def test_lines_are_short_but_for_the_table() -> None:
    assert [line for line in generated().splitlines() if len(line) > WIDTH and not line.startswith("|")] == []


def test_what_stands_around_the_marks_stays_and_what_is_between_them_goes() -> None:
    page = f"before\n\n{BEGIN}\n\nold\n\n{END}\n\nafter\n"
    assert renewed(page) == f"before\n\n{BEGIN}\n\n{generated()}\n\n{END}\n\nafter\n"


@pytest.mark.parametrize("page", ["", f"{BEGIN}\n", f"{END}\n{BEGIN}\n"])
def test_a_page_without_both_marks_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="needs the marks"):
        renewed(page)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (int, "number"),
        (Sequence[str] | None, "texts or nil"),
        (Mapping[str, int | str | list[int]], "map of text to number or text or numbers"),
        (tuple[str, int, bytes], "array (text, number, bytes)"),
    ],
)
def test_types_in_plain_words(kind: Any, words: str) -> None:
    assert in_words(kind) == words


def test_a_type_without_words_is_an_error() -> None:
    with pytest.raises(TypeError, match="no words for"):
        in_words(complex)
