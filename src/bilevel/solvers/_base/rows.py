"""Some tasks of a problem, and their rows of a state: taken out, and put back."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bilevel.problem.group import Group
from bilevel.problem.on_devices import Placement, rows_of
from bilevel.problem.per_task import InOrder, PerTask, is_of_tasks
from bilevel.problem.problem import Problem
from bilevel.problem.task_names import Names


@functools.partial(jax.tree_util.register_dataclass, data_fields=["places", "numbers"], meta_fields=["on"])
@dataclasses.dataclass(frozen=True)
class Rows:
    """Which tasks: of a group that is spread over devices equally many of each, those of the first device first."""

    places: PerTask[jax.Array]  # in their groups
    numbers: jax.Array  # in the problem, group by group
    on: tuple[Placement | None, ...]  # where each group is

    @classmethod
    def of(cls, problem: Problem, places: PerTask[jax.Array]) -> Rows:
        """The tasks at some places of every group."""
        numbers = [group.ids[index] for group, index in zip(problem.groups, places, strict=True)]
        return cls(places, jnp.concatenate(numbers), tuple(group.on for group in problem.groups))

    def problem(self, whole: Problem) -> Problem:
        """These tasks, as a problem of their own; they draw what they draw among all."""
        return self._problem(whole, Group.chosen)

    def problem_with_held_out_rows(self, whole: Problem) -> Problem:
        """The same for an evaluation."""
        return self._problem(whole, Group.chosen_whole)

    def _problem(self, whole: Problem, choose: Callable[[Group, jax.Array], Group]) -> Problem:
        groups = tuple(choose(group, index) for group, index in zip(whole.groups, self.places, strict=True))
        # To what is compiled only the number of names matters.
        return whole.replace(groups=groups, place=None, names=Names(whole.names[: len(self.numbers)]))

    def take(self, tree: Any) -> Any:
        """The same with the rows of these tasks only, where something belongs to tasks."""
        return jax.tree.map(self._taken, tree, is_leaf=is_of_tasks)

    def put(self, old: Any, taken: Any, new: Any) -> Any:
        """The new values, and in what belongs to tasks the new rows among the old ones.

        What a step left as it was taken is not written: `new` is `taken` there.
        """
        return jax.tree.map(self._put, old, taken, new, is_leaf=is_of_tasks)

    def _taken(self, node: Any) -> Any:
        if isinstance(node, PerTask):
            return PerTask(tuple(_read(*own) for own in zip(node, self.places, self.on, strict=True)))
        return _read(node, self.numbers, None) if isinstance(node, InOrder) else node

    def _put(self, old: Any, taken: Any, new: Any) -> Any:
        if isinstance(old, PerTask):
            own = zip(old, taken, new, self.places, self.on, strict=True)
            return PerTask(tuple(_written(*rows) for rows in own))
        return _written(old, taken, new, self.numbers, None) if isinstance(old, InOrder) else new


def _read(rows: Any, index: jax.Array, on: Placement | None) -> Any:
    take = lambda index, a: a[index]  # noqa: E731
    return jax.tree.map(lambda a: rows_of(take, index, a.shape[0], on, a), rows)


def _written(old: Any, taken: Any, new: Any, index: jax.Array, on: Placement | None) -> Any:
    write = lambda index, a, c: a.at[index].set(c)  # noqa: E731

    def one(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
        return a if c is b else rows_of(write, index, a.shape[0], on, a, c.astype(a.dtype))

    return jax.tree.map(one, old, taken, new)
