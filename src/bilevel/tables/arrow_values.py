"""Columns of Arrow as numbers, days or codes of text; None where their values are no such thing."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute

MICROSECONDS = 86_400 * 10**6  # of a day
compute: Any = pyarrow.compute  # whose functions are made when it is imported, so that type checkers know none


class Coded(NamedTuple):
    """Texts by their numbers."""

    codes: np.ndarray  # of each row; -1 where it is missing
    labels: list[str]  # in the order of text

    def take(self, rows: np.ndarray) -> Coded:
        """Some of the rows."""
        return Coded(self.codes[rows], self.labels)

    def texts(self) -> np.ndarray:
        """The text of each row."""
        return np.array(self.labels)[self.codes]


Values = np.ndarray | Coded


def rows_of(values: Values, rows: np.ndarray) -> Values:
    """Some of the rows, by their numbers or a mask."""
    return values.take(rows) if isinstance(values, Coded) else values[rows]


def is_text(column: Any) -> bool:
    """Whether numbers and dates have to be read from text."""
    kind = column.type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def is_usable(column: Any) -> bool:
    """Whether it has one value a row: no lists, records or bytes."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    return not (pa.types.is_nested(kind) or "binary" in str(kind))


def numbers(column: Any) -> np.ndarray | None:
    """Double precision, NaN where missing or infinite."""
    kind = column.type
    if is_text(column):
        try:
            column = compute.cast(_trimmed(column), pa.float64())
        except pa.ArrowInvalid:
            return None
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        column = compute.cast(column, pa.float64(), safe=False)
    else:
        return None
    found = np.array(column.to_numpy(), np.float64)
    found[~np.isfinite(found)] = np.nan
    return found


def days(column: Any) -> np.ndarray | None:
    """Days since 1970, NaN where missing; of text by ISO 8601, with or without a time and a zone."""
    if is_text(column):
        column = _parsed(_trimmed(column))
    elif pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        column = compute.cast(column, pa.timestamp("us"), safe=False)
    else:
        return None
    if column is None:
        return None
    return np.array(compute.cast(column, pa.int64()).to_numpy(), np.float64) / MICROSECONDS


def _parsed(column: Any) -> Any:
    for kind in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
        try:
            return compute.cast(column, kind)
        except pa.ArrowInvalid:
            continue
    return None


def coded(column: Any) -> Coded:
    """Texts: 1, 1.0 and "1" are alike, as are True and "True"."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = compute.cast(column, kind.value_type)
        kind = kind.value_type
    if pa.types.is_boolean(kind):
        column = compute.if_else(column, "True", "False")
    elif pa.types.is_floating(kind):
        whole = compute.equal(column, compute.trunc(column))
        small = compute.less(compute.abs(column), 2.0**53)
        whole_text = compute.cast(compute.cast(column, pa.int64(), safe=False), pa.string())
        column = compute.if_else(compute.and_(whole, small), whole_text, compute.cast(column, pa.string()))
    column = _trimmed(compute.cast(column, pa.string()))
    both = compute.dictionary_encode(pa.chunked_array([column]) if isinstance(column, pa.Array) else column)
    both = both.unify_dictionaries().combine_chunks()
    both = both.chunk(0) if isinstance(both, pa.ChunkedArray) else both
    codes = np.asarray(compute.fill_null(both.indices, -1).to_numpy(zero_copy_only=False), np.int32)
    labels = np.array([str(label) for label in both.dictionary.to_pylist()], object)
    order = np.argsort(labels, kind="stable")
    place = np.append(np.argsort(order, kind="stable"), -1)  # the last for what is missing
    return Coded(place[codes].astype(np.int32), labels[order].tolist())


def _trimmed(column: Any) -> Any:
    """Without spaces around; what has nothing else is missing."""
    column = compute.utf8_trim_whitespace(column)
    return compute.if_else(compute.equal(column, ""), pa.scalar(None, pa.string()), column)
