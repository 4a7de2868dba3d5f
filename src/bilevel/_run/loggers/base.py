"""`Logger`, the base of all loggers, and what they get: the `Facts` of a run and its `Evaluation`s."""

from __future__ import annotations

import importlib.util
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from bilevel._core.averages import mean, worst
from bilevel._core.types import Json

MOST_TASKS = 50  # are reported one by one; of more tasks, only the worst
WORST_TASKS = 10


class Facts(NamedTuple):
    """What is known about a run before its first step."""

    title: str  # the name of the solver
    solver: str  # its full text
    seed: int
    steps: int
    tasks: tuple[str, ...]
    version: str  # of bilevel
    comparable: bool = True  # whether a lower loss is a better iterate
    step: int = 0  # where it starts; more than 0 if the run is resumed
    folder: str | None = None  # the run folder, if it has one


class Evaluation(NamedTuple):
    """Losses on all the data of each task, and what the steps since the last evaluation used.

    Attributes:
        step: the number of steps taken.
        seconds: the time since the run began.
        names: the names of the tasks, in the order of the arrays.
        validation: the validation loss of each task.
        selection: the selection losses; None = there are no selection data.
        test: the test losses; None = there are no test data.
        weights: the weight of each task.
        direction_norm: the length of the direction of x, root mean square; NaN = not known, as at the start.
        upper_rate: the rate of x; NaN = not known.
        lower_rate: the rate of each task's y; NaN = not known.
        weights_rate: the rate of the weights; NaN = not known.
        steps_per_second: the speed since the last evaluation, without compiling; NaN = no step was taken.
        metrics: other measurements of each task, by name: "validation accuracy", "test accuracy".
        largest: if these are some of very many tasks, the largest validation loss among them and the heaviest tasks.
        largest_task: the name of the task that has it.
    """

    step: int
    seconds: float
    names: tuple[str, ...]
    validation: np.ndarray
    test: np.ndarray | None
    weights: np.ndarray
    direction_norm: float
    upper_rate: float
    lower_rate: np.ndarray
    weights_rate: float
    steps_per_second: float
    metrics: Mapping[str, np.ndarray] = MappingProxyType({})
    selection: np.ndarray | None = None
    largest: float | None = None
    largest_task: str | None = None

    @property
    def worst(self) -> float:
        """The largest validation loss."""
        return worst(self.validation, self.largest)

    @property
    def mean(self) -> float:
        """The mean validation loss."""
        return float(mean(self.validation))

    def told(self) -> list[int]:
        """The tasks that are reported one by one, worst first: all, or the worst ten of more than fifty."""
        loss = np.where(np.isnan(self.validation), np.inf, self.validation)
        order = np.argsort(-loss, kind="stable")
        return [int(i) for i in (order if len(order) <= MOST_TASKS else order[:WORST_TASKS])]

    def summary(self) -> dict[str, float]:
        """Numbers about all tasks together, by name; unknown rates are left out."""
        numbers = {"validation/worst": self.worst, "validation/mean": self.mean}
        for role, own in {"selection": self.selection, "test": self.test}.items():
            if own is not None:
                numbers |= {f"{role}/worst": worst(own), f"{role}/mean": float(mean(own))}
        for name, own in self.metrics.items():
            found = {"smallest": np.min(own), "mean": mean(own), "largest": np.max(own)}
            numbers |= {f"{name}/{what}": float(number) for what, number in found.items()}
        lower = np.asarray(self.lower_rate, float)
        lower = lower[np.isfinite(lower)]
        perhaps = {
            "rate/upper": self.upper_rate,
            "rate/lower smallest": float(np.min(lower)) if lower.size else math.nan,
            "rate/lower largest": float(np.max(lower)) if lower.size else math.nan,
            "rate/weights": self.weights_rate,
            "direction norm": self.direction_norm,
            "steps per second": self.steps_per_second,
        }
        return numbers | {name: number for name, number in perhaps.items() if not math.isnan(number)}

    def tasks(self) -> dict[str, dict[str, float]]:
        """For each reported task, worst first: its losses on the rows that it has, its weight, and metrics."""
        columns: dict[str, Json] = {"validation": self.validation, "selection": self.selection, "test": self.test}
        columns |= {"weight": self.weights, **self.metrics}
        columns = {name: column for name, column in columns.items() if column is not None}
        return {self.names[i]: {name: float(column[i]) for name, column in columns.items()} for i in self.told()}

    def scalars(self, names: dict[str, str] | None = None) -> dict[str, float]:
        """The whole evaluation as one level of named numbers; `names` may give tasks other names."""
        numbers = {
            f"{kind}/task/{name if names is None else names[name]}": number
            for name, task in self.tasks().items()
            for kind, number in task.items()
        }
        return self.summary() | numbers


class Logger(ABC):
    """Receives the start of a run, each evaluation, events in between, and the end.

    The calls of one run come from one thread, in this order. A logger that raises is switched off with a warning, and
    the run continues: a run must not depend on its loggers.

    >>> import bilevel as bl
    >>> class Printed(bl.loggers.Logger):
    ...     def log(self, row):
    ...         print(row.step, f"{row.worst:.3f}")
    >>> known = bl.problems.opposed_slopes()
    >>> solver = bl.MORBiT(0.1, 0.5, weighting=bl.weightings.SimplexAscent(0.1))
    >>> _ = bl.solve(known.problem, solver, known.x, steps=4, every=2, progress=False, loggers=[Printed()])
    0 ...
    2 ...
    4 ...
    """

    def start(self, facts: Facts) -> None:  # noqa: B027  (doing nothing is fine)
        """The run is about to take its first step; in a resumed run `facts.step` is more than 0."""

    @abstractmethod
    def log(self, row: Evaluation) -> None:
        """The run was evaluated."""

    def event(self, kind: str, facts: Mapping[str, Json]) -> None:  # noqa: B027
        """Something happened: "checkpoint", "divergence" or "problem", with its step and other facts.

        Before the end there is a "finding" for each of `Result.findings`, with its kind, and with its text as message.
        """

    def end(self, status: str, message: str) -> None:  # noqa: B027
        """The run ended with this status: that of its result, such as "finished", or "failed" after an exception."""

    def for_run(self, seed: int) -> Logger:
        """A logger for one of several runs; each run is in a thread of its own."""
        raise NotImplementedError(
            f"solve(loggers=...) with seeds needs loggers with for_run(seed), and {type(self).__name__} has none."
        )


def plain_names(names: Sequence[str], refused: str, letters: int = 200) -> dict[str, str]:
    r"""Names of tasks that a store accepts: refused letters become "_", and equal names then get a number.

    >>> plain_names(["north", "a+b", "a*b"], r"[^\w]")
    {'north': 'north', 'a+b': 'a_b', 'a*b': 'a_b-2'}
    """
    found: dict[str, str] = {}
    taken: set[str] = set()
    for i, name in enumerate(names):
        plain = re.sub(refused, "_", name[:letters]) or "_"
        while plain in taken:
            plain = f"{plain}-{i}"
        taken.add(plain)
        found[name] = plain
    return found


def require(logger: str, module: str, extra: str) -> None:
    """Raises if a package is not installed. It is not imported, as that may take seconds."""
    if importlib.util.find_spec(module) is None:
        raise ImportError(f"bl.loggers.{logger} needs {module}: pip install 'bilevel[{extra}]'")
