"""``send_transactions_table`` of both interfaces: its arguments, and the libraries that it needs.

numpy and pyarrow are imported only when a table is there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from escrowmq.actors.producer.core import ProducerCore
from escrowmq.actors.producer.encoding.many import Delivery
from escrowmq.actors.producer.transactions.local_transaction import TransactionColumns, check_callable
from escrowmq.replication.errors import NotSupported

if TYPE_CHECKING:
    from escrowmq.actors.producer.transactions.results import TransactionResults

#: Carries the call out, with what is called in place of the callback.
TableCall = Callable[[Callable[..., Any] | None], "TransactionResults"]


def transactions_of_table(
    core: ProducerCore,
    topic: str,
    table: Any,
    columns: TransactionColumns,
    partition: int | None,
    local: Callable[..., Any] | None,
    transaction_timeout_s: float | None,
    delivery: Delivery,
    *,
    awaits: bool = False,
) -> TableCall:
    """Checks the call, and returns what carries it out. ``awaits``: see ``check_callable``."""
    try:
        from escrowmq.actors.producer.bulk.bulk_tables import COLUMNS_OF_DECISIONS, send_transactions_table
    except ImportError as error:
        raise NotSupported(
            f"send_transactions_table needs pyarrow and numpy: pip install 'escrowmq[arrow]' ({error})"
        ) from error
    core.check_open()
    if local is not None:
        check_callable(local, awaits=awaits, many=True, also=COLUMNS_OF_DECISIONS)

    def call(run_local: Callable[..., Any] | None) -> TransactionResults:
        return send_transactions_table(
            core, topic, table, columns, partition, run_local, transaction_timeout_s, delivery
        )

    return call
