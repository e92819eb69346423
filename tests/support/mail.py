"""A share group ``mail`` over topic ``orders`` of a cluster in memory, without consumers: the test says what
they would say."""

from __future__ import annotations

from escrowmq import Message
from escrowmq.actors.client import share_groups
from escrowmq.actors.client.results import submitting
from escrowmq.replication.format.internal_topics import dead_topic, retry_topic
from escrowmq.replication.format.share_ops import REJECT, nack, share_create
from escrowmq.replication.model import ResultCode
from escrowmq.testing import InMemoryCluster


class Mail:
    """A share group that has failed."""

    def __init__(self, cluster: InMemoryCluster, group: str = "mail") -> None:
        self.cluster, self.group = cluster, group
        self.submit = submitting(cluster.admin.router, 10.0)
        share_groups.set_group(self.submit, 1, group, {"kind": "share"})
        for name in (retry_topic(group), dead_topic(group)):
            share_groups.create_internal_topic(self.submit, 1, name)
        self.id = self.id_of("orders")
        self.submit(0, share_create(group, "orders", 0, "earliest", self.id))

    def id_of(self, topic: str) -> int:
        return self.cluster.admin.describe_topic(topic).info.topic_id

    def send(self, *messages: Message) -> None:
        with self.cluster.producer("shop") as producer:
            for message in messages:
                producer.send(message).result(0)

    def fail(self, *offsets: int, topic: str = "orders", delay_ms: int = REJECT, reason: str = "no") -> None:
        many = len(offsets)
        delays, reasons = [delay_ms] * many, [reason] * many
        request = nack(self.group, topic, 0, offsets, delays, reasons, "", "kim", self.id_of(topic))
        assert self.submit(0, request) == (ResultCode.OK, None)

    def retries(self) -> list[tuple[bytes, int]]:
        """What comes back: values and attempts."""
        with self.cluster.consumer(auto_offset_reset="earliest") as consumer:
            consumer.assign([(retry_topic(self.group), 0)])
            found = consumer.poll(timeout_s=0.1)
        return [(record.value, int(record.headers["escrowmq-attempt"])) for record in found]
