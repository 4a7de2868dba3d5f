"""Reads CSV and Parquet files: as they are, and not trusted.

A CSV is read as text, by Arrow's strict parser; what the columns are is inferred later, from all of their values.
"""

from __future__ import annotations

import contextlib
import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from bilevel._core.files import open_regular
from bilevel._core.words import suggestion
from bilevel.tables.errors import InputError

PARQUET = (".parquet", ".pq")
SEPARATORS = (",", ";", "\t", "|")
# What stands for a missing value, as in R, pandas, SQL and spreadsheets.
MISSING = ("", "NA", "N/A", "#N/A", "n/a", "NaN", "nan", "-nan", "NULL", "null", "None", "<NA>", "?")
FIELD = 1 << 20  # bytes that a field may have, nearly
SCANNED = 1 << 24  # bytes at once


class Table(NamedTuple):
    """The columns of a file, as Arrow has them: text, where it was a CSV."""

    path: Path
    columns: dict[str, Any]
    rows: int
    separator: str | None  # of a CSV

    def column(self, name: str, what: str) -> Any:
        """A column; an `InputError` that suggests another name where there is none."""
        if name not in self.columns:
            raise InputError(f"{str(self.path)!r} has no column {name!r}, given as {what}. {near(name, self.columns)}")
        return self.columns[name]


def near(name: str, known: Iterable[str]) -> str:
    """Which name may have been meant, or which there are."""
    known = list(known)
    shown = ", ".join(repr(other) for other in known[:10]) + ", ..." * (len(known) > 10)
    return suggestion(name, known) or f"It has {shown}."


def read(path: Path, separator: str | None = None, encoding: str = "utf-8") -> Table:
    """Reads a table with at least one row.

    Args:
        path: of a file, whose name ends in .parquet or .pq where it is Parquet; others are CSV, and may be compressed
            (.gz, .bz2, .zst).
        separator: of the fields of a CSV; None = the one of "," ";" tab and "|" that its first line has most of.
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
    """Errors of the readers, in words."""
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
    """What an error of a reader means."""
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
    "".encode(encoding)  # a LookupError where there is none of this name
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
            column_types=dict.fromkeys(names, pa.string()),
            null_values=list(MISSING),
            strings_can_be_null=True,
        ),
    )
    if found.column_names != names:
        raise InputError(f"{str(path)!r}: its first line is no list of names: {_line(first)!r}.")
    return found, separator


def _scanned(path: Path, encoding: str) -> bytes:
    """The beginning of a file, all of which was looked at for what the parser would let through."""
    quotes, start = 0, b""
    wide = encoding.lower().startswith(("utf-16", "utf-32", "utf_16", "utf_32"))  # whose letters have other bytes
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
