"""``escrowmq exporter``: serves Prometheus metrics of the whole cluster from one process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated

import typer

from escrowmq.cluster.cli.options import ConnectionOptions, with_connection
from escrowmq.cluster.cli.output import note
from escrowmq.replication.log_lines import LogFormat, log_to_stderr

if TYPE_CHECKING:
    from escrowmq.cluster.handle import Cluster
    from escrowmq.cluster.supervisor.reading_server import ReadingServer


def _reading(cluster: Cluster) -> ReadingServer | None:
    """A convenience: where it cannot be, metrics are served all the same."""
    from escrowmq.cluster.supervisor.reading_server import ReadingServer
    from escrowmq.replication.errors import ConfigError

    try:
        made = ReadingServer(cluster, "exporter")
    except ConfigError as error:
        note(f"commands that only read join Ray themselves: {error}")
        return None
    made.start()
    note(f"your commands that only read are answered at {made.path}")
    return made


@with_connection
def exporter(
    connection: ConnectionOptions,
    listen: Annotated[
        str, typer.Option(help="host:port. No login: anyone who can connect sees topic and app names.")
    ] = "127.0.0.1:9644",
    every: Annotated[float, typer.Option(help="Seconds between two looks at the cluster.", min=0.5)] = 5.0,
    ray_metrics: Annotated[
        bool, typer.Option("--ray-metrics", help="Also export as Ray metrics; needs escrowmq[ray-metrics].")
    ] = False,
    log_format: Annotated[LogFormat, typer.Option(help="Format of this process's log.")] = LogFormat.text,
) -> None:
    """Serve /metrics, /healthz and /readyz for Prometheus until interrupted. A cluster needs only one.

    Requests are answered from the last look at the cluster, so a broker that hangs does not delay a scrape.
    It also answers the same user's read-only commands on this machine (status, topic list, ...), as the
    supervisor does on its machine; they need not join Ray then.
    """
    from escrowmq.cluster.exporter.exporter import Exporter
    from escrowmq.cluster.exporter.ray_mirror import RayMirror, check_exported
    from escrowmq.cluster.exporter.serving import Server, parse_listen

    log_to_stderr(log_format)
    host, port = parse_listen(listen)
    with connection.joined() as cluster:
        if ray_metrics:
            check_exported()
        running = Exporter(cluster, every, seen=RayMirror().take) if ray_metrics else Exporter(cluster, every)
        try:
            server = Server(running.watching, host, port)
            running.start()
            server.start()
            note(f"metrics at http://{server.address}/metrics")
            reading = _reading(cluster)
            try:
                threading.Event().wait()
            except KeyboardInterrupt:
                note("ended")
            finally:
                if reading is not None:
                    reading.close()
                server.close()
        finally:
            running.close()
