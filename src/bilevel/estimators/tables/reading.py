"""Reads CSV and Parquet files, which are not trusted, and converts their columns to numbers, days or coded text.

Arrow's strict parser reads a CSV as text. The kinds of columns are inferred later, from all of their values.
"""

from __future__ import annotations

import contextlib
import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

from bilevel._core.files import open_regular
from bilevel._core.values import suggestion

PARQUET = (".parquet", ".pq")
SEPARATORS = (",", ";", "\t", "|")
# How R, pandas, SQL and spreadsheets write a missing value.
MISSING = ("", "NA", "N/A", "#N/A", "n/a", "NaN", "nan", "-nan", "NULL", "null", "None", "<NA>", "?")
FIELD = 1 << 20  # about how many bytes a field may have
SCANNED = 1 << 24  # bytes that are scanned at once
MICROSECONDS = 86_400 * 10**6  # of a day
compute: Any = pyarrow.compute  # its functions are made at import, so type checkers do not know them


class InputError(ValueError):
    """A file, a column or an option is wrong. Nothing was fitted and nothing was written."""

    exit_code = 2  # of the command line, as for wrong usage


class Table(NamedTuple):
    """The columns of a file, as Arrow arrays; those of a CSV are text."""

    path: Path
    columns: dict[str, Any]
    rows: int
    separator: str | None  # of a CSV

    def column(self, name: str, what: str) -> Any:
        """A column by its name; if there is none, the `InputError` suggests a similar name."""
        if name not in self.columns:
            known = ", ".join(map(repr, list(self.columns)[:10])) + ", ..." * (len(self.columns) > 10)
            near = suggestion(name, self.columns) or f"It has {known}."
            raise InputError(f"{str(self.path)!r} has no column {name!r}, given as {what}. {near}")
        return self.columns[name]


def read(path: Path, separator: str | None = None, encoding: str = "utf-8") -> Table:
    """Reads a table with at least one row.

    Args:
        path: of the file. Names that end in .parquet or .pq are Parquet; others are CSV, perhaps compressed (.gz, .bz2,
            .zst).
        separator: between the fields of a CSV; None = the most frequent of "," ";" tab and "|" in its first line.
        encoding: of a CSV.
    """
    with _refused(path):
        with open_regular(path, repr(str(path))) as file:
            empty = not file.read(1)
        if empty:
            raise InputError(f"{str(path)!r} is empty: it needs a line with the names of the columns, and rows.")
        if path.suffix.lower() in PARQUET:
            found, separator = pyarrow.parquet.read_table(str(path)), None
            _check_names(path, found.column_names)
        else:
            found, separator = _csv(path, separator, encoding)
    if not found.num_rows:
        raise InputError(f"{str(path)!r} has the names of {found.num_columns} columns and no rows.")
    return Table(path, dict(zip(found.column_names, found.columns, strict=True)), found.num_rows, separator)


@contextlib.contextmanager
def _refused(path: Path) -> Iterator[None]:
    """Turns errors of the readers into `InputError`s that users understand."""
    shown = repr(str(path))
    try:
        yield
    except InputError:
        raise
    except LookupError as error:
        raise InputError(f"--encoding: {error}.") from error
    except (UnicodeError, pa.ArrowInvalid, pa.ArrowException, csv.Error, EOFError) as error:
        raise InputError(f"{shown} {_words(str(error), path)}") from error
    except OSError as error:
        said = str(error) if error.errno is None else f"{shown} cannot be read ({error.strerror})."
        raise InputError(said if shown in said else f"{shown} cannot be read: {said}") from error


def _words(said: str, path: Path) -> str:
    if path.suffix.lower() in PARQUET:
        return f"is cut short, damaged, or no Parquet file: {_line(said)}"
    if "straddling" in said or "field larger" in said:
        return f"has a field of about {FIELD >> 20} MB or more: a quote may be open, or it is no CSV."
    if "UTF8" in said or "codec can't decode" in said:
        return "is not in the encoding that is expected: give --encoding, for instance latin-1 or utf-16."
    expected = re.search(r"Expected (\d+) columns, got (\d+): (.*)", said, re.DOTALL)
    if expected:
        names, got, row = expected.groups()
        return (
            f"has a row of {got} fields where its first line names {names} columns: {_line(row)!r}. It is cut short or "
            "damaged, or --separator is another."
        )
    return f"cannot be read as a CSV: {_line(said)}"


def _line(text: str) -> str:
    return " ".join(text.split())[:120]


# ------------------------------------------------------------------ CSV


def _csv(path: Path, separator: str | None, encoding: str) -> tuple[Any, str]:
    "".encode(encoding)  # raises a LookupError for an unknown encoding
    header = _scanned(path, encoding)
    first = io.TextIOWrapper(io.BytesIO(header), encoding, errors="ignore").readline()
    if separator is None:
        separator = max(SEPARATORS, key=lambda mark: first.count(mark))
    if len(separator) != 1 or separator in '"\r\n' or not separator.isascii():
        raise InputError(f"--separator is {separator!r}: it needs one character, such as ';', or a tab.")
    text = header.decode(encoding, errors="ignore").removeprefix("\ufeff")
    names = next(csv.reader(io.StringIO(text), delimiter=separator), [])
    _check_names(path, names)
    found = pyarrow.csv.read_csv(
        pa.input_stream(str(path)),
        read_options=pyarrow.csv.ReadOptions(encoding=encoding, block_size=2 * FIELD),
        parse_options=pyarrow.csv.ParseOptions(delimiter=separator, newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), null_values=list(MISSING), strings_can_be_null=True
        ),
    )
    if found.column_names != names:
        raise InputError(f"{str(path)!r}: its first line is no list of names: {_line(first)!r}.")
    return found, separator


def _scanned(path: Path, encoding: str) -> bytes:
    """Scans a whole file for faults that the parser does not notice; returns its beginning."""
    quotes, start = 0, b""
    wide = encoding.lower().startswith(("utf-16", "utf-32", "utf_16", "utf_32"))  # these have zero bytes
    with pa.input_stream(str(path)) as file:
        while block := file.read(SCANNED):
            start = start or block[:FIELD]
            quotes += block.count(b'"')
            if b"\0" in block and not wide:
                raise InputError(
                    f"{str(path)!r} has zero bytes: it is no text, or in another encoding; then give --encoding, for "
                    "instance utf-16."
                )
    if quotes % 2 and not wide:
        raise InputError(f"{str(path)!r} has a quote that is open: {quotes} of them, where it needs an even number.")
    return start


def _check_names(path: Path, names: Sequence[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(f"{str(path)!r} has {names.count(twice[0])} columns of the name {twice[0]!r}: rename them.")
    if not names:
        raise InputError(f"{str(path)!r} has no names of columns in its first line.")


# ------------------------------------------------------------------ values of columns


class Coded(NamedTuple):
    """A column of text: the number of each row's label."""

    codes: np.ndarray  # -1 = missing
    labels: list[str]  # sorted

    def take(self, rows: np.ndarray) -> Coded:
        """Selects rows by their numbers or by a mask."""
        return Coded(self.codes[rows], self.labels)

    def compact(self) -> Coded:
        """The same texts with only the labels that rows have; no text may be missing."""
        numbers, codes = np.unique(self.codes, return_inverse=True)
        return Coded(codes.astype(np.int32), [self.labels[number] for number in numbers])

    def texts(self) -> np.ndarray:
        """The text of each row."""
        return np.array(self.labels)[self.codes]


Values = np.ndarray | Coded


def rows_of(values: Values, rows: np.ndarray) -> Values:
    """Selects rows by their numbers or by a mask."""
    return values.take(rows) if isinstance(values, Coded) else values[rows]


def is_missing(values: Values) -> np.ndarray:
    """Whether the value of each row is missing."""
    return values.codes < 0 if isinstance(values, Coded) else np.isnan(values)


def is_text(column: Any) -> bool:
    """Whether a column is text, from which numbers and dates have to be parsed."""
    kind = column.type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def is_usable(column: Any) -> bool:
    """Whether a column has one value in each row: no lists, records or bytes."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    return not (pa.types.is_nested(kind) or "binary" in str(kind))


def numbers(column: Any) -> np.ndarray | None:
    """A column as numbers in double precision, NaN where missing or infinite; None if it is not numeric."""
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
    """A column as days since 1970, NaN where missing; None if it has no dates.

    Text is parsed by ISO 8601, with or without a time and a zone.
    """
    if is_text(column):
        column, kinds = _trimmed(column), (pa.timestamp("us"), pa.timestamp("us", "UTC"))
    elif pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        kinds = (pa.timestamp("us"),)
    else:
        return None
    for kind in kinds:
        with contextlib.suppress(pa.ArrowInvalid):
            found = compute.cast(column, kind, safe=is_text(column))
            return np.array(compute.cast(found, pa.int64()).to_numpy(), np.float64) / MICROSECONDS
    return None


def coded(column: Any) -> Coded:
    """A column as text: 1, 1.0 and "1" are the same, and so are True and "True"."""
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
    place = np.append(np.argsort(order, kind="stable"), -1)  # the last is for missing values
    return Coded(place[codes].astype(np.int32), labels[order].tolist())


def _trimmed(column: Any) -> Any:
    """Strips spaces; text that consists of spaces is missing."""
    column = compute.utf8_trim_whitespace(column)
    return compute.if_else(compute.equal(column, ""), pa.scalar(None, pa.string()), column)
