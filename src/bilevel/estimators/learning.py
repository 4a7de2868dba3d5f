"""Learns what tasks share: the rows as a problem of padded sizes, and the run that solves it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bilevel._core.module import leaf, part
from bilevel._run.solving import solve
from bilevel.estimators.best import Best
from bilevel.estimators.networks import Shared
from bilevel.estimators.objectives import Batch, head_losses
from bilevel.estimators.parts import PARTS
from bilevel.estimators.rows import CHUNK, Rows
from bilevel.estimators.sizes import padded
from bilevel.estimators.solved import Solved, SquaredLoss
from bilevel.lower import Gradient
from bilevel.problem.base import BaseProblem
from bilevel.problem.minmax import MinMaxProblem
from bilevel.problem.problem import Problem
from bilevel.problem.sources import Ragged
from bilevel.problem.task import Task
from bilevel.results.result import Result, Stored
from bilevel.solvers import GDA, Tandem
from bilevel.weightings.base import Weighting

EVALUATED = 4096  # validation or selection rows of a task that are used: a mean over more is known well enough
NUMBERS = 2**27  # inputs of all tasks when the longest task's rows are the rows of each, as whole losses need them
FEWEST = 64  # rows of a task that may be used in any case
SMALL = 2048  # rows of all tasks up to which a step sees all of them
BATCH = 64  # and the rows of a task that it sees where there are more
WEIGHTS_RATE = 0.1  # gamma where heads are solved: losses are in units of the variance of the targets
EVALUATIONS = 50
FOLDS = 2


@part
class Falling:
    """A rate that falls to zero over the run; both numbers are data, so that others compile nothing."""

    first: float = leaf()
    steps: float = leaf()

    def __call__(self, step: jax.Array) -> jax.Array:
        """Its value at a step; after the last, that of the last."""
        left = jnp.maximum(self.steps - step, 1) / self.steps
        return jnp.asarray(self.first * left, jnp.float32)


class Settings(NamedTuple):
    """Of a run."""

    weighting: Weighting
    baseline: np.ndarray  # what the loss of each task is compared with
    rate: float
    batch: int | str | None  # rows of a task in a step; None = all, "auto" = all where there are few
    steps: int
    patience: int | None
    seed: int
    progress: bool


class Learnt(NamedTuple):
    """The point that was taken, and the run that passed it."""

    x: dict[str, Any]
    weights: np.ndarray
    result: Result


@dataclasses.dataclass(frozen=True)
class Learner:
    """Rows of the tasks that learn, numbered from 0, and what they are learnt with."""

    X: np.ndarray
    rows: Rows
    names: Sequence[str]
    known: np.ndarray  # which columns of heads each task has
    shared: Shared  # with the network as it starts
    penalty: np.ndarray  # logarithms, as they start: see `objectives.strengths`
    centre: np.ndarray | None  # (features that are there + 1, columns), as it starts
    usual: float  # N, the rows of a usual task

    def bilevel(self, loss: Callable[[jax.Array, Batch], jax.Array], settings: Settings) -> Learnt:
        """One head a task, moved with the network, for any loss."""
        losses = head_losses(self.shared.function, loss, self.shared.linear)
        limit = max(FEWEST, NUMBERS // (len(self.names) * self.shared.columns))
        y = np.repeat(self._first()[None], len(self.names), axis=0)
        like = Task.stack(**self._examples(), names=list(self.names), y=y)
        problem = self._filled(Problem(losses.upper, losses.lower, [like]), limit, settings.batch)
        rate = Falling(settings.rate, float(settings.steps))
        solver = Tandem(
            upper_lr=rate,
            weighting=settings.weighting,
            upper_rule=rule if settings.rate < 0.01 and self._centred else None,
            lower=Gradient(),  # what docs/unseen.md has measured
        )
        return self._run(problem, solver, {}, settings)

    def closed_form(self, rows: int, settings: Settings) -> Learnt:
        """Heads of least squares, solved in every step on at most `rows` rows of each task."""
        like = Task.stack(**self._examples(), names=list(self.names))
        objective = Solved(self.shared.function, self.shared.linear)
        problem = MinMaxProblem(SquaredLoss(self.shared.function), [like], objective=objective)
        problem = self._filled(problem, rows, None)
        steps = float(settings.steps)
        weighting = with_rate(settings.weighting, Falling(WEIGHTS_RATE, steps))
        solver = GDA(Falling(settings.rate, steps), weighting, optax.adam)
        head = jnp.zeros((self.shared.made + 1, 1), jnp.float32)
        return self._run(problem, solver, {"head": head}, settings)

    def crossed(self) -> Learner:
        """Every task twice: training and validation rows change places, so that each row validates once."""
        train, validation = (PARTS.index(part) for part in ("train", "validation"))
        other = np.select([self.rows.part == train, self.rows.part == validation], [validation, train], self.rows.part)
        second = self.rows._replace(task=self.rows.task + len(self.names), part=other)
        rows = Rows(*(np.concatenate(columns) for columns in zip(self.rows, second, strict=True)))
        names = [f"{name}, fold {k + 1} of {FOLDS}" for k in range(FOLDS) for name in self.names]
        return dataclasses.replace(self, rows=rows, names=names, known=np.tile(self.known, (FOLDS, 1)))

    @property
    def _centred(self) -> bool:
        return self.centre is not None

    def _first(self) -> np.ndarray:
        """The centre, or zeros, of all features and columns, those that are padding too: where heads start."""
        found = np.zeros((self.shared.made + 1, padded(self.known.shape[1])), np.float32)
        if self.centre is not None:
            found[np.append(self.shared.used, -1), : self.centre.shape[1]] = self.centre
        return found

    def _run(self, problem: BaseProblem, solver: Any, more: dict[str, Any], settings: Settings) -> Learnt:
        x = {"network": self.shared.x, "penalty": jnp.asarray(self.penalty, jnp.float32), **more}
        x |= {"centre": jnp.asarray(self._first())} if self._centred else {}
        best = Best(settings.patience)
        result = solve(
            problem,
            solver,
            x,
            steps=settings.steps,
            seed=settings.seed,
            every=max(1, settings.steps // EVALUATIONS),
            callback=best,
            progress=settings.progress,
            fitted=False,  # likewise: heads are judged as the steps have them
        )
        selection: Any = result.history.selection  # there always is one
        if float(np.mean(selection[0])) <= best.lowest:  # that of the start, which no callback sees
            best = dataclasses.replace(best, x=jax.device_get(x), weights=result.history.weights[0])
        # A model does not hold the rows that it was fitted on.
        result = dataclasses.replace(result, problem=None, solver=repr(solver), stored=Stored.of(result))
        return Learnt(best.x, best.weights, result)

    def _examples(self) -> dict[str, Any]:
        """Rows of the shapes that are to come."""
        n = len(self.names)
        inputs = np.zeros((n, 1, self.shared.columns), np.float32)
        whole, real = np.zeros((n, 1), np.int32), np.zeros((n, 1), np.float32)
        known = np.zeros((n, 1, padded(self.known.shape[1])), bool)
        rows = Batch(inputs, whole if self.rows.target.dtype.kind == "i" else real, known, real, real)
        return dict.fromkeys(PARTS, rows)

    def _filled(self, problem: Any, limit: int, batch: int | str | None) -> Any:
        """The problem with all rows in place of examples. Filled in here, they can be padded, and are not copied."""
        (group,) = problem.groups
        sources = {name: self._source(i, limit if i == 0 else min(limit, EVALUATED)) for i, name in enumerate(PARTS)}
        if batch == "auto":
            batch = None if sources["train"].longest * len(self.names) <= SMALL else BATCH
        return problem.replace(groups=(dataclasses.replace(group, **sources, lower_batch=batch, upper_batch=batch),))

    def _source(self, number: int, limit: int) -> Ragged:
        """The rows of a part, at most `limit` of each task: rows are in random order."""
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
        share = (self.usual / size if self._centred else np.ones(len(size)))[rows.task]
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
    """Adam, ten times as fast for the logarithms of strengths: they have far to go, and few steps."""

    def faster(moves: Any, _: Any) -> Any:
        return moves | {"penalty": 10 * moves["penalty"]}

    return optax.chain(optax.adam(rate), optax.stateless(faster))


def with_rate(weighting: Weighting, rate: Any) -> Weighting:
    """A weighting that moves has this rate, unless it has one; also one inside another."""
    if not weighting.moves or weighting.lr is not None:
        return weighting
    fields = {field.name for field in dataclasses.fields(weighting)}  # type: ignore[arg-type]
    if "lr" in fields:
        return dataclasses.replace(weighting, lr=rate)  # type: ignore[type-var]
    inner = with_rate(weighting.weighting, rate)  # type: ignore[attr-defined]
    return dataclasses.replace(weighting, weighting=inner)  # type: ignore[type-var]
