"""Finished runs on disk: one CSV file each."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bilevel._core import documents
from bilevel._core.files import check_component, read_regular, write_whole
from bilevel._run.checkpoint import Checkpoint
from bilevel._studies.experiment import Experiment, Method
from bilevel._studies.records import COLUMNS, LATER, REGRETS, Record

SEED = re.compile(r"seed-(0|[1-9][0-9]{0,18})\.csv")
LARGEST = 100_000_000  # bytes; a run of 100 evaluations has 10,000
REMEDY = "delete it, and its runs are made again."


class RecordFiles:
    """The finished runs under a folder: runs/EXPERIMENT/VARIANT/METHOD/SETTINGS/seed-0.csv.

    SETTINGS stands for what the runs depend on (see settings.json there): runs of other settings, such as quick ones,
    lie beside them, and nothing finished is ever deleted. A run that is not finished is kept in the folder
    seed-0.unfinished until it is. These are `Records`.
    """

    def __init__(self, folder: Path):
        self.folder, self.lock = folder, threading.Lock()  # runs end in several threads

    def place(self, experiment: Experiment, variant: str, method: Method) -> Path:
        """The folder of one method's runs with these settings."""
        for what, name in (("experiment", experiment.name), ("variant", variant), ("method", method)):
            check_component(name, what)
        settings = json.dumps(experiment.settings(variant, method), indent=1)
        digest = hashlib.sha256(settings.encode()).hexdigest()[:8]
        return self.folder / "runs" / experiment.name / variant / method / digest

    def has(self, experiment: Experiment, variant: str, method: Method, seed: int) -> bool:
        """Whether this run is finished, with these settings."""
        return (self.place(experiment, variant, method) / f"seed-{seed}.csv").is_file()

    def under_way(self, experiment: Experiment, variant: str, method: Method, seed: int) -> Checkpoint:
        """Where a run is kept until it is finished."""
        return Checkpoint(self.place(experiment, variant, method) / f"seed-{seed}.unfinished")

    def keep(self, experiment: Experiment, variant: str, method: Method, seed: int, record: Record) -> None:
        """Writes a run, whose file appears whole or not at all, and removes what was kept of it under way."""
        place = self.place(experiment, variant, method)
        names = [*COLUMNS, *(name for name in REGRETS if name in record.columns)]
        rows = zip(*(record[name].tolist() for name in names), strict=True)
        lines = [",".join(names), *(",".join(f"{value:.9g}" for value in row) for row in rows)]
        with self.lock:
            if not (place / "settings.json").is_file():
                place.mkdir(parents=True, exist_ok=True)
                settings = json.dumps(experiment.settings(variant, method), indent=1)
                write_whole(place / "settings.json", settings.encode())
            write_whole(place / f"seed-{seed}.csv", ("\n".join(lines) + "\n").encode())
        shutil.rmtree(self.under_way(experiment, variant, method, seed).path, ignore_errors=True)

    def read(self, experiment: Experiment, variant: str, method: Method) -> dict[int, Record]:
        """The finished runs of one method by seed."""
        place = self.place(experiment, variant, method)
        seeds = sorted(int(found[1]) for p in place.glob("seed-*.csv") if (found := SEED.fullmatch(p.name)))
        return {seed: _read(place / f"seed-{seed}.csv") for seed in seeds}

    def keep_facts(self, name: str, facts: Mapping[str, str | float]) -> None:
        """Writes NAME.json."""
        check_component(name, "facts")
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.folder / f"{name}.json", json.dumps(dict(facts), indent=1).encode())

    def read_facts(self, name: str) -> dict[str, str | float]:
        """What NAME.json has; empty if there is none."""
        check_component(name, "facts")
        file = self.folder / f"{name}.json"
        if not file.is_file():
            return {}
        try:
            found = documents.parse(read_regular(file, str(file), LARGEST))
        except ValueError as error:
            raise ValueError(f"{file} is damaged ({error}): {REMEDY}") from error
        if not isinstance(found, dict) or not all(isinstance(v, (str, int, float)) for v in found.values()):
            raise ValueError(f"{file} is no JSON object of numbers and texts: {REMEDY}")
        return found

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
        header, *rows = _rows(file)
        return [dict(zip(header, row, strict=True)) for row in rows]


def _read(path: Path) -> Record:
    header, *rows = _rows(path)
    missing = [name for name in COLUMNS if name not in (*header, *LATER)]
    if missing or not rows:
        raise ValueError(f"{path} has no {f'column {missing[0]}' if missing else 'rows'}: {REMEDY}")
    try:
        values = np.array(rows, float)
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): {REMEDY}") from error
    nothing = {name: np.full(len(values), np.nan) for name in LATER}
    return Record(nothing | {name: values[:, i] for i, name in enumerate(header)})


def _rows(path: Path) -> list[list[str]]:
    """The lines of a CSV file, as many fields in each as in the first, whose names differ."""
    try:
        text = read_regular(path, str(path), LARGEST).decode()
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path} is damaged ({error}): {REMEDY}") from error
    if not rows or len(set(rows[0])) < len(rows[0]) or any(len(row) != len(rows[0]) for row in rows):
        raise ValueError(f"{path} is damaged (its lines differ in length, or there are none): {REMEDY}")
    return rows
