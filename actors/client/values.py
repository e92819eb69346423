"""Objects to values and back: what ``value_serializer`` and ``value_deserializer`` may be.

Every failure is a typed error in the caller's thread, before anything is sent or after everything before it
has been handed out. Nothing here runs unless the application asked for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from escrowmq.replication.errors import ConfigError, EscrowMQError, NotSerializable

Serialize = Callable[[Any], bytes]
Deserialize = Callable[[bytes], Any]
#: A name of ``READY_MADE``, or the application's own function.
Serializer: TypeAlias = str | Callable[[Any], bytes]
Deserializer: TypeAlias = str | Callable[[bytes], Any]


def serializer_of(chosen: Serializer | None) -> Serialize | None:
    """What makes bytes of a value, and raises NotSerializable. None: values are bytes already.

    Raises ConfigError if it is neither a function nor a known name, or if something is not installed.
    """
    function = _chosen("value_serializer", chosen, 0)
    if function is None:
        return None

    def serialize(value: Any) -> bytes:
        try:
            made = function(value)
        except EscrowMQError:
            raise
        except Exception as error:
            raise NotSerializable(
                f"value_serializer cannot make bytes of a {type(value).__name__}: {error!r:.300}"
            ) from error
        if type(made) is not bytes:
            raise NotSerializable(f"value_serializer must return bytes, not {type(made).__name__}")
        return made

    return serialize


def deserializer_of(chosen: Deserializer | None) -> Deserialize | None:
    """What makes an object of a value; whatever it raises is the caller's to name. Otherwise as
    ``serializer_of``."""
    return _chosen("value_deserializer", chosen, 1)


def _chosen(what: str, chosen: Any, side: int) -> Callable[[Any], Any] | None:
    if chosen is None or callable(chosen):
        return chosen  # type: ignore[no-any-return]
    if not isinstance(chosen, str) or chosen not in READY_MADE:
        names = ", ".join(map(repr, READY_MADE))
        raise ConfigError(f"{what} must be a function, or one of {names}, not {chosen!r:.80}")
    if chosen == "arrow":
        _pyarrow()
    return READY_MADE[chosen][side]


def _to_json(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):  # msgspec would write base64
        raise NotSerializable(
            "JSON has no bytes: send the object itself, or use a producer without value_serializer"
        )
    return msgspec.json.encode(value)


def _to_arrow(value: Any) -> bytes:
    pa = _pyarrow()
    if not isinstance(value, pa.RecordBatch | pa.Table):
        raise NotSerializable(f"expected a pyarrow Table or RecordBatch, not {type(value).__name__}")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, value.schema) as writer:
        writer.write(value)
    made: bytes = sink.getvalue().to_pybytes()
    return made


def _from_arrow(value: bytes) -> Any:
    with _pyarrow().ipc.open_stream(value) as reader:
        return reader.read_all()


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise ConfigError(f"'arrow' needs pyarrow: pip install 'escrowmq[arrow]' ({error})") from error
    return pyarrow


#: Name -> what writes a value, and what reads it.
READY_MADE: dict[str, tuple[Serialize, Deserialize]] = {
    "json": (_to_json, msgspec.json.decode),
    "msgpack": (msgspec.msgpack.encode, msgspec.msgpack.decode),
    "arrow": (_to_arrow, _from_arrow),
}
