"""Least squares with heads in closed form: the lower level is solved in every step.

With Phi the features of the training rows and a column of ones, t their targets, w their weights, P the penalties and c
the centre of the heads,

    y*(x) = argmin_y g(x, y) = (Phi' diag(w) Phi / n + P)^-1 (Phi' diag(w) t / n + P c)
    F(x)  = f(x, y*(x)),       grad F = f_x - J v,       v = A^-1 f_y(x, y*),      A the Hessian of g in y

As for every hypergradient here, F is a surrogate whose value is f and whose gradient is that of F:

    s(x) = f(x, y*) - <grad_y g(x, y*), v>,              y* and v held fixed
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bilevel._core import dense
from bilevel._core.module import part
from bilevel.estimators.objectives import Batch, penalty, squared_error
from bilevel.problem.group import Group, TaskView, UpperSample

Network = Callable[[Any, jax.Array], jax.Array]
Shared = dict[str, Any]  # x: network, penalty, and a head, of which only the shape counts


@dataclasses.dataclass(frozen=True)
class SquaredLoss:
    """loss(x, batch), with the head in x; equal ones compile once."""

    network: Network

    def __call__(self, x: Shared, batch: Batch) -> jax.Array:
        """The weighted mean loss."""
        y = x["head"]
        outputs = self.network(x["network"], batch.inputs) @ y[:-1] + y[-1:]
        return jnp.mean(batch.weight * squared_error(outputs, batch))


@part
class Solved:
    """F_i(x) is the loss on validation rows of the head that is best on all training rows."""

    network: Network
    linear: int = 0  # how many of the features, the first ones, are the inputs themselves

    roles = ("train", "validation")

    def check(self) -> None:
        """Nothing can be wrong."""

    def draw(self, group: Group, key: jax.Array) -> UpperSample:
        """All rows, as there are no batches."""
        return group.draw_upper(key)

    def value(self, task: TaskView, x: Shared, sample: UpperSample) -> jax.Array:
        """The surrogate."""
        fixed = jax.lax.stop_gradient(x)
        A, y = self.solution(task, fixed)
        source: Any = task.train
        share = source.take(source.first(1)).share[0]  # that of all rows of the task
        upper = lambda x, y: task.upper(x | {"head": y}, (), sample.upper)  # noqa: E731
        lower = lambda x, y: task.lower(x | {"head": y}, (), sample.lower) + share * self.penalty(x, y)  # noqa: E731
        slope = jax.lax.stop_gradient(jax.grad(upper, argnums=1)(fixed, y))
        v = dense.solve_positive(A, slope[:, 0])[:, None]
        inner = jnp.vdot(jax.grad(lower, argnums=1)(x, y), v)
        return upper(x, y) - inner + jax.lax.stop_gradient(inner)

    def report(self, task: TaskView, x: Shared) -> jax.Array:
        """On all validation rows."""
        return task.upper(x | {"head": self.solution(task, x)[1]}, (), None)

    def solution(self, task: TaskView, x: Shared) -> tuple[jax.Array, jax.Array]:
        """A and y*."""
        source: Any = task.train  # rows of different tasks, each with its number of them: those beyond weigh nothing
        sample = source.block(jnp.zeros((), jnp.int32), source.longest).sample
        batch: Batch = source.take(sample.rows)
        exists = jnp.arange(source.longest) < sample.valid
        weight = jnp.where(exists, batch.weight, 0) / sample.valid.astype(batch.weight.dtype)
        features = self.network(x["network"], batch.inputs)
        features = jnp.concatenate([features, jnp.ones_like(features[:, :1])], axis=1)
        weighted = 2 * weight[:, None] * features
        zero = jnp.zeros((features.shape[1], 1), features.dtype)
        P2 = batch.share[0] * jax.hessian(lambda y: self.penalty(x, y[:, None]))(zero[:, 0])
        slope = batch.share[0] * jax.grad(lambda y: self.penalty(x, y))(zero)[:, 0]  # -2 P c
        A = weighted.T @ features + P2
        return A, dense.solve_positive(A, weighted.T @ batch.target - slope)[:, None]

    def penalty(self, x: Shared, y: jax.Array) -> jax.Array:
        """Of a head."""
        return penalty(x, y, self.linear)
