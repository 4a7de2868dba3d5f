"""SOBA's linear-system tracking: v moves by gradient steps, few per step of the solver."""

from __future__ import annotations

import jax
import optax

from bilevel._core import values
from bilevel._core.linear import hessian_product
from bilevel._core.module import leaf, part
from bilevel._core.types import Tree
from bilevel.hypergradients.hypergradient import Implicit, LinearSolution, rate_from, step_towards, upper_gradient
from bilevel.problem.group import TaskView, UpperSample


@part
class Tracked(Implicit):
    """v <- v - lr (A v - f_y), one Hessian-vector product a step; the estimate is f_x - J v with the new v.

    Args:
        lr: the step of v; None = 1 / the task's curvature, which the solver keeps up to date.
        steps: how often v moves per step of the solver, as in AmIGO: f_y is taken once, A on fresh rows every time.

    v is an average over many batches, which makes this the least noisy estimator at small batches; it lags where the
    lower problems are ill-conditioned.

    Unbiased on batches: every step on v draws rows of g that J does not see, or the mean of J A v would not be that on
    all the data. f_y and f_x share a batch: one only meets J, which has rows of its own, and the other is added.

    Reference: Dagréou, Ablin, Vaiter, Moreau, "A framework for bilevel optimization that enables stochastic and global
    variance reduction algorithms" (SOBA), NeurIPS 2022. SOBA's v has the other sign.
    """

    lr: float | None = leaf(default=None)
    steps: int = 1

    @property
    def needs_curvature(self) -> bool:  # type: ignore[override]
        """Whether the step is not given."""
        return self.lr is None

    def check(self) -> None:
        """lr > 0 and steps >= 1."""
        values.positive("lr", self.lr, of="Tracked", none="chosen and kept up to date")
        values.whole("steps", self.steps, of="Tracked")

    def init(self, task: TaskView, x: Tree, y: Tree, sample: UpperSample) -> LinearSolution:
        """Starts from zero."""
        return LinearSolution(optax.tree.zeros_like(y))

    def prepare(self, task: TaskView, x: Tree, y: Tree, state: LinearSolution, sample: UpperSample) -> LinearSolution:
        """Steps on the quadratic 1/2 v'Av - f_y'v."""
        right = upper_gradient(task, x, y, sample)
        lr = self.lr
        if lr is None:
            assert task.curvature is not None
            lr = rate_from(task.curvature)

        def move(q: jax.Array, v: Tree) -> Tree:
            rows = task.draw(jax.random.fold_in(sample.key, q))
            residual = optax.tree.sub(right, hessian_product(task.lower, x, y, v, rows))
            return step_towards(v, residual, lr)

        return LinearSolution(jax.lax.fori_loop(0, self.steps, move, state.v))
