"""Ray Data over topics: ``read`` makes a dataset of committed messages, ``write`` writes one exactly once.

It needs the packages of Ray Data: ``pip install 'escrowmq[ray-data]'``.
"""

from typing import TYPE_CHECKING, Any

from escrowmq.spark_integration.ray_data.api import Written, offsets, read, write

if TYPE_CHECKING:
    from escrowmq.spark_integration.sink.settling import Resolution, resolve_write

__all__ = ["Resolution", "Written", "offsets", "read", "resolve_write", "write"]


def __getattr__(name: str) -> Any:
    if name in ("Resolution", "resolve_write"):  # they need pyarrow
        from escrowmq.spark_integration.sink import settling

        return getattr(settling, name)
    raise AttributeError(f"module 'escrowmq.ray_data' has no attribute {name!r}")
