"""Settings on their way between processes: by name and with a version, never by position.

Python pickles a frozen dataclass with slots as the list of its values. If a newer version inserts a field, it
reads every value after it as its neighbour's, without an error. So settings are sent as msgpack
``{"version": n, name: value, ...}``. Where others pickle a settings object (Ray, for an application's own
calls; Spark), the pickle holds the same map and the function that reads it, ``settings_of``: see ``by_name``.

Versions meet in both directions. A missing name gets the receiver's default: an older sender does not know
it. A name that the receiver does not know is ignored, which is right for limits and timings: the receiver
behaves as its own version does. Where ignoring it would be wrong, the new field comes with a higher
``VERSION``, which older software refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import PurePath
from typing import Any, TypeVar

import msgspec

from escrowmq.replication.errors import ConfigError, UnknownVersion

VERSION = 1
_VERSION_NAME = "version"

T = TypeVar("T")


def prepared(kind: type[T]) -> type[T]:
    """Have msgspec look at the fields of a class now, in the thread that imports it; returns the class.

    Otherwise msgspec looks when the first one arrives. If two threads receive their first ones at a time, one
    of them uses what the other has half filled in, and the process ends with SIGSEGV (msgspec 0.22).
    """
    msgspec.msgpack.Decoder(kind)
    return kind


def names_of(settings: Any) -> dict[str, Any]:
    """The map: plain values by name; nested settings become maps too."""
    return {_VERSION_NAME: VERSION, **_plain(settings)}


def from_names(kind: type[T], names: Mapping[str, Any]) -> T:
    """Settings of this kind from such a map. One without a version, as a supervisor's ``about`` gives it, is
    read as one of this version.

    Raises UnknownVersion, and ConfigError for values that make no sense here.
    """
    version = names.get(_VERSION_NAME, VERSION)
    if type(version) is not int or version > VERSION:
        raise UnknownVersion(
            f"{kind.__name__} of version {version}; this software reads up to {VERSION}: upgrade it"
        )
    try:
        return msgspec.convert({n: _plain(v) for n, v in names.items()}, kind, dec_hook=_as)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{kind.__name__} from another process: {error}") from error


def passed_over(kind: type[Any], names: Mapping[str, Any]) -> list[str]:
    """Names in the map that this version does not know and therefore ignores."""
    assert is_dataclass(kind)
    return sorted(names.keys() - {item.name for item in fields(kind)} - {_VERSION_NAME})


def pack_settings(settings: Any) -> bytes:
    """The map as msgpack."""
    return msgspec.msgpack.encode(names_of(settings))


def unpack_names(data: bytes) -> dict[str, Any]:
    """The map in such bytes. Raises ConfigError for any other bytes."""
    try:
        return msgspec.msgpack.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"these bytes are not settings: {error}") from error


def unpack_settings(kind: type[T], data: bytes, report: Callable[[str], None] = lambda text: None) -> T:
    """Inverse of ``pack_settings``. ``report`` is called with the names that are ignored."""
    names = unpack_names(data)
    if unknown := passed_over(kind, names):
        report(f"settings of a newer version are ignored: {', '.join(unknown)} of {kind.__name__}")
    return from_names(kind, names)


def settings_of(kind: type[T], names: Mapping[str, Any]) -> T:
    """From a pickle of this version or a later one. Never rename or move this function: pickles refer to it
    by name. Raises what ``from_names`` raises."""
    return from_names(kind, names)


def by_name(kind: type[T]) -> type[T]:
    """Make a dataclass pickle as the map."""

    def reduced(self: Any) -> tuple[Any, ...]:
        return settings_of, (kind, names_of(self))

    kind.__reduce__ = reduced  # type: ignore[method-assign]
    return prepared(kind)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    return str(value) if isinstance(value, PurePath) else value


def _as(kind: type[Any], value: Any) -> Any:
    """Types that msgpack lacks (paths, secrets); and values in pickles that already have the right type."""
    return value if isinstance(value, kind) else kind(value)


# ------------------------------------------------------------------------------------------------------------
# Checks of settings, shared by all configuration: a nonsensical number is refused where it is set.


def check_positive(owner: object, *names: str) -> None:
    """Raises ConfigError unless each of these attributes is a number above 0."""
    for name in names:
        value = getattr(owner, name)
        if not _is_number(value) or value <= 0:
            raise ConfigError(f"{name} must be a number above 0, not {value!r}")


def check_not_negative(owner: object, *names: str) -> None:
    """Raises ConfigError unless each of these attributes is a number of 0 or more."""
    for name in names:
        value = getattr(owner, name)
        if not _is_number(value) or value < 0:
            raise ConfigError(f"{name} must be a number of 0 or more, not {value!r}")


def check_all_positive(settings: Any) -> None:
    """``check_positive`` for every field of a dataclass, except nested dataclasses, which check their own."""
    names = [item.name for item in fields(settings)]
    check_positive(settings, *(name for name in names if not is_dataclass(getattr(settings, name))))


def _is_number(value: object) -> bool:
    """NaN is none: it is neither above a bound nor below it, and no time-out of it ever ends."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value
