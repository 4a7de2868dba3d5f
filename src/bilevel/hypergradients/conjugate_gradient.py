"""Conjugate gradients, started from the last step's solution."""

from __future__ import annotations

from typing import Any

from bilevel._core import values
from bilevel._core.linear import conjugate_gradient, hessian_product
from bilevel._core.module import leaf, part
from bilevel.hypergradients.base import Implicit, LinearSolution, upper_gradient, zeros_like
from bilevel.problem.group import TaskView, UpperSample


@part
class ConjugateGradient(Implicit):
    """v ~ A^-1 f_y by conjugate gradients on the step's sample, warm-started.

    Args:
        iterations: the most Hessian-vector products (and one for the first residual).
        tolerance: stops when the residual has fallen to this fraction of f_y.

    Exact in d_y iterations. Biased on batches, as `Exact` is: it solves the *batch's* system, whose inverse is on
    average larger than the inverse of the mean, and J sees the same rows. `Tracked` and `Neumann` average over batches
    instead.

    Reference: Pedregosa, "Hyperparameter optimization with approximate gradient", ICML 2016.
    """

    iterations: int = 10
    tolerance: float = leaf(default=1e-10)

    def check(self) -> None:
        """iterations >= 1, tolerance >= 0."""
        values.whole("iterations", self.iterations, of="ConjugateGradient")
        values.number("tolerance", self.tolerance, least=0, of="ConjugateGradient")

    def init(self, task: TaskView, x: Any, y: Any, sample: UpperSample) -> LinearSolution:
        """Starts from zero."""
        return LinearSolution(zeros_like(y))

    def prepare(self, task: TaskView, x: Any, y: Any, state: LinearSolution, sample: UpperSample) -> LinearSolution:
        """Solves on, from the last solution."""
        v = conjugate_gradient(
            lambda v: hessian_product(task.lower, x, y, v, sample.lower),
            upper_gradient(task, x, y, sample),
            state.v,
            self.iterations,
            self.tolerance,
        )
        return LinearSolution(v)
