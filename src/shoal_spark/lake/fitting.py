"""One record's content as a value of a shape, or the reason why it is none.

Nothing is bent to fit: a number is no string. The exceptions lose nothing: an integer in a column
of float64 that holds it exactly, a float64 without a fraction in one of int64, another spelling of
a name, and text that says a time where a given schema wants one.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa

from shoal_spark.lake.shapes import (
    ARRAY,
    BAD_NAME,
    BOOLEAN,
    DEPTH_MAX,
    DOUBLE,
    FIELDS_MAX,
    LONG,
    LONG_MAX,
    LONG_MIN,
    NAME_CHARS_MAX,
    STRING,
    STRUCT,
    TIMESTAMP,
    Seen,
    tally,
    type_name,
)

SHOWN_CHARS = 40  # of a value, in a reason
EXACT_MAX = 1 << 53  # up to here a float64 holds every integer

Fit = Callable[[Any], Any]


class Misfit(Exception):
    """Why a record is quarantined."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.place = ""

    def below(self, name: str) -> Misfit:
        """The same, seen from one step further up."""
        separator = "." if self.place and not self.place.startswith("[") else ""
        self.place = f"{name}{separator}{self.place}"
        return self

    def __str__(self) -> str:
        return f"{self.place}: {self.args[0]}" if self.place else str(self.args[0])


class Fitter:
    """Fits records into a shape, and counts what they have beyond it."""

    def __init__(self, shape: pa.StructType, *, final: bool) -> None:
        self.seen = Seen()
        """What the table could take on. Stays empty if the shape is final: such records are
        quarantined then."""
        self._shape = shape
        self._final = final
        self._unknown = False
        self._fit = self._fit_struct(self._shape)

    def fit(self, content: bytes | None) -> Any:
        """A value of the shape; None if the record has more fields; Misfit if it is none."""
        if content is None:
            raise Misfit("no content")
        try:
            value = msgspec.json.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Misfit(f"no JSON: {error}") from None
        if type(value) is not dict:
            raise Misfit(f"{_shown(value)} is no object with fields")
        self._unknown = False
        fitted = self._fit(value)
        if self._unknown:
            tally(self.seen, self._shape, value)
            return None
        return fitted

    def _make(self, shape: pa.DataType) -> Fit:
        if pa.types.is_struct(shape):
            return self._fit_struct(shape)
        if pa.types.is_list(shape):
            return self._fit_list(shape)
        return _FITS[shape]

    def _fit_struct(self, shape: pa.StructType) -> Fit:
        known = {field.name: (field.name, self._make(field.type)) for field in shape}
        lowered = {name.lower(): entry for name, entry in known.items()}

        def fit(value: Any) -> dict[str, Any]:
            if type(value) is not dict:
                raise _other_type(value, STRUCT)
            fitted: dict[str, Any] = {}
            news: set[str] | None = None
            for key, item in value.items():
                entry = known.get(key) or lowered.get(key.lower())
                if entry is None:
                    news = news or set()
                    self._take_new(key, item, news)
                    continue
                name, make = entry
                if name in fitted:
                    raise Misfit("two names that differ in case only").below(key)
                try:
                    fitted[name] = None if item is None else make(item)
                except Misfit as misfit:
                    raise misfit.below(key) from None
            return fitted

        return fit

    def _fit_list(self, shape: pa.ListType) -> Fit:
        make = self._make(shape.value_type)

        def fit(value: Any) -> list[Any]:
            if type(value) is not list:
                raise _other_type(value, ARRAY)
            try:
                return [None if item is None else make(item) for item in value]
            except Misfit as misfit:
                raise misfit.below("[]") from None

        return fit

    def _take_new(self, key: str, item: Any, news: set[str]) -> None:
        """A field that the shape does not have: nothing to keep if it has no type."""
        try:
            _check_new(item, DEPTH_MAX)
            _check_name(key)
            if key.lower() in news:
                raise Misfit("two names that differ in case only")
            news.add(key.lower())
            if type_name(item) is None:
                return
            if self._final:
                raise Misfit(f"the table takes no more than {FIELDS_MAX} fields")
        except Misfit as misfit:
            raise misfit.below(key) from None
        self._unknown = True


def _check_name(name: str) -> None:
    if not name or len(name) > NAME_CHARS_MAX or BAD_NAME.search(name):
        raise Misfit(
            f"no name for a column: 1 to {NAME_CHARS_MAX} characters, none of ' ,;{{}}()=.`'"
        )


def _check_new(value: Any, depth: int) -> None:
    """What must hold of a value whatever the type of its column becomes."""
    if depth == 0:
        raise Misfit(f"deeper than {DEPTH_MAX} objects and lists")
    if type(value) is int and not LONG_MIN <= value <= LONG_MAX:
        raise Misfit(f"{value} has more than 64 bits")
    if type(value) is list:
        for item in value:
            _check_new(item, depth - 1)
    elif type(value) is dict:
        names: set[str] = set()
        for key, item in value.items():
            try:
                _check_name(key)
                if key.lower() in names:
                    raise Misfit("two names that differ in case only")
                names.add(key.lower())
                _check_new(item, depth - 1)
            except Misfit as misfit:
                raise misfit.below(key) from None


def _fit_long(value: Any) -> int:
    if type(value) is int and LONG_MIN <= value <= LONG_MAX:
        return value
    if type(value) is float and value.is_integer() and abs(value) <= EXACT_MAX:
        return int(value)
    raise _other_type(value, "bigint")


def _fit_double(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int and abs(value) <= EXACT_MAX:
        return float(value)
    raise _other_type(value, "double")


def _fit_string(value: Any) -> str:
    if type(value) is str:
        return value
    raise _other_type(value, "string")


def _fit_boolean(value: Any) -> bool:
    if type(value) is bool:
        return value
    raise _other_type(value, "boolean")


def _fit_timestamp(value: Any) -> datetime:
    try:
        found = msgspec.convert(value, datetime)
    except msgspec.ValidationError:
        raise _other_type(value, "timestamp") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


_FITS: dict[pa.DataType, Fit] = {
    LONG: _fit_long,
    DOUBLE: _fit_double,
    STRING: _fit_string,
    BOOLEAN: _fit_boolean,
    TIMESTAMP: _fit_timestamp,
}


def _other_type(value: Any, wanted: str) -> Misfit:
    found = type_name(value) or (STRUCT if isinstance(value, dict) else ARRAY)
    if {found, wanted} <= {"bigint", "double"}:
        return Misfit(f"{_shown(value)} is no exact {wanted}, which the column is")
    return Misfit(f"{_shown(value)} is of type {found}, the column of type {wanted}")


def _shown(value: Any) -> str:
    # Integers of any size, which JSON has and the encoder has not.
    text = str(value) if type(value) is int else msgspec.json.encode(value).decode()
    return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "…"
