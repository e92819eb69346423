"""How retention, snapshots, catalog requests and fail-overs affect clients of a group with much data.

A group of three replicas opens directories with ten thousand topics of four partitions and ten million runs
(generated.py). While two clients keep sending one message at a time, these happen in turn: segments fill
until every replica has written a snapshot; retention removes most of the runs and their segments; another
process sends 200 requests for all topics at once; the leader is killed repeatedly.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL
from typing import TYPE_CHECKING, Any

import escrowmq
from benchmarks.live.disk_probe import disk_probe
from benchmarks.live.generated import FRAMES_PER_ENTRY, MS_PER_ENTRY, Content, Say, fill, install, topic_name
from benchmarks.live.sending import Senders, senders
from benchmarks.live.waiting import until
from benchmarks.load.followers import Beside
from benchmarks.load.replicas import Replicas, pid_of, send_signal
from benchmarks.measure import Latencies

if TYPE_CHECKING:
    from escrowmq import Cluster

#: Small segments, so that each replica soon writes a snapshot.
SEGMENT_BYTES = 16 << 20
QUIET_S = 15.0
#: A leader's round of retention begins every ten seconds.
RETENTION_S = 60.0


def measure(
    folder: Path, content: Content, kills: int, catalogs: int, say: Say, stored: Path | None = None
) -> dict[str, Any]:
    """Run the experiment; returns its figures by phase.

    ``folder`` must be empty. ``stored``: a log with that content, which is written if it is missing; None: it
    is not kept.
    """
    data_dir = folder / "data"
    broker = {"segment_bytes": SEGMENT_BYTES}
    escrowmq.start_local(1, 3, data_dir, broker=broker).close()
    log = stored or folder / "log"
    if not log.exists():
        fill(log, content, int(1000 * time.time()), say)
    install(log, data_dir, 3)
    begin = time.monotonic()
    with escrowmq.start_local(1, 3, data_dir, broker=broker) as cluster:
        until(lambda: cluster.status().healthy, "all replicas to be healthy")
        started = time.monotonic() - begin
        say(f"three replicas opened {content.runs:,} runs in {started:.1f} s")
        with senders(cluster) as clients:
            found = _Story(cluster, clients, data_dir, content, say).run(kills, catalogs)
        return {"content": vars(content), "opened_s": round(started, 1), **found, "errors": clients.errors()}


class _Story:
    def __init__(
        self, cluster: Cluster, clients: Senders, data_dir: Path, content: Content, say: Say
    ) -> None:
        self._cluster, self._clients, self._say = cluster, clients, say
        self._replicas, self._data_dir, self._content = Replicas(cluster), data_dir, content
        self._phases: dict[str, dict[str, int]] = {}

    def run(self, kills: int, catalogs: int) -> dict[str, Any]:
        term = self._replicas.leader().term
        with self._phase("nothing else"):
            time.sleep(QUIET_S)
        with self._phase("snapshots"):
            self._snapshots()
        with self._phase("retention"):
            self._retention()
        asked = self._catalogs(catalogs)
        changes = self._replicas.leader().term - term
        self._say(f"{changes} leader changes")
        return {
            "worst_gap_ms": self._phases,
            "changes_of_leader": changes,
            "catalogs": asked,
            "fail_over": self._fail_overs(kills),
        }

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        begin = time.monotonic()
        yield
        end = time.monotonic()
        self._phases[name] = self._clients.gaps_ms(begin, end)
        self._say(f"{name}: {end - begin:.1f} s, worst gaps in ms {self._phases[name]}")

    def _snapshots(self) -> None:
        before = self._newest_snapshots()
        self._cluster.admin.create_topic("bulk", partitions=4)
        with self._cluster.producer(app="bulk") as producer, Beside(producer):
            until(
                lambda: all(new > old for new, old in zip(self._newest_snapshots(), before, strict=True)),
                "a snapshot of each replica",
            )
            time.sleep(2.0)  # files that it supersedes are removed

    def _newest_snapshots(self) -> list[str]:
        return [
            max((path.name for path in (self._data_dir / f"g0-r{rid}" / "log").glob("*.snap")), default="")
            for rid in range(3)
        ]

    def _retention(self) -> None:
        entries = self._content.spread // FRAMES_PER_ENTRY
        self._cluster.admin.alter_topic(topic_name(0), retention_ms=entries * MS_PER_ENTRY)
        firsts = {replica.replica: replica.first_index for replica in self._replicas.all()}
        gone = self._content.busy // (2 * FRAMES_PER_ENTRY)  # the rest shares a segment with others
        until(
            lambda: all(r.first_index > firsts[r.replica] + gone for r in self._replicas.all()),
            "segments to be dropped on all replicas",
        )
        time.sleep(5.0)

    def _catalogs(self, count: int) -> dict[str, Any]:
        info = self._cluster.info
        command = [sys.executable, "-m", "benchmarks.live.catalogs"]
        with subprocess.Popen(
            [*command, self._cluster.address, info.namespace, str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            time.sleep(8.0)  # until it has joined Ray and waits
            with self._phase(f"{count} catalogs"):
                told, _ = process.communicate("\n", timeout=120)
        found: dict[str, Any] = json.loads(told)
        self._say(f"catalogs: {found}")
        return found

    def _fail_overs(self, kills: int) -> dict[str, Any]:
        away, back, waits = Latencies(), Latencies(), list[int]()
        with disk_probe(self._data_dir) as disk:
            for _ in range(kills):
                self._clients.go_on()
                victim = self._replicas.leader()
                disk.restart()
                begin = time.monotonic()
                send_signal(pid_of(victim), SIGKILL)
                each = {s.kind: s.next_after(begin + 0.05) - begin for s in self._clients.all}
                away.add(max(each.values()))
                waits.append(disk.worst_ms())
                terms = self._replicas.leader().term - victim.term
                times = ", ".join(f"{kind} {1000 * seconds:.0f} ms" for kind, seconds in each.items())
                self._say(
                    f"replica {victim.replica} led and was killed: {times}; terms {terms}, "
                    f"longest write beside {waits[-1]} ms"
                )
                self._replicas.restarted(victim)
                until(lambda: self._cluster.status().healthy, "all replicas to be healthy")
                back.add(time.monotonic() - begin)
        found = {
            "kills": kills,
            "p50_ms": round(away.quantile_ms(0.5)),
            "p95_ms": round(away.quantile_ms(0.95)),
            "max_ms": round(away.quantile_ms(1.0)),
            "each_ms": away.each_ms(),
            "longest_write_beside_ms": waits,
            "well_again_p50_ms": round(back.quantile_ms(0.5)),
        }
        self._say(f"fail-overs: {found}")
        return found
