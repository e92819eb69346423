"""What a decoder may do with bytes that somebody else made: understand them, or raise an error of ours.

A ``Target`` is a decoder with good examples of its input. ``hypothesis`` feeds it mutations of them in
every test run (derandomized: the same ones each time), ``make fuzz`` with other seeds for as long as one
likes. (Most decoding happens in C, which tools guided by the coverage of Python would not see.) Where a
checksum guards the bytes, ``mend`` puts it right again, so that mutations get behind it: a checksum is no
protection against somebody who can compute one.
"""

from __future__ import annotations

import os
import time
import tracemalloc
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from hypothesis import HealthCheck, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from escrowmq.replication.errors import EscrowMQError

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "100"))
#: FUZZ_SEED=<n> draws others than the usual ones; the failure prints how to see it again.
SEED = os.environ.get("FUZZ_SEED")
SECONDS_MAX = 2.0
#: Inputs are a few KB; what a decoder allocates for one must stay in proportion.
ALLOCATED_MAX = 32 << 20

_NUMBERS = [
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    0x7FFFFFFF,
    0xFFFFFFF0,
    0xFFFFFFFF,
    (1 << 63) - 1,
    (1 << 64) - 1,
]
#: Heads of msgpack values that promise a lot, and openings that nest.
_MSGPACK = [
    b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\x7f\xff\xff\xff",
    b"\xcf" + b"\xff" * 8, b"\xd3\x80" + bytes(7), b"\xa2\xff\xfe", b"\xc1", b"\xc0", b"\x91" * 2000,
    b"\x81\xa1a" * 2000, b"\xc7\x05\xff",
]  # fmt: skip


@dataclass(frozen=True)
class Target:
    """``run`` decodes and may check what it got; ``seeds`` are good inputs."""

    name: str
    run: Callable[[bytes], object]
    seeds: Sequence[bytes]
    mend: Callable[[bytes], bytes] = field(default=lambda data: data)
    allocates_max: int = ALLOCATED_MAX


def examine(target: Target, data: bytes) -> None:
    """One input. An EscrowMQError is a refusal; any other exception, a hang or a flood of memory is a bug."""
    watched = not tracemalloc.is_tracing()
    if watched:
        tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    started = time.thread_time()
    try:
        target.run(target.mend(data))
    except EscrowMQError as error:
        assert str(error), "a refusal that does not say why"
    finally:
        seconds = time.thread_time() - started
        _, peak = tracemalloc.get_traced_memory()
        if watched:
            tracemalloc.stop()
    assert seconds < SECONDS_MAX, f"{target.name}: {seconds:.1f} s for {len(data)} bytes"
    assert peak - before < target.allocates_max, (
        f"{target.name}: {(peak - before) >> 20} MiB for {len(data)} bytes"
    )


def mutated(seeds: Sequence[bytes]) -> SearchStrategy[bytes]:
    """Damaged copies of ``seeds``, and pure garbage now and then."""
    return st.one_of(*[_damaged()] * 6, st.binary(max_size=300).map(lambda b: lambda _: b)).flatmap(
        lambda damage: st.sampled_from(seeds).map(damage)
    )


def _damaged() -> SearchStrategy[Callable[[bytes], bytes]]:
    where = st.integers(0, 1 << 16)
    numbers = st.tuples(st.sampled_from(_NUMBERS), st.sampled_from([1, 2, 4, 8]))
    pieces = st.one_of(st.sampled_from(_MSGPACK), st.binary(max_size=8))
    step = st.one_of(
        st.tuples(st.just("flip"), where, st.integers(0, 7)),
        st.tuples(st.just("set"), where, st.integers(0, 255)),
        st.tuples(st.just("cut"), where, st.integers(1, 64)),
        st.tuples(st.just("end"), where, st.just(0)),
        st.tuples(st.just("double"), where, st.integers(1, 64)),
        st.tuples(st.just("number"), where, numbers),
        st.tuples(st.just("insert"), where, pieces),
        st.tuples(st.just("over"), where, pieces),
    )
    return st.lists(step, min_size=1, max_size=4).map(lambda steps: lambda seed: _apply(seed, steps))


def _apply(seed: bytes, steps: Sequence[tuple[str, int, object]]) -> bytes:
    data = bytearray(seed)
    for kind, where, what in steps:
        at = where % (len(data) + 1)
        if kind == "flip" and at < len(data):
            data[at] ^= 1 << what  # type: ignore[operator]
        elif kind == "set" and at < len(data):
            data[at] = what  # type: ignore[call-overload]
        elif kind == "cut":
            del data[at : at + what]  # type: ignore[operator]
        elif kind == "end":
            del data[at:]
        elif kind == "double":
            data[at:at] = data[at : at + what]  # type: ignore[operator]
        elif kind == "number":
            number, width = what  # type: ignore[misc]
            data[at : at + width] = (number & ((1 << 8 * width) - 1)).to_bytes(width, "little")  # type: ignore[has-type]
        elif kind == "insert":
            data[at:at] = what  # type: ignore[call-overload]
        elif kind == "over":
            data[at : at + len(what)] = what  # type: ignore[arg-type, call-overload]
    return bytes(data)


def drawn(
    *strategies: SearchStrategy[Any], examples: int = EXAMPLES
) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Run a test with so many inputs: the same ones each time, or those of FUZZ_SEED."""

    def wrap(test: Callable[..., None]) -> Callable[[], None]:
        run = settings(
            max_examples=max(examples, 1),
            derandomize=SEED is None,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        )(given(*strategies)(test))
        return cast(Callable[[], None], run if SEED is None else seeded(int(SEED))(run))

    return wrap


def fuzz(target: Target, examples: int = EXAMPLES) -> None:
    """Feed ``target``: its good inputs first (which it must understand), then damaged ones."""
    for seed in target.seeds:
        target.run(seed)

    @drawn(mutated(target.seeds), examples=examples)
    def run(data: bytes) -> None:
        examine(target, data)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Generating overly large repr")  # of a failing example
        run()
