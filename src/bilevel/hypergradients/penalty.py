"""The value-function penalty: a hypergradient from gradients alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bilevel._core.derivatives import stretch
from bilevel._core.module import leaf, part
from bilevel._core.schedules import Rate, rate_at
from bilevel.hypergradients.base import check_count, check_rate
from bilevel.problem.group import TaskView, UpperSample
from bilevel.problem.sources import Sample


class Penalised(NamedTuple):
    """The minimiser of the penalised problem, and what its steps need."""

    y: Any
    step: jax.Array  # how often it was asked for, which a growing strength is a function of
    curvature: jax.Array | None  # of f + strength g in y, where lr is not given
    vector: Any


@part
class Penalty:
    """f_x(x, p) + strength (g_x(x, p) - g_x(x, y)), with p ~ argmin f + strength g and y ~ argmin g.

    No second derivative is taken (unless lr is None). The bias is O(1 / strength). The surrogate is the penalised loss
    f(x, p) + strength (g(x, p) - g(x, y)), in value too: with it the weights settle at the saddle point of the
    penalised problem, which they would miss with f. Both g see the same rows: on two batches the strength would
    multiply their noise.

    Args:
        strength: the penalty, a number or a function of the step, as F2SA's grows.
        lr: the step of p; None = 1 / the curvature of f + strength g, by one power iteration a step.
        steps: how often p moves per step of the solver.

    Reference: Kwon, Kwon, Wright, Nowak, "A fully first-order method for stochastic bilevel optimization", ICML 2023.
    """

    strength: Rate = leaf(default=10.0)  # lambda_k of the paper
    lr: float | None = leaf(default=None)
    steps: int = 1

    needs_curvature = False
    needs_replay = False

    def check(self) -> None:
        """All positive."""
        if not callable(self.strength):
            check_rate("Penalty(strength)", self.strength)
        if self.strength is None:
            raise ValueError("Penalty(strength=None): it needs a positive number, or a function of the step.")
        check_rate("Penalty(lr)", self.lr)
        check_count("Penalty(steps)", self.steps)

    def init(self, task: TaskView, x: Any, y: Any, sample: UpperSample) -> Penalised:
        """Starts where y is."""
        step = jnp.zeros((), jnp.int32)
        if self.lr is not None:
            return Penalised(y, step, None, None)
        start = jax.tree.map(jnp.ones_like, y), jnp.zeros((), optax.tree.norm(y).dtype)

        def iterate(_: Any, carry: tuple) -> tuple:
            value, vector = stretch(self._total(task, step), x, y, carry[0], (sample.upper, sample.lower))
            return vector, value

        vector, curvature = jax.lax.fori_loop(0, 20, iterate, start)
        return Penalised(y, step, curvature, vector)

    def prepare(self, task: TaskView, x: Any, y: Any, state: Penalised, sample: UpperSample) -> Penalised:
        """Gradient steps on f + strength g, on fresh rows of g every time."""
        total = self._total(task, state.step)
        p, step, curvature, vector = state
        if curvature is not None:
            value, vector = stretch(total, x, p, vector, (sample.upper, sample.lower))
            curvature = jnp.maximum(0.99 * curvature, value).astype(curvature.dtype)
            lr = 1 / jnp.where(curvature > 0, curvature, 1)
        else:
            lr = self.lr

        def move(q: Any, p: Any) -> Any:
            rows = sample.lower if self.steps == 1 else task.draw(jax.random.fold_in(sample.key, q))
            gradient = jax.grad(total, argnums=1)(x, p, (sample.upper, rows))
            return jax.tree.map(lambda p, g: p - (lr * g).astype(p.dtype), p, gradient)

        p = move(0, p) if self.steps == 1 else jax.lax.fori_loop(0, self.steps, move, p)
        return Penalised(p, step + 1, curvature, vector)

    def surrogate(self, task: TaskView, x: Any, y: Any, state: Penalised, sample: UpperSample) -> jax.Array:
        """The penalised loss."""
        total = self._total(task, state.step - 1)(x, state.y, (sample.upper, sample.lower))
        strength = rate_at(self.strength, state.step - 1)
        return total - (strength * task.lower(x, y, sample.lower)).astype(total.dtype)

    def _total(self, task: TaskView, step: jax.Array) -> Any:
        def total(x: Any, p: Any, rows: tuple[Sample, Sample]) -> jax.Array:
            f = task.upper(x, p, rows[0])
            return f + (rate_at(self.strength, step) * task.lower(x, p, rows[1])).astype(f.dtype)

        return total
