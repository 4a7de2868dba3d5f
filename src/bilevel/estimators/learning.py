"""Learns what tasks share: turns the rows into a problem of padded sizes, and runs a solver on it.

The run keeps the point at which the mean of the tasks' losses on selection rows is lowest, even when it minimises the
loss of the worst task. A task has few selection rows, so its loss there is mostly noise, and the largest of many such
losses belongs to the task with the noisiest rows, whatever x is. Overfitting of what is shared begins at about the same
time for all tasks, and their mean shows it with the least noise.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bilevel import GDA, MinMaxProblem, Problem, Result, Tandem, Task, solve
from bilevel._core.module import leaf, part
from bilevel.estimators.networks import Shared, padded
from bilevel.estimators.objectives import Batch, SolvedHeads, SquaredLoss, head_losses
from bilevel.estimators.rows import CHUNK, EVALUATED, PARTS, WeightedRows
from bilevel.lower import Gradient
from bilevel.problem.sources import Ragged
from bilevel.results.result import Stored
from bilevel.weightings import Weighting

NUMBERS = 2**27  # inputs of all tasks at most, if each had as many rows as the longest, as whole losses need them
FEWEST = 64  # rows of a task that may be used whatever NUMBERS says
SMALL = 2048  # up to this many rows of all tasks, a step sees all of them
BATCH = 64  # otherwise it sees this many rows of each task
WEIGHTS_RATE = 0.1  # gamma with solved heads, whose losses are in units of the variance of the targets
EVALUATIONS = 50
FOLDS = 2


@part
class Falling:
    """A rate that falls to zero over the run. Its numbers are data, so that other numbers do not recompile."""

    first: float = leaf()
    steps: float = leaf()

    def __call__(self, step: jax.Array) -> jax.Array:
        """The rate at a step; after the last step it stays the same."""
        left = jnp.maximum(self.steps - step, 1) / self.steps
        return jnp.asarray(self.first * left, jnp.float32)


class RunSettings(NamedTuple):
    """The settings of a run."""

    weighting: Weighting
    baseline: np.ndarray  # the loss that each task is compared with
    rate: float
    batch: int | str | None  # rows of a task in a step; None = all, "auto" = all if there are few
    steps: int
    patience: int | None
    seed: int
    progress: bool


class Learnt(NamedTuple):
    """The best point of a run, and the run."""

    x: dict[str, Any]
    weights: np.ndarray
    result: Result


@dataclasses.dataclass(frozen=True)
class Learner:
    """The tasks that help to learn what is shared, numbered from 0, and the initial values."""

    X: np.ndarray
    rows: WeightedRows
    names: Sequence[str]
    known: np.ndarray  # which columns of heads each task has
    shared: Shared  # with the initial network
    penalty: np.ndarray  # initial logarithms: see `objectives.strengths`
    centre: np.ndarray | None  # the initial one, (features that are used + 1, columns)
    usual: float  # N, the rows of a usual task

    def bilevel(self, loss: Callable[[jax.Array, Batch], jax.Array], settings: RunSettings) -> Learnt:
        """Moves one head for each task together with the network; for any loss."""
        losses = head_losses(self.shared.function, loss, self.shared.linear)
        limit = max(FEWEST, NUMBERS // (len(self.names) * self.shared.columns))
        y = np.repeat(self._first()[None], len(self.names), axis=0)
        like = Task.stack(**self._examples(), names=list(self.names), y=y)
        problem = self._filled(Problem(losses.upper, losses.lower, [like]), limit, settings.batch)
        rate = Falling(settings.rate, float(settings.steps))
        solver = Tandem(
            upper_lr=rate,
            weighting=settings.weighting,
            upper_rule=rule if settings.rate < 0.01 and self.centre is not None else None,
            lower=Gradient(),  # docs/unseen.md measures it
        )
        return self._run(problem, solver, {}, settings)

    def closed_form(self, rows: int, settings: RunSettings) -> Learnt:
        """Solves least-squares heads in every step, on at most `rows` rows of each task."""
        like = Task.stack(**self._examples(), names=list(self.names))
        objective = SolvedHeads(self.shared.function, self.shared.linear)
        problem = MinMaxProblem(SquaredLoss(self.shared.function), [like], objective=objective)
        problem = self._filled(problem, rows, None)
        steps = float(settings.steps)
        weighting = with_rate(settings.weighting, Falling(WEIGHTS_RATE, steps))
        solver = GDA(Falling(settings.rate, steps), weighting, optax.adam)
        head = jnp.zeros((self.shared.made + 1, 1), jnp.float32)
        return self._run(problem, solver, {"head": head}, settings)

    def crossed(self) -> Learner:
        """Doubles the tasks: the second copy exchanges training and validation rows, so each row validates once."""
        train, validation = (PARTS.index(part) for part in ("train", "validation"))
        other = np.select([self.rows.part == train, self.rows.part == validation], [validation, train], self.rows.part)
        second = self.rows._replace(task=self.rows.task + len(self.names), part=other)
        rows = WeightedRows(*(np.concatenate(columns) for columns in zip(self.rows, second, strict=True)))
        names = [f"{name}, fold {k + 1} of {FOLDS}" for k in range(FOLDS) for name in self.names]
        return dataclasses.replace(self, rows=rows, names=names, known=np.tile(self.known, (FOLDS, 1)))

    def _first(self) -> np.ndarray:
        """The initial head: the centre, or zeros, with all features and columns that are padding."""
        found = np.zeros((self.shared.made + 1, padded(self.known.shape[1])), np.float32)
        if self.centre is not None:
            found[np.append(self.shared.used, -1), : self.centre.shape[1]] = self.centre
        return found

    def _run(
        self, problem: Problem | MinMaxProblem, solver: Any, more: dict[str, Any], settings: RunSettings
    ) -> Learnt:
        x = {"network": self.shared.x, "penalty": jnp.asarray(self.penalty, jnp.float32), **more}
        x |= {} if self.centre is None else {"centre": jnp.asarray(self._first())}
        best = BestIterate(settings.patience)
        result = solve(
            problem,
            solver,
            x,
            steps=settings.steps,
            seed=settings.seed,
            every=max(1, settings.steps // EVALUATIONS),
            callback=best,
            progress=settings.progress,
            fitted=False,  # heads are judged as the steps leave them
        )
        selection: Any = result.history.selection  # there always is one
        if float(np.mean(selection[0])) <= best.lowest:  # the start, which no callback sees
            best = dataclasses.replace(best, x=jax.device_get(x), weights=result.history.weights[0])
        # A fitted model does not hold its rows.
        result = dataclasses.replace(result, problem=None, solver=repr(solver), stored=Stored.of(result))
        return Learnt(best.x, best.weights, result)

    def _examples(self) -> dict[str, Any]:
        """Placeholder rows of the right shapes and types."""
        n = len(self.names)
        inputs = np.zeros((n, 1, self.shared.columns), np.float32)
        whole, real = np.zeros((n, 1), np.int32), np.zeros((n, 1), np.float32)
        known = np.zeros((n, 1, padded(self.known.shape[1])), bool)
        rows = Batch(inputs, whole if self.rows.target.dtype.kind == "i" else real, known, real, real)
        return dict.fromkeys(PARTS, rows)

    def _filled(self, problem: Any, limit: int, batch: int | str | None) -> Any:
        """The problem with all rows in place of the examples. This way they can be padded, and are not copied."""
        (group,) = problem.groups
        sources = {name: self._source(i, limit if i == 0 else min(limit, EVALUATED)) for i, name in enumerate(PARTS)}
        if batch == "auto":
            batch = None if sources["train"].longest * len(self.names) <= SMALL else BATCH
        return problem.replace(groups=(dataclasses.replace(group, **sources, lower_batch=batch, upper_batch=batch),))

    def _source(self, number: int, limit: int) -> Ragged:
        """The rows of a part, at most the first `limit` of each task, whose order is random."""
        own = np.flatnonzero(self.rows.part == number)
        begin = np.searchsorted(self.rows.task[own], np.arange(len(self.names) + 1))
        own = own[np.concatenate([np.arange(a, min(b, a + limit)) for a, b in itertools.pairwise(begin)])]
        rows = self.rows.take(own)
        size = np.bincount(rows.task, minlength=len(self.names))
        total = padded(len(own), least=64)
        inputs = np.zeros((total, self.shared.columns), np.float32)
        for start in range(0, len(own), CHUNK):
            index = rows.place[start : start + CHUNK]
            inputs[start : start + len(index)] = self.shared.inputs(self.X[index])
        weight = rows.weight / (np.bincount(rows.task, rows.weight) / size)[rows.task]
        kind = np.int32 if rows.target.dtype.kind == "i" else np.float32
        known = np.zeros((total, padded(self.known.shape[1])), bool)
        known[: len(own), : self.known.shape[1]] = self.known[rows.task]
        share = (np.ones(len(size)) if self.centre is None else self.usual / size)[rows.task]
        target, *columns = (
            np.pad(column, (0, total - len(own)))
            for column in (rows.target.astype(kind), weight.astype(np.float32), share.astype(np.float32))
        )
        filled = Batch(inputs, target, known, *columns)
        offset = np.concatenate([[0], np.cumsum(size)[:-1]])
        longest = padded(int(size.max()), least=64)
        flat = jax.tree.map(jnp.asarray, filled)
        return Ragged(flat, jnp.asarray(offset, jnp.int32), jnp.asarray(size, jnp.int32), longest)


def rule(rate: Any) -> optax.GradientTransformation:
    """Adam, ten times as fast for the logarithms of strengths, which have far to go in few steps."""

    def faster(moves: Any, _: Any) -> Any:
        return moves | {"penalty": 10 * moves["penalty"]}

    return optax.chain(optax.adam(rate), optax.stateless(faster))


def with_rate(weighting: Weighting, rate: Any) -> Weighting:
    """Sets the rate of a weighting that moves and has none, or of the weighting inside it."""
    if not weighting.moves or weighting.lr is not None:
        return weighting
    fields = {field.name for field in dataclasses.fields(weighting)}  # type: ignore[arg-type]
    if "lr" in fields:
        return dataclasses.replace(weighting, lr=rate)  # type: ignore[type-var]
    inner = with_rate(weighting.weighting, rate)  # type: ignore[attr-defined]
    return dataclasses.replace(weighting, weighting=inner)  # type: ignore[type-var]


@dataclasses.dataclass
class BestIterate:
    """A callback of `bl.solve` that keeps the best point, and stops the run after `patience` evaluations without one.

    >>> best, seen = BestIterate(patience=1), {"x": 3.0, "weights": [1.0], "selection": np.array([0.2, 0.4])}
    >>> best(seen), best(seen | {"x": 4.0, "selection": np.array([0.3, 0.4])})
    (False, True)
    >>> best.x, round(best.lowest, 3)
    (3.0, 0.3)
    """

    patience: int | None  # evaluations
    x: Any = None
    weights: Any = None
    lowest: float = np.inf
    since: int = 0

    def __call__(self, seen: Mapping[str, Any]) -> bool:
        """Takes an evaluation; returns whether to stop."""
        value = float(np.mean(seen["selection"]))
        self.since += 1
        if self.x is None or value < self.lowest:
            self.x, self.weights = jax.device_get(seen["x"]), np.asarray(seen["weights"])
            self.lowest, self.since = value, 0
        return self.patience is not None and self.since >= self.patience
