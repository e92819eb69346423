"""One round, in a separate process: ``python -m tests.chaos.round SETTINGS``.

Starts a cluster and its clients, inflicts the round's faults one after the other, lets everything come
to rest, and judges. It prints events on standard output, one JSON object per line; everything else goes to
the log in the round's directory.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import escrowmq
from escrowmq.replication.state.machine import LEVEL_MAX
from tests.chaos import audit, delays, shared
from tests.chaos.client import ClientSettings
from tests.chaos.consumer import places
from tests.chaos.deployment import Deployment, Stuck, until
from tests.chaos.faults import Faults
from tests.chaos.fleet import Fleet
from tests.chaos.kinds import kind_of
from tests.chaos.machines import Machines, embedded, on_machines
from tests.chaos.messages import RECREATED
from tests.chaos.plan import Fault, Round, only, plan_round
from tests.chaos.probe import TOPIC, Operator, Probe
from tests.chaos.recording import Recorded
from tests.chaos.recreated import PARTITIONS, RecreatedTopic
from tests.history.events import Recorder

#: Partitions by topic, and the time until the first check of their transactions.
TOPICS = {"orders": 3, "ledger": 2}
#: Of these, what a share group handles message by message.
SHARED = {"orders": 3}
TRANSACTION_TIMEOUT_MS = 1500
#: Limit until everything is back, on a machine that may be busy with other things.
WELL_S = 120.0


@dataclass(frozen=True, slots=True)
class RoundSettings:
    """The settings of a round's process, passed as JSON. ``size``: number of trials. ``groups``: number of
    broker groups; None: by the seed. ``only_trial``: the only trial to run of a round of that size."""

    seed: int
    number: int
    size: int
    kinds: list[str]
    directory: str
    groups: int | None = None
    only_trial: int | None = None
    producers: int = 3
    consumers: int = 2
    crashes: float = 0.004
    pause_s: float = 0.15

    def encode(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))

    def plan(self) -> Round:
        """The faults."""
        kinds = [kind_of(name) for name in self.kinds]
        return only(plan_round(self.seed, self.number, self.size, kinds, self.groups), self.only_trial)


class Told:
    """Sends events to the parent."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def __call__(self, event: str, **fields: Any) -> None:
        self._file.write(json.dumps({"event": event, "at": time.monotonic_ns(), **fields}) + "\n")
        self._file.flush()


class Trials:
    """The trials of a round whose cluster runs."""

    def __init__(
        self,
        settings: RoundSettings,
        plan: Round,
        cluster: escrowmq.Cluster,
        machines: Machines | None,
        tell: Told,
    ):
        self.settings, self.plan, self.tell = settings, plan, tell
        self.directory = Path(settings.directory)
        self.deployment = Deployment(cluster)
        self.recorder = Recorder("driver", self.directory / "driver.jsonl")
        self.recorded = Recorded(self.recorder)
        #: The topics that stay.
        self.topics = {**TOPICS, TOPIC: cluster.info.groups}
        self.everything = {**self.topics, RECREATED: PARTITIONS}
        self.fleet = Fleet()
        options = {"transaction_timeout_ms": TRANSACTION_TIMEOUT_MS}
        self.recreated = RecreatedTopic(self.deployment, self.recorder, options)
        self.faults = Faults(self.deployment, self.fleet, machines, self.directory, self.recreated)
        self.machines = machines
        self.well = True
        self.problems: list[str] = []

    def run(self) -> bool:
        """Inflict the faults, let everything rest, judge; returns whether all promises were kept."""
        cluster = self.deployment.cluster
        for topic, partitions in self.topics.items():
            cluster.admin.create_topic(topic, partitions, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS)
        cluster.admin.create_topic(delays.TOPIC, delays.PARTITIONS)
        with contextlib.ExitStack() as stack:
            stack.callback(self.fleet.end)
            self.deployment.wait_level(LEVEL_MAX)
            shared.set_up(self.deployment, self.recorder)
            self.recreated.create()
            self._add_clients()
            probe = Probe(cluster, self.recorded, self.plan.number)
            stack.callback(probe.close)
            operator = Operator(cluster, self.recorded, self.plan.seed)
            stack.callback(operator.end)
            self.fleet.wait_ready()
            self.tell("working")
            for fault in self.plan.faults:
                self._trial(fault, probe)
            self.tell("resting")
            start = time.monotonic()
            self._wait_well()
            audit.settle(self.deployment, self.fleet, operator, places(self.everything))
            shared.settle(self.deployment)
            delays.settle(self.deployment)
            self.deployment.same_everywhere()
            self.tell("reading", rest_s=time.monotonic() - start)
            lives = {RECREATED: self.recreated.id}
            figures = audit.read_everything(self.deployment, self.recorder, places(self.everything), lives)
            figures["topics deleted and created again"] = self.recreated.lives - 1
            figures["partitions of them not read before"] = self.recreated.unread
            figures += shared.record_end(self.deployment, self.recorder, SHARED)
            found, counted = delays.audit(self.deployment, self.directory)
            self.problems += found
            figures += counted
            self.problems += delays.named("early, while a clock was wrong", self.faults.early)
            figures["looks at delayed messages while a clock was wrong"] = self.faults.looks
            asked = audit.ask_outcomes(cluster.admin, self.recorder, sorted(self.directory.glob("*.jsonl")))
            figures["transactions asked for in the end"] = asked
            if self.faults.damaged:
                figures["entries damaged"] = len(self.faults.damaged)
                audit.wait_mended(self.deployment, self.faults.log_directory)
        return self._judge(dict(figures), operator)

    def _add_clients(self) -> None:
        settings = self.settings
        base = ClientSettings(
            role="producer",
            name="",
            address=self.deployment.cluster.address,
            namespace=self.deployment.info.namespace,
            directory=settings.directory,
            seed=settings.seed,
            topics={**TOPICS, RECREATED: PARTITIONS},
            pause_s=settings.pause_s,
        )
        for number in range(settings.producers):
            # The first two share an app and its database, so that one can answer for the other; the last has
            # long local transactions. One gives up early, so that outcomes stay unknown.
            options = {"delivery_timeout_s": 2.0} if number == 1 else {}
            long_share = 0.4 if number == settings.producers - 1 else 0.03
            client = replace(
                base,
                name=f"producer-{number}",
                app=f"shop-{max(number - 1, 0)}",
                options=options,
                long_share=long_share,
                crashes=settings.crashes,
            )
            if self.plan.slow_database and number < 2:
                client = replace(client, fenced=False, long_share=0.5, hold_max_s=1.0)
            self.fleet.add(client)
        everything = replace(base, topics=self.everything)
        for number in range(settings.consumers):
            name = f"consumer-{number}"
            self.fleet.add(replace(everything, role="consumer", name=name, crashes=settings.crashes / 4))
        for number in range(settings.consumers):
            crashes = settings.crashes / 4
            self.fleet.add(
                replace(base, role="sharer", name=f"sharer-{number}", topics=SHARED, crashes=crashes)
            )
        self.fleet.add(replace(base, role="scheduler", name="scheduler-0", crashes=settings.crashes))
        # Without a group a reader keeps its position, also in another topic of the same name.
        self.fleet.add(replace(base, topics=self.topics, role="reader", name="reader-0"))

    def _trial(self, fault: Fault, probe: Probe) -> None:
        overlapping = not self.well
        gid = fault.group % self.deployment.info.groups
        fields: dict[str, Any] = {
            "number": fault.number,
            "kind": fault.kind.value,
            "groups": self.plan.groups,
            "overlapping": overlapping,
            "meanwhile": None if fault.meanwhile is None else fault.meanwhile.kind.value,
        }
        self.tell("trial begins", number=fault.number, kind=fault.kind.value)
        if overlapping and self.machines is not None:
            self.machines.revive()  # nodes may have died late; an overlapping fault gets no other repair
        time.sleep(fault.before_s)
        probe.until_acknowledged(gid, time.monotonic_ns())
        began = time.monotonic()
        with self.faults.inflicted(fault) as blow:
            fields |= {"victim": blow.victim, "struck_at": blow.struck_at}
            fields["away_s"] = (
                probe.until_acknowledged(gid, blow.struck_at)
                if blow.going_on is None
                else probe.longest_gap(gid, blow.struck_at, blow.going_on)
            )
        fields |= {"victim": blow.victim, "lasted_s": time.monotonic() - began}
        self.well = not fault.overlaps
        if self.well:
            self._wait_well()
            fields["well_after_s"] = time.monotonic() - began
        self.tell("trial", **fields)

    def _wait_well(self) -> None:
        if self.machines is not None:
            until("machines are mended, and all is well", self._mended, WELL_S)
        self.deployment.wait_well(WELL_S)

    def _mended(self) -> bool:
        """Mend and test the cluster; this is repeated, since nodes may die late from earlier faults."""
        assert self.machines is not None
        self.machines.mend()
        return self.deployment.well()

    def _judge(self, figures: dict[str, Any], operator: Operator) -> bool:
        histories = sorted(self.directory.glob("*.jsonl"))
        audit.tell_the_truth(self.recorder, self.directory, histories)
        self.recorder.close()
        report, missed, moments = audit.judge(sorted(self.directory.glob("*.jsonl")), places(self.everything))
        problems = [str(anomaly) for anomaly in report.anomalies] + missed + self.fleet.problems
        problems += self.problems
        self.tell(
            "judged",
            groups=self.plan.groups,
            machines=self.plan.machines,
            slow_database=self.plan.slow_database,
            violations=problems,
            found=dict(report.found),
            operations={kind: dict(row) for kind, row in report.operations.items()},
            counts=dict(report.counts),
            figures=figures,
            own_crashes=self.fleet.own_crashes,
            operator={"listed": operator.listed, "decided": operator.decided},
            acknowledged=bucketed(moments),
        )
        return not problems


def bucketed(moments: list[int], width_ns: int = 200_000_000) -> dict[str, Any]:
    """How many times fall into each interval of ``width_ns``, starting with the first time."""
    if not moments:
        return {"start": 0, "width_ns": width_ns, "counts": []}
    first = min(moments) // width_ns
    counts = [0] * (max(moments) // width_ns - first + 1)
    for moment in moments:
        counts[moment // width_ns - first] += 1
    return {"start": first * width_ns, "width_ns": width_ns, "counts": counts}


def running(settings: RoundSettings, plan: Round) -> Any:
    """The cluster, and its machines if the plan has any."""
    directory = Path(settings.directory)
    return on_machines(directory, plan) if plan.machines else embedded(directory, plan.groups)


def main() -> int:
    """Run the round. 0: all promises were kept; 1: one was broken; 2: the round itself failed."""
    settings = RoundSettings(**json.loads(sys.argv[1]))
    tell = Told(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)
    plan = settings.plan()
    try:
        start = time.monotonic()
        with running(settings, plan) as (cluster, machines):
            tell("started", took_s=time.monotonic() - start)
            return 0 if Trials(settings, plan, cluster, machines, tell).run() else 1
    except (Stuck, TimeoutError) as error:
        traceback.print_exc()
        tell("violation", text=f"{type(error).__name__}: {error}")
        return 1
    except BaseException as error:
        traceback.print_exc()
        tell("broken", text=f"{type(error).__name__}: {error}")
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
