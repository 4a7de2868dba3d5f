"""Parts of a result: the history of evaluations, the iterates, the divergences.

Also the mean over the worst fraction of the losses, which `CVaR` minimises.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, NamedTuple

import numpy as np
from jax.typing import ArrayLike

from bilevel._core.averages import mean, worst
from bilevel._core.types import X, Y
from bilevel.problem.per_task import TaskValues
from bilevel.weightings.baselines import Baselines, WorstRegret
from bilevel.weightings.cvar import CVaR


@dataclasses.dataclass(frozen=True, eq=False)
class History(Mapping[str, np.ndarray]):
    """The evaluations of a run: arrays whose first axis is the evaluations, the start first.

    Every column is an attribute and an entry of a mapping: `history.validation` is `history["validation"]`. Where the
    tasks have no test data, `history.test` is None and `"test" in history` is False; the same holds for `selection`.
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
    # Where steps see a few of very many tasks, only some tasks have columns; None where all have.
    tasks: np.ndarray | None = None  # (evaluations, columns): the numbers of these tasks, the same in all rows
    largest: np.ndarray | None = None  # the largest validation loss among these and the tasks of the largest weights
    largest_task: np.ndarray | None = None  # the number of the task that has it

    @property
    def worst(self) -> np.ndarray:
        """The largest validation loss at each evaluation, among the tasks that were evaluated."""
        return self.validation.max(axis=1) if self.largest is None else self.largest

    @property
    def mean(self) -> np.ndarray:
        """The mean validation loss at each evaluation, over the tasks that have columns."""
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


@dataclasses.dataclass(frozen=True, eq=False)
class Iterate(Generic[X, Y]):
    """One point of a run: x, every task's y, the weights, and the tasks' losses there."""

    x: X
    y: TaskValues[Y]
    weights: np.ndarray
    losses: np.ndarray  # on all validation data, in the order of the tasks
    selection_losses: np.ndarray | None = dataclasses.field(default=None, kw_only=True)
    test_losses: np.ndarray | None
    metrics: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)  # as in `solve(metrics=...)`, by task

    @property
    def worst(self) -> float:
        """The largest validation loss."""
        return worst(self.losses)

    @property
    def mean(self) -> float:
        """The mean validation loss."""
        return float(mean(self.losses))

    def tail(self, fraction: float) -> float:
        """The mean over the worst `fraction` of the validation losses."""
        return tail_mean(self.losses, fraction)

    @property
    def worst_task(self) -> str:
        """The name of the task with the largest validation loss."""
        return self.y.names[int(np.argmax(self.losses))]

    def worst_regrets(self, baselines: Baselines) -> dict[str, WorstRegret]:
        """On each kind of rows, the largest excess over the baselines and the task that has it."""
        losses = {"validation": self.losses, "selection": self.selection_losses, "test": self.test_losses}
        return {rows: baselines.worst_regret(own) for rows, own in losses.items() if own is not None}

    @property
    def selection_worst(self) -> float | None:
        """The largest selection loss."""
        return None if self.selection_losses is None else worst(self.selection_losses)

    @property
    def selection_mean(self) -> float | None:
        """The mean selection loss."""
        return None if self.selection_losses is None else float(mean(self.selection_losses))

    @property
    def test_worst(self) -> float | None:
        """The largest test loss."""
        return None if self.test_losses is None else worst(self.test_losses)

    @property
    def test_mean(self) -> float | None:
        """The mean test loss."""
        return None if self.test_losses is None else float(mean(self.test_losses))

    @property
    def test_worst_task(self) -> str | None:
        """The name of the task with the largest test loss."""
        return None if self.test_losses is None else self.y.names[int(np.argmax(self.test_losses))]


class Divergence(NamedTuple):
    """One time that a run diverged or lost what it had gained, and what was done about it; plain data.

    Attributes:
        step: the step that failed; so many steps before it were finite.
        task: the task whose y or loss became infinite or NaN; None where it was something that the tasks share.
        quantity: what became so: "y", "loss", "direction", "x" or "weights"; "objective" = it rose far above its best.
        message: what happened and what was done, in words.
        factor: what the rates were multiplied by before the run resumed; None = the run ended here.
        back_to: the step that it resumed from; None = the run ended here.
    """

    step: int
    task: str | int | None
    quantity: str
    message: str
    factor: float | None = None
    back_to: int | None = None

    @property
    def line(self) -> str:
        """The event in a few words."""
        what = self.quantity if self.task is None else f"{self.quantity} of task {self.task!r}"
        resumed = f"continued from step {self.back_to} with rates times"
        then = "ended" if self.factor is None else f"{resumed} {self.factor:g}"
        if self.quantity == "objective":
            return f"lost ground by step {self.step}: {then}"
        return f"diverged at step {self.step} ({what}): {then}"


def tail_mean(losses: ArrayLike, fraction: float) -> float:
    """The mean over the worst `fraction` of the losses; the last of them counts in part if needed.

    This is the CVaR of the losses, min over t of  t + mean((losses - t)_+) / fraction.

    >>> tail_mean([1.0, 4.0, 2.0, 3.0], 0.5), tail_mean([1.0, 4.0, 2.0, 3.0], 0.375)
    (3.5, 3.6666666666666665)
    """
    worst = -np.sort(-np.asarray(losses, float))
    count = fraction * len(worst)
    if count >= len(worst):
        return float(mean(np.asarray(losses)))
    whole = int(np.floor(count))
    part = (count - whole) * worst[whole]
    return float((mean(worst[:whole]) * whole if whole else 0.0) / count + part / count)


def fraction_of(solver: object) -> float | None:
    """The fraction of the solver's `CVaR`, read from its text if the result was loaded; None for other weightings."""
    if isinstance(solver, str):
        found = re.search(r"\bweighting=CVaR\(fraction=([0-9.e+-]+)", solver)
        return float(found[1]) if found else None
    weighting = getattr(solver, "weighting", None)
    return float(weighting.fraction) if isinstance(weighting, CVaR) else None


def of_distribution(solver: object) -> float | None:
    """With tasks from a distribution, the fraction whose mean the solver minimises (1 = all); None with a task list."""
    is_text = isinstance(solver, str)
    fresh = "sampling=Fresh(" in solver if is_text else getattr(getattr(solver, "sampling", None), "fresh", False)
    return (fraction_of(solver) or 1.0) if fresh else None


def in_words(fraction: float, role: str) -> str:
    """The name of the mean over the worst losses.

    >>> in_words(0.1, "validation"), in_words(1.0, "test")
    ('mean of the worst 10 % of validation losses', 'mean test loss')
    """
    return f"mean {role} loss" if fraction >= 1 else f"mean of the worst {100 * fraction:g} % of {role} losses"
