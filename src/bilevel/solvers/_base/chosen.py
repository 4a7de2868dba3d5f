"""Some of a problem's tasks: taken out of what belongs to tasks, and put back.

Tasks that form one group: those chosen are a problem of their own, and only they are computed. Tasks in several groups:
all are computed and those not chosen count for nothing, because how many of each group are chosen differs from step to
step and compiled shapes cannot.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp

from bilevel._core import pytrees
from bilevel.problem.base import BaseProblem
from bilevel.problem.per_task import InOrder, for_groups
from bilevel.problem.task_names import Names

P = TypeVar("P", bound=BaseProblem)


@dataclasses.dataclass(frozen=True)
class Chosen(Generic[P]):
    """Tasks chosen uniformly, without replacement, or by their numbers.

    Attributes:
        problem: the chosen tasks alone, or all of them where they form several groups.
        mask: 1 for each task of `problem` that was chosen, in its order.
        index: of the chosen tasks; None where `problem` has all.
        count: how many were chosen.
    """

    problem: P
    mask: jax.Array
    index: jax.Array | None
    count: int

    @classmethod
    def draw(cls, problem: P, key: jax.Array, count: int | None, dtype: Any) -> Chosen[P]:
        """`count` tasks; None = all of them."""
        if count is None:
            return cls(problem, jnp.ones(problem.size, dtype), None, problem.size)
        return cls.at(problem, jax.random.permutation(key, problem.size)[:count], dtype)

    @classmethod
    def at(cls, problem: P, index: jax.Array, dtype: Any) -> Chosen[P]:
        """The tasks of these numbers, which may be traced."""
        count = index.shape[0]
        group, *others = problem.groups
        if others:
            return cls(problem, jnp.zeros(problem.size, dtype).at[index].set(1), None, count)
        # One group holds all tasks in their order, so that a task's number is its place. To what is compiled only the
        # number of names matters.
        few = problem.replace(groups=(group.chosen(index),), names=Names(problem.names[:count]))
        return cls(few, jnp.ones(count, dtype), index, count)

    def take(self, values: Any) -> Any:
        """The rows of the tasks of `problem`, from what has one row for every task."""
        return values if self.index is None else pytrees.index(values, self.index)

    def put(self, old: Any, new: Any) -> Any:
        """The new rows of chosen tasks, and the old rows of the others; of `PerTask` or `InOrder` values."""
        if self.index is not None:
            return jax.tree.map(lambda a, b: a.at[self.index].set(b.astype(a.dtype)), old, new)
        if isinstance(old, InOrder):
            return jax.tree.map(lambda a, b: _where(self.mask, a, b), old, new)
        return for_groups(_where, self.problem.split(self.mask), old, new)


def _where(mask: jax.Array, old: Any, new: Any) -> Any:
    def one(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(mask.reshape(-1, *(1,) * (a.ndim - 1)) > 0, b, a)

    return jax.tree.map(one, old, new)
