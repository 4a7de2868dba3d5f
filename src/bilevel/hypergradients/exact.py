"""The Hessian of g in y as a matrix, and a direct solve."""

from __future__ import annotations

from typing import Any

import jax
from jax.flatten_util import ravel_pytree

from bilevel._core import dense
from bilevel._core.module import part
from bilevel.hypergradients.base import Implicit, LinearSolution, upper_gradient, zeros_like
from bilevel.problem.group import TaskView, UpperSample

LARGEST = 5_000


@part
class Exact(Implicit):
    """v = A^-1 f_y by a dense solve on the step's sample: exact there, d_y^2 memory and d_y^3 work per task.

    Biased on batches: the mean of the batches' inverses is not the inverse of the mean, and J sees the rows of A. For
    batches use `Tracked` or `Neumann`.
    """

    def init(self, task: TaskView, x: Any, y: Any, sample: UpperSample) -> LinearSolution:
        """Zero; nothing is carried, but the state keeps one shape."""
        size = sum(leaf.size for leaf in jax.tree.leaves(y))
        if size > LARGEST:
            raise ValueError(
                f"Exact would hold a {size} x {size} matrix per task ({size**2 * 4 / 1e9:.1f} GB in float32): for y of "
                f"more than {LARGEST} numbers use ConjugateGradient or Tracked."
            )
        return LinearSolution(zeros_like(y))

    def prepare(self, task: TaskView, x: Any, y: Any, state: LinearSolution, sample: UpperSample) -> LinearSolution:
        """Builds A and solves."""
        flat, unravel = ravel_pytree(y)
        hessian = jax.hessian(lambda flat: task.lower(x, unravel(flat), sample.lower))(flat)
        right, _ = ravel_pytree(upper_gradient(task, x, y, sample))
        return LinearSolution(unravel(dense.solve(hessian, right)))
