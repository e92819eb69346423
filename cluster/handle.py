"""The Cluster object, which ``start_local`` and ``connect`` return and which makes clients.

It holds the configuration and the cluster's shape. It also keeps track of the clients it made, and closing
it closes them: a producer's thread must not outlive the cluster it sends to.
"""

from __future__ import annotations

import contextlib
import re
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import Any, TypeVar

from escrowmq.actors.admin.admin import Admin
from escrowmq.actors.admin.types import ClusterStatus
from escrowmq.actors.client.closing import FORKED, Closing, tell_after_fork
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.client.values import Deserializer, Serializer
from escrowmq.actors.consumer.config import ConsumerConfig, RetryPolicy
from escrowmq.actors.consumer.consumer import Consumer
from escrowmq.actors.consumer.rebalance import Handler
from escrowmq.actors.consumer.replies import Replies, check_app
from escrowmq.actors.consumer.statistics import ConsumerStatistics
from escrowmq.actors.producer.config import ProducerConfig, ProducerStatistics
from escrowmq.actors.producer.producer import Producer
from escrowmq.actors.share_consumer.config import ShareConsumerConfig
from escrowmq.actors.share_consumer.share_consumer import ShareConsumer
from escrowmq.cluster.config import Config, change_section
from escrowmq.feedback.states import TxStatusQuerier
from escrowmq.replication.errors import Closed

C = TypeVar("C")


class Cluster(Closing):
    """A running cluster. Thread-safe. A context manager: ``close`` closes its clients, and the last handle of
    a process that is closed disconnects it."""

    def __init__(self, info: ClusterInfo, address: str, config: Config, on_close: Callable[[], None]) -> None:
        #: Id, namespace and shape.
        self.info = info
        #: host:port of the Ray cluster; other processes connect to it.
        self.address = address
        #: The configuration that clients made here start from.
        self.config = config
        self._on_close = on_close
        self._clients: weakref.WeakSet[Any] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._closed = False
        self._why = "this cluster object was closed; connect again"
        tell_after_fork(self)

    # ------------------------------------------------------------ clients

    @cached_property
    def admin(self) -> Admin:
        """Topics, open transactions, consumer groups, status."""
        return self._made(self._new_admin(self._open_info()))

    def producer(
        self,
        app: str,
        *,
        tx_status_querier: TxStatusQuerier | None = None,
        value_serializer: Serializer | None = None,
        config: ProducerConfig | None = None,
        statistics_callback: Callable[[ProducerStatistics], object] | None = None,
        statistics_interval_s: float = 60.0,
        transactional_id: str | None = None,
        **options: Any,
    ) -> Producer:
        """A producer of ``app``. ``transactional_id``: a name that only one producer at a time may have; from
        now on, what earlier ones with it send raises ProducerFenced, see :class:`Producer`. ``options``:
        settings of ``ProducerConfig``, such as ``linger_ms=0`` or ``compression="zstd"``.
        ``value_serializer``: "json", "msgpack", "arrow" or a function, see :class:`Producer`."""
        settings = self._settings("producer", config, options)
        return self._made(
            self._new_producer(
                self._open_info(),
                app=app,
                tx_status_querier=tx_status_querier,
                value_serializer=value_serializer,
                config=settings,
                answerer=self.config.answerer,
                feedback=self.config.feedback,
                statistics_callback=statistics_callback,
                statistics_interval_s=statistics_interval_s,
                transactional_id=transactional_id,
            )
        )

    def consumer(
        self,
        group: str | None = None,
        topics: Sequence[str] = (),
        *,
        auto_offset_reset: str | None = None,
        config: ConsumerConfig | None = None,
        on_assign: Handler | None = None,
        on_revoke: Handler | None = None,
        on_lost: Handler | None = None,
        instance_id: str | None = None,
        pattern: str | re.Pattern[str] | None = None,
        value_deserializer: Deserializer | None = None,
        statistics_callback: Callable[[ConsumerStatistics], object] | None = None,
        statistics_interval_s: float = 60.0,
        tags: Collection[str] | None = None,
        retry: RetryPolicy | None = None,
        **options: Any,
    ) -> Consumer:
        """A member of consumer group ``group``. ``options``: settings of ``ConsumerConfig``.

        ``on_assign``, ``on_revoke``, ``on_lost``: see :meth:`Consumer.subscribe`. ``instance_id``: a static
        member, see :class:`Consumer`. ``pattern``: instead of ``topics``, see :meth:`Consumer.subscribe`.
        ``value_deserializer``: "json", "msgpack", "arrow" or a function, see :class:`Consumer`.
        ``tags``: only messages with one of these tags, see :class:`Consumer`. ``retry``: what ``nack`` does,
        such as ``RetryPolicy(order="ordered")``, see :class:`Consumer`.
        """
        settings = self._settings("consumer", config, options)
        return self._made(
            self._new_consumer(
                self._open_info(),
                group=group,
                topics=topics,
                auto_offset_reset=auto_offset_reset,
                config=settings,
                on_assign=on_assign,
                on_revoke=on_revoke,
                on_lost=on_lost,
                instance_id=instance_id,
                pattern=pattern,
                value_deserializer=value_deserializer,
                statistics_callback=statistics_callback,
                statistics_interval_s=statistics_interval_s,
                tags=tags,
                retry=retry,
            )
        )

    def share_consumer(
        self,
        group: str,
        topics: Sequence[str],
        *,
        lease_s: float | None = None,
        auto_offset_reset: str | None = None,
        config: ShareConsumerConfig | None = None,
        value_deserializer: Deserializer | None = None,
        tags: Collection[str] | None = None,
        **options: Any,
    ) -> ShareConsumer:
        """A consumer of share group ``group``: any number of them take single messages of ``topics`` under
        leases of ``lease_s`` seconds (None: as the group has it set), and settle each by itself.

        ``options``: settings of ``ShareConsumerConfig``. ``value_deserializer``: "json", "msgpack", "arrow"
        or a function, see :class:`ShareConsumer`; ``tags``: the only ones that this group wants.
        """
        stated = {"lease_s": lease_s, "auto_offset_reset": auto_offset_reset}
        options.update({name: value for name, value in stated.items() if value is not None})
        settings = self._settings("share_consumer", config, options)
        return self._made(
            self._new_share_consumer(
                self._open_info(),
                group=group,
                topics=topics,
                config=settings,
                value_deserializer=value_deserializer,
                tags=tags,
            )
        )

    def replies(self, app: str, group: str | None = None, **options: Any) -> Replies:
        """What share groups have done with messages that were sent with ``reply_to=app``: done, or failed.

        Read as a member of consumer group ``group`` ("replies.<app>"), from the beginning if that has no
        committed offset yet. ``options``: settings of ``ConsumerConfig``. Call it once before such messages
        are sent: it creates the topic of the app's replies, and without that topic brokers drop them.
        """
        check_app(app)
        options = {"auto_offset_reset": "earliest", **options}
        return Replies(self.consumer(group or f"replies.{app}", **options), app)

    def _new_admin(self, info: ClusterInfo) -> Admin:
        return Admin(info)

    def _new_producer(self, info: ClusterInfo, **arguments: Any) -> Producer:
        return Producer(info, **arguments)

    def _new_consumer(self, info: ClusterInfo, **arguments: Any) -> Consumer:
        return Consumer(info, **arguments)

    def _new_share_consumer(self, info: ClusterInfo, **arguments: Any) -> ShareConsumer:
        return ShareConsumer(info, **arguments)

    # ------------------------------------------------------------ the cluster

    def status(self) -> ClusterStatus:
        """Leaders, terms and log positions, as the replicas report them."""
        return self.admin.status()

    def stable_cut(self, topics: Sequence[str]) -> dict[tuple[str, int], int]:
        """See :meth:`Admin.stable_cut`."""
        return self.admin.stable_cut(topics)

    def health(self) -> dict[str, Any]:
        """Nodes and replicas as the supervisor sees them. Raises ClusterNotFound, Unavailable."""
        from escrowmq.cluster import supervisor_calls

        return supervisor_calls.health(self._open_info().namespace, self.address)

    def head_waits(self, health: dict[str, Any]) -> dict[str, float]:
        """Node -> seconds that its processes wait for a lost Ray head. Raises Unavailable.

        ``health``: the result of :meth:`health`.
        """
        from escrowmq.cluster import asking_ray

        return asking_ray.head_waits(self._open_info().namespace, self.address, health)

    def leftovers(self, remove: bool = False) -> list[dict[str, Any]]:
        """Directories of replaced replicas, each with the fields of ``StaleReplicaDir``.

        ``remove``: first delete, irrevocably, those whose successor has a vote. Raises ClusterNotFound,
        Unavailable.
        """
        from escrowmq.cluster import supervisor_calls

        return supervisor_calls.leftovers(self._open_info().namespace, self.address, remove)

    # ------------------------------------------------------------ end

    @property
    def closed(self) -> bool:
        """Whether it was closed, or belongs to a process that this one was forked from."""
        return self._closed

    def close(self) -> None:
        """Close the clients made here. The last handle of this process leaves Ray, if one joined it.
        Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for client in list(self._clients):
            with contextlib.suppress(Exception):  # a client that cannot flush must not keep the others open
                client.close()
        self._on_close()

    def forked(self) -> None:
        """See :class:`~escrowmq.actors.client.closing.Forkable`."""
        self._lock = threading.Lock()
        self._closed, self._why = True, f"this cluster object cannot be used: {FORKED}"

    def _open_info(self) -> ClusterInfo:
        if self._closed:
            raise Closed(self._why)
        return self.info

    def _made(self, client: C) -> C:
        self._clients.add(client)
        return client

    def _settings(self, section: str, config: Any, options: dict[str, Any]) -> Any:
        base = getattr(self.config, section) if config is None else config
        return change_section(section, base, options) if options else base

    def __repr__(self) -> str:
        info = self.info
        return (
            f"<{type(self).__name__} {info.namespace!r} at {self.address}, {info.groups} groups of "
            f"{info.replicas} replicas{', closed' if self._closed else ''}>"
        )


class LocalCluster(Cluster):
    """A cluster that this process started on this machine. Closing it stops it."""

    def stop(self) -> None:
        """Stop the brokers gracefully, and Ray if it was started with them and is used by no other handle of
        this process. Data stay, unless temporary."""
        self.close()
