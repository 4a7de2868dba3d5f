"""JSON lines: one object a line, appended as the run goes, readable by anything at any time."""

from __future__ import annotations

import json
import math
import os
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bilevel.loggers.base import Facts, Logger
from bilevel.loggers.evaluation import Evaluation


class Progress(Logger):
    """Appends a run to a file of JSON lines, which `bilevel watch` shows.

    Every line is an object with "event" ("start", "evaluation", "divergence", "checkpoint", "problem", "finding" or
    "end") and "time" (Unix seconds). Where a run is resumed its lines go on in the same file after a further "start",
    whose "step" says from where: evaluations of later steps that stand before it were made again. Lines are valid JSON,
    which has no NaN and no infinity: the former is null, the latter are the texts "Infinity" and "-Infinity".

    A line is one write, so that no reader sees half of it unless the machine fails. Where the file cannot be written
    (a full disk) there is one warning, and the next line is tried again.

    Args:
        path: of the file; folders above it are made. With several seeds each has its own, `seed-0/` beside it.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = path
        self._warned = False

    def __repr__(self) -> str:
        return f"Progress({str(self.path)!r})"

    def start(self, facts: Facts) -> None:
        """A line with what is run; the names of the tasks come with the evaluations."""
        self._write("start", {**facts._asdict(), "tasks": len(facts.tasks)})

    def log(self, row: Evaluation) -> None:
        """A line with the numbers of an evaluation."""
        content = {"step": row.step, "seconds": row.seconds, **row.summary(), "tasks": row.tasks()}
        self._write("evaluation", content)

    def event(self, kind: str, facts: Mapping[str, Any]) -> None:
        """A line with what happened."""
        self._write(kind, facts)

    def end(self, status: str, message: str) -> None:
        """The last line."""
        self._write("end", {"status": status, "message": message})

    def for_run(self, seed: int) -> Progress:
        """A file of the same name in the folder `seed-N`."""
        path = Path(self.path)
        return Progress(path.parent / f"seed-{seed}" / path.name)

    def _write(self, kind: str, facts: Mapping[str, Any]) -> None:
        line = encode({"event": kind, "time": time.time(), **facts})
        try:
            self._append(line)
        except OSError as error:
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"{self!r} cannot be written ({error}). The run goes on, and each further line is tried.",
                    stacklevel=2,
                )

    def _append(self, line: bytes) -> None:
        """Opened for every line: a few microseconds, and a folder that is back after a failure is found again."""
        path = Path(self.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
        try:
            end = os.lseek(descriptor, 0, os.SEEK_END)
            if end and os.pread(descriptor, 1, end - 1) != b"\n":  # a line that was cut short stands alone
                line = b"\n" + line
            written = os.write(descriptor, line)
            if written < len(line):
                raise OSError(f"only {written} of {len(line)} bytes were taken")
        finally:
            os.close(descriptor)


def encode(content: Mapping[str, Any]) -> bytes:
    r"""One line of JSON.

    >>> encode({"loss": float("nan"), "worst": float("inf"), "steps": np.int64(3), "name": "Zürich"})
    b'{"loss":null,"worst":"Infinity","steps":3,"name":"Z\\u00fcrich"}\n'
    """
    return (json.dumps(_plain(content), separators=(",", ":"), allow_nan=False) + "\n").encode()


def _plain(value: Any) -> Any:
    """The same in what JSON has; what it has no word for becomes text, as a line must never fail."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray | list | tuple | set | frozenset):
        return [_plain(item) for item in (value.tolist() if isinstance(value, np.ndarray) else value)]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
