"""The scenario of test_ghost.py, in its own process: a process can connect to only one Ray cluster.

Four Ray nodes on this machine. One of them (raylet and broker) is suspended for longer than the supervisor
waits, and its replica is rebuilt on the spare node. Then the old broker resumes, and only its peers can stop
it. Run by hand: ``RAY_AUTH_MODE=disabled python -m tests.integration.ghost_scenario DIRECTORY``.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import ray

from escrowmq import Cluster, EscrowMQError
from tests.integration.nodes_scenario import Story, command, read_all, say, seats, settled, until


class GhostStory(Story):
    """A cluster of three replicas on three of four nodes."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.writing = threading.Event()
        self.unsure: set[bytes] = set()  # of transactions whose outcome was not reported

    def comes_up(self) -> Cluster:
        cluster = self.comes_up_spread_over_the_nodes()
        self.nodes["n3"] = self.machines.add_node(num_cpus=1, node_name="n3")
        return cluster

    def keeps_writing(self, cluster: Cluster) -> threading.Thread:
        """Send transactions until the end; acknowledged ones are counted in ``sent``."""

        def write() -> None:
            while self.writing.is_set():
                before = self.sent
                try:
                    self.send(cluster)
                except EscrowMQError as error:
                    say(f"not acknowledged: {error}")
                    self.unsure.update(b"%d" % number for number in range(before, self.sent))
                time.sleep(0.1)

        self.writing.set()
        thread = threading.Thread(target=write, name="write")
        thread.start()
        return thread

    def check_all_there(self, cluster: Cluster) -> None:
        expected = [b"%d" % number for number in range(self.sent)]
        sure = [value for value in expected if value not in self.unsure]
        found = read_all(cluster, len(sure))
        assert [value for value in found if value not in self.unsure] == sure

    def replaces_one_that_lives_on(self, cluster: Cluster) -> None:
        name = sorted(self.nodes)[0]
        replica, seat = next((r, s) for r, s in seats(cluster).items() if s["node"] == name)
        raylet = psutil.Process(self.nodes[name].all_processes["raylet"][0].process.pid)
        broker = psutil.Process(seat["pid"])
        for process in (raylet, broker):
            process.suspend()
        say(f"node {name} stands still, with replica {replica}")
        until("the replica moves", lambda: seats(cluster)[replica]["node"] == "n3", cluster)
        assert broker.is_running(), "the process on the old node lives"
        until("the successor counts", lambda: settled(cluster), cluster)
        assert seats(cluster)[replica]["incarnation"] == 1
        say("its replica was rebuilt on n3, and is a full member")
        broker.resume()
        mark = self.data_dir / f"g0-r{replica}" / "superseded"
        until("the old process is told", lambda: mark.exists(), cluster)
        assert mark.read_text().strip() == "1"
        psutil.wait_procs([broker], timeout=10)
        assert not broker.is_running() or broker.status() == psutil.STATUS_ZOMBIE
        assert list((mark.parent / "log").glob("*.log")), "it keeps its directory"
        say("the old process was refused, wrote that down, and ended")
        raylet.send_signal(signal.SIGKILL)
        time.sleep(2.0)
        assert settled(cluster)
        assert {one["directory"] for one in cluster.leftovers()} == {mark.parent.name}
        assert cluster.leftovers(remove=True) == [] and not mark.parent.exists()
        assert settled(cluster)
        say("its directory was removed, because the successor votes")

    def loses_a_directory(self, cluster: Cluster) -> None:
        """A running replica's directory is emptied: it comes back with a higher incarnation."""
        leader = cluster.status().groups[0].leader
        replica, seat = next(
            (r, s) for r, s in seats(cluster).items() if r != leader and s["node"] in ("n0", "n1", "n2")
        )
        directory = self.data_dir / f"g0-r{replica}"
        psutil.Process(seat["pid"]).kill()
        directory.rename(directory.with_name("emptied"))
        until("a further incarnation", lambda: seats(cluster)[replica]["incarnation"] > 0, cluster)
        until("it is a full member", lambda: settled(cluster), cluster)
        assert seats(cluster)[replica]["node"] == seat["node"]
        say(f"replica {replica} lost its directory, and was rebuilt in its place")


def main() -> None:
    """The whole story."""
    story = GhostStory(Path(sys.argv[1]))
    try:
        cluster = story.comes_up()
        writer = story.keeps_writing(cluster)
        try:
            story.replaces_one_that_lives_on(cluster)
            story.loses_a_directory(cluster)
        finally:
            story.writing.clear()
            writer.join()
        story.check_all_there(cluster)
        say(f"all {story.sent} acknowledged messages are there, once and in order")
        address = story.machines.address
        cluster.close()
        command("down", "--address", address)
        say("done")
    finally:
        if ray.is_initialized():
            ray.shutdown()
        story.machines.shutdown()


if __name__ == "__main__":
    main()
