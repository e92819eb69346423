"""The functions that applications call: ``read``, ``write``, ``offsets``.

They check all arguments and the cluster before anything runs, and raise typed errors. What tasks raise
while a dataset is executed comes out of Ray Data wrapped; ``write`` unwraps it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from escrowmq.actors.client.catalog import TopicCatalog
from escrowmq.actors.client.router import Router
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.producer.config import LEAST_BYTES, compression_of
from escrowmq.cluster.address import AUTO, find_address, join_ray, parse_address
from escrowmq.cluster.config import load_config
from escrowmq.cluster.discovery import discover
from escrowmq.cluster.handle import Cluster
from escrowmq.cluster.ray_use import stay_connected
from escrowmq.replication.errors import Closed, ConfigError
from escrowmq.spark_integration.ray_data import arguments as args

if TYPE_CHECKING:
    from ray.data import Dataset


# ------------------------------------------------------------------------------------------------------------
# Finds the cluster that a dataset reads or writes. Its tasks run in the same Ray cluster as its brokers.


def find_info(cluster: Cluster | None, address: str, namespace: str | None) -> ClusterInfo:
    """The shape of the cluster; this process is connected to its Ray then, and stays so, since datasets are
    executed later. Raises ConfigError, ClusterNotFound, NotAuthorized, Unavailable, Closed."""
    if cluster is None:
        settings = load_config()
        wanted = find_address(settings.ray.address if address == AUTO else address)
        space = namespace or settings.cluster.namespace
        join_ray(wanted, space)
        return discover(space, wanted)
    given: object = cluster
    if not isinstance(given, Cluster):
        raise ConfigError(f"cluster must be what escrowmq.connect or start_local returned, not {given!r}")
    if address != AUTO or namespace is not None:
        raise ConfigError("give a cluster, or an address and a namespace, not both")
    try:
        parse_address(cluster.address)
    except ConfigError:
        raise ConfigError(
            "a cluster in memory has no Ray, so Ray Data cannot use it; start a real one with start_local()"
        ) from None
    if cluster.closed:
        raise Closed("this cluster object was closed; connect again")
    stay_connected()
    return cluster.info


#: Where a read starts or ends: a word, a time (the first message at or after it), or partition -> offset.
Bound: TypeAlias = Literal["earliest", "latest"] | datetime | Mapping[int, int]

#: Half of the largest request that a broker accepts, since a message has to fit in one request.
MESSAGE_BYTES_LIMIT = 4 << 20
#: Nobody answers checks of a write's transactions, so being asked earlier is of no use to a running write. A
#: topic's policy for unanswered checks applies after this time.
TRANSACTION_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Written:
    """The result of :func:`write`. ``write_id``: the app of its transactions, and the begin of the messages'
    ``tx_id``."""

    write_id: str
    messages: int


def read(
    topic: str,
    *,
    cluster: Cluster | None = None,
    address: str = AUTO,
    namespace: str | None = None,
    start: Bound = "earliest",
    end: Bound = "latest",
    partitions: Sequence[int] | None = None,
    columns: Sequence[str] | None = None,
    parallelism: int | None = None,
    **options: Any,
) -> Dataset:
    """A dataset of the committed messages of a topic, up to what is readable now.

    The offset ranges are fixed by this call: however often the dataset is executed, and whatever is sent
    meanwhile, it has the same rows. ``start`` and ``end`` (exclusive) are "earliest", "latest", a datetime
    with a time zone, or a mapping of partitions to offsets; partitions that a mapping does not name are read
    from their beginning, to their end. ``partitions``: only these.

    Columns: ``topic``, ``partition``, ``offset``, ``timestamp``, ``key``, ``value`` (bytes), ``headers`` (a
    list of names and values), ``tx_id``; ``columns`` chooses some of them, and the others are not decoded.
    ``parallelism``: the number of read tasks; default: Ray Data chooses by size. ``options`` are passed to
    ``ray.data.read_datasource``, such as ``concurrency`` and ``num_cpus``.

    ``cluster``, or ``address`` and ``namespace`` as for :func:`escrowmq.connect`; without any of them, the
    cluster is found as ``connect`` finds it. A process that was not connected to Ray stays connected.

    Raises ConfigError, UnknownTopic, ClusterNotFound, NotAuthorized, Unavailable; OffsetOutOfRange if
    ``start`` or ``end`` names an offset that is not in the log. If retention removes a message between this
    call and the execution, the execution fails with DataLoss in the cause of Ray's error.
    """
    args.check_topic(topic)
    args.check_bound("start", start, "earliest")
    args.check_bound("end", end, "latest")
    args.check_partitions(partitions)
    wanted = args.check_columns(columns)
    args.check_count("parallelism", parallelism)
    with _ray_data(), _routed(cluster, address, namespace) as router:
        from escrowmq.spark_integration.ray_data.datasource import EscrowMQDatasource
        from escrowmq.spark_integration.ray_data.planning import plan

        ranges = plan(router, topic, start, end, partitions)
        source = EscrowMQDatasource(router.info, topic, ranges, wanted)
    import ray.data

    if parallelism is not None:
        options["override_num_blocks"] = parallelism
    dataset: Dataset = ray.data.read_datasource(source, **options)
    return dataset


def offsets(
    topic: str,
    at: Bound = "latest",
    *,
    cluster: Cluster | None = None,
    address: str = AUTO,
    namespace: str | None = None,
    partitions: Sequence[int] | None = None,
) -> dict[int, int]:
    """Partition -> offset, for ``start`` and ``end`` of :func:`read`.

    The ends of one read are the starts of the next one, so micro-batches leave nothing out. Raises as
    :func:`read` does.
    """
    args.check_topic(topic)
    args.check_bound("at", at, "latest")
    args.check_partitions(partitions)
    with _ray_data(), _routed(cluster, address, namespace) as router:
        from escrowmq.spark_integration.ray_data.planning import resolved

        return resolved(router, topic, at, partitions)


def write(
    dataset: Dataset,
    topic: str,
    *,
    value: str = "value",
    key: str | None = None,
    headers: str | None = None,
    partition: str | None = None,
    cluster: Cluster | None = None,
    address: str = AUTO,
    namespace: str | None = None,
    message_bytes_max: int = 1 << 20,
    transaction_timeout_s: float = TRANSACTION_TIMEOUT_S,
    compression: str | None = None,
    compression_level: int | None = None,
    compress_from: int = LEAST_BYTES,
    concurrency: int | None = None,
    ray_remote_args: dict[str, Any] | None = None,
) -> Written:
    """Executes a dataset and writes each row as a message, exactly once: all rows become readable, or none.

    ``value``, ``key``, ``headers``, ``partition`` name columns: values and keys are bytes or strings, headers
    are lists of ``{key, value}``, partitions are numbers. Without a partition, it is chosen as producers
    choose it. All messages have one ``tx_id``, which begins with the id of the write. ``compression``,
    ``compression_level`` and ``compress_from`` are those of a producer.

    Write tasks prepare their rows in transactions; when all have ended, one COMMIT decides for all of them.
    What a task prepared that Ray repeated is rolled back. If this call raises or its process dies before the
    COMMIT, nothing was written: run it again. What a process leaves that died, is settled by
    :func:`resolve_write` with the id of the write, which is the app in ``escrowmq txn list``.

    Raises ConfigError, UnknownTopic, InvalidMessage, MessageTooLarge, Unavailable, and what the dataset's own
    functions raise, as Ray Data raises it. If brokers do not answer for minutes during the COMMIT, and then
    Unavailable or OutcomeUnknown is raised, it may have been decided. The error's note has the id of the
    write; :func:`resolve_write` finishes it and tells.
    """
    args.check_topic(topic)
    names = args.check_column_names(value=value, key=key, headers=headers, partition=partition)
    args.check_count("message_bytes_max", message_bytes_max, MESSAGE_BYTES_LIMIT)
    args.check_count("concurrency", concurrency)
    timeout_ms = args.check_timeout(transaction_timeout_s)
    args.check_count("compress_from", compress_from, MESSAGE_BYTES_LIMIT)
    how = compression_of(compression, compression_level, compress_from)
    with _ray_data():
        from escrowmq.spark_integration.ray_data.datasink import EscrowMQDatasink, Rewording, run_write
    args.check_dataset(dataset)
    with _routed(cluster, address, namespace) as router:
        TopicCatalog(router).partitions(topic)
        sink = EscrowMQDatasink(router.info, topic, names, message_bytes_max, timeout_ms, how)
    with Rewording(sink.write_id):
        messages = run_write(dataset, sink, concurrency=concurrency, ray_remote_args=ray_remote_args)
    return Written(sink.write_id, messages)


@contextmanager
def _ray_data() -> Iterator[None]:
    """Raises ConfigError if a package that Ray Data needs is missing."""
    try:
        import numpy  # noqa: F401
        import pandas  # noqa: F401
        import pyarrow  # noqa: F401
        import ray.data  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"Ray Data needs more packages: pip install 'escrowmq[ray-data]' ({error})"
        ) from error
    yield


@contextmanager
def _routed(cluster: Cluster | None, address: str, namespace: str | None) -> Iterator[Router]:
    router = Router(find_info(cluster, address, namespace), name="escrowmq-ray-data")
    try:
        yield router
    finally:
        router.close()
