"""What all client processes share: their settings, their recorder, and obeying their parent.

A client reads its standard input. ``rest`` on a line: begin nothing new, but go on reading and answering
checks. The end of the input, which also comes when the parent dies: end.
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
#: Exit code of a client that met an error which no client may see, with the error in its log.
FOUND = 4
#: A client that has not ended so long after its input did is stuck.
END_PATIENCE_S = 20.0
CONNECT_S = 90.0


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """What a client process is told; travels as JSON on the command line."""

    role: str  # producer, consumer, reader
    name: str  # unique in the round, with the number of the start: producer-0.2
    address: str
    namespace: str
    directory: str
    seed: int
    topics: dict[str, int]  # name -> partitions
    app: str = ""
    crashes: float = 0.0  # share of transactions (producers) or polls (consumers) that end in a crash
    long_share: float = 0.0  # of transactions whose local part takes long
    hold_max_s: float = 0.2  # for so long a long one keeps the database's lock
    fenced: bool = True  # whether checks write a fence; else a missing row is a rollback
    threads: int = 3
    pause_s: float = 0.1  # mean, between two things that a thread does
    options: dict[str, float] = field(default_factory=dict)  # settings of the producer

    def encode(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))

    def recorder(self) -> Recorder:
        """This process's own file."""
        return Recorder(self.name, Path(self.directory) / f"{self.name}.jsonl")


def connected(settings: ClientSettings) -> Cluster:
    """The cluster; the supervisor, which is asked for its shape, may be dead for a while."""
    deadline = time.monotonic() + CONNECT_S
    while True:
        try:
            return escrowmq.connect(settings.address, settings.namespace)
        except EscrowMQError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.2)


class Parent:
    """What the parent wants. ``resting`` and ``ending`` are events to look at or wait for."""

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
    """Tell the parent that work begins. Standard output is for this alone."""
    print("ready", flush=True)


def say_rested() -> None:
    """Tell the parent that nothing is under way any more."""
    print("rested", flush=True)


def crash() -> None:
    """End at once, as a process that was killed."""
    os._exit(OWN_CRASH)
