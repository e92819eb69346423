"""Planted faults: bugs put into the code under test on purpose, to check that the tests find them.

A planted fault is a function that patches the product's classes for as long as one schedule runs.
Its docstring says what it breaks; ``expected`` names the invariants and anomalies that are a fair
report of it. This module installs them by name (``python -m tests.sim --plant NAME``) and removes them when
the schedule ends; no product code knows any of them.

Some of them take away guards of the Raft node (guards.py).

``conditions`` are not part of the fault: they make a world in which it shows, such as a network that
duplicates every vote. They do no harm as long as the product is sound; a test runs them without the fault to
prove it.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest

from tests.relays import schedule as relays
from tests.sim.across import later, named, producers, scene
from tests.sim.checks.invariants import Checker
from tests.sim.clients import delayed, purging, topic_changes
from tests.sim.environment import broken_link
from tests.sim.faults import aiming
from tests.sim.faults.plan import ADDED, CHANGES, GROUP_WEIGHTS, WEIGHTS
from tests.sim.group import supervisor
from tests.sim.group.members import LATE_S
from tests.sim.group.supervisor import ACTS_AFTER_S
from tests.sim.questions import operators as questions
from tests.sim.recreated import topic as recreated_topic
from tests.sim.sharing import deletions, redirects, tags
from tests.sim.sharing import groups as share_groups

Install = Callable[[pytest.MonkeyPatch], None]
#: The workload of faults that the simulator does not run: tests/relays does.
RELAYS = "relays"


@dataclass(frozen=True, slots=True)
class Planted:
    """One planted fault, and the schedules that must find it."""

    name: str
    install: Install
    expected: frozenset[str]
    workload: str
    within: int  # schedules allowed to find it: from ``start`` in the test, from each start of the table
    start: int  # the test's first seed, chosen so that it is quick
    kind: str | None  # the kind of network; None: drawn by the seed
    size: int | None
    chaos_s: float
    long: bool  # it takes seconds, or hundreds of schedules: it runs in make test-long
    passing_over: frozenset[str]  # kinds of violation that prove nothing here: the next seed is tried
    blind: frozenset[str]  # invariants that are not checked, because they would always fail first
    often: dict[str, int]  # weights, in place of the usual ones, of the kinds of faults that bring it out
    groups: int  # broker groups of the world
    reach: frozenset[str]  # see tests/sim/across/scene.py
    conditions: Install | None  # makes a world in which it shows; harmless by itself

    @property
    def breaks(self) -> str:
        """What it breaks, in one line."""
        return (inspect.getdoc(self.install) or "").split("\n\n")[0].replace("\n", " ")


PLANTED: dict[str, Planted] = {}  # filled by catalogue.py


def plant(
    name: str,
    *expected: str,
    workload: str = "broker",
    within: int = 20,
    start: int = 0,
    kind: str | None = None,
    size: int | None = None,
    chaos_s: float = 6.0,
    long: bool = False,
    passing_over: Iterable[str] = (),
    blind: Iterable[str] = (),
    often: dict[str, int] | None = None,
    groups: int = 1,
    reach: Iterable[str] = (),
    conditions: Install | None = None,
) -> Callable[[Install], Install]:
    """Register a function as the planted fault ``name``, which ``expected`` kinds of violation report."""

    def register(install: Install) -> Install:
        assert name not in PLANTED and expected and install.__doc__, name
        PLANTED[name] = Planted(
            name,
            install,
            frozenset(expected),
            workload,
            within,
            start,
            kind,
            size,
            chaos_s,
            long,
            frozenset(passing_over),
            frozenset(blind),
            often or {},
            groups,
            frozenset(reach),
            conditions,
        )
        return install

    return register


def by_name(name: str) -> Planted:
    """Raises KeyError, with all known names, if there is none of this name."""
    importlib.import_module("tests.controls.catalogue")  # not above: it imports this module
    if name not in PLANTED:
        raise KeyError(f"no planted fault {name!r}; there are {', '.join(PLANTED)}")
    return PLANTED[name]


@contextmanager
def planted(fault: Planted | str | None) -> Iterator[None]:
    """Install the fault inside the ``with`` block; None installs nothing."""
    if fault is None:
        yield
        return
    if isinstance(fault, str):
        fault = by_name(fault)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checker, "blind", fault.blind)
        # These additions would change the schedules of all other faults, so they are off unless asked for.
        patch.setattr(topic_changes, "SHARE", 0.0)
        patch.setattr(recreated_topic, "SHARE", 0.0)
        patch.setattr(delayed, "SHARE", 0.0)
        patch.setattr(share_groups, "SHARE", 0.0)
        patch.setattr(questions, "SHARE", 0.0)
        patch.setattr(tags, "SHARE", 0.0)
        patch.setattr(deletions, "SHARE", 0.0)
        patch.setattr(redirects, "SHARE", 0.0)
        patch.setattr(broken_link, "SHARE", 0.0)
        patch.setitem(later.SHARE, "worlds", 0.0)
        patch.setitem(named.SHARE, "worlds", 0.0)
        patch.setitem(named.ALONE, "share", 0.0)
        patch.setitem(named.ALONE, "hangs", 0.0)
        patch.setitem(CHANGES, "per_group", (0,))
        patch.setitem(LATE_S, "operators", (0.0,))
        patch.setattr(purging, "SHARE", 0.0)
        patch.setattr(aiming, "SHARE", 0.0)
        patch.setitem(ACTS_AFTER_S, "supervisors", (0.0,))
        patch.setattr(supervisor, "TWO", 0.0)
        patch.setitem(scene.UPGRADED, "worlds", 0.0)
        patch.setattr(producers, "COMPRESSING", 0.0)
        patch.setattr(relays, "EQUAL", 0.0)
        patch.setattr(relays, "SPOILS", 0.0)
        for kind, weight in fault.often.items():
            weights = next(table for table in (WEIGHTS, GROUP_WEIGHTS, ADDED) if kind in table)
            patch.setitem(weights, kind, weight)
        if fault.conditions is not None:
            fault.conditions(patch)
        fault.install(patch)
        yield


def sound(fault: Planted) -> Planted:
    """The same world and the same schedules, with nothing planted."""
    return replace(fault, install=lambda patch: None, blind=frozenset())
