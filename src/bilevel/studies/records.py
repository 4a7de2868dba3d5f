"""Experiments and their finished runs, which are stored in memory or as files, so that none is made twice.

An experiment draws a problem for each seed and runs solvers on it, in several variants. A finished run is a `Record`,
which is one CSV file on disk.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bilevel import Baselines, Checkpoint, Problem, Result, Solver
from bilevel._core import documents
from bilevel._core.averages import mean
from bilevel._core.files import check_component, read_regular, write_whole
from bilevel.hypergradients.upper import Point
from bilevel.studies.problems import Ready

SEEDS = 10
SEED = re.compile(r"seed-(0|[1-9][0-9]{0,18})\.csv")
LARGEST = 100_000_000  # bytes; a run of 100 evaluations has 10,000
REMEDY = "delete it to make its runs again."
Method = str  # "min-avg", "min-max"
Probe = Callable[[Problem, Point], float]


class Reference(NamedTuple):
    """A solver that others are compared with, and how long it runs."""

    solver: Solver
    steps: int


@dataclasses.dataclass(frozen=True, eq=False)
class Experiment:
    """One problem and the solvers that run on it. A benchmark is an experiment whose solvers are chosen later.

    Args:
        name: the name of its results folder.
        title: what is solved, in a few words.
        start: makes the problem and the initial x for a seed and a variant.
        steps: the length of each run; of a benchmark, the length of a run of the recommended solver.
        methods: for each variant, the solvers by name.
        evaluations: how often a run is evaluated.
        rows: how many evaluations are saved, evenly spaced; the lowest losses so far count all of them. None = all.
        seen: x is fitted to this many tasks, the first ones, and the others are only evaluated. None = all.
        require: is called before any run, and raises if data are missing.
        y: the initial variables of the tasks, if the tasks have none of their own.
        reference: of a benchmark that is in the paper, the solver as the paper describes it.
        probe: by variant, an extra measurement at some points of its min-max runs.
        baselines: the loss that each task could reach. Regrets are then saved too, and all seeds have the same tasks.
    """

    name: str
    title: str
    start: Callable[[int, str], Ready]
    steps: int
    methods: Mapping[str, Mapping[Method, Solver]] = dataclasses.field(default_factory=dict)
    evaluations: int = 100
    rows: int | None = None
    seen: int | None = None
    require: Callable[[], Any] = lambda: None
    y: Any = None
    reference: Reference | None = None
    probe: Mapping[str, Probe] = dataclasses.field(default_factory=dict)
    baselines: Baselines | None = None

    def shorter(self, share: int) -> Experiment:
        """A shorter version: 1/share of the steps, ten evaluations, and no probes, which would take as long."""
        return dataclasses.replace(self, steps=max(100, self.steps // share), evaluations=10, rows=None, probe={})

    def settings(self, variant: str, method: Method) -> dict[str, Any]:
        """Everything that a run depends on besides its seed. A run with other settings is another run."""
        solver = self.methods[variant][method]
        probe = {"probe": repr(self.probe[variant])} if variant in self.probe else {}
        known = {} if self.baselines is None else {"baselines": np.asarray(self.baselines.values).tolist()}
        settings = {"experiment": self.title, "solver": repr(solver), "steps": self.steps, "seen": self.seen}
        return settings | probe | known


COLUMNS = (
    "step",
    "seconds",
    "worst_validation",
    "mean_validation",
    "worst_selection",
    "mean_selection",
    "worst_test",
    "mean_test",
    "unseen_worst_test",
    "unseen_mean_test",
    "gradient_norm_squared",  # of the stochastic directions of x, mean since the last row
    "upper_rate",
    "lowest_worst_test",  # so far, over all evaluations, saved or not
    "lowest_unseen_worst_test",
    "residual",  # the measurement of the experiment's probe, at the rows where it was called
)
ROWS = ("validation", "selection", "test")
# With baselines: the worst regret, and the numbers of the tasks with the worst loss and the worst regret.
REGRETS = tuple(name for rows in ROWS for name in (f"worst_{rows}_task", f"regret_{rows}", f"regret_{rows}_task"))
LATER = ("worst_selection", "mean_selection")  # columns that runs of earlier versions lack


class Record:
    """The evaluations of one finished run, by column; NaN = not measured."""

    def __init__(self, columns: Mapping[str, np.ndarray]):
        self.columns = dict(columns)

    def __getitem__(self, column: str) -> np.ndarray:
        return self.columns[column]

    @property
    def history(self) -> Record:
        """The record itself: figures read `run.history.step`."""
        return self

    @property
    def step(self) -> np.ndarray:
        """The steps at which the run was evaluated."""
        return self["step"]

    @classmethod
    def of(
        cls,
        result: Result,
        seen: int | None,
        probed: Mapping[int, float] | None = None,
        baselines: Baselines | None = None,
    ) -> Record:
        """The record of a result, with measurements of a probe by step, and with regrets if baselines are known."""
        history = result.history
        n = history.validation.shape[1] if seen is None else seen
        nothing = np.full_like(history.validation, np.nan)
        losses = {rows: history.get(rows, nothing) for rows in ROWS}
        columns: dict[str, Any] = {"step": history.step, "seconds": history.seconds}
        for rows, values in losses.items():
            columns[f"worst_{rows}"] = values[:, :n].max(axis=1)
            columns[f"mean_{rows}"] = mean(values[:, :n], axis=1)
            columns |= {} if baselines is None else _regrets(rows, values, baselines)
        test = losses["test"]
        unseen = test[:, n:] if n < test.shape[1] else np.full((history.evaluations, 1), np.nan)
        columns |= {"unseen_worst_test": unseen.max(axis=1), "unseen_mean_test": mean(unseen, axis=1)}
        columns |= {"gradient_norm_squared": history.direction_norm**2, "upper_rate": history.upper_rate}
        for column in ("worst_test", "unseen_worst_test"):
            columns[f"lowest_{column}"] = np.fmin.accumulate(columns[column])
        columns["residual"] = [(probed or {}).get(int(step), np.nan) for step in history.step]
        return cls({name: np.asarray(values) for name, values in columns.items()})

    def thinned(self, every: int) -> Record:
        """Every `every`-th row, and the last one."""
        index = np.unique([*range(0, len(self.step), every), len(self.step) - 1])
        return Record({name: values[index] for name, values in self.columns.items()})

    def until(self, step: int) -> Record:
        """The rows up to a step."""
        return Record({name: values[self.step <= step] for name, values in self.columns.items()})


def _regrets(rows: str, losses: np.ndarray, known: Baselines) -> dict[str, np.ndarray]:
    """The columns of `REGRETS` for one kind of rows."""
    if np.isnan(losses).all():
        return {name: np.full(len(losses), np.nan) for name in REGRETS if rows in name}
    worst = [known.worst_regret(own) for own in losses]
    return {
        f"worst_{rows}_task": losses.argmax(axis=1).astype(float),
        f"regret_{rows}": np.array([own.value for own in worst]),
        f"regret_{rows}_task": np.array([float(own.number) for own in worst]),
    }


class MemoryRecords:
    """Finished runs in memory. Runs end in several threads."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[int, Record]] = {}
        self.facts: dict[str, dict[str, str | float]] = {}

    def has(self, experiment: Experiment, variant: str, method: Method, seed: int) -> bool:
        """Whether this run is finished, with these settings."""
        return seed in self.runs.get(_key(experiment, variant, method), {})

    def under_way(self, experiment: Experiment, variant: str, method: Method, seed: int) -> Checkpoint | None:
        """None: unfinished runs are not kept in memory."""
        return None

    def keep(self, experiment: Experiment, variant: str, method: Method, seed: int, record: Record) -> None:
        """Keeps a finished run."""
        self.runs.setdefault(_key(experiment, variant, method), {})[seed] = record

    def read(self, experiment: Experiment, variant: str, method: Method) -> dict[int, Record]:
        """The finished runs of one method by seed."""
        return dict(sorted(self.runs.get(_key(experiment, variant, method), {}).items()))

    def keep_facts(self, name: str, facts: Mapping[str, str | float]) -> None:
        """Keeps other measured numbers under a name."""
        self.facts[name] = dict(facts)

    def read_facts(self, name: str) -> dict[str, str | float]:
        """The numbers that `keep_facts` kept; empty if there are none."""
        return dict(self.facts.get(name, {}))


def _key(experiment: Experiment, variant: str, method: Method) -> str:
    return json.dumps([experiment.name, variant, method, experiment.settings(variant, method)])


class RecordFiles:
    """The finished runs under a folder: runs/EXPERIMENT/VARIANT/METHOD/SETTINGS/seed-0.csv.

    SETTINGS is a digest of what the runs depend on (see settings.json there). Runs of other settings, such as quick
    ones, have folders beside it, and nothing finished is ever deleted. The folder seed-0.unfinished has the checkpoint
    of a run until it is finished. Several threads may keep runs at once.
    """

    def __init__(self, folder: Path):
        self.folder = folder

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
        """The checkpoint of a run that is not finished."""
        return Checkpoint(self.place(experiment, variant, method) / f"seed-{seed}.unfinished")

    def keep(self, experiment: Experiment, variant: str, method: Method, seed: int, record: Record) -> None:
        """Writes a run, whole or not at all, and removes its checkpoint."""
        place = self.place(experiment, variant, method)
        names = [*COLUMNS, *(name for name in REGRETS if name in record.columns)]
        values = zip(*(record[name].tolist() for name in names), strict=True)
        rows = [dict(zip(names, row, strict=True)) for row in values]
        if not (place / "settings.json").is_file():
            place.mkdir(parents=True, exist_ok=True)
            settings = json.dumps(experiment.settings(variant, method), indent=1)
            write_whole(place / "settings.json", settings.encode())
        write_table(place / f"seed-{seed}.csv", rows)
        shutil.rmtree(self.under_way(experiment, variant, method, seed).path, ignore_errors=True)

    def read(self, experiment: Experiment, variant: str, method: Method) -> dict[int, Record]:
        """The finished runs of one method by seed."""
        place = self.place(experiment, variant, method)
        seeds = sorted(int(found[1]) for p in place.glob("seed-*.csv") if (found := SEED.fullmatch(p.name)))
        return {seed: _read_record(place / f"seed-{seed}.csv") for seed in seeds}

    def keep_facts(self, name: str, facts: Mapping[str, str | float]) -> None:
        """Writes NAME.json."""
        check_component(name, "facts")
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.folder / f"{name}.json", json.dumps(dict(facts), indent=1).encode())

    def read_facts(self, name: str) -> dict[str, str | float]:
        """The contents of NAME.json; empty if there is none."""
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
        """Appends the time that some runs took together to times.csv."""
        file = self.folder / "times.csv"
        header = "" if file.exists() else "experiment,variant,runs,seconds,diverged\n"
        with file.open("a") as opened:
            opened.write(f"{header}{experiment},{variant},{runs},{seconds:.0f},{diverged}\n")

    def times(self) -> list[dict[str, str]]:
        """The rows that `note_time` wrote."""
        file = self.folder / "times.csv"
        if not file.is_file():
            return []
        header, *rows = _csv_rows(file)
        return [dict(zip(header, row, strict=True)) for row in rows]


Records = MemoryRecords | RecordFiles  # a store of finished runs


def _read_record(path: Path) -> Record:
    header, *rows = _csv_rows(path)
    missing = [name for name in COLUMNS if name not in (*header, *LATER)]
    if missing or not rows:
        raise ValueError(f"{path} has no {f'column {missing[0]}' if missing else 'rows'}: {REMEDY}")
    try:
        values = np.array(rows, float)
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): {REMEDY}") from error
    nothing = {name: np.full(len(values), np.nan) for name in LATER}
    return Record(nothing | {name: values[:, i] for i, name in enumerate(header)})


def _csv_rows(path: Path) -> list[list[str]]:
    """The lines of a CSV file: its names differ, and all lines have as many fields."""
    try:
        text = read_regular(path, str(path), LARGEST).decode()
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path} is damaged ({error}): {REMEDY}") from error
    if not rows or len(set(rows[0])) < len(rows[0]) or any(len(row) != len(rows[0]) for row in rows):
        raise ValueError(f"{path} is damaged (its lines differ in length, or there are none): {REMEDY}")
    return rows


def write_table(path: Path, rows: Sequence[Mapping[str, str | float]]) -> None:
    """Writes a CSV file of dicts with the same keys, whole or not at all."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: f"{v:.9g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)
    write_whole(path, text.getvalue().encode())
