"""What all client processes share: their settings, their recorder, and the commands of their parent.

A client reads its standard input. After a line ``rest`` it begins nothing new, but continues to read and to
answer checks. It ends when the input ends, as it also does when the parent dies.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import escrowmq
from escrowmq import Cluster, EscrowMQError
from tests.history.events import Recorder

#: Exit code of a client that crashes by its own plan.
OWN_CRASH = 9
#: Exit code of a client that got an error that no client may get; its log has the error.
FOUND = 4
#: A client is stuck if it has not ended this long after its input has.
END_PATIENCE_S = 20.0
CONNECT_S = 90.0


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The settings of a client process, passed as JSON on the command line."""

    role: str  # producer, consumer, reader
    name: str  # unique in the round, with the number of the start: producer-0.2
    address: str
    namespace: str
    directory: str
    seed: int
    topics: dict[str, int]  # name -> partitions
    app: str = ""
    crashes: float = 0.0  # share of transactions (producers) or polls (consumers) that end in a crash
    long_share: float = 0.0  # share of transactions whose local part takes long
    hold_max_s: float = 0.2  # longest time for which such a transaction holds the database's lock
    fenced: bool = True  # whether checks write a fence; otherwise a missing row is a rollback
    threads: int = 3
    pause_s: float = 0.1  # mean pause between two actions of a thread
    options: dict[str, float] = field(default_factory=dict)  # settings of the producer

    def encode(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))

    def recorder(self) -> Recorder:
        """A recorder that writes to this process's own file."""
        return Recorder(self.name, Path(self.directory) / f"{self.name}.jsonl")


def connected(settings: ClientSettings) -> Cluster:
    """Connect to the cluster; the supervisor, which is asked for its layout, may be dead for a while."""
    deadline = time.monotonic() + CONNECT_S
    while True:
        try:
            return escrowmq.connect(settings.address, settings.namespace)
        except EscrowMQError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.2)


class Parent:
    """The parent's commands. ``resting`` and ``ending`` are events to test or to wait for."""

    def __init__(self) -> None:
        self.resting, self.ending = threading.Event(), threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            if line.strip() == "rest":
                self.resting.set()
        self.resting.set()
        self.ending.set()
        threading.Timer(END_PATIENCE_S, os._exit, (3,)).start()


def say_ready() -> None:
    """Tell the parent that work begins. Standard output is used only for such messages."""
    print("ready", flush=True)


def say_rested() -> None:
    """Tell the parent that nothing is under way any more."""
    print("rested", flush=True)


def crash() -> None:
    """End at once, like a process that was killed."""
    os._exit(OWN_CRASH)
