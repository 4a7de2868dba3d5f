"""The implicit term to tolerance: by a factorisation of the Hessian of g in y, or by conjugate gradients."""

from __future__ import annotations

import jax
import optax
from jax.flatten_util import ravel_pytree

from bilevel._core import dense, values
from bilevel._core.linear import conjugate_gradient, hessian_product
from bilevel._core.module import leaf, part
from bilevel._core.types import Tree
from bilevel.hypergradients.hypergradient import Implicit, LinearSolution, upper_gradient
from bilevel.problem.group import TaskView, UpperSample

LARGEST = 5_000


@part
class Exact(Implicit):
    """v = A^-1 f_y by a dense solve on the step's sample: exact there, d_y^2 memory and d_y^3 work per task.

    Biased on batches: the mean of the batches' inverses is not the inverse of the mean, and J sees the rows of A. For
    batches use `Tracked` or `Neumann`.
    """

    def init(self, task: TaskView, x: Tree, y: Tree, sample: UpperSample) -> LinearSolution:
        """Zero; nothing is carried, but the state keeps one shape."""
        size = sum(leaf.size for leaf in jax.tree.leaves(y))
        if size > LARGEST:
            raise ValueError(
                f"Exact would hold a {size} x {size} matrix per task ({size**2 * 4 / 1e9:.1f} GB in float32): for y of "
                f"more than {LARGEST} numbers use ConjugateGradient or Tracked."
            )
        return LinearSolution(optax.tree.zeros_like(y))

    def prepare(self, task: TaskView, x: Tree, y: Tree, state: LinearSolution, sample: UpperSample) -> LinearSolution:
        """Builds A and solves."""
        flat, unravel = ravel_pytree(y)
        hessian = jax.hessian(lambda flat: task.lower(x, unravel(flat), sample.lower))(flat)
        right, _ = ravel_pytree(upper_gradient(task, x, y, sample))
        return LinearSolution(unravel(dense.solve(hessian, right)))


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

    def init(self, task: TaskView, x: Tree, y: Tree, sample: UpperSample) -> LinearSolution:
        """Starts from zero."""
        return LinearSolution(optax.tree.zeros_like(y))

    def prepare(self, task: TaskView, x: Tree, y: Tree, state: LinearSolution, sample: UpperSample) -> LinearSolution:
        """Solves on, from the last solution."""
        v = conjugate_gradient(
            lambda v: hessian_product(task.lower, x, y, v, sample.lower),
            upper_gradient(task, x, y, sample),
            state.v,
            self.iterations,
            self.tolerance,
        )
        return LinearSolution(v)
