"""SOBA's linear-system tracking: v moves one gradient step per step of the solver."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bilevel.derivatives import hessian_product
from bilevel.hypergradients.base import Implicit, check_rate, upper_gradient
from bilevel.hypergradients.exact import Solved
from bilevel.parts import leaf, part
from bilevel.problem import TaskView, UpperSample


@part
class Tracked(Implicit):
    """v <- v - lr (A v - f_y), one Hessian-vector product a step; the estimate is f_x - J v with the new v.

    Args:
        lr: the step of v; None = 1 / the task's curvature, which the solver keeps up to date.

    v is an average over many batches, which makes this the least noisy estimator at small batches; it lags where the
    lower problems are ill-conditioned.

    Reference: Dagréou, Ablin, Vaiter, Moreau, "A framework for bilevel optimization that enables stochastic and global
    variance reduction algorithms" (SOBA), NeurIPS 2022. SOBA's v has the other sign.
    """

    lr: float | None = leaf(default=None)

    @property
    def needs_curvature(self) -> bool:  # type: ignore[override]
        """Only where the step is not given."""
        return self.lr is None

    def check(self) -> None:
        """lr > 0."""
        check_rate("Tracked(lr)", self.lr)

    def init(self, task: TaskView, x: Any, y: Any, sample: UpperSample) -> Solved:
        """Starts from zero."""
        return Solved(jax.tree.map(jnp.zeros_like, y))

    def prepare(self, task: TaskView, x: Any, y: Any, state: Solved, sample: UpperSample) -> Solved:
        """One step on the quadratic 1/2 v'Av - f_y'v."""
        lr = 1 / jnp.where(task.curvature > 0, task.curvature, 1) if self.lr is None else self.lr
        image = hessian_product(task.lower, x, y, state.v, sample.lower)
        right = upper_gradient(task, x, y, sample)
        return Solved(jax.tree.map(lambda v, a, f: v - (lr * (a - f)).astype(v.dtype), state.v, image, right))
