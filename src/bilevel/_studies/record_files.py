"""Finished runs on disk: one CSV file each."""

from __future__ import annotations

import csv
import hashlib
import json
import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bilevel._core.files import write_whole
from bilevel._studies.experiment import Experiment, Method
from bilevel._studies.records import COLUMNS, Record


class RecordFiles:
    """The finished runs under a folder: runs/EXPERIMENT/VARIANT/METHOD/SETTINGS/seed-0.csv.

    SETTINGS stands for what the runs depend on (see settings.json there): runs of other settings, such as quick ones,
    lie beside them, and nothing is ever deleted. These are `Records`.
    """

    def __init__(self, folder: Path):
        self.folder, self.lock = folder, threading.Lock()  # runs end in several threads

    def place(self, experiment: Experiment, variant: str, method: Method) -> Path:
        """The folder of one method's runs with these settings."""
        settings = json.dumps(experiment.settings(variant, method), indent=1)
        digest = hashlib.sha256(settings.encode()).hexdigest()[:8]
        return self.folder / "runs" / experiment.name / variant / method / digest

    def has(self, experiment: Experiment, variant: str, method: Method, seed: int) -> bool:
        """Whether this run is finished, with these settings."""
        return (self.place(experiment, variant, method) / f"seed-{seed}.csv").is_file()

    def keep(self, experiment: Experiment, variant: str, method: Method, seed: int, record: Record) -> None:
        """Writes a run; its file appears whole or not at all."""
        place = self.place(experiment, variant, method)
        rows = zip(*(record[name].tolist() for name in COLUMNS), strict=True)
        lines = [",".join(COLUMNS), *(",".join(f"{value:.9g}" for value in row) for row in rows)]
        with self.lock:
            if not (place / "settings.json").is_file():
                place.mkdir(parents=True, exist_ok=True)
                settings = json.dumps(experiment.settings(variant, method), indent=1)
                write_whole(place / "settings.json", settings.encode())
            write_whole(place / f"seed-{seed}.csv", ("\n".join(lines) + "\n").encode())

    def read(self, experiment: Experiment, variant: str, method: Method) -> dict[int, Record]:
        """The finished runs of one method by seed."""
        files = {int(p.stem[5:]): p for p in self.place(experiment, variant, method).glob("seed-*.csv")}
        return {seed: _read(files[seed]) for seed in sorted(files)}

    def keep_facts(self, name: str, facts: Mapping[str, str | float]) -> None:
        """Writes NAME.json."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.folder / f"{name}.json", json.dumps(dict(facts), indent=1).encode())

    def read_facts(self, name: str) -> dict[str, str | float]:
        """What NAME.json has; empty if there is none."""
        file = self.folder / f"{name}.json"
        return json.loads(file.read_text()) if file.is_file() else {}

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
