"""Conjugate gradients, started from the last step's solution."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bilevel._core.derivatives import hessian_product
from bilevel._core.linear import conjugate_gradient
from bilevel._core.module import leaf, part
from bilevel.hypergradients.base import Implicit, check_count, upper_gradient
from bilevel.hypergradients.exact import Solved
from bilevel.problem.group import TaskView, UpperSample


@part
class ConjugateGradient(Implicit):
    """v ~ A^-1 f_y by conjugate gradients on the step's sample, warm-started.

    Args:
        iterations: at most so many Hessian-vector products (and one for the first residual).
        tolerance: stops when the residual has fallen to this part of f_y.

    Exact in d_y iterations. With small batches it solves the *batch's* system, whose inverse is on average larger than
    the inverse of the mean: `Tracked` and `Neumann` average over batches instead.

    Reference: Pedregosa, "Hyperparameter optimization with approximate gradient", ICML 2016.
    """

    iterations: int = 10
    tolerance: float = leaf(default=1e-10)

    def check(self) -> None:
        """iterations >= 1."""
        check_count("ConjugateGradient(iterations)", self.iterations)

    def init(self, task: TaskView, x: Any, y: Any, sample: UpperSample) -> Solved:
        """Starts from zero."""
        return Solved(jax.tree.map(jnp.zeros_like, y))

    def prepare(self, task: TaskView, x: Any, y: Any, state: Solved, sample: UpperSample) -> Solved:
        """Solves on, from the last solution."""
        v = conjugate_gradient(
            lambda v: hessian_product(task.lower, x, y, v, sample.lower),
            upper_gradient(task, x, y, sample),
            state.v,
            self.iterations,
            self.tolerance,
        )
        return Solved(v)
