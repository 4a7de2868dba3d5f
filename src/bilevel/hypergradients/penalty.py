"""The value-function penalty: a hypergradient from gradients alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from bilevel._core import linear, values
from bilevel._core.linear import hessian_product
from bilevel._core.module import leaf, part
from bilevel._core.schedules import Rate, rate_at
from bilevel._core.types import Tree
from bilevel.hypergradients.hypergradient import Hypergradient, rate_from
from bilevel.problem.group import TaskView, UpperSample


class Penalised(NamedTuple):
    """The minimiser of the penalised problem, and what its steps need."""

    y: Tree
    step: jax.Array  # number of calls so far, which a growing strength depends on
    curvature: jax.Array | None  # of f + strength g in y, where lr is not given
    vector: Tree


@part
class Penalty(Hypergradient):
    """f_x(x, p) + strength (g_x(x, p) - g_x(x, y)), with p ~ argmin f + strength g and y ~ argmin g.

    No second derivative is taken (unless lr is None). The bias is O(1 / strength). The surrogate is the penalised loss
    f(x, p) + strength (g(x, p) - g(x, y)), in value too: with it the weights settle at the saddle point of the
    penalised problem, which they would miss with f. Both g see the same rows: on two batches the strength would
    multiply their noise.

    Unbiased on batches given p, whose steps draw rows of f and g of their own, as published. p itself is noisy, and
    where f_x and g_x are not linear in y that noise is a bias, times the strength, which a smaller lr makes smaller.

    Args:
        strength: the penalty, a number or a function of the step, as F2SA's grows.
        lr: the step of p; None = 1 / the curvature of f + strength g, by one power iteration a step.
        steps: how often p moves per step of the solver.

    Reference: Kwon, Kwon, Wright, Nowak, "A fully first-order method for stochastic bilevel optimization", ICML 2023.
    """

    strength: Rate = leaf(default=10.0)  # lambda_k of the paper
    lr: float | None = leaf(default=None)
    steps: int = 1

    @property
    def gradient_error(self) -> float:  # type: ignore[override]
        """f_yy / (mu strength); of a strength that changes it is not known."""
        return math.inf if callable(self.strength) or self.strength is None else float(1 / self.strength)

    @property
    def value_error(self) -> float:  # type: ignore[override]
        """The penalised loss is f - f_y' (strength A + f_yy)^-1 f_y / 2, and |f_y|^2 / 2 at most f."""
        return self.gradient_error

    def check(self) -> None:
        """Raises unless all numbers are positive."""
        if not callable(self.strength):
            values.positive("strength", self.strength, of="Penalty")
        values.positive("lr", self.lr, of="Penalty", none="chosen and kept up to date")
        values.whole("steps", self.steps, of="Penalty")

    def init(self, task: TaskView, x: Tree, y: Tree, sample: UpperSample) -> Penalised:
        """Starts where y is."""
        step = jnp.zeros((), jnp.int32)
        if self.lr is not None:
            return Penalised(y, step, None, None)
        found = linear.power_iteration(self._bending(task, x, y, step, sample), jax.tree.map(jnp.ones_like, y), 20)
        return Penalised(y, step, found.value, found.vector)

    def prepare(self, task: TaskView, x: Tree, y: Tree, state: Penalised, sample: UpperSample) -> Penalised:
        """Gradient steps on f + strength g, on rows that neither each other nor the surrogate sees."""
        total = self._total(task, state.step)
        p, step, curvature, vector = state
        fresh = lambda q: task.draw_upper(jax.random.fold_in(sample.key, q))  # noqa: E731
        if curvature is not None:
            value, vector = linear.stretch(self._bending(task, x, p, step, fresh(self.steps)), vector)
            curvature = jnp.maximum(0.99 * curvature, value).astype(curvature.dtype)
            lr = rate_from(curvature)
        else:
            lr = self.lr

        def move(q: Tree, p: Tree) -> Tree:
            gradient = jax.grad(total, argnums=1)(x, p, fresh(q))
            return jax.tree.map(lambda p, g: p - (lr * g).astype(p.dtype), p, gradient)

        p = jax.lax.fori_loop(0, self.steps, move, p)
        return Penalised(p, step + 1, curvature, vector)

    def surrogate(self, task: TaskView, x: Tree, y: Tree, state: Penalised, sample: UpperSample) -> jax.Array:
        """The penalised loss."""
        total = self._total(task, state.step - 1)(x, state.y, sample)
        strength = rate_at(self.strength, state.step - 1)
        return total - (strength * task.lower(x, y, sample.lower)).astype(total.dtype)

    def _bending(
        self, task: TaskView, x: Tree, p: Tree, step: jax.Array, sample: UpperSample
    ) -> Callable[[Tree], Tree]:
        """v -> (f_yy + strength A) v at p."""
        return lambda v: hessian_product(self._total(task, step), x, p, v, sample)

    def _total(self, task: TaskView, step: jax.Array) -> Callable[..., jax.Array]:
        """f + strength g."""

        def total(x: Tree, p: Tree, sample: UpperSample) -> jax.Array:
            f = task.upper(x, p, sample.upper)
            return f + (rate_at(self.strength, step) * task.lower(x, p, sample.lower)).astype(f.dtype)

        return total
