"""EscrowMQ: a transactional message broker made of Ray actors.

This is the public face: everything that applications import, and nothing else. Names are loaded when
they are first used, so that ``import escrowmq`` costs milliseconds and needs neither Ray nor Spark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from escrowmq.actors.admin.admin import Admin
    from escrowmq.actors.broker.config import BrokerConfig
    from escrowmq.actors.client.config import ChannelConfig
    from escrowmq.actors.consumer.async_consumer import AsyncConsumer
    from escrowmq.actors.consumer.config import ConsumerConfig, RetryPolicy
    from escrowmq.actors.consumer.consumer import Consumer
    from escrowmq.actors.consumer.records import StreamRecord
    from escrowmq.actors.consumer.replies import Replies, Reply
    from escrowmq.actors.consumer.statistics import ConsumerStatistics
    from escrowmq.actors.producer.async_producer import AsyncProducer
    from escrowmq.actors.producer.bulk.sent_many import SentMany
    from escrowmq.actors.producer.config import ProducerConfig, ProducerStatistics
    from escrowmq.actors.producer.producer import Producer
    from escrowmq.actors.producer.transactions.local_transaction import (
        PreparedTransaction,
        TransactionRequest,
    )
    from escrowmq.actors.producer.transactions.results import (
        PreparedTransactions,
        TransactionResult,
        TransactionResults,
    )
    from escrowmq.actors.producer.transactions.transaction import Transaction
    from escrowmq.actors.share_consumer.async_share_consumer import AsyncShareConsumer
    from escrowmq.actors.share_consumer.config import ShareConsumerConfig
    from escrowmq.actors.share_consumer.held_batches import ShareRecord
    from escrowmq.actors.share_consumer.share_consumer import ShareConsumer
    from escrowmq.actors.share_consumer.statistics import ShareConsumerStatistics
    from escrowmq.cluster.config import Config, load_config
    from escrowmq.cluster.connecting import connect
    from escrowmq.cluster.handle import Cluster, LocalCluster
    from escrowmq.cluster.local import start_local
    from escrowmq.feedback.states import TxStatusQuerier
    from escrowmq.replication.errors import (
        Closed,
        ClusterNotFound,
        ConfigError,
        CorruptLog,
        DamagedValue,
        DataDirLocked,
        DataDirMismatch,
        DataLoss,
        DiskFailed,
        DiskFull,
        EscrowMQError,
        GroupKindMismatch,
        GroupNotEmpty,
        InvalidDecision,
        InvalidMessage,
        JavaNotFound,
        LeaseLost,
        MemberFenced,
        MessageTooLarge,
        NotAuthorized,
        NotDeserializable,
        NotFullyPrepared,
        NotLeader,
        NotSerializable,
        NotSupported,
        OffsetOutOfRange,
        OffsetsMoved,
        OffsetsPending,
        OutcomeUnknown,
        OutOfStep,
        Overloaded,
        ProducerFenced,
        RecordNotHeld,
        SettingsDiffer,
        StaleMember,
        TooManyOpenTransactions,
        TooManyScheduled,
        TopicExists,
        TopicRecreated,
        TransactionConflict,
        TransactionIdTaken,
        TransactionRunning,
        TransactionSettled,
        Unavailable,
        UnknownDeadLetter,
        UnknownGroup,
        UnknownTopic,
        UnknownTransaction,
        UnknownVersion,
    )
    from escrowmq.replication.model import (
        ConsumerRecord,
        Message,
        OpenTransaction,
        RecordMetadata,
        TopicInfo,
        TransactionState,
    )
    from escrowmq.spark_integration.session.spark_session import spark_session, stop_session

__version__ = "0.2.0"

__all__ = [
    "Admin",
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncShareConsumer",
    "BrokerConfig",
    "ChannelConfig",
    "Closed",
    "Cluster",
    "ClusterNotFound",
    "Config",
    "ConfigError",
    "Consumer",
    "ConsumerConfig",
    "ConsumerRecord",
    "ConsumerStatistics",
    "CorruptLog",
    "DamagedValue",
    "DataDirLocked",
    "DataDirMismatch",
    "DataLoss",
    "DiskFailed",
    "DiskFull",
    "EscrowMQError",
    "GroupKindMismatch",
    "GroupNotEmpty",
    "InvalidDecision",
    "InvalidMessage",
    "JavaNotFound",
    "LeaseLost",
    "LocalCluster",
    "MemberFenced",
    "Message",
    "MessageTooLarge",
    "NotAuthorized",
    "NotDeserializable",
    "NotFullyPrepared",
    "NotLeader",
    "NotSerializable",
    "NotSupported",
    "OffsetOutOfRange",
    "OffsetsMoved",
    "OffsetsPending",
    "OpenTransaction",
    "OutOfStep",
    "OutcomeUnknown",
    "Overloaded",
    "PreparedTransaction",
    "PreparedTransactions",
    "Producer",
    "ProducerConfig",
    "ProducerFenced",
    "ProducerStatistics",
    "RecordMetadata",
    "RecordNotHeld",
    "Replies",
    "Reply",
    "RetryPolicy",
    "SentMany",
    "SettingsDiffer",
    "ShareConsumer",
    "ShareConsumerConfig",
    "ShareConsumerStatistics",
    "ShareRecord",
    "StaleMember",
    "StreamRecord",
    "TooManyOpenTransactions",
    "TooManyScheduled",
    "TopicExists",
    "TopicInfo",
    "TopicRecreated",
    "Transaction",
    "TransactionConflict",
    "TransactionIdTaken",
    "TransactionRequest",
    "TransactionResult",
    "TransactionResults",
    "TransactionRunning",
    "TransactionSettled",
    "TransactionState",
    "TxStatusQuerier",
    "Unavailable",
    "UnknownDeadLetter",
    "UnknownGroup",
    "UnknownTopic",
    "UnknownTransaction",
    "UnknownVersion",
    "__version__",
    "connect",
    "load_config",
    "spark_session",
    "start_local",
    "stop_session",
]

_ERRORS = (
    "Closed ClusterNotFound ConfigError CorruptLog DamagedValue DataDirLocked DataDirMismatch "
    "DataLoss DiskFailed DiskFull EscrowMQError GroupKindMismatch GroupNotEmpty InvalidDecision "
    "InvalidMessage JavaNotFound LeaseLost MemberFenced MessageTooLarge NotAuthorized "
    "NotDeserializable NotFullyPrepared NotLeader NotSerializable NotSupported OffsetOutOfRange "
    "OutcomeUnknown Overloaded ProducerFenced RecordNotHeld SettingsDiffer StaleMember "
    "TooManyOpenTransactions TooManyScheduled TopicExists TopicRecreated TransactionConflict "
    "TransactionIdTaken TransactionRunning TransactionSettled Unavailable UnknownDeadLetter "
    "UnknownGroup UnknownTopic UnknownTransaction UnknownVersion"
)
_MORE_ERRORS = "OffsetsMoved OffsetsPending OutOfStep"
_VALUES = "ConsumerRecord Message OpenTransaction RecordMetadata TopicInfo TransactionState"
#: Module -> the names it gives to the public face.
_SOURCES = {
    "actors.admin.admin": "Admin",
    "actors.producer.async_producer": "AsyncProducer",
    "actors.consumer.async_consumer": "AsyncConsumer",
    "actors.producer.transactions.local_transaction": "PreparedTransaction TransactionRequest",
    "actors.broker.config": "BrokerConfig",
    "actors.client.config": "ChannelConfig",
    "actors.consumer.config": "ConsumerConfig RetryPolicy",
    "actors.producer.config": "ProducerConfig ProducerStatistics",
    "actors.consumer.consumer": "Consumer",
    "actors.consumer.replies": "Replies Reply",
    "actors.consumer.statistics": "ConsumerStatistics",
    "actors.consumer.records": "StreamRecord",
    "actors.producer.producer": "Producer",
    "actors.producer.transactions.results": "TransactionResult PreparedTransactions TransactionResults",
    "actors.producer.bulk.sent_many": "SentMany",
    "actors.producer.transactions.transaction": "Transaction",
    "actors.share_consumer.async_share_consumer": "AsyncShareConsumer",
    "actors.share_consumer.config": "ShareConsumerConfig",
    "actors.share_consumer.held_batches": "ShareRecord",
    "actors.share_consumer.share_consumer": "ShareConsumer",
    "actors.share_consumer.statistics": "ShareConsumerStatistics",
    "cluster.config": "Config load_config",
    "cluster.connecting": "connect",
    "cluster.handle": "Cluster LocalCluster",
    "cluster.local": "start_local",
    "feedback.states": "TxStatusQuerier",
    "replication.errors": f"{_ERRORS} {_MORE_ERRORS}",
    "replication.model": _VALUES,
    "spark_integration.session.spark_session": "spark_session stop_session",
}
_MODULE_OF = {name: module for module, names in _SOURCES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name == "spark":  # a whole module: escrowmq.spark.spark_session, escrowmq.spark.register, ...
        return importlib.import_module("escrowmq.spark_integration")
    if name == "ray_data":
        return importlib.import_module("escrowmq.ray_data")
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'escrowmq' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"escrowmq.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
