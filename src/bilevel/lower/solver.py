"""`LowerSolver`, the base of methods that solve a lower problem to tolerance."""

from __future__ import annotations

import abc
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bilevel._core.types import Scalar, Tree
from bilevel.problem.group import TaskView


class Solved(NamedTuple):
    """Solution of one lower problem."""

    y: Tree
    before: Tree  # y before the last step; the change of a loss in that step estimates its remaining error
    error: jax.Array  # about |y - y*|
    converged: jax.Array
    passes: jax.Array  # gradients over all rows that it took; a Hessian counts as one for each of its columns


class Lower(abc.ABC):
    """Solves y*(x) = argmin g(x, .) for one task at a time: inside `vmap`, and knowing nothing of other tasks.

    To write one, make a part (`bl.part`) that inherits this and has `solve`.
    """

    def check(self) -> None:  # noqa: B027  (most have nothing to refuse)
        """Raises where an argument makes no sense."""

    @abc.abstractmethod
    def solve(self, task: TaskView, x: Tree, y: Tree, accuracy: Scalar | None = None) -> Solved:
        """Minimises g_i(x, .) on all rows from y, to a distance of `accuracy` (1 + |y|); None = as near as it gets."""


def tolerance(dtype: DTypeLike) -> float:
    """The relative accuracy of a solution: 4e-11 in double precision, 2e-5 in single."""
    return float(jnp.finfo(dtype).eps) ** (2 / 3)
