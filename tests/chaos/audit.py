"""The end of a round: resolve everything, read every replica from end to end, and judge the history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from escrowmq import Admin, TransactionState
from escrowmq.actors.client.router import Router
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.consumer.offsets import OffsetReader
from escrowmq.actors.consumer.reader import PartitionReader
from escrowmq.cluster.supervisor.member_steps import ReplicaKey
from escrowmq.replication.errors import Unavailable, UnknownTransaction
from escrowmq.replication.format.codec import decode_rows
from tests.chaos.consumer import GROUP, Place
from tests.chaos.damage import sound_entries
from tests.chaos.database import Database
from tests.chaos.deployment import Deployment, until
from tests.chaos.fleet import Fleet
from tests.chaos.probe import OPERATED, Operator
from tests.chaos.replica_reads import OneReplica
from tests.history.checker import check
from tests.history.events import INVOKE, OK, READ, Event, Recorder, identify
from tests.history.files import stream
from tests.history.report import Report

#: Long enough for a check that was put off a few times: 1, 2, 4, 8 s.
RESOLVED_S = 120.0
REST_S = 75.0
#: Once all is quiet, scrubbing finds damage that no one reads within its period (machines.SCRUB_PERIOD_S).
MENDED_S = 90.0
LARGE, HUGE = 30_000, 1_000_000


def settle(deployment: Deployment, fleet: Fleet, operator: Operator, places: Sequence[Place]) -> None:
    """Let clients rest, and wait until no transaction is open, the group has read all, and replicas agree."""
    fleet.rest()
    deployment.wait_well(90.0)
    fleet.wait_rested(REST_S)
    operator.end()

    def nothing_open() -> bool:
        operator.decide_some(1.0)
        return not deployment.cluster.admin.list_transactions()

    until("no transaction is open", nothing_open, RESOLVED_S)

    def all_read() -> bool:
        found = deployment.cluster.admin.describe_group(GROUP).partitions
        listed = {(place.topic, place.partition) for place in found}  # those that members read, too
        return listed >= set(places) and all((place.committed or 0) >= place.end for place in found)

    until("the consumer group has committed everything", all_read, 60.0)
    deployment.same_everywhere()


def read_everything(
    deployment: Deployment, recorder: Recorder, places: Sequence[Place], lives: Mapping[str, int]
) -> Counter[str]:
    """Read all partitions from every replica, and the group's committed offsets; returns figures.

    ``lives``: the ids of topics that were created several times.
    """
    info = deployment.info
    router = Router(info)
    offsets = OffsetReader(router)
    try:
        bounds = offsets.bounds(places, 30.0)
        committed = offsets.committed(GROUP, {topic for topic, _ in places}, 30.0)
    finally:
        router.close()
    for (topic, partition), offset in committed.items():
        op = recorder.invoke("offset-fetch", group=GROUP, topic=topic, partition=partition)
        recorder.ok(op, offset=offset)
    figures: Counter[str] = Counter()
    voters = [deployment.voters(gid) for gid in range(info.groups)]
    for turn, rids in enumerate(zip(*voters, strict=True)):
        calls = OneReplica(info, rids)
        for place in places:
            where = bounds[place]
            assert not isinstance(where, Exception), where
            counted = figures if turn == 0 else Counter[str]()
            gid = router.placement.group_of(*place)
            records = _read(info, gid, calls, place, where, counted)
            life = lives.get(place[0])
            recorder.read(f"final-{turn}", *place, records, start=where[0], end=where[1], life=life)
        calls.close()
    return figures


def _read(
    info: ClusterInfo,
    gid: int,
    calls: OneReplica,
    place: Place,
    bounds: tuple[int, int],
    figures: Counter[str],
) -> list[tuple[int, str]]:
    records: list[tuple[int, str]] = []
    for block in PartitionReader(info, *place, *bounds, group=gid, calls=calls):
        for n, (_, value, _, _) in enumerate(decode_rows(block.rows, block.messages)):
            records.append((block.base_offset + n, identify(value)))
            figures["messages"] += 1
            figures["bytes"] += len(value)
            figures["messages of 30 KB and more"] += len(value) >= LARGE
            figures["messages of 1 MB"] += len(value) >= HUGE
    return records


def wait_mended(deployment: Deployment, log_directory: Callable[[ReplicaKey], Path]) -> None:
    """Wait until every entry in every replica's log is sound. Raises Stuck.

    Damage that was read has been mended; scrubbing finds the rest. Nothing is under way any more, so no write
    in progress can be mistaken for damage.
    """

    def sound() -> bool:
        problems = [problem for key in deployment.seats() for problem in sound_entries(log_directory(key))[1]]
        if problems:
            raise Unavailable(f"{len(problems)} places in logs are damaged: {problems[:3]}", 0.1)
        return True

    until("every log is sound again", sound, MENDED_S)


def ask_outcomes(admin: Admin, recorder: Recorder, histories: Iterable[Path]) -> int:
    """Ask the brokers about transactions whose PREPARE they acknowledged and whose outcome no client knows. A
    transaction that the brokers do not know is lost. Returns the number of transactions asked about.

    Call it right after a round: brokers forget a transaction when 500,000 others have settled after it.
    """
    doubtful = never_told(stream(histories))
    for app, tx in doubtful:
        op = recorder.invoke("outcome", app=app, tx=tx)
        try:
            outcome = admin.show_transaction(tx, app=app).state.value
        except UnknownTransaction:
            outcome = TransactionState.UNKNOWN.value
        recorder.ok(op, outcome=outcome)
    return len(doubtful)


def never_told(events: Iterable[Event]) -> list[tuple[str, str]]:
    """(app, transaction) whose PREPARE was acknowledged, but no decision."""
    asked: dict[tuple[str, int], tuple[str, tuple[str, str]]] = {}
    prepared: dict[tuple[str, str], None] = {}
    told: set[tuple[str, str]] = set()
    for event in events:
        key = event.process, event.op
        if event.phase == INVOKE and event.kind in ("prepare", "decide"):
            asked[key] = event.kind, (event.fields["app"], event.fields["tx"])
        elif event.phase == OK and key in asked:
            kind, tx = asked[key]
            if kind == "prepare":
                prepared[tx] = None
            else:
                told.add(tx)
    return [tx for tx in prepared if tx not in told]


def tell_the_truth(recorder: Recorder, directory: Path, histories: Iterable[Path]) -> None:
    """Record the outcome in the app's own database of every transaction that was ever begun."""
    committed = {path.stem: _committed(path) for path in directory.glob("*.db")}
    known: set[tuple[str, str]] = set()
    for event in stream(histories):
        if event.phase != INVOKE or event.kind != "prepare" or event.fields["app"] in OPERATED:
            continue
        app, tx = event.fields["app"], event.fields["tx"]
        if (app, tx) in known:
            continue
        known.add((app, tx))
        state = TransactionState.COMMITTED if tx in committed[app] else TransactionState.ROLLBACK
        recorder.ok(recorder.invoke("local", app=app, tx=tx, outcome=state.value))


def _committed(path: Path) -> set[str]:
    database = Database(path)
    try:
        return database.committed()
    finally:
        database.close()


def judge(histories: Sequence[Path], places: Sequence[Place]) -> tuple[Report, list[str], list[int]]:
    """The checker's report, the offsets that the group missed, and the times (ns) of acknowledgements."""
    report = check(stream(histories))
    return report, never_delivered(stream(histories), places), acknowledged_at(stream(histories))


def never_delivered(events: Iterable[Event], places: Sequence[Place]) -> list[str]:
    """Offsets that no member of the group got, although the last complete read has them.

    In a topic that was created several times, an offset counts only with the message that it has now.
    """
    delivered: dict[Place, set[int | str]] = {place: set() for place in places}
    ends: dict[Place, int] = {}
    present: dict[Place, dict[int, str]] = {}
    for event in events:
        if event.phase != READ:
            continue
        place = event.fields["topic"], event.fields["partition"]
        if event.process.startswith("consumer-"):
            delivered[place].update(one for record in event.fields["records"] for one in record)
        elif event.fields.get("end") is not None:
            ends[place] = event.fields["end"]
            if event.fields.get("life") is not None:
                present[place] = dict(event.fields["records"])
    missing = {
        place: sorted(n for n in range(end) if present.get(place, {}).get(n, n) not in delivered[place])
        for place, end in ends.items()
    }
    return [
        f"group {GROUP} was never given {len(offsets)} messages of {topic}[{partition}]: {offsets[:5]}"
        for (topic, partition), offsets in missing.items()
        if offsets
    ]


def acknowledged_at(events: Iterable[Event]) -> list[int]:
    """Times (ns) at which commits and plain sends were acknowledged."""
    wanted: set[tuple[str, int]] = set()
    moments = []
    for event in events:
        key = event.process, event.op
        if event.phase == INVOKE and event.kind in ("decide", "send"):
            wanted.add(key)
        elif event.phase == OK and key in wanted:
            moments.append(event.at)
    return moments
