"""Finished runs on disk: one CSV file each, so that what is finished is never run again."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bilevel._studies.experiment import Experiment, Method
from bilevel.results.result import Result

COLUMNS = (
    "step",
    "seconds",
    "worst_validation",
    "mean_validation",
    "worst_test",
    "mean_test",
    "unseen_worst_test",
    "unseen_mean_test",
    "gradient_norm_squared",  # of the stochastic directions of x, mean since the last row
    "upper_rate",
)


class Record:
    """The evaluations of one finished run, a column each; NaN where there is nothing."""

    def __init__(self, columns: Mapping[str, np.ndarray]):
        self.columns = dict(columns)

    def __getitem__(self, column: str) -> np.ndarray:
        return self.columns[column]

    @property
    def history(self) -> Record:
        """What pictures ask a run for."""
        return self

    @property
    def step(self) -> np.ndarray:
        """The steps at which the run was evaluated."""
        return self["step"]

    @classmethod
    def of(cls, result: Result, seen: int | None) -> Record:
        """What is kept of a result."""
        history = result.history
        n = history.validation.shape[1] if seen is None else seen
        test = np.full_like(history.validation, np.nan) if history.test is None else history.test
        unseen = test[:, n:] if n < test.shape[1] else np.full((history.evaluations, 1), np.nan)
        values = (
            *(history.step, history.seconds),
            *(history.validation[:, :n].max(axis=1), history.validation[:, :n].mean(axis=1)),
            *(test[:, :n].max(axis=1), test[:, :n].mean(axis=1)),
            *(unseen.max(axis=1), unseen.mean(axis=1)),
            *(history.direction_norm**2, history.upper_rate),
        )
        return cls(dict(zip(COLUMNS, map(np.asarray, values), strict=True)))


class Records:
    """The finished runs under a folder: runs/EXPERIMENT/VARIANT/METHOD/SETTINGS/seed-0.csv.

    SETTINGS stands for what the runs depend on (see settings.json there): runs of other settings, such as quick ones,
    lie beside them, and nothing is ever deleted.
    """

    def __init__(self, folder: Path):
        self.folder, self.lock = folder, threading.Lock()  # runs end in several threads

    def place(self, experiment: Experiment, variant: str, method: Method) -> Path:
        """The folder of one method's runs with the settings of today."""
        settings = json.dumps(experiment.settings(variant, method), indent=1)
        digest = hashlib.sha256(settings.encode()).hexdigest()[:8]
        return self.folder / "runs" / experiment.name / variant / method / digest

    def has(self, experiment: Experiment, variant: str, method: Method, seed: int) -> bool:
        """Whether this run is finished, with the settings of today."""
        return (self.place(experiment, variant, method) / f"seed-{seed}.csv").is_file()

    def keep(self, experiment: Experiment, variant: str, method: Method, seed: int, record: Record) -> None:
        """Writes a run; its file appears whole or not at all."""
        place = self.place(experiment, variant, method)
        rows = zip(*(record[name].tolist() for name in COLUMNS), strict=True)
        lines = [",".join(COLUMNS), *(",".join(f"{value:.9g}" for value in row) for row in rows)]
        with self.lock:
            if not (place / "settings.json").is_file():
                place.mkdir(parents=True, exist_ok=True)
                _replace(place / "settings.json", json.dumps(experiment.settings(variant, method), indent=1))
            _replace(place / f"seed-{seed}.csv", "\n".join(lines) + "\n")

    def read(self, experiment: Experiment, variant: str, method: Method) -> dict[int, Record]:
        """The finished runs of one method by seed."""
        files = {int(p.stem[5:]): p for p in self.place(experiment, variant, method).glob("seed-*.csv")}
        return {seed: _read(files[seed]) for seed in sorted(files)}

    def note_time(self, experiment: str, variant: str, runs: int, seconds: float, diverged: int) -> None:
        """Appends how long some runs took together to times.csv."""
        file = self.folder / "times.csv"
        header = "" if file.exists() else "experiment,variant,runs,seconds,diverged\n"
        with file.open("a") as opened:
            opened.write(f"{header}{experiment},{variant},{runs},{seconds:.0f},{diverged}\n")

    def times(self) -> list[dict[str, str]]:
        """What `note_time` noted."""
        file = self.folder / "times.csv"
        if not file.is_file():
            return []
        with file.open(newline="") as opened:
            return list(csv.DictReader(opened))


def _read(path: Path) -> Record:
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    values = np.array(rows, float).reshape(len(rows), len(header))
    return Record({name: values[:, i] for i, name in enumerate(header)})


def write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    """A CSV file of dicts with the same keys, whole or not at all."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: f"{v:.9g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)
    _replace(path, text.getvalue())


def _replace(path: Path, text: str) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(text)
    unfinished.replace(path)
