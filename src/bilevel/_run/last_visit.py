"""At the end of a run whose steps see some of the tasks, every task is visited once more, with x as it is.

A task was last visited some n / m steps ago, at another x: its y fits that one, and where a task has been visited a few
times in all, x has since gone so far that losses say more about when the task was visited than about x. So the iterates
that a run returns, the last, the best and the average, have y fitted to their own x on all training rows. The random
one is (x^t, y^{t+1}), of which theory speaks, and stays as it was.

It costs `STEPS` gradients of every task for each of the three, once. A block of tasks at a time is fitted and evaluated
for all iterates, so that rows that are not in memory are read once. The run itself, its history and what is kept of it
to be resumed are not touched.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from bilevel._core import pytrees
from bilevel._run.evaluation import Losses
from bilevel._run.metrics import Metric, Metrics, roles_of
from bilevel.oracles.fitting import fitted
from bilevel.problem.base import BaseProblem
from bilevel.problem.group import Group
from bilevel.problem.on_devices import each_task
from bilevel.problem.per_task import PerTask
from bilevel.problem.problem import Problem
from bilevel.problem.sources import Source
from bilevel.solvers._base import sampled
from bilevel.solvers._base.bilevel import BilevelSolver
from bilevel.solvers._base.solver import Solver

STEPS = 10  # of conjugate gradients


class Visit(NamedTuple):
    """What a visit found at one iterate."""

    y: PerTask[Any]
    losses: Losses


def is_needed(solver: Solver, problem: BaseProblem) -> bool:
    """Whether y may be of another x than the one that a run ends with."""
    if not isinstance(solver, BilevelSolver) or not isinstance(problem, Problem) or not solver.sampling.draws:
        return False
    return sum(sampled.counts(solver, problem)) < problem.size


def block_of(group: Group) -> int | None:
    """How many tasks of a group are visited at once on every device; None = all."""
    sources = (group.train, group.validation, group.selection, group.test)
    sizes = [group.block(source) for source in sources if source is not None]
    return min((size for size in sizes if size is not None), default=None)


@functools.partial(jax.jit, static_argnames="metrics")
def visited(
    problem: Problem, points: Sequence[tuple[Any, PerTask[Any]]], steps: jax.Array, metrics: Metrics = ()
) -> list[Visit]:
    """Every y after so many steps at its x, one number of steps for each point (x, y), and the losses there."""
    x, roles = pytrees.stack([x for x, _ in points]), roles_of(problem)
    ys = zip(*(y for _, y in points), strict=True)
    own = [_of_group(group, x, y, steps, roles, metrics) for group, y in zip(problem.groups, ys, strict=True)]

    def at(k: int) -> Visit:
        here = [group[k] for group in own]
        named = {name: problem.join(PerTask(tuple(losses[name] for _, losses in here))) for name in here[0][1]}
        losses = Losses(named.pop("validation"), named.pop("selection", None), named.pop("test", None), named)
        return Visit(PerTask(tuple(y for y, _ in here)), losses)

    return [at(k) for k in range(len(points))]


def _of_group(
    group: Group, x: Any, y: Sequence[Any], steps: jax.Array, roles: Sequence[str], metrics: Metrics
) -> list[tuple[Any, dict[str, jax.Array]]]:
    """For every iterate its y, and its losses and metrics by name."""

    def one(train: Source, *given: Any) -> list[tuple[Any, dict[str, jax.Array]]]:
        rows = dict(zip(roles, given, strict=False))
        task = group.view(train, rows["validation"])

        def iterate(own: tuple[Any, Any, jax.Array]) -> tuple[Any, dict[str, jax.Array]]:
            x, y, steps = own
            y = fitted(task, x, y, steps)

            def mean(source: Source, function: Metric) -> jax.Array:
                return source.average(lambda batch: function(x, y, batch))

            losses = {role: mean(source, group.upper) for role, source in rows.items()}
            measured = {f"{role} {name}": mean(source, f) for role, source in rows.items() for name, f in metrics}
            return y, losses | measured

        # One after the other, so that this is compiled once for all iterates.
        found = jax.lax.map(iterate, (x, pytrees.stack(given[len(roles) :]), steps))
        return [pytrees.index(found, k) for k in range(len(y))]

    sources = [group.train, *(getattr(group, role) for role in roles)]
    axes = (*(source.axes for source in sources), *(0 for _ in y))
    return each_task(one, axes, group.size, group.on, block_of(group))(*sources, *y)
