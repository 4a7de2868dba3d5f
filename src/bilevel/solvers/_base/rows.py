"""Some tasks of a problem, and their rows of a state: taken out, and put back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bilevel._core import pytrees
from bilevel.problem.group import Group
from bilevel.problem.per_task import InOrder, PerTask, is_of_tasks
from bilevel.problem.problem import Problem
from bilevel.problem.task_names import Names


class Rows(NamedTuple):
    """Which tasks."""

    places: PerTask[jax.Array]  # in their groups
    numbers: jax.Array  # in the problem, group by group

    @classmethod
    def of(cls, problem: Problem, places: PerTask[jax.Array]) -> Rows:
        """The tasks at some places of every group."""
        numbers = [group.ids[index] for group, index in zip(problem.groups, places, strict=True)]
        return cls(places, jnp.concatenate(numbers))

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
            return PerTask(tuple(pytrees.index(own, i) for own, i in zip(node, self.places, strict=True)))
        return pytrees.index(node, self.numbers) if isinstance(node, InOrder) else node

    def _put(self, old: Any, taken: Any, new: Any) -> Any:
        if isinstance(old, PerTask):
            own = zip(old, taken, new, self.places, strict=True)
            return PerTask(tuple(_written(*rows) for rows in own))
        return _written(old, taken, new, self.numbers) if isinstance(old, InOrder) else new


def _written(old: Any, taken: Any, new: Any, index: jax.Array) -> Any:
    def one(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
        return a if c is b else a.at[index].set(c.astype(a.dtype))

    return jax.tree.map(one, old, taken, new)
