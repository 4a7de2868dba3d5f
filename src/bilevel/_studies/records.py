"""Finished runs, in memory or as files: what is finished is never run again."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from bilevel._core.averages import mean
from bilevel._core.files import write_whole
from bilevel._run.checkpoint import Checkpoint
from bilevel._studies.experiment import Experiment, Method
from bilevel.results.result import Result
from bilevel.weightings.baselines import Baselines

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
    "lowest_worst_test",  # so far, over all evaluations, also those that are not kept
    "lowest_unseen_worst_test",
    "residual",  # what the experiment's probe measured, at the rows that it looked at
)


ROWS = ("validation", "selection", "test")
# Of an experiment that knows baselines: the worst regret, and the numbers of the tasks with the worst loss and regret.
REGRETS = tuple(name for rows in ROWS for name in (f"worst_{rows}_task", f"regret_{rows}", f"regret_{rows}_task"))
LATER = ("worst_selection", "mean_selection")  # columns that finished runs of earlier versions do not have


class Record:
    """The evaluations of one finished run, a column each; NaN where there is nothing."""

    def __init__(self, columns: Mapping[str, np.ndarray]):
        self.columns = dict(columns)

    def __getitem__(self, column: str) -> np.ndarray:
        return self.columns[column]

    @property
    def history(self) -> Record:
        """What figures ask a run for."""
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
        """What is kept of a result, what was measured besides, by step, and regrets where baselines are known."""
        history = result.history
        n = history.validation.shape[1] if seen is None else seen
        nothing = np.full_like(history.validation, np.nan)
        selection, test = history.get("selection", nothing), history.get("test", nothing)
        unseen = test[:, n:] if n < test.shape[1] else np.full((history.evaluations, 1), np.nan)
        values = (
            *(history.step, history.seconds),
            *(history.validation[:, :n].max(axis=1), mean(history.validation[:, :n], axis=1)),
            *(selection[:, :n].max(axis=1), mean(selection[:, :n], axis=1)),
            *(test[:, :n].max(axis=1), mean(test[:, :n], axis=1)),
            *(unseen.max(axis=1), mean(unseen, axis=1)),
            *(history.direction_norm**2, history.upper_rate),
            *(np.fmin.accumulate(part.max(axis=1)) for part in (test[:, :n], unseen)),
            np.array([(probed or {}).get(int(step), np.nan) for step in history.step]),
        )
        columns: dict[str, np.ndarray] = dict(zip(COLUMNS, map(np.asarray, values), strict=True))  # type: ignore[arg-type]
        if baselines is not None:
            for rows, losses in zip(ROWS, (history.validation, selection, test), strict=True):
                columns |= _regrets(rows, losses, baselines)
        return cls(columns)

    def thinned(self, every: int) -> Record:
        """Every so many rows, and the last one."""
        index = np.unique([*range(0, len(self.step), every), len(self.step) - 1])
        return Record({name: values[index] for name, values in self.columns.items()})

    def until(self, step: int) -> Record:
        """The rows up to a step."""
        return Record({name: values[self.step <= step] for name, values in self.columns.items()})


def _regrets(rows: str, losses: np.ndarray, known: Baselines) -> dict[str, np.ndarray]:
    """The columns `REGRETS` of one kind of rows."""
    if np.isnan(losses).all():
        return {name: np.full(len(losses), np.nan) for name in REGRETS if rows in name}
    worst = [known.worst_regret(own) for own in losses]
    return {
        f"worst_{rows}_task": losses.argmax(axis=1).astype(float),
        f"regret_{rows}": np.array([own.value for own in worst]),
        f"regret_{rows}_task": np.array([float(own.number) for own in worst]),
    }


class Records(Protocol):
    """Where finished runs are kept; runs end in several threads."""

    def has(self, experiment: Experiment, variant: str, method: Method, seed: int) -> bool:
        """Whether this run is finished, with these settings."""
        ...

    def keep(self, experiment: Experiment, variant: str, method: Method, seed: int, record: Record) -> None:
        """Keeps a finished run."""
        ...

    def under_way(self, experiment: Experiment, variant: str, method: Method, seed: int) -> Checkpoint | None:
        """Where a run is kept until it is finished; None = nowhere."""
        ...

    def read(self, experiment: Experiment, variant: str, method: Method) -> dict[int, Record]:
        """The finished runs of one method by seed."""
        ...

    def keep_facts(self, name: str, facts: Mapping[str, str | float]) -> None:
        """Keeps what was measured besides runs, under a name."""
        ...

    def read_facts(self, name: str) -> dict[str, str | float]:
        """What `keep_facts` kept; empty if nothing."""
        ...


class MemoryRecords:
    """Finished runs in memory."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[int, Record]] = {}
        self.facts: dict[str, dict[str, str | float]] = {}

    def has(self, experiment: Experiment, variant: str, method: Method, seed: int) -> bool:
        """Whether this run is finished, with these settings."""
        return seed in self.runs.get(_key(experiment, variant, method), {})

    def under_way(self, experiment: Experiment, variant: str, method: Method, seed: int) -> Checkpoint | None:
        """Nowhere."""
        return None

    def keep(self, experiment: Experiment, variant: str, method: Method, seed: int, record: Record) -> None:
        """Keeps a finished run."""
        self.runs.setdefault(_key(experiment, variant, method), {})[seed] = record

    def read(self, experiment: Experiment, variant: str, method: Method) -> dict[int, Record]:
        """The finished runs of one method by seed."""
        return dict(sorted(self.runs.get(_key(experiment, variant, method), {}).items()))

    def keep_facts(self, name: str, facts: Mapping[str, str | float]) -> None:
        """Keeps what was measured besides runs, under a name."""
        self.facts[name] = dict(facts)

    def read_facts(self, name: str) -> dict[str, str | float]:
        """What `keep_facts` kept; empty if nothing."""
        return dict(self.facts.get(name, {}))


def _key(experiment: Experiment, variant: str, method: Method) -> str:
    return json.dumps([experiment.name, variant, method, experiment.settings(variant, method)])


def write_table(path: Path, rows: Sequence[Mapping[str, str | float]]) -> None:
    """A CSV file of dicts with the same keys, whole or not at all."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: f"{v:.9g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)
    write_whole(path, text.getvalue().encode())
