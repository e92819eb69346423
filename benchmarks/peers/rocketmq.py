"""RocketMQ: a master that syncs and waits for a slave, two slaves, and a load program in Java."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.processes import Processes, free_ports
from benchmarks.peers.program import LoadProgram
from benchmarks.peers.rows import (
    BATCH_1K,
    BATCH_256,
    LONE_PLAIN,
    LONE_TX,
    PLAIN_1K,
    PLAIN_256,
    READING,
    TX_64,
    TX_256,
)
from benchmarks.peers.system import HEAP, Peer

SOURCE = Path(__file__).parent / "RocketLoad.java"
NODES = 3
SETTINGS = {
    "brokerClusterName": "peers",
    "brokerName": "broker",
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "flushDiskType": "SYNC_FLUSH",
    "inSyncReplicas": "2",
    "totalReplicas": "3",
    "autoCreateTopicEnable": "true",
    "diskMaxUsedSpaceRatio": "95",
}
#: The name server keeps a few routes.
NAME_SERVER_HEAP = ("-Xms256m", "-Xmx256m")


class RocketMq(Peer):
    """Its slaves acknowledge from the page cache: no setting equals a majority of synced copies."""

    name = "rocketmq"
    product = "rocketmq"
    title = "RocketMQ, SYNC_MASTER"
    durable = "fsync on the master, page cache of one slave"
    settings = (
        "a master and two slaves, `SYNC_MASTER`, `SYNC_FLUSH`, `inSyncReplicas=2`, heap 1 GB each (the name "
        "server 256 MB); Java client; plain messages without waiting, at most 1,024 "
        "unanswered, one by one and in batches of 64; one thread "
        "for each transaction in flight, and 256 for the most"
    )
    rows = (PLAIN_256, BATCH_256, PLAIN_1K, BATCH_1K, READING, LONE_PLAIN, LONE_TX, TX_64, TX_256)

    def install(self) -> None:
        self.packages.class_path()

    def serve(self, folder: Path, processes: Processes) -> LoadProgram:
        classes = self.packages.compiled(SOURCE)
        java, path = self.packages.tool("java"), self.packages.class_path()
        own = {"ROCKETMQ_HOME": str(folder)}
        name_port, *ports = free_ports(1 + 2 * NODES, below=2)
        file = folder / "names.properties"
        file.write_text(f"listenPort={name_port}\nbindAddress=127.0.0.1\n")

        def run(heap: tuple[str, ...], role: str, *rest: str) -> list[str]:
            home = folder / role  # logs of the libraries go there
            home.mkdir()
            # The store maps files with internals of the JDK that have been closed since.
            opened = [
                f"--add-opens=java.base/{name}=ALL-UNNAMED"
                for name in ("java.nio", "sun.nio.ch", "jdk.internal.ref")
            ]
            return [java, *heap, *opened, f"-Duser.home={home}", "-cp", f"{classes}:{path}", *rest]

        names = run(NAME_SERVER_HEAP, "names", "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(file))
        processes.start("name-server", names, own)
        processes.wait_for_port(name_port)
        for n in range(NODES):
            lines = {
                **SETTINGS,
                "brokerId": str(n),
                "brokerRole": "SLAVE" if n else "SYNC_MASTER",
                "namesrvAddr": f"127.0.0.1:{name_port}",
                "bindAddress": "127.0.0.1",
                "listenPort": str(ports[2 * n]),
                "haListenPort": str(ports[2 * n + 1]),
                "storePathRootDir": str(folder / f"store-{n}"),
                "storePathCommitLog": str(folder / f"store-{n}" / "commitlog"),
            }
            file = folder / f"broker-{n}.properties"
            file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
            broker = run(HEAP, f"broker-{n}", "org.apache.rocketmq.broker.BrokerStartup", "-c", str(file))
            processes.start(f"broker-{n}", broker, own)
        for n in range(NODES):
            processes.wait_for_port(ports[2 * n])
        load = run(HEAP, "load", "RocketLoad", f"127.0.0.1:{name_port}")
        return LoadProgram(processes.start("load", load, own, piped=True), processes)
