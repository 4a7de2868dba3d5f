"""JSON lines: `Progress` appends one object a line as a run goes, and `Lines` reads them from any process."""

from __future__ import annotations

import json
import math
import os
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from bilevel._core.types import Json
from bilevel._run.loggers.base import Evaluation, Facts, Logger

LONGEST = 10_000_000  # bytes of a line; a longer one was not written by `Progress`
PIECE = 1_000_000  # bytes read at once


class Progress(Logger):
    """Appends a run to a file of JSON lines, which `bilevel watch` shows.

    Every line is an object with "event" ("start", "evaluation", "divergence", "checkpoint", "problem", "finding" or
    "end") and "time" (Unix seconds). A resumed run appends to the same file after another "start" whose "step" says
    from where: evaluations of later steps above that line were made again. Lines are valid JSON, which has no NaN and
    no infinity: NaN is null, and infinities are the texts "Infinity" and "-Infinity".

    A line is one write, so that no reader sees half of it unless the machine fails. If the file cannot be written, as
    on a full disk, there is one warning, and every further line is tried again.

    Args:
        path: of the file; folders above it are made. With several seeds each has its own file in `seed-0/` and so on.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = path
        self._warned = False

    def __repr__(self) -> str:
        return f"Progress({str(self.path)!r})"

    def start(self, facts: Facts) -> None:
        """Writes a line about the run; the names of the tasks come with the evaluations."""
        self._write("start", {**facts._asdict(), "tasks": len(facts.tasks)})

    def log(self, row: Evaluation) -> None:
        """Writes a line with the numbers of an evaluation."""
        content = {"step": row.step, "seconds": row.seconds, **row.summary(), "tasks": row.tasks()}
        self._write("evaluation", content)

    def event(self, kind: str, facts: Mapping[str, Json]) -> None:
        """Writes a line about an event."""
        self._write(kind, facts)

    def end(self, status: str, message: str) -> None:
        """Writes the last line."""
        self._write("end", {"status": status, "message": message})

    def for_run(self, seed: int) -> Progress:
        """A logger to a file of the same name in the folder `seed-N`."""
        path = Path(self.path)
        return Progress(path.parent / f"seed-{seed}" / path.name)

    def _write(self, kind: str, facts: Mapping[str, Json]) -> None:
        line = encode({"event": kind, "time": time.time(), **facts})
        try:
            self._append(line)
        except OSError as error:
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"{self!r} cannot be written ({error}). The run continues, and each further line is tried.",
                    stacklevel=2,
                )

    def _append(self, line: bytes) -> None:
        """Appends a line. Opening the file each time is fast, and finds a folder that is back after a failure."""
        path = Path(self.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
        try:
            end = os.lseek(descriptor, 0, os.SEEK_END)
            if end and os.pread(descriptor, 1, end - 1) != b"\n":  # a line that was cut short stays alone
                line = b"\n" + line
            written = os.write(descriptor, line)
            if written < len(line):
                raise OSError(f"only {written} of {len(line)} bytes were taken")
        finally:
            os.close(descriptor)


def encode(content: Mapping[str, Json]) -> bytes:
    r"""One line of JSON.

    >>> encode({"loss": float("nan"), "worst": float("inf"), "steps": np.int64(3), "name": "Zürich"})
    b'{"loss":null,"worst":"Infinity","steps":3,"name":"Z\\u00fcrich"}\n'
    """
    return (json.dumps(_plain(content), separators=(",", ":"), allow_nan=False) + "\n").encode()


def _plain(value: object) -> Json:
    """The value in types that JSON has; any other becomes text, as writing a line must never fail."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray | list | tuple | set | frozenset):
        return [_plain(item) for item in (value.tolist() if isinstance(value, np.ndarray) else value)]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


class Lines:
    """Follows a file of JSON lines. A missing file, half a line and damaged lines are skipped.

    Args:
        path: of the file.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = path
        self._file: tuple[int, int] | None = None  # its device and number
        self._offset, self._rest = 0, b""

    def poll(self) -> tuple[bool, list[dict[str, Json]]]:
        try:
            with open(self.path, "rb") as file:
                status = os.fstat(file.fileno())
                again = (status.st_dev, status.st_ino) != self._file or status.st_size < self._offset
                if again:
                    self._file, self._offset, self._rest = (status.st_dev, status.st_ino), 0, b""
                return again, self._new(file, status.st_size)
        except OSError:
            return False, []

    def _new(self, file: BinaryIO, size: int) -> list[dict[str, Json]]:
        """New objects up to this size: a writer that never rests must not keep a reader here."""
        file.seek(self._offset)
        found = []
        while self._offset < size and (piece := file.read(min(PIECE, size - self._offset))):
            self._offset += len(piece)
            *whole, rest = (self._rest + piece).split(b"\n")
            self._rest = rest if len(rest) <= LONGEST else b""
            found += [line for line in map(decode, whole) if line is not None]
        return found


def decode(line: bytes) -> dict[str, Json] | None:
    """The object in a line; None if there is none.

    >>> decode(b'{"event":"end"}'), decode(b'{"event":"e'), decode(b'7')
    ({'event': 'end'}, None, None)
    """
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def number(value: object) -> float:
    """A number from a line, where NaN is null and infinities are texts; NaN for anything else.

    >>> number(3), number("Infinity"), number(None), number("north"), number([1])
    (3.0, inf, nan, nan, nan)
    """
    try:
        return float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return math.nan
