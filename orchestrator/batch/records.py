"""Search values as plain msgpack values and back: fields by name, those at their default left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, TypeVar

import msgpack

from search.cgee.base import SkipReport
from search.types import Cost, Outcome, Problem, Sample, Verdict
from search.wave_log import WaveRecord

T = TypeVar("T")
_MAX_ITEMS = 1 << 22
"""Most elements of one array or map, and most nested token ids of one record."""


class BadRecordError(ValueError):
    """A record that is whole but does not hold what it should."""


def pack(value: Any) -> bytes:
    """msgpack bytes of plain values; texts may hold half surrogate pairs."""
    data: bytes = msgpack.packb(value, use_bin_type=True, unicode_errors="surrogatepass")
    return data


def unpack(data: bytes) -> Any:
    """Parse with size bounds; BadRecordError for what is no msgpack."""
    try:
        return msgpack.unpackb(
            data,
            raw=False,
            unicode_errors="surrogatepass",
            max_array_len=_MAX_ITEMS,
            max_map_len=_MAX_ITEMS,
            max_ext_len=0,
        )
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise BadRecordError(f"not msgpack: {error}") from None


def to_plain(value: Any) -> Any:
    """A frozen dataclass of `search` as a map of its fields, nested ones too; other values as they are."""
    if is_dataclass(value) and not isinstance(value, type):
        changed = ((f.name, getattr(value, f.name)) for f in fields(value) if getattr(value, f.name) != _default(f))
        return {name: to_plain(item) for name, item in changed}
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    return value


def wave_from(plain: Any) -> WaveRecord:
    """BadRecordError for anything that is no wave."""
    return _build(
        WaveRecord,
        plain,
        outcomes=lambda items: tuple(outcome_from(item) for item in items),
        verification=_cost,
        warnings=tuple,
        skips=lambda item: _build(SkipReport, item),
    )


def outcome_from(plain: Any) -> Outcome:
    """BadRecordError for anything that is no outcome."""
    return _build(Outcome, plain, samples=lambda items: tuple(_sample(item) for item in items), cost=_cost)


def problem_from(plain: Any) -> Problem:
    """BadRecordError for anything that is no problem."""
    return _build(Problem, plain)


def _sample(plain: Any) -> Sample:
    return _build(Sample, plain, token_ids=tuple, verdict=lambda item: _build(Verdict, item, cost=_cost))


def _cost(plain: Any) -> Cost:
    return _build(Cost, plain)


def _build(kind: type[T], plain: Any, **parts: Callable[[Any], Any]) -> T:
    """An object of `kind` from a map of its fields; parts: readers of fields that are not plain."""
    if not isinstance(plain, dict):
        raise BadRecordError(f"a {kind.__name__} is a map, not a {type(plain).__name__}")
    try:
        return kind(**{key: parts[key](item) if key in parts else item for key, item in plain.items()})
    except (TypeError, ValueError) as error:
        raise BadRecordError(f"not a {kind.__name__}: {error}") from None


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default
