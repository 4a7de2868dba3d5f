"""The run as it was evaluated: columns of numbers, by name or as attributes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from bilevel._core.averages import mean


@dataclasses.dataclass(frozen=True, eq=False)
class History(Mapping[str, np.ndarray]):
    """The run as it was evaluated: arrays whose first axis is the evaluations, the start first.

    Every column is an attribute, and an entry of a mapping: `history.validation` is `history["validation"]`, and
    `"test" in history` says whether the tasks have test data (`history.test` is None where they have none), and
    likewise `selection`.
    `len(history)` is the number of columns; `history.evaluations` is the number of rows.

    Losses are on all the data of each task. A run whose steps see a few of more than 1,024 tasks (`sampling=`) has
    columns for 512 of them, drawn once, and the largest loss among these and the 512 heaviest of each evaluation. Rates
    and `direction_norm` (root mean square since the last evaluation) are what the steps used; they are NaN at the
    start.
    """

    step: np.ndarray
    seconds: np.ndarray
    validation: np.ndarray  # (evaluations, tasks)
    selection: np.ndarray | None = dataclasses.field(default=None, kw_only=True)  # (evaluations, tasks)
    test: np.ndarray | None  # (evaluations, tasks)
    weights: np.ndarray  # (evaluations, tasks)
    direction_norm: np.ndarray
    upper_rate: np.ndarray
    lower_rate: np.ndarray  # (evaluations, tasks); NaN where there is no lower level
    weights_rate: np.ndarray
    weights_travel: np.ndarray  # how far the weights went since the last evaluation, sum of |changes| step by step
    weights_swing: np.ndarray  # the largest range that one weight took since the last evaluation
    metrics: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)  # (evaluations, tasks) each, by name

    _: dataclasses.KW_ONLY
    fitted: np.ndarray | None = None  # whether y was fitted to x; None in files of a version that did not fit
    lag: np.ndarray | None = None  # about how far losses may be off, as a share of the worst; NaN where not fitted
    # Where steps see a few of very many tasks, the columns are those of some of them; None otherwise.
    tasks: np.ndarray | None = None  # (evaluations, columns): their numbers, the same in all rows
    largest: np.ndarray | None = None  # the largest validation loss among these and the tasks of the largest weights
    largest_task: np.ndarray | None = None  # the number of the task that has it

    @property
    def worst(self) -> np.ndarray:
        """The largest validation loss at each evaluation, of those that were evaluated."""
        return self.validation.max(axis=1) if self.largest is None else self.largest

    @property
    def mean(self) -> np.ndarray:
        """The mean validation loss at each evaluation, of the tasks that have columns."""
        return mean(self.validation, axis=1)

    @property
    def selection_worst(self) -> np.ndarray | None:
        """The largest selection loss at each evaluation; None where there are no selection rows."""
        return None if self.selection is None else self.selection.max(axis=1)

    @property
    def evaluations(self) -> int:
        """How many evaluations there are, the start among them."""
        return len(self.step)

    def __getitem__(self, name: str) -> np.ndarray:
        column = getattr(self, name) if name in COLUMNS else self.metrics.get(name)
        if column is None:
            raise KeyError(f"the history has no column {name!r}; its columns are {', '.join(self)}")
        return column

    def __iter__(self) -> Iterator[str]:
        yield from (name for name in COLUMNS if getattr(self, name) is not None)
        yield from self.metrics

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __eq__(self, other: object) -> bool:
        return self is other  # a mapping's own equality compares arrays, which have no single truth value

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"History({self.evaluations} evaluations, steps {self.step[0]} to {self.step[-1]})"


COLUMNS = tuple(field.name for field in dataclasses.fields(History) if field.name != "metrics")


def column_names(history: History, names: Sequence[str]) -> list[str]:
    """The names of the tasks that have columns."""
    return list(names) if history.tasks is None else [names[int(i)] for i in history.tasks[0]]
