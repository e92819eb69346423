"""The faults of a schedule, as data that is drawn from the seed before anything runs.

A fault has a time, a kind, and its own seed for everything else (victim, duration, what exactly breaks). So a
schedule can be run again without some of its faults, and the others do the same as before as far as the world
still allows it; minimise.py relies on this.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass

from tests.support.faults.dealing import pick

MEAN_PAUSE_S = 0.4  # between two faults
FIRST_FAULT_S = 0.8
FIRST_GROUP_FAULT_S = 1.4  # before that, several groups get their topics and settings, one by one

#: How often each kind is drawn, relative to the others. The names are what reports and coverage count.
WEIGHTS: dict[str, int] = {
    "kill": 10,
    "power-cut": 14,
    "crash-at-effect": 10,
    "cut-link": 14,
    "partition": 22,
    "storm": 4,
    "pause": 8,
    "clock-wall": 2,
    "clock-ahead": 2,
    "disk-full": 4,
    "eio": 3,
    "failed-fsync": 4,
    "slow-fsync": 2,
    "flip-log": 3,
    "flip-state": 2,
    "flip-vote": 1,
    "empty-disk": 3,
    "hand-over": 3,
    "roll": 4,
    "snapshot": 4,
    "retention": 3,
    "at-vote": 6,
    "at-election": 6,
    "at-cut": 2,
}
#: A replica whose node the supervisor no longer sees, and which is replaced while its process lives on. Drawn
#: from a separate random stream, so that the plans of old seeds do not change.
GHOST = "ghost"
GHOSTS = {"per_schedule": (0, 0, 1, 2)}
GHOST_NUMBERS = 1000  # their names in ``--only-faults`` begin here, however many others there are
#: An operator changes the members of a group. Drawn from a separate stream, like ghosts. With a single group
#: it is drawn only if a test asks for it, so it is not among the kinds that every phase must meet there.
CHANGE = "change-members"
CHANGES = {"per_schedule": (0,), "per_group": (0, 0, 1)}
CHANGE_NUMBERS = 100_000
#: The free space of a disk hovers around its reserve (disk_space.py). No plan of a seed has it, so that old
#: seeds stay as they are: campaigns aim at it, and tests ask for it.
SCARCE = "scarce-room"
SCARCE_NUMBERS = 200_000
SCARCE_PAUSE_S = 4.0
#: Additional kinds, also drawn from a separate stream.
ADDED: dict[str, int] = {"leader-ahead": 2, "torn-file": 3}
ADDED_PAUSE_S = 3.0
ADDED_NUMBERS = 10_000
KINDS = (*WEIGHTS, *ADDED, GHOST)
#: Not drawn by a plan, but done by clients: a topic is deleted and created again.
RECREATED = "recreated-topic"
ONE_GROUP_KINDS = (*KINDS, RECREATED, SCARCE)

#: Additional kinds with several groups: faults of a whole group, or of all groups at once.
GROUP_WEIGHTS: dict[str, int] = {
    "group-down": 8,
    "group-cut": 8,
    "clients-cut": 8,
    "leader-ahead": 6,  # more often than in ``ADDED``
}
#: Copies of requests that arrive late are part of the wire, and not drawn as faults.
OF_GROUPS = tuple(kind for kind in GROUP_WEIGHTS if kind not in KINDS)
GROUP_KINDS = (*KINDS, *OF_GROUPS, CHANGE, "late-copy", RECREATED, SCARCE)
#: A fault of the plan that strikes every group at the same moment.
EVERY = -1
EVERY_SHARE = 0.1

#: Numbers of the faults of the kind that a schedule is aimed at (``draw_aimed``), and the mean time between.
AIMED_NUMBERS = 1_000_000
AIMED_PAUSE_S = 0.5
#: Late copies are part of the wire: no fault of the plan brings them about.
AIMABLE = tuple(dict.fromkeys(kind for kind in (*KINDS, *GROUP_KINDS) if kind != "late-copy"))
#: Faults that a kind needs in order to strike, and how much earlier they come: a state can be damaged when
#: there is a snapshot, a log is cut after its replica has led without a majority, and a topic must be there.
LONE_LEADER = "lone-leader"  # a leader is cut off from all others; not a kind that is counted
NEEDS: dict[str, tuple[str, ...]] = {
    "flip-state": ("snapshot",),
    "at-cut": (LONE_LEADER,),
    RECREATED: (RECREATED,),
}
NEEDED_BEFORE_S = 0.3


@dataclass(frozen=True, slots=True)
class Fault:
    """One line of the plan. ``number`` identifies it in ``--only-faults``."""

    number: int
    at_s: float  # virtual seconds from the start
    kind: str
    seed: int
    gid: int = 0  # the group that it strikes, or EVERY
    aimed: bool = False  # it waits for a transaction in a short phase, whatever its kind (aiming.py)


def aimed_faults(seed: int, chaos_s: float, kinds: Collection[str]) -> list[Fault]:
    """The plan for one group: the usual number of faults, but only of these kinds."""
    rng, faults, at = random.Random(f"aimed-{seed}"), list[Fault](), FIRST_FAULT_S
    weights = {kind: weight for kind, weight in (WEIGHTS | ADDED).items() if kind in kinds}
    while weights and at < chaos_s:
        faults.append(Fault(len(faults), at, pick(rng, weights), rng.getrandbits(32)))
        at += rng.expovariate(1 / MEAN_PAUSE_S)
    if GHOST in kinds:
        most = range(max(GHOSTS["per_schedule"]))
        drawn = [(FIRST_FAULT_S + 5.0 * rng.random(), rng.getrandbits(32)) for _ in most]
        faults += [Fault(GHOST_NUMBERS + n, at, GHOST, chance) for n, (at, chance) in enumerate(drawn)]
    return faults


def draw_faults(seed: int, chaos_s: float, groups: int = 1) -> list[Fault]:
    """The plan of a seed; a shorter chaos gives the start of the same plan."""
    if groups > 1:
        return _draw_group_faults(seed, chaos_s, groups)
    rng = random.Random(f"faults-{seed}")
    faults: list[Fault] = []
    at = FIRST_FAULT_S
    while at < chaos_s:
        faults.append(Fault(len(faults), at, pick(rng, WEIGHTS), rng.getrandbits(32)))
        at += rng.expovariate(1 / MEAN_PAUSE_S)
    return faults + _draw_beside(seed, chaos_s, 0) + draw_changes(seed, chaos_s)


def _draw_group_faults(seed: int, chaos_s: float, groups: int) -> list[Fault]:
    """Each group gets somewhat fewer faults than a single one, since clients need several groups at once."""
    rng = random.Random(f"faults-{seed}-{groups}")
    weights = WEIGHTS | GROUP_WEIGHTS
    faults: list[Fault] = []
    at = FIRST_GROUP_FAULT_S
    while at < chaos_s:
        gid = EVERY if rng.random() < EVERY_SHARE else rng.randrange(groups)
        faults.append(Fault(len(faults), at, pick(rng, weights), rng.getrandbits(32), gid))
        at += rng.expovariate(groups / (2 * MEAN_PAUSE_S))
    for gid in range(groups):
        faults += _draw_beside(seed, chaos_s, gid) + draw_changes(seed, chaos_s, gid, "per_group")
    return faults


def _draw_beside(seed: int, chaos_s: float, gid: int) -> list[Fault]:
    """The faults of one group that are drawn from separate streams."""
    return draw_added(seed, chaos_s, gid) + draw_ghosts(seed, chaos_s, gid)


def draw_added(seed: int, chaos_s: float, gid: int = 0) -> list[Fault]:
    """Additional kinds, during the whole chaos, like those of every plan."""
    rng = random.Random(f"added-{seed}-{gid}")
    faults: list[Fault] = []
    at = FIRST_GROUP_FAULT_S + rng.expovariate(1 / ADDED_PAUSE_S)
    while at < chaos_s:
        number = ADDED_NUMBERS * (gid + 1) + len(faults)
        faults.append(Fault(number, at, pick(rng, ADDED), rng.getrandbits(32), gid))
        at += rng.expovariate(1 / ADDED_PAUSE_S)
    return faults


def draw_ghosts(seed: int, chaos_s: float, gid: int = 0) -> list[Fault]:
    """Ghosts, in the first seconds of the chaos, because their consequences take some seconds."""
    rng = random.Random(f"ghosts-{seed}-{gid}")
    most = max(GHOSTS["per_schedule"])
    drawn = [(FIRST_FAULT_S + 5.0 * rng.random(), rng.getrandbits(32)) for _ in range(most)]
    kept = drawn[: rng.choice(GHOSTS["per_schedule"])]
    first = GHOST_NUMBERS * (gid + 1)
    return [Fault(first + n, at, GHOST, chance, gid) for n, (at, chance) in enumerate(kept) if at < chaos_s]


def draw_scarce(seed: int, chaos_s: float, gid: int = 0) -> list[Fault]:
    """Disks whose room hovers around the reserve, during the whole chaos."""
    rng = random.Random(f"scarce-{seed}-{gid}")
    faults: list[Fault] = []
    at = FIRST_FAULT_S + rng.expovariate(1 / SCARCE_PAUSE_S)
    while at < chaos_s:
        faults.append(Fault(SCARCE_NUMBERS + len(faults), at, SCARCE, rng.getrandbits(32), gid))
        at += rng.expovariate(1 / SCARCE_PAUSE_S)
    return faults


def draw_aimed(seed: int, chaos_s: float, groups: int, kind: str) -> list[Fault]:
    """The additional faults of a schedule that is aimed at one kind, with what that kind needs."""
    rng = random.Random(f"aimed-at-{kind}-{seed}-{groups}")
    faults: list[Fault] = []
    at = FIRST_GROUP_FAULT_S + rng.expovariate(1 / AIMED_PAUSE_S)
    while at < chaos_s:
        gid = rng.randrange(groups)
        for needed in NEEDS.get(kind, ()):
            number = AIMED_NUMBERS + len(faults)
            faults.append(Fault(number, at - NEEDED_BEFORE_S, needed, rng.getrandbits(32), gid))
        number = AIMED_NUMBERS + len(faults)
        faults.append(Fault(number, at, kind, rng.getrandbits(32), gid, aimed=True))
        at += rng.expovariate(1 / AIMED_PAUSE_S)
    return faults


def members_change() -> bool:
    """Whether groups in worlds of several groups may change their members."""
    return max(CHANGES["per_group"]) > 0


def draw_changes(seed: int, chaos_s: float, gid: int = 0, per: str = "per_schedule") -> list[Fault]:
    """Changes of members, in the first seconds of the chaos, like ghosts."""
    rng = random.Random(f"changes-{seed}-{gid}")
    first_s = FIRST_FAULT_S if per == "per_schedule" else FIRST_GROUP_FAULT_S
    drawn = [(first_s + 5.0 * rng.random(), rng.getrandbits(32)) for _ in range(max(CHANGES[per]))]
    kept = drawn[: rng.choice(CHANGES[per])]
    first = CHANGE_NUMBERS * (gid + 1)
    return [Fault(first + n, at, CHANGE, chance, gid) for n, (at, chance) in enumerate(kept) if at < chaos_s]
