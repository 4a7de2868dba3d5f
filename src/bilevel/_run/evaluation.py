"""Losses on all the data: of all tasks, or of a part of them where a step sees a few of very many.

The part is a fixed random half, whose losses are the columns of the history and whose mean is an unbiased estimate of
that of all, and the tasks of the largest weights at the time, among which the worst ones are to be found.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from bilevel._run.devices import Layout
from bilevel._run.metrics import Metrics, measure
from bilevel.problem.base import BaseProblem
from bilevel.problem.per_task import PerTask
from bilevel.sampling import Uniform
from bilevel.solvers._base.rows import Rows
from bilevel.solvers._base.solver import Solver

FIXED, HEAVY = 512, 512  # tasks; where there are not more than these, all are evaluated


class Losses(NamedTuple):
    """Losses, and what else is measured, on all the data."""

    validation: Any
    selection: Any
    test: Any
    metrics: dict[str, Any]


@functools.partial(jax.jit, static_argnames="metrics")
def evaluate(problem: BaseProblem, x: Any, y: Any, metrics: Metrics = ()) -> Losses:
    """Losses on all the data of each role, and the metrics."""
    losses = problem.validation_losses(x, y), problem.selection_losses(x, y), problem.test_losses(x, y)
    return Losses(*losses, measure(metrics, problem, x, y))


@jax.jit
def fitted(solver: Solver, problem: BaseProblem, x: Any, y: Any) -> Any:
    """`solver.fitted`, compiled."""
    return solver.fitted(problem, x, y)


@functools.partial(jax.jit, static_argnames="metrics")
def _evaluate_some(problem: Any, x: Any, y: Any, places: PerTask[jax.Array], metrics: Metrics) -> Losses:
    rows = Rows.of(problem, places)
    return evaluate(rows.problem_with_held_out_rows(problem), x, rows.take(y), metrics)


class Part(NamedTuple):
    """The tasks that are evaluated along a run, by their places in their groups."""

    fixed: tuple[np.ndarray, ...]  # in order
    ids: tuple[np.ndarray, ...]  # the numbers of all tasks, group by group
    heavy: tuple[int, ...]  # how many heavy ones of each group
    layout: Layout | None = None  # of the devices that the tasks are on; None = one

    @classmethod
    def of(cls, solver: Solver, problem: BaseProblem, layout: Layout | None = None) -> Part | None:
        """None = all."""
        if not solver.in_parts or problem.size <= FIXED + HEAVY:
            return None
        sizes = [group.size for group in problem.groups]
        counts, draws = Uniform(FIXED).counts(sizes), np.random.default_rng(0)
        fixed = [np.sort(draws.choice(size, count, replace=False)) for size, count in zip(sizes, counts, strict=True)]
        left = [size - count for size, count in zip(sizes, counts, strict=True)]
        heavy = [min(a, b) for a, b in zip(Uniform(HEAVY).counts(sizes), left, strict=True)]
        return cls(tuple(fixed), tuple(np.asarray(group.ids) for group in problem.groups), tuple(heavy), layout)

    @property
    def tasks(self) -> np.ndarray:
        """The numbers of the fixed tasks, in order."""
        return np.sort(np.concatenate([ids[places] for ids, places in zip(self.ids, self.fixed, strict=True)]))

    def places(self, weights: np.ndarray) -> list[np.ndarray]:
        """Of the fixed tasks of every group, and after them of its heavy ones."""
        found = []
        for ids, fixed, count in zip(self.ids, self.fixed, self.heavy, strict=True):
            own = np.array(weights[ids])
            own[fixed] = -1
            found.append(np.concatenate([fixed, _largest(own, count)]).astype(np.int32))
        return found

    def evaluate(self, problem: BaseProblem, x: Any, y: Any, weights: np.ndarray, metrics: Metrics) -> PartLosses:
        """The losses of these tasks; the problem and y are where the layout has them."""
        places = self.places(weights)
        asked = Asked.of(places) if self.layout is None else Asked.on_devices(places, self.fixed, self.layout)
        losses = jax.device_get(_evaluate_some(problem, x, y, PerTask(asked.places), metrics))
        losses = jax.tree.map(lambda a: a[asked.where], losses)
        numbers = np.concatenate([ids[own] for ids, own in zip(self.ids, places, strict=True)])
        is_fixed = np.concatenate([np.arange(len(p)) < len(f) for p, f in zip(places, self.fixed, strict=True)])
        columns = np.flatnonzero(is_fixed)[np.argsort(numbers[is_fixed])]
        worst = int(np.argmax(np.where(np.isnan(losses.validation), np.inf, losses.validation)))
        own = jax.tree.map(lambda a: a[columns], losses)
        return PartLosses(own, float(losses.validation[worst]), int(numbers[worst]))


class Asked(NamedTuple):
    """Tasks whose losses are asked for, and where the answers are."""

    places: tuple[np.ndarray, ...]  # in the groups as they are on the devices
    where: np.ndarray  # each task that was wanted among these

    @classmethod
    def of(cls, places: Sequence[np.ndarray]) -> Asked:
        """On one device."""
        return cls(tuple(places), np.arange(sum(map(len, places))))

    @classmethod
    def on_devices(cls, places: Sequence[np.ndarray], fixed: Sequence[np.ndarray], layout: Layout) -> Asked:
        """Equally many of every device, as many as there may be of one: others are looked at where it has fewer."""
        asked, where, before = [], [], 0
        for own, always, stretches in zip(places, fixed, layout.stretches, strict=True):
            position = np.zeros(len(own), int)
            for start, stop, spread in stretches:
                size = (stop - start) // (layout.devices if spread else 1)
                first = np.arange(start, stop, size)
                most = max(np.sum((always >= begin) & (always < begin + size)) for begin in first)
                room = min(size, int(most) + len(own) - len(always))
                lists = first[:, None] + np.arange(room)
                for device, begin in enumerate(first):
                    mine = np.flatnonzero((own >= begin) & (own < begin + size))
                    lists[device, : len(mine)] = own[mine]
                    position[mine] = before + device * room + np.arange(len(mine))
                asked.append((lists.ravel() - start).astype(np.int32))
                before += lists.size
            where.append(position)
        return cls(tuple(asked), np.concatenate(where))


def _largest(weights: np.ndarray, count: int) -> np.ndarray:
    """The places of the largest weights; of those that are not above the mean, any, as many of them may be equal."""
    above = np.flatnonzero(weights > weights.mean())
    if len(above) > count:
        return above[np.argpartition(-weights[above], count - 1)[:count]] if count else above[:0]
    others = np.flatnonzero((weights >= 0) & (weights <= weights.mean()))
    return np.concatenate([above, others[: count - len(above)]])


class PartLosses(NamedTuple):
    """Losses of the fixed tasks, and the largest of all that were evaluated."""

    losses: Losses
    largest: float
    largest_task: int
