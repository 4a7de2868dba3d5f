"""Final refit: at the end of a run whose steps see some of the tasks, every y is fitted to the final x.

A task was last seen about n / m steps ago, at another x, and its y fits that x. If a task was seen only a few times,
its loss depends more on when it was last seen than on x. So the last, the best and the average iterate get a y that is
fitted to their own x on all training rows. The random iterate is (x^t, y^{t+1}), as in the theory, and does not change.

The refit costs `STEPS` gradients of every task for each of the three iterates, once. It fits and evaluates a block of
tasks for all iterates at a time, so that rows outside memory are read once. The run, its history and its checkpoints do
not change.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import jax
import numpy as np

from bilevel._core import pytrees
from bilevel._core.types import Tree
from bilevel._run.evaluation import Losses, Metric, Metrics, roles_of
from bilevel.lower.fitting import fitted
from bilevel.problem.group import Group
from bilevel.problem.on_devices import each_task, in_turn
from bilevel.problem.per_task import PerTask
from bilevel.problem.problem import BaseProblem, Problem
from bilevel.problem.sources import Source, places_of_blocks
from bilevel.solvers._base.solver import Solver
from bilevel.solvers._base.some_tasks import SomeTasks

STEPS = 10  # of conjugate gradients


Found = list[tuple[Tree, dict[str, jax.Array]]]  # of every point: y, and losses and metrics by name; of one group


class Visit(NamedTuple):
    """The outcome of the refit at one iterate."""

    y: PerTask[Tree]
    losses: Losses


def is_needed(solver: Solver, problem: BaseProblem) -> bool:
    """Whether y may have been fitted to an earlier x than the final one."""
    return isinstance(solver, SomeTasks) and isinstance(problem, Problem) and solver.seen_share(problem) < 1


def block_of(group: Group) -> int | None:
    """How many tasks of a group every device refits at once; None = all."""
    sizes = [group.block(source) for source in _sources(group)]
    return min((size for size in sizes if size is not None), default=None)


def _sources(group: Group) -> list[Source]:
    sources = (group.train, group.validation, group.selection, group.test)
    return [source for source in sources if source is not None]


def visited(
    problem: Problem, points: Sequence[tuple[Tree, PerTask[Tree]]], steps: jax.Array, metrics: Metrics = ()
) -> list[Visit]:
    """Every y after the given number of steps at its x, one number for each point (x, y), and the losses there."""
    x, roles = pytrees.stack([x for x, _ in points]), tuple(roles_of(problem))
    ys = zip(*(y for _, y in points), strict=True)
    groups = zip(problem.groups, ys, strict=True)
    return _joined(problem, [_by_threads(group, x, y, steps, roles, metrics) for group, y in groups])


def _by_threads(
    group: Group, x: Tree, y: Sequence[Tree], steps: jax.Array, roles: tuple[str, ...], metrics: Metrics
) -> Found:
    """The refit of one group. On a CPU, several threads share the blocks of very many tasks in memory.

    Programs of small products use one core. Rows of a loader come in one order, so that one thread reads them.
    """
    visit = functools.partial(_of_group, group, x, y, steps, roles=roles, metrics=metrics)
    block, held = block_of(group), all(source.held for source in _sources(group))
    if block is None or not held or group.on is not None or jax.default_backend() != "cpu":
        return visit(None)
    blocks = places_of_blocks(group.size, block)[:, None]
    first = jax.block_until_ready(visit(blocks[0]))  # the first block compiles the program of all
    with ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="bilevel-visit") as pool:
        found = [first, *pool.map(lambda places: jax.block_until_ready(visit(places)), blocks[1:])]
    # Not compiled, as there may be thousands of blocks.
    return jax.tree.map(lambda *rows: np.concatenate(rows)[: group.size], *found)


@jax.jit
def _joined(problem: Problem, groups: Sequence[Found]) -> list[Visit]:
    def one(*found: tuple[Tree, dict[str, jax.Array]]) -> Visit:
        y, losses = zip(*found, strict=True)
        named = {name: problem.join(PerTask(tuple(own[name] for own in losses))) for name in losses[0]}
        losses = Losses(named.pop("validation"), named.pop("selection", None), named.pop("test", None), named)
        return Visit(PerTask(y), losses)

    return [one(*found) for found in zip(*groups, strict=True)]


@functools.partial(jax.jit, static_argnames=("roles", "metrics"))
def _of_group(
    group: Group,
    x: Tree,
    y: Sequence[Tree],
    steps: jax.Array,
    places: jax.Array | None,
    roles: tuple[str, ...],
    metrics: Metrics,
) -> Found:
    """Refits the tasks at these places of a group, or all."""

    def one(train: Source, *given: Tree) -> Found:
        rows = dict(zip(roles, given, strict=False))
        task = group.view(train, rows["validation"])

        def iterate(own: tuple[Tree, Tree, jax.Array]) -> tuple[Tree, dict[str, jax.Array]]:
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
