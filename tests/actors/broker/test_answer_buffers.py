"""Memory for large answers: used again, never while it is still in use, and never waited for."""

from __future__ import annotations

import gc
import pickle

import pytest

from escrowmq.actors.broker.broker_calls import SHARED_BYTES_MIN, AnswerBuffers, out_of_band

SIZE = 2 * SHARED_BYTES_MIN


def parts(letter: bytes, size: int) -> list[bytes]:
    return [letter * (size // 2), letter * (size - size // 2)]


def test_a_large_answer_is_in_memory_that_comes_back() -> None:
    buffers = AnswerBuffers(1, SIZE)
    first = buffers.join(parts(b"a", SIZE), SIZE)
    assert isinstance(first, memoryview) and first == b"a" * SIZE
    second = buffers.join(parts(b"b", SIZE), SIZE)
    assert isinstance(second, bytes) and second == b"b" * SIZE, "none was free"
    assert first == b"a" * SIZE
    buffer = first.obj
    del first
    again = buffers.join(parts(b"c", SIZE - 1), SIZE - 1)
    assert isinstance(again, memoryview) and again.obj is buffer and again == b"c" * (SIZE - 1)


@pytest.mark.parametrize("size", [0, 1, SHARED_BYTES_MIN - 1, SIZE + 1])
def test_small_answers_and_too_large_ones_are_bytes(size: int) -> None:
    assert AnswerBuffers(1, SIZE).join(parts(b"x", size), size) == b"x" * size
    assert isinstance(AnswerBuffers(1, SIZE).join(parts(b"x", size), size), bytes)


def test_as_long_as_the_pickle_is_not_written_the_memory_is_not_used_again() -> None:
    buffers = AnswerBuffers(1, SIZE)
    beside: list[pickle.PickleBuffer] = []
    pickle.dumps([out_of_band(buffers.join(parts(b"a", SIZE), SIZE))], 5, buffer_callback=beside.append)
    gc.collect()
    assert isinstance(buffers.join(parts(b"b", SIZE), SIZE), bytes)
    assert bytes(beside[0]) == b"a" * SIZE
    beside.clear()
    assert isinstance(buffers.join(parts(b"b", SIZE), SIZE), memoryview)


def test_what_could_not_be_read_gives_its_memory_back() -> None:
    buffers = AnswerBuffers(1, SIZE)

    def broken():
        yield b"x" * 10
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        buffers.join(broken(), SIZE)
    gc.collect()
    assert isinstance(buffers.join(parts(b"a", SIZE), SIZE), memoryview)


def test_a_wrong_size_is_never_sent() -> None:
    with pytest.raises((AssertionError, ValueError)):
        AnswerBuffers(1, SIZE).join(parts(b"a", SIZE - 5), SIZE)
    with pytest.raises((AssertionError, ValueError)):
        AnswerBuffers(1, SIZE).join(parts(b"a", SIZE), SIZE - 5)
