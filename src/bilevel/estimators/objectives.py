"""The losses of tasks that share a network, with a linear head each, as functions of (x, y, batch).

With phi the features of x and y a head with an intercept,

    f(x, y) = mean of w l(phi(p) y, t) over rows (p, t, w)
    g(x, y) = the same on training rows + sum_j exp(r_j) |y_j|^2

x is the network and the logarithms r of the penalties: one for all features, or one for each. Weights w have the mean 1
over the rows of a task, so that both are means over rows. The intercept has a penalty that keeps g strongly convex and
is too small to matter.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

INTERCEPT = 1e-6  # the penalty of an intercept


class Batch(NamedTuple):
    """Rows: arrays with one leading axis."""

    inputs: Any
    target: Any  # a number, or the class's number among those of its task
    classes: Any  # how many classes the task has; 1 for regression
    weight: Any


def cross_entropy(outputs: jax.Array, batch: Batch) -> jax.Array:
    """Of each row; only the classes of its task count, the others are padding."""
    known = jnp.arange(outputs.shape[1])[None] < batch.classes[:, None]
    return optax.softmax_cross_entropy_with_integer_labels(jnp.where(known, outputs, -1e9), batch.target)


def squared_error(outputs: jax.Array, batch: Batch) -> jax.Array:
    """Of each row."""
    return (outputs[:, 0] - batch.target) ** 2


@dataclasses.dataclass(frozen=True)
class HeadLosses:
    """Both levels."""

    network: Callable[[Any, jax.Array], jax.Array]
    loss: Callable[[jax.Array, Batch], jax.Array]

    def upper(self, x: dict[str, Any], y: jax.Array, batch: Batch) -> jax.Array:
        """The weighted mean loss."""
        outputs = self.network(x["network"], batch.inputs) @ y[:-1] + y[-1:]
        return jnp.mean(batch.weight * self.loss(outputs, batch))

    def lower(self, x: dict[str, Any], y: jax.Array, batch: Batch) -> jax.Array:
        """The same with the penalty."""
        return self.upper(x, y, batch) + penalty(x, y)


@functools.cache
def head_losses(network: Callable[..., jax.Array], loss: Callable[..., jax.Array]) -> HeadLosses:
    """One object for equal arguments: methods are told apart by the object they belong to, and are to compile once."""
    return HeadLosses(network, loss)


def penalty(x: dict[str, Any], y: jax.Array) -> jax.Array:
    """Of a head."""
    return jnp.sum(jnp.exp(x["penalty"])[:, None] * y[:-1] ** 2) + INTERCEPT * jnp.sum(y[-1] ** 2)
