"""What a run returns."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from bilevel.problem import Problem, TaskValues


@dataclasses.dataclass(frozen=True, eq=False)
class Iterate:
    """One point of a run: x, every task's y, the weights, and the tasks' losses there."""

    x: Any
    y: TaskValues
    weights: np.ndarray
    losses: np.ndarray  # on all validation data, in the order of the tasks
    test_losses: np.ndarray | None

    @property
    def worst(self) -> float:
        """The largest validation loss."""
        return float(np.max(self.losses))

    @property
    def mean(self) -> float:
        """The mean validation loss."""
        return float(np.mean(self.losses))

    @property
    def worst_task(self) -> str:
        """The name of the task with the largest validation loss."""
        return self.y.names[int(np.argmax(self.losses))]

    @property
    def test_worst(self) -> float | None:
        """The largest test loss."""
        return None if self.test_losses is None else float(np.max(self.test_losses))

    @property
    def test_mean(self) -> float | None:
        """The mean test loss."""
        return None if self.test_losses is None else float(np.mean(self.test_losses))


@dataclasses.dataclass(frozen=True, eq=False)
class History:
    """The run as it was evaluated: arrays whose first axis is the evaluations, the start first.

    Losses are on all the data of each task. Rates and `direction_norm` (root mean square since the last evaluation) are
    what the steps used; they are NaN at the start.
    """

    step: np.ndarray
    seconds: np.ndarray
    validation: np.ndarray  # (evaluations, tasks)
    test: np.ndarray | None  # (evaluations, tasks)
    weights: np.ndarray  # (evaluations, tasks)
    direction_norm: np.ndarray
    upper_rate: np.ndarray
    lower_rate: np.ndarray  # (evaluations, tasks)
    weights_rate: np.ndarray

    @property
    def worst(self) -> np.ndarray:
        """The largest validation loss at each evaluation."""
        return self.validation.max(axis=1)

    @property
    def mean(self) -> np.ndarray:
        """The mean validation loss at each evaluation."""
        return self.validation.mean(axis=1)

    def __len__(self) -> int:
        return len(self.step)

    def __repr__(self) -> str:
        return f"History({len(self)} evaluations, steps {self.step[0]} to {self.step[-1]})"


@dataclasses.dataclass(frozen=True, eq=False)
class Result:
    """The end of a run, and other iterates of it.

    `x`, `y`, `weights`, `losses`, `worst` and their kin are those of `last`.

    Attributes:
        last: the last iterate.
        best: the evaluated iterate with the lowest worst validation loss.
        random: (x^t, y^{t+1}, weights^t) at a uniformly random step t, the iterate that the theory speaks of.
        average: the average over the run with weights that favour its end (Shamir and Zhang, 2013): the one to take
            when batches are small and the last iterate is noisy.
        history: the run as it was evaluated.
        status: "finished", "stopped early", "interrupted" or "diverged".
        message: what happened, in a sentence.
    """

    problem: Problem = dataclasses.field(repr=False)
    solver: Any
    last: Iterate = dataclasses.field(repr=False)
    best: Iterate = dataclasses.field(repr=False)
    random: Iterate = dataclasses.field(repr=False)
    average: Iterate = dataclasses.field(repr=False)
    history: History
    status: str
    message: str
    steps: int
    seconds: float
    seed: int

    @property
    def x(self) -> Any:
        """What the tasks share."""
        return self.last.x

    @property
    def y(self) -> TaskValues:
        """Every task's own variable, by name."""
        return self.last.y

    @property
    def weights(self) -> np.ndarray:
        """One weight per task."""
        return self.last.weights

    @property
    def losses(self) -> np.ndarray:
        """Validation losses, in the order of the tasks."""
        return self.last.losses

    @property
    def test_losses(self) -> np.ndarray | None:
        """Test losses, in the order of the tasks."""
        return self.last.test_losses

    @property
    def worst(self) -> float:
        """The largest validation loss."""
        return self.last.worst

    @property
    def mean(self) -> float:
        """The mean validation loss."""
        return self.last.mean

    @property
    def worst_task(self) -> str:
        """The name of the task with the largest validation loss."""
        return self.last.worst_task

    def summary(self) -> str:
        """The result in a few lines of text."""
        name = type(self.solver).__name__
        lines = [
            f"{name}: {self.status} after {self.steps} steps, {self.seconds:.1f} s. {self.message}".rstrip(),
            f"{'iterate':<10}{'worst':>12}{'mean':>12}"
            + ("" if self.last.test_losses is None else f"{'test worst':>12}{'test mean':>12}")
            + "  worst task",
        ]
        for name in ("last", "best", "random", "average"):
            it: Iterate = getattr(self, name)
            numbers = [it.worst, it.mean, it.test_worst, it.test_mean]
            cells = "".join(f"{number:>12.5g}" for number in numbers if number is not None)
            lines.append(f"{name:<10}{cells}  {it.worst_task}")
        heavy = np.argsort(-self.weights, kind="stable")[:5]
        said = ", ".join(f"{self.y.names[int(i)]} {self.weights[i]:.3f}" for i in heavy)
        lines.append(f"largest weights: {said}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.summary()


def to_numpy(tree: Any) -> Any:
    """Arrays on the host."""
    return jax.tree.map(np.asarray, tree)
