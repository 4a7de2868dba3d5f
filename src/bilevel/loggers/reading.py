"""Reads the lines that `Progress` writes, as they come, from any process."""

from __future__ import annotations

import json
import math
import os
from typing import Any

LONGEST = 10_000_000  # bytes of a line; what is longer was not written by us
PIECE = 1_000_000  # bytes read at once


class Lines:
    """Follows a file of JSON lines: what cannot be read (no file, half a line, damage) is left out.

    Args:
        path: of the file.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = path
        self._file: tuple[int, int] | None = None  # which: its device and number
        self._offset, self._rest = 0, b""

    def poll(self) -> tuple[bool, list[dict[str, Any]]]:
        """Whether the file is another one than before, and the objects that are new."""
        try:
            with open(self.path, "rb") as file:
                status = os.fstat(file.fileno())
                again = (status.st_dev, status.st_ino) != self._file or status.st_size < self._offset
                if again:
                    self._file, self._offset, self._rest = (status.st_dev, status.st_ino), 0, b""
                return again, self._new(file, status.st_size)
        except OSError:
            return False, []

    def _new(self, file: Any, size: int) -> list[dict[str, Any]]:
        """Up to the size at the beginning: a writer that never rests must not keep us here."""
        file.seek(self._offset)
        found = []
        while self._offset < size and (piece := file.read(min(PIECE, size - self._offset))):
            self._offset += len(piece)
            *whole, rest = (self._rest + piece).split(b"\n")
            self._rest = rest if len(rest) <= LONGEST else b""
            found += [line for line in map(decode, whole) if line is not None]
        return found


def decode(line: bytes) -> dict[str, Any] | None:
    """The object of a line; None where it is none.

    >>> decode(b'{"event":"end"}'), decode(b'{"event":"e'), decode(b'7')
    ({'event': 'end'}, None, None)
    """
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def number(value: object) -> float:
    """A number of a line, where NaN is null and infinities are texts; NaN for all that is none.

    >>> number(3), number("Infinity"), number(None), number("north"), number([1])
    (3.0, inf, nan, nan, nan)
    """
    try:
        return float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return math.nan
