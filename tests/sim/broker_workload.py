"""The broker's replicated state in the simulator: transactions, plain messages, retries, decisions.

Clients prepare, decide, and send, at whatever replica believes to lead, and send the same bytes again
until they have an answer. What they were told is kept; at the end every replica's messages are read
and held against it: nothing acknowledged is lost, nothing is there twice, nothing that was rolled back
or is still open can be read, and a transaction over two partitions is there whole or not at all.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from escrowmq.replication import ops
from escrowmq.replication.checkpoints import CheckpointJob, Checkpoints, snapshot_name
from escrowmq.replication.codec import decode_rows, encode_row
from escrowmq.replication.model import ResultCode
from escrowmq.replication.raft import RaftNode
from escrowmq.replication.replica import Limits, Replica
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.validation import parse_request
from tests.sim.workload import Application, Cluster, ReplicaContext
from tests.sim.world import Violation

PARTITIONS = 2
DIGEST_EVERY = 16  # entries; the digest walks the whole state
RETRY_LIMIT = 10_000
RETRIES_PER_ACT = 10


class _Telling:
    """The Raft node, except that the checker hears of every entry that a client was answered for."""

    def __init__(self, raft: RaftNode, app: BrokerApplication) -> None:
        self._raft, self._app = raft, app

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raft, name)

    def propose(self, command: bytes, done: Callable[[Any, bool | None], None]) -> None:
        term = self._raft.term

        def told(result: Any, applied: bool | None) -> None:
            if applied and self._app.cluster is not None:
                self._app.cluster.acknowledged(self._app.applied_index, term, command)
            done(result, applied)

        self._raft.propose(command, told)


class BrokerApplication:
    """One replica from start to crash, over the simulated disk."""

    def __init__(self, context: ReplicaContext) -> None:
        self._context = context
        self.cluster: Cluster | None = None
        self.checkpoints = Checkpoints(context.disk)
        state, _ = self.checkpoints.recover(lambda: StateMachine(0, 1))
        self.replica = Replica(
            state=state,
            journal=context.journal,
            checkpoints=self.checkpoints,
            limits=Limits(
                entries_in_flight=4, queue_bytes_max=20_000, copy_bytes=context.rng.choice((0, 40))
            ),
            start_job=self._start_job,
            number_of=lambda name: int(name[1:]),
        )
        context.journal.on_roll = lambda first: self.checkpoints.want(first - 1)

    @property
    def applied_index(self) -> int:
        return max(1, self.replica.state.applied_index)

    def attach(self, raft: RaftNode) -> None:
        self.replica.attach(_Telling(raft, self))

    def apply(self, index: int, term: int, command: bytes) -> Any:
        return self.replica.apply(index, term, command)

    def after_tick(self, now_s: float) -> None:
        now_ms = int(now_s * 1000)
        self.replica.on_timer(now_ms)
        self.replica.pump(now_ms)

    def _start_job(self, job: CheckpointJob, done: Callable[[], None]) -> None:
        def write() -> None:
            job.run()
            done()

        self._context.later(self._context.rng.random() * 0.3, write)

    def digest(self) -> bytes | None:
        state = self.replica.state
        if state.applied_index % DIGEST_EVERY:
            return None
        parts: list[object] = [state.now_ms, state.first_index, state.topics.next_slot]
        for slot, partition in sorted(state.topics.slots.items()):
            index = partition.index
            parts.append((slot, index.start, index.end, index.runs_from(index.start, 100_000)))
        for app, table in state.transactions.apps.items():
            if not table.open and not len(table.settled):
                continue  # a leader looks apps up before their first PREPARE is applied
            parts.append((app, list(table.open.items()), table.settled.copy()))
        parts.append(state.producers.copy())
        return hashlib.sha1(repr(parts).encode()).digest()

    def repair_files(self, last: int) -> list[str] | None:
        """The newest snapshot at or before entry ``last``, and all run files; None if there is none."""
        fitting = [index for index in self.checkpoints.indexes if index <= last]
        if not fitting:
            return []  # the whole log will do
        runs = [name for name in self._context.disk.names() if name.endswith(".runs")]
        return [*runs, snapshot_name(fitting[-1])]

    def want_checkpoint(self) -> None:
        self.checkpoints._wanted_at = self.applied_index

    def want_retention(self) -> None:
        self.replica._next_retention_ms = 0

    def fetch(self, number: int, offset: int, max_bytes: int) -> Any:
        """What a reader at this replica gets; None if the replica found damage and is gone now."""
        results = self._context.guarded(lambda: self.replica.fetch([("t", number, offset)], max_bytes))
        return results[0] if results else None

    def messages(self, number: int) -> list[bytes]:
        """All values of a partition, in order of offsets; offsets must be dense."""
        topic = self.replica.state.topics.topics.get("t")
        if topic is None:
            return []
        start, end = topic.partitions[number].index.start, topic.partitions[number].index.end
        values: list[bytes] = []
        while start + len(values) < end:
            (result,) = self.replica.fetch([("t", number, start + len(values))], 1 << 30)
            at = 0
            for base, count, _, size in result[5]:
                if base != start + len(values):
                    raise Violation(f"offsets of partition {number} jump to {base}")
                values += [row[1] for row in decode_rows(result[6][at : at + size], count)]
                at += size
            if not result[5]:
                raise Violation(f"nothing at offset {start + len(values)} below the end {end}")
        return values


class _Transaction:
    """What a client knows of one transaction."""

    def __init__(self, tx_id: str, values: list[list[bytes]]) -> None:
        self.tx_id, self.values = tx_id, values
        self.prepared = False
        self.told: set[str] = set()  # outcomes that were acknowledged


class BrokerWorkload:
    """Clients of one broker group."""

    def __init__(self) -> None:
        self.transactions: dict[str, _Transaction] = {}
        self.sent: dict[tuple[int, int], bytes] = {}  # (partition, sequence) -> value
        self.stored: dict[tuple[int, int], int] = {}  # (partition, sequence) -> offset told
        self._sequence = [0] * PARTITIONS
        self._sending = [False] * PARTITIONS
        self._created = False
        self._retry: list[tuple[bytes, Callable[[list[Any]], None]]] = []
        self._count = 0
        self.answers: Counter[str] = Counter()
        self.observed: dict[tuple[int, int], bytes] = {}

    def open(self, context: ReplicaContext) -> BrokerApplication:
        return BrokerApplication(context)

    # -------------------------------------------------------------- clients

    def act(self, cluster: Cluster) -> None:
        leaders = cluster.leaders()
        if not leaders:
            return
        rng = cluster.rng
        _, app = rng.choice(leaders)
        assert isinstance(app, BrokerApplication)
        app.cluster = cluster
        retry, self._retry = self._retry[:RETRIES_PER_ACT], self._retry[RETRIES_PER_ACT:]
        for request, then in retry:
            self._submit(app, request, then)
        if not self._created:
            self._created = True
            settings = {"partitions": PARTITIONS, "transaction_timeout_ms": 500}
            self._submit(app, ops.create_topic("t", settings), lambda results: None)
        for _ in range(rng.choice((1, 1, 2, 5))):
            rng.choice((self._prepare, self._prepare, self._decide, self._decide, self._send))(cluster, app)
        self._look(cluster, app)

    def _submit(self, app: BrokerApplication, request: bytes, then: Callable[[list[Any]], None]) -> None:
        answered = False

        def done(status: tuple[Any, ...]) -> None:
            nonlocal answered
            assert not answered, "a request was answered twice"
            answered = True
            self.answers[status[0]] += 1
            if status[0] == "ok":
                then(status[1])
            else:
                assert len(self._retry) < RETRY_LIMIT
                self._retry.append((request, then))

        app.replica.submit(request, parse_request(request), done)

    def _prepare(self, cluster: Cluster, app: BrokerApplication) -> None:
        ids, rows, columns = [], [], [([], [], []) for _ in range(PARTITIONS)]  # type: ignore[var-annotated]
        for _ in range(cluster.rng.choice((1, 1, 3))):
            self._count += 1
            tx_id = f"x{self._count}"
            values = []
            for number in range(PARTITIONS):
                value = f"{tx_id}/{number}".encode().ljust(cluster.rng.choice((12, 60)), b".")
                values.append([value])
                row = encode_row(None, value, None, tx_id)
                txs, sizes, bodies = columns[number]
                txs.append(len(ids)), sizes.append(len(row)), bodies.append(row)
                rows.append(row)
            ids.append(tx_id)
            self.transactions[tx_id] = _Transaction(tx_id, values)
        request = ops.prepare("app", "t", ids, None, 0, 0, [1] * len(ids), -1, PARTITIONS) + b"".join(
            ops.pre_message("t", number, *columns[number]) for number in range(PARTITIONS)
        )

        def prepared(results: list[Any]) -> None:
            code = results[0][0]
            for tx_id in ids:
                self.transactions[tx_id].prepared = code in (ResultCode.OK, ResultCode.PARTIAL)

        self._submit(app, request, prepared)

    def _decide(self, cluster: Cluster, app: BrokerApplication) -> None:
        """Commit or roll back something prepared; now and then both, or again what was decided."""
        known = [t for t in list(self.transactions.values())[-30:] if t.prepared]
        if not known:
            return
        chosen = cluster.rng.sample(known, min(len(known), cluster.rng.choice((1, 1, 4))))
        wanted = cluster.rng.choice(("COMMITTED", "COMMITTED", "ROLLBACK"))
        build = ops.commit if wanted == "COMMITTED" else ops.rollback

        def decided(results: list[Any]) -> None:
            (result,) = results
            problems = {p[0]: p for p in result[1]} if result[0] == ResultCode.PARTIAL else {}
            for i, transaction in enumerate(chosen):
                problem = problems.get(i)
                if problem is None:
                    transaction.told.add(wanted)
                elif problem[1] == ResultCode.TX_CONFLICT:
                    transaction.told.add(problem[2])
                else:
                    raise Violation(f"{transaction.tx_id} was prepared and is now {problem}")
                if len(transaction.told) > 1:
                    raise Violation(f"{transaction.tx_id}: both outcomes were told: {transaction.told}")

        self._submit(app, build("app", [t.tx_id for t in chosen]), decided)

    def _send(self, cluster: Cluster, app: BrokerApplication) -> None:
        number = cluster.rng.randrange(PARTITIONS)
        if self._sending[number]:
            return
        seq = self._sequence[number]
        value = f"plain {number} {seq}".encode()
        self.sent[number, seq] = value
        self._sending[number] = True

        def stored(results: list[Any]) -> None:
            code, info = results[0][0], results[0][1] if len(results[0]) > 1 else None
            self._sending[number] = False
            if code in (ResultCode.OK, ResultCode.DUPLICATE):
                self.stored[number, seq] = info[0]
                self._sequence[number] = seq + 1
            elif code not in (ResultCode.UNKNOWN_TOPIC,):
                raise Violation(f"batch {seq} of partition {number} was answered {results}")

        self._submit(
            app, ops.message("t", number, "p", 0, seq, [encode_row(None, value, None, None)]), stored
        )

    def _look(self, cluster: Cluster, app: BrokerApplication) -> None:
        """A reader at this replica: what stands at an offset never changes, not even on deposed leaders."""
        topic = app.replica.state.topics.topics.get("t")
        if topic is None:
            return
        number = cluster.rng.randrange(PARTITIONS)
        index = topic.partitions[number].index
        if index.end > index.start:
            offset = cluster.rng.randrange(index.start, index.end)
            result = app.fetch(number, offset, 1)
            if result is None:
                return
            base, count, _, size = result[5][0]
            for at, row in enumerate(decode_rows(result[6][:size], count)):
                before = self.observed.setdefault((number, base + at), row[1])
                if before != row[1]:
                    raise Violation(
                        f"offset {base + at} of partition {number} changed: {before!r}, {row[1]!r}"
                    )

    # -------------------------------------------------------------- the end

    def check_end(self, applications: Sequence[Application]) -> None:
        contents = []
        for app in applications:
            assert isinstance(app, BrokerApplication)
            contents.append([app.messages(number) for number in range(PARTITIONS)])
        longest = max(contents, key=lambda content: sum(map(len, content)))
        for content in contents:
            for number in range(PARTITIONS):
                if content[number] != longest[number][: len(content[number])]:
                    raise Violation(f"replicas disagree about partition {number}")
        self._check_plain(longest)
        self._check_transactions(longest)

    def _check_plain(self, content: list[list[bytes]]) -> None:
        for (number, seq), offset in self.stored.items():
            found = content[number][offset] if offset < len(content[number]) else None
            if found != self.sent[number, seq]:
                raise Violation(
                    f"plain message {seq} of partition {number} is not at offset {offset}: {found!r}"
                )

    def _check_transactions(self, content: list[list[bytes]]) -> None:
        counts = Counter(value for partition in content for value in partition)
        twice = [value for value, count in counts.items() if count > 1]
        if twice:
            raise Violation(f"there more than once: {twice[:3]}")
        for transaction in self.transactions.values():
            there = [value in counts for values in transaction.values for value in values]
            if any(there) and not all(there):
                raise Violation(f"{transaction.tx_id} is torn: {there}")
            if "COMMITTED" in transaction.told and not all(there):
                raise Violation(f"{transaction.tx_id} was committed and is not there")
            if "ROLLBACK" in transaction.told and any(there):
                raise Violation(f"{transaction.tx_id} was rolled back and is there")
        strangers = set(counts) - {v for t in self.transactions.values() for vs in t.values for v in vs}
        if strangers - set(self.sent.values()):
            raise Violation(f"nobody sent {list(strangers - set(self.sent.values()))[:3]}")
