"""What is known about each task alone: `baselines` and `loss_errors`.

`baselines` measures what a task could reach by itself on rows held out, the b_i of `bl.weightings.Regret` and
`bl.weightings.Ratio`. `loss_errors` says how well a mean over few rows is known.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bilevel._core import pytrees, values
from bilevel._core.types import Data, Tree
from bilevel.diagnostics.adaptation import batch_within, tasks_of
from bilevel.diagnostics.points import Solution, check_is_problem, read_point
from bilevel.problem import findings, initial_point
from bilevel.problem.cross_fitting import parts, pooled
from bilevel.problem.per_task import Names, PerTask
from bilevel.problem.problem import Problem
from bilevel.problem.row_means import Moments, row_moments
from bilevel.problem.task import Task
from bilevel.solvers._base.bilevel import BilevelSolver
from bilevel.solvers._base.solver import FIRST_MEASUREMENT
from bilevel.solvers.tandem import Tandem
from bilevel.weightings.baselines import Baselines
from bilevel.weightings.fixed import Average

EVALUATIONS = 20  # in a run, to find where it should have stopped
AT_ONCE = 1e6  # numbers in all copies of x that move at once


def baselines(
    problem: Problem,
    x: Tree,
    y: Tree = None,
    *,
    steps: int = 1000,
    folds: int = 5,
    solver: BilevelSolver | None = None,
    seed: int = 0,
) -> Baselines:
    """Measures b_i, the loss that task i reaches alone, with an x of its own, on rows that it was not fitted to.

    A task's training and validation rows are pooled and cut into K folds. For each fold an x_i and a y_i are learnt on
    the other folds, whose rows are training and validation rows in the task's own proportion, and f_i is measured on
    the fold. Runs stop early, possibly at the start: where the task's other folds are best on average, so that no fold
    chooses its own end. Test rows are not used.

    This takes K runs of `steps` steps for each task, all in one compiled program.

    Args:
        problem: the problem, with rows (no `Generator`).
        x: where every task's x starts, as for `solve`.
        y: where the tasks' variables start, as for `solve`.
        steps: the most steps of a run.
        folds: K.
        solver: the solver of each task; None = `bl.Tandem()`. Its weighting is not used.
        seed: of everything random.

    Returns:
        the values, and their standard errors from the spread of the rows' losses.

    >>> import bilevel as bl
    >>> def upper(x, y, batch): return jnp.mean((y - batch) ** 2)
    >>> def lower(x, y, batch): return jnp.mean((y - batch) ** 2) + (y - x) ** 2
    >>> tasks = [bl.Task(jnp.full(6, c), jnp.full(4, c), name=name) for name, c in (("easy", 0.0), ("hard", 2.0))]
    >>> problem = bl.Problem(upper, lower, tasks)
    >>> bl.baselines(problem, jnp.array(1.0), jnp.array(0.0), steps=200, folds=2).array(problem).round(2).tolist()
    [0.0, 0.0]
    """
    check_is_problem("baselines", problem)
    for name, value, least in (("steps", steps, 1), ("folds", folds, 2), ("seed", seed, 0)):
        values.whole(name, value, least=least, of="baselines")
    solver = Tandem() if solver is None else solver
    if not isinstance(solver, BilevelSolver):
        raise TypeError(f"baselines(solver=...) got {solver!r}: it needs a solver of bl.Problem, such as bl.Tandem().")
    solver = solver.replace(weighting=Average())
    key = jax.random.key(seed)
    x = initial_point.arrays(x, "x")
    held = cut_into_folds(problem, problem.starting_y(y, jax.random.fold_in(key, 0)), folds, seed)
    solver.check(held)
    y = held.starting_y(None, key)
    findings.raise_first(findings.at_start(held, x, y))
    curves = [
        _curves(solver, held, g, x, y_g, jax.random.fold_in(key, 1), -(-steps // EVALUATIONS))
        for g, y_g in enumerate(y)
    ]
    seen = Moments(*(a.reshape(folds, problem.size, -1) for a in jax.device_get(held.join(PerTask(tuple(curves))))))
    found = stopped(seen)
    return Baselines(np.asarray(found.mean), found.error(), tuple(problem.names))


def cut_into_folds(problem: Problem, y: PerTask[Tree], folds: int, seed: int) -> Problem:
    """A problem of all folds of all tasks, all first folds first; the test rows of a fold are the part held out."""
    starts = problem.by_name(jax.device_get(y))
    made: list[list[Task]] = [[] for _ in range(folds)]
    for i, task in enumerate(tasks_of(problem)):
        rows = pooled("baselines", task, ("train", "validation"), problem.names[i])
        share = _rows(task.train) / _rows(rows)
        for k, (rest, fold) in enumerate(parts(rows, folds, (seed, i), 0, problem.names[i])):
            if _rows(rest) < 2:
                raise ValueError(f"baselines: task {problem.names[i]!r} has too few rows to train and to validate on.")
            cut = int(np.clip(round(share * _rows(rest)), 1, _rows(rest) - 1))
            train, validation = pytrees.index(rest, slice(cut)), pytrees.index(rest, slice(cut, None))
            name = f"{problem.names[i]}, fold {k + 1} of {folds}"
            own = {"upper": task.upper, "lower": task.lower, "y": starts[problem.names[i]]}
            made[k].append(Task(train, validation, fold, name, **own))
    first = problem.groups[0]
    tasks = [task for fold in made for task in fold]
    held = Problem(first.upper, first.lower, tasks, problem.constraint, lower_batch=1, upper_batch=1)
    groups = []
    for group in held.groups:  # with the batch sizes of the problem, or with all rows where there are fewer
        lower, upper = batch_within(group.train, first.lower_batch), batch_within(group.validation, first.upper_batch)
        groups.append(dataclasses.replace(group, lower_batch=lower, upper_batch=upper))
    return held.replace(groups=tuple(groups))


def _rows(data: Data) -> int:
    return len(jax.tree.leaves(data)[0])


@functools.partial(jax.jit, static_argnames="g")
def _curves(
    solver: BilevelSolver, problem: Problem, g: int, x: Tree, y: Tree, key: jax.Array, steps: jax.Array
) -> Moments:
    """The moments of each task's losses on its test rows: at the start, and after every `steps` steps."""
    group = problem.groups[g]
    assert group.test is not None
    held = group.test

    def alone(row: tuple[jax.Array, Tree]) -> Moments:
        i, y = row
        own = dataclasses.replace(group.chosen(i[None]), ids=jnp.zeros(1, group.ids.dtype))
        single = problem.replace(groups=(own,), place=None, names=Names(problem.names[:1]))
        own_key = jax.random.fold_in(key, group.ids[i])
        state = solver.start(single, x, PerTask((pytrees.index(y, None),)), own_key, EVALUATIONS * steps)

        def look(state: Tree) -> Moments:
            return pytrees.index(row_moments(group.upper, held.chosen(i[None]), state.x, state.y.groups[0]), 0)

        def chunk(state: Tree, _: object) -> tuple[Tree, Moments]:
            if solver.measures(state):
                # The first measurement takes more iterations, as it has nothing to start from.
                iterations = jnp.where(state.step == 0, FIRST_MEASUREMENT, 1)
                state = solver.refresh(single, state, jax.random.fold_in(own_key, 2 * state.step), iterations)
            step = lambda _, at: solver.step(single, at, jax.random.fold_in(own_key, 2 * at.step + 1))[0]  # noqa: E731
            state = jax.lax.fori_loop(0, steps, step, state)
            return state, look(state)

        _, later = jax.lax.scan(chunk, state, None, length=EVALUATIONS)
        return jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), look(state), later)

    at_once = int(np.clip(AT_ONCE // optax.tree.size(x), 1, group.size))
    return jax.lax.map(alone, (jnp.arange(group.size), y), batch_size=at_once)


def stopped(seen: Moments) -> Moments:
    """The mean and variance over all rows of every task; each fold stops where the task's other folds are best.

    Args:
        seen: arrays (folds, tasks, times); a time at which a fold is not finite is never best.
    """
    rows, mean, variance = (np.asarray(a, float) for a in seen)
    total = np.where(np.isfinite(mean).all(axis=0), rows * mean, np.inf)
    others = np.stack([np.sum(np.delete(total, k, axis=0), axis=0) for k in range(len(total))])
    time = np.argmin(others, axis=-1)[..., None]
    rows, mean, variance = (np.take_along_axis(a, time, axis=-1)[..., 0] for a in (rows, mean, variance))
    count = rows.sum(axis=0)
    whole = np.sum(rows * mean, axis=0) / count
    return Moments(count, whole, np.sum(rows * (variance + (mean - whole) ** 2), axis=0) / count)


def loss_errors(problem: Problem, result: Solution, role: str = "validation") -> np.ndarray:
    """The standard error of every task's loss f_i(x, y_i), from the spread of its rows; in the order of the tasks.

    This says how far the mean over these rows may be from the mean over all such rows, if x and y were not fitted to
    them. `bl.weightings.UpperBound` and `bl.weightings.Shrunk` take it. A loss must be a mean over rows. A generator is
    evaluated on a sample of as many rows as its losses are measured on.

    Args:
        problem: the problem.
        result: what `bl.solve` returns (its last iterate is taken), or one of its iterates.
        role: the kind of rows, such as "validation" or "test".

    >>> import jax.numpy as jnp
    >>> import bilevel as bl
    >>> def upper(x, y, batch): return jnp.mean((y - batch) ** 2)
    >>> rows = jnp.array([0.0, 0.0, 2.0, 2.0])
    >>> problem = bl.Problem(upper, upper, [bl.Task(rows, rows, y=jnp.array(0.0))])
    >>> start = bl.solve(problem, bl.SOBA(1e-9, 1e-9), jnp.array(0.0), steps=1, progress=False, fitted=False)
    >>> loss_errors(problem, start).round(4).tolist()  # of 0, 0, 4, 4
    [1.1547]
    """
    point = read_point("loss_errors", problem, result)
    if role not in ("train", "validation", "test", "selection"):
        raise ValueError(f"loss_errors(role={role!r}): it needs the name of rows, such as 'validation'.")
    if any(getattr(group, role, None) is None for group in problem.groups):
        raise ValueError(f"loss_errors(role={role!r}): not every task has such rows.")
    return Moments(*jax.device_get(_moments(problem, point.x, point.y, role))).error()


@functools.partial(jax.jit, static_argnames="role")
def _moments(problem: Problem, x: Tree, y: PerTask[Tree], role: str) -> Moments:
    found = [row_moments(g.upper, getattr(g, role), x, y_g) for g, y_g in zip(problem.groups, y, strict=True)]
    return problem.join(PerTask(tuple(found)))
