"""The kinds of faults: what each does, how often it is drawn, and what the machine must provide for it."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Kind(enum.Enum):
    """The kind of fault of one trial. The value is its name on the command line and in reports."""

    LEADER_KILL = "leader-kill"
    FOLLOWER_KILL = "follower-kill"
    BROKERS_KILL = "brokers-kill"
    FEEDBACK_KILL = "feedback-kill"
    SUPERVISOR_KILL = "supervisor-kill"
    PRODUCER_KILL = "producer-kill"
    CONSUMER_KILL = "consumer-kill"
    LEADER_PAUSE = "leader-pause"
    FOLLOWER_PAUSE = "follower-pause"
    ROLLING_RESTART = "rolling-restart"
    CONTAINER_STOP = "container-stop"
    TWO_DAMAGES = "two-damages"
    RECREATED_TOPIC = "recreated-topic"
    CLOCK_JUMP = "clock-jump"
    NODE_KILL = "node-kill"
    NODE_REPLACED = "node-replaced"
    GHOST = "ghost"
    LEADER_CUT = "leader-cut"
    FOLLOWER_CUT = "follower-cut"
    LINK_CUT = "link-cut"
    SLOW_LINKS = "slow-links"
    DISK_FULL = "disk-full"
    DISK_FULL_RESTART = "disk-full-restart"
    DISK_FILLS = "disk-fills"
    DISK_FULL_MENDING = "disk-full-mending"
    SET_REPLICAS = "set-replicas"
    MOVE_REPLICA = "move-replica"
    NODE_DRAIN = "node-drain"
    NODE_MAINTENANCE = "node-maintenance"
    DISK_FULL_JOINING = "disk-full-joining"


@dataclass(frozen=True, slots=True)
class About:
    """About one kind. ``cards``: how many of it are in a deck (see plan). ``machines``: it needs replicas on
    separate machines (network namespaces). ``seconds``: range of its duration, if the driver decides it."""

    text: str
    cards: int
    machines: bool = False
    seconds: tuple[float, float] = (0.0, 0.0)


KINDS: dict[Kind, About] = {
    Kind.LEADER_KILL: About("SIGKILL of the process of a group's leader", 7),
    Kind.FOLLOWER_KILL: About("SIGKILL of the process of a follower", 3),
    Kind.BROKERS_KILL: About("SIGKILL of every broker process of all groups at once", 3),
    Kind.FEEDBACK_KILL: About("SIGKILL of a feedback actor", 2),
    Kind.SUPERVISOR_KILL: About("SIGKILL of the supervisor", 2),
    Kind.PRODUCER_KILL: About(
        "SIGKILL of a producer in the middle of its transactions or delayed messages", 2
    ),
    Kind.CONSUMER_KILL: About("SIGKILL of a member of the consumer group, or of the share group", 2),
    Kind.LEADER_PAUSE: About("SIGSTOP of the leader, later SIGCONT", 3, seconds=(2.0, 10.0)),
    Kind.FOLLOWER_PAUSE: About("SIGSTOP of a follower, later SIGCONT", 2, seconds=(2.0, 10.0)),
    Kind.ROLLING_RESTART: About("broker after broker stops and starts, then feedback and supervisor", 1),
    Kind.CONTAINER_STOP: About(
        "SIGTERM of a broker, a feedback process, the supervisor or a producer, later SIGKILL",
        4,
        seconds=(0.05, 3.0),
    ),
    Kind.TWO_DAMAGES: About(
        "bytes flip in the logs of two replicas of a group, at different entries, running or just killed", 3
    ),
    Kind.RECREATED_TOPIC: About(
        "a topic is deleted and created again, two or more times, while clients use it",
        3,
        seconds=(2.0, 5.0),
    ),
    Kind.CLOCK_JUMP: About(
        "the wall clock of a leader or follower jumps, to and fro, by moments or by days",
        2,
        seconds=(2.0, 6.0),
    ),
    Kind.NODE_KILL: About(
        "SIGKILL of the raylet, or of all processes, of the leader's node", 2, True, (2.0, 5.0)
    ),
    Kind.NODE_REPLACED: About(
        "a node is killed until its replicas were rebuilt elsewhere, sometimes with another disk full",
        2,
        True,
        (0.0, 3.0),
    ),
    Kind.GHOST: About(
        "a raylet, its brokers, or both stand still until the replicas were rebuilt elsewhere, then go on",
        2,
        True,
        (0.0, 3.0),
    ),
    Kind.LEADER_CUT: About("the leader's node is cut off from the other replicas", 3, True, (2.0, 8.0)),
    Kind.FOLLOWER_CUT: About("a follower's node is cut off from the other replicas", 2, True, (2.0, 8.0)),
    Kind.LINK_CUT: About("only the link between the leader and one follower is cut", 2, True, (2.0, 8.0)),
    Kind.SLOW_LINKS: About(
        "0.5 to 3 s of delay, each way, between the leader and the others", 3, True, (3.0, 8.0)
    ),
    Kind.DISK_FULL: About("the disk of the leader or a follower is full", 2, True, (2.0, 6.0)),
    Kind.DISK_FULL_RESTART: About(
        "a replica's disk is full, its process is killed, and has to start on the full disk",
        2,
        True,
        (2.0, 4.0),
    ),
    Kind.DISK_FILLS: About(
        "a replica's disk is full, and has room for some KB more again and again",
        2,
        True,
        (3.0, 6.0),
    ),
    Kind.DISK_FULL_MENDING: About(
        "bytes flip in the log of a replica, running or just killed, whose disk is full while it mends them",
        2,
        True,
        (2.0, 5.0),
    ),
    Kind.SET_REPLICAS: About("a group gets five replicas, or one, and three again", 2, seconds=(2.0, 4.0)),
    Kind.MOVE_REPLICA: About(
        "another replica, elsewhere, takes the place of a leader or follower, and one more takes its own",
        1,
        True,
        (2.0, 4.0),
    ),
    Kind.NODE_DRAIN: About("all replicas go from a node, which is then opened again", 1, True, (2.0, 4.0)),
    Kind.NODE_MAINTENANCE: About(
        "a node is killed and started again, and is in maintenance meanwhile", 1, True, (0.0, 3.0)
    ),
    Kind.DISK_FULL_JOINING: About(
        "the disk of a newcomer's node, or the leader's, is full while a replica moves", 1, True, (3.0, 8.0)
    ),
}

#: Faults that last, and during which another may strike: a leader killed while a link is cut, the supervisor
#: while replicas come and go.
LASTING = (
    Kind.LEADER_CUT,
    Kind.FOLLOWER_CUT,
    Kind.LINK_CUT,
    Kind.SLOW_LINKS,
    Kind.DISK_FULL,
    Kind.DISK_FILLS,
    Kind.RECREATED_TOPIC,
    Kind.SET_REPLICAS,
    Kind.MOVE_REPLICA,
    Kind.NODE_DRAIN,
    Kind.DISK_FULL_JOINING,
)
#: Kinds that may strike during another fault: all that need no machines, except those that wait for a healthy
#: cluster, and clocks that jump: of a group that has only one replica for a while, it may be that one's.
MEANWHILE = tuple(
    kind
    for kind, about in KINDS.items()
    if not about.machines
    and kind not in (Kind.ROLLING_RESTART, Kind.TWO_DAMAGES, Kind.SET_REPLICAS, Kind.CLOCK_JUMP)
)

#: Kinds after which another replica has to lead before anything can be committed.
FAIL_OVERS = (Kind.LEADER_KILL, Kind.LEADER_PAUSE, Kind.LEADER_CUT, Kind.NODE_KILL)


def kind_of(name: str) -> Kind:
    """The kind with this name. Raises ValueError with all names if there is none."""
    try:
        return Kind(name)
    except ValueError:
        known = ", ".join(kind.value for kind in Kind)
        raise ValueError(f"unknown kind of fault {name!r}; there are: {known}") from None
