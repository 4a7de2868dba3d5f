"""The Hessian of g in y as a matrix, and a direct solve."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from bilevel._core.module import part
from bilevel.hypergradients.base import Implicit, upper_gradient
from bilevel.problem.group import TaskView, UpperSample

LARGEST = 5_000


class Solved(NamedTuple):
    """v = A^-1 f_y."""

    v: Any


@part
class Exact(Implicit):
    """v = A^-1 f_y by a dense solve on the step's sample: exact there, d_y^2 memory and d_y^3 work per task."""

    def check(self) -> None:
        """Nothing can be wrong."""

    def init(self, task: TaskView, x: Any, y: Any, sample: UpperSample) -> Solved:
        """Zero; nothing is carried, but the state keeps one shape."""
        size = sum(leaf.size for leaf in jax.tree.leaves(y))
        if size > LARGEST:
            raise ValueError(
                f"Exact would hold a {size} x {size} matrix per task ({size**2 * 4 / 1e9:.1f} GB in float32): for y of "
                f"more than {LARGEST} numbers use ConjugateGradient or Tracked."
            )
        return Solved(jax.tree.map(jnp.zeros_like, y))

    def prepare(self, task: TaskView, x: Any, y: Any, state: Solved, sample: UpperSample) -> Solved:
        """Builds A and solves."""
        flat, unravel = ravel_pytree(y)
        hessian = jax.hessian(lambda flat: task.lower(x, unravel(flat), sample.lower))(flat)
        right, _ = ravel_pytree(upper_gradient(task, x, y, sample))
        return Solved(unravel(jnp.linalg.solve(hessian, right)))
