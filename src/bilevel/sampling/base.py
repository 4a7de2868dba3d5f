"""The base of samplings: how tasks are drawn from one group of like ones."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from bilevel._core import values


class Draw(NamedTuple):
    """Tasks drawn from one group."""

    places: jax.Array  # in the group; a place may be there twice
    share: jax.Array  # how often each is drawn in a step on average


class Sampling(abc.ABC):
    """Which tasks a step sees.

    To write one, make a part (`bl.part`) that inherits this. A group of n tasks has an urn, any pytree of arrays, from
    which `draw` takes `count` of them. What makes the estimates unbiased is that `Draw.share` is exact. On several
    devices the tasks of each have an urn of their own, whose arrays must have one row a task, and the methods are
    mapped over them (`jax.vmap`).
    """

    draws: ClassVar[bool] = True  # whether a step sees some tasks only
    fresh: ClassVar[bool] = False  # whether a step sees tasks that are new
    tasks: int  # m

    def check(self, sizes: Sequence[int]) -> None:
        """Raises where the number of tasks makes no sense for groups of these sizes."""
        name = type(self).__name__
        values.whole("tasks", self.tasks, most=sum(sizes), of=name)
        if self.tasks < len(sizes):
            raise ValueError(
                f"{name}(tasks={self.tasks}): the problem has {len(sizes)} groups of tasks, and a step draws at least "
                "one from each."
            )

    def counts(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """How many tasks a step draws from each group: proportional to its size, at least one, `tasks` in all.

        >>> from bilevel.sampling import Uniform
        >>> Uniform(10).counts([90, 9, 1])
        (8, 1, 1)
        """
        wanted = self.tasks * np.asarray(sizes) / sum(sizes)
        counts = np.clip(np.floor(wanted).astype(int), 1, sizes)
        while counts.sum() > self.tasks:
            counts[np.argmax(np.where(counts > 1, counts - wanted, -np.inf))] -= 1
        while counts.sum() < self.tasks:
            counts[np.argmax(np.where(counts < sizes, wanted - counts, -np.inf))] += 1
        return tuple(map(int, counts))

    def fill(self, weights: jax.Array, count: int, key: jax.Array) -> Any:
        """The urn of a group whose tasks have these weights, from which `count` are drawn at a time."""
        return ()

    def refill(self, urn: Any, weights: jax.Array, count: int) -> Any:
        """The urn after the weights have moved."""
        return urn

    @abc.abstractmethod
    def draw(self, urn: Any, weights: jax.Array, count: int, key: jax.Array) -> Draw:
        """Some tasks of a group; of the weights only the number matters, and the dtype."""
