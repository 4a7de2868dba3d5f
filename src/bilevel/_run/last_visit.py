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
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevel._core import pytrees
from bilevel._run.evaluation import Losses
from bilevel._run.metrics import Metric, Metrics, roles_of
from bilevel.oracles.fitting import fitted
from bilevel.problem.base import BaseProblem
from bilevel.problem.blocks import places_of_blocks
from bilevel.problem.group import Group
from bilevel.problem.on_devices import each_task, in_turn
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


def visited(
    problem: Problem, points: Sequence[tuple[Any, PerTask[Any]]], steps: jax.Array, metrics: Metrics = ()
) -> list[Visit]:
    """Every y after so many steps at its x, one number of steps for each point (x, y), and the losses there."""
    chunks = _chunks(problem)
    visit = functools.partial(_visited, problem, points, steps, metrics=metrics)
    if len(chunks) == 1:
        return _joined(problem, [visit(None)])
    # The first one compiles what the others run.
    first = jax.block_until_ready(visit(chunks[0]))
    with ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="bilevel-visit") as pool:
        return _joined(problem, [first, *pool.map(lambda own: jax.block_until_ready(visit(own)), chunks[1:])])


def _chunks(problem: Problem) -> list[PerTask[np.ndarray] | None]:
    """The tasks, in blocks of every group, that one thread after the other takes; None = all.

    On a CPU: its programs of small products use one core. What a loader reads comes in one order, and is not shared.
    """
    blocks = [block_of(group) for group in problem.groups]
    here = all(group.on is None for group in problem.groups) and jax.default_backend() == "cpu"
    if not here or not problem.held or not any(blocks):
        return [None]
    places = [places_of_blocks(g.size, block or g.size) for g, block in zip(problem.groups, blocks, strict=True)]
    longest = max(map(len, places))
    count = -(-longest // -(-longest // (4 * (os.cpu_count() or 1))))

    def of_group(places: np.ndarray) -> np.ndarray:
        """Equally many blocks in every chunk, so that there is one program; what is too many repeats the last."""
        each = -(-len(places) // count)
        return places[np.minimum(np.arange(count * each), len(places) - 1).reshape(count, each)]

    return [PerTask(own) for own in zip(*map(of_group, places), strict=True)]


Found = list[tuple[PerTask[Any], dict[str, PerTask[jax.Array]]]]  # of every point: y, and losses and metrics by name


@functools.partial(jax.jit, static_argnames="metrics")
def _visited(problem: Problem, points: Any, steps: jax.Array, places: PerTask[Any] | None, metrics: Metrics) -> Found:
    """Of the tasks at these places of their groups, or of all."""
    x, roles = pytrees.stack([x for x, _ in points]), roles_of(problem)
    ys = zip(*(y for _, y in points), strict=True)
    at = [None] * len(problem.groups) if places is None else list(places)
    groups = zip(problem.groups, ys, at, strict=True)
    own = [_of_group(group, x, y, steps, roles, metrics, places) for group, y, places in groups]

    def of_point(k: int) -> tuple[PerTask[Any], dict[str, PerTask[jax.Array]]]:
        y, losses = zip(*(group[k] for group in own), strict=True)
        return PerTask(y), {name: PerTask(tuple(of_group[name] for of_group in losses)) for name in losses[0]}

    return [of_point(k) for k in range(len(points))]


@jax.jit
def _joined(problem: Problem, chunks: Sequence[Found]) -> list[Visit]:
    """Of all chunks, of which the last ones may repeat the last tasks."""

    def whole(*parts: PerTask[Any]) -> PerTask[Any]:
        groups = zip(problem.groups, *parts, strict=True)
        join = lambda group, *rows: jax.tree.map(lambda *a: jnp.concatenate(a)[: group.size], *rows)  # noqa: E731
        return PerTask(tuple(rows[0] if len(rows) == 1 else join(group, *rows) for group, *rows in groups))

    def one(*found: tuple[PerTask[Any], dict[str, PerTask[jax.Array]]]) -> Visit:
        y, losses = zip(*found, strict=True)
        named = {name: problem.join(whole(*(own[name] for own in losses))) for name in losses[0]}
        losses = Losses(named.pop("validation"), named.pop("selection", None), named.pop("test", None), named)
        return Visit(whole(*y), losses)

    return [one(*found) for found in zip(*chunks, strict=True)]


def _of_group(
    group: Group,
    x: Any,
    y: Sequence[Any],
    steps: jax.Array,
    roles: Sequence[str],
    metrics: Metrics,
    places: jax.Array | None,
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
    if places is not None:
        return in_turn(one, axes, places, [*sources, *y])
    return each_task(one, axes, group.size, group.on, block_of(group))(*sources, *y)
