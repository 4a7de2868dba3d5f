"""Subsets of a problem's tasks: takes their rows out of a state, and puts them back.

`Rows` takes the same number of tasks of every group in every step; `SomeTasks` draws it. `Chosen` takes any tasks. In a
problem of one group the chosen tasks form a problem, and only they are computed. With several groups all tasks are
computed, and those not chosen have weight 0: the number chosen from a group differs from step to step, and compiled
shapes cannot.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Generic, TypeVar

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bilevel._core import pytrees
from bilevel._core.types import Tree
from bilevel.problem.group import Group
from bilevel.problem.on_devices import Placement, rows_of
from bilevel.problem.per_task import InOrder, Names, PerTask, for_groups, is_of_tasks
from bilevel.problem.problem import BaseProblem, Problem

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
    def draw(cls, problem: P, key: jax.Array, count: int | None, dtype: DTypeLike) -> Chosen[P]:
        """`count` tasks; None = all of them."""
        if count is None:
            return cls(problem, jnp.ones(problem.size, dtype), None, problem.size)
        return cls.at(problem, jax.random.permutation(key, problem.size)[:count], dtype)

    @classmethod
    def at(cls, problem: P, index: jax.Array, dtype: DTypeLike) -> Chosen[P]:
        """The tasks of these numbers, which may be traced."""
        count = index.shape[0]
        group, *others = problem.groups
        if others:
            return cls(problem, jnp.zeros(problem.size, dtype).at[index].set(1), None, count)
        # One group holds all tasks in their order, so that a task's number is its place. Compiled programs depend only
        # on the number of names.
        few = problem.replace(groups=(group.chosen(index),), names=Names(problem.names[:count]))
        return cls(few, jnp.ones(count, dtype), index, count)

    def take(self, values: Tree) -> Tree:
        """The rows of the tasks of `problem`, from values with one row for every task."""
        return values if self.index is None else pytrees.index(values, self.index)

    def put(self, old: Tree, new: Tree) -> Tree:
        """The new rows of chosen tasks, and the old rows of the others; of `PerTask` or `InOrder` values."""
        if self.index is not None:
            return jax.tree.map(lambda a, b: a.at[self.index].set(b.astype(a.dtype)), old, new)
        if isinstance(old, InOrder):
            return jax.tree.map(lambda a, b: _where(self.mask, a, b), old, new)
        return for_groups(_where, self.problem.split(self.mask), old, new)


def _where(mask: jax.Array, old: Tree, new: Tree) -> Tree:
    def one(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(mask.reshape(-1, *(1,) * (a.ndim - 1)) > 0, b, a)

    return jax.tree.map(one, old, new)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["places", "numbers"], meta_fields=["on"])
@dataclasses.dataclass(frozen=True)
class Rows:
    """Places of tasks; in a group on several devices equally many of each, those of the first device first."""

    places: PerTask[jax.Array]  # in their groups
    numbers: jax.Array  # in the problem, group by group
    on: tuple[Placement | None, ...]  # where each group is

    @classmethod
    def of(cls, problem: Problem, places: PerTask[jax.Array]) -> Rows:
        """The tasks at some places of every group."""
        numbers = [group.ids[index] for group, index in zip(problem.groups, places, strict=True)]
        return cls(places, jnp.concatenate(numbers), tuple(group.on for group in problem.groups))

    def problem(self, whole: Problem) -> Problem:
        """These tasks as a problem. Their keys, and so their draws, are those in the whole problem."""
        return self._problem(whole, Group.chosen)

    def problem_with_held_out_rows(self, whole: Problem) -> Problem:
        """The same problem with held-out rows, for an evaluation."""
        return self._problem(whole, Group.chosen_whole)

    def _problem(self, whole: Problem, choose: Callable[[Group, jax.Array], Group]) -> Problem:
        groups = tuple(choose(group, index) for group, index in zip(whole.groups, self.places, strict=True))
        # Compiled programs depend only on the number of names.
        return whole.replace(groups=groups, place=None, names=Names(whole.names[: len(self.numbers)]))

    def take(self, tree: Tree) -> Tree:
        """The tree with only the rows of these tasks in values of tasks."""
        return jax.tree.map(self._taken, tree, is_leaf=is_of_tasks)

    def put(self, old: Tree, taken: Tree, new: Tree) -> Tree:
        """The new values. Values of tasks get the new rows among the old ones.

        Leaves that the step did not change (`new` is `taken`) are not written.
        """
        return jax.tree.map(self._put, old, taken, new, is_leaf=is_of_tasks)

    def _taken(self, node: Tree) -> Tree:
        if isinstance(node, PerTask):
            return PerTask(tuple(_read(*own) for own in zip(node, self.places, self.on, strict=True)))
        return _read(node, self.numbers, None) if isinstance(node, InOrder) else node

    def _put(self, old: Tree, taken: Tree, new: Tree) -> Tree:
        if isinstance(old, PerTask):
            own = zip(old, taken, new, self.places, self.on, strict=True)
            return PerTask(tuple(_written(*rows) for rows in own))
        return _written(old, taken, new, self.numbers, None) if isinstance(old, InOrder) else new


def _read(rows: Tree, index: jax.Array, on: Placement | None) -> Tree:
    take = lambda index, a: a[index]  # noqa: E731
    return jax.tree.map(lambda a: rows_of(take, index, a.shape[0], on, a), rows)


def _written(old: Tree, taken: Tree, new: Tree, index: jax.Array, on: Placement | None) -> Tree:
    write = lambda index, a, c: a.at[index].set(c)  # noqa: E731

    def one(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
        return a if c is b else rows_of(write, index, a.shape[0], on, a, c.astype(a.dtype))

    return jax.tree.map(one, old, taken, new)
