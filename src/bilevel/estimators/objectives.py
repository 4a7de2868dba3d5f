"""The losses of tasks that share a network, with a linear head each, as functions of (x, y, batch).

With phi the features of x and y a head with an intercept,

    f(x, y) = mean of w l(phi(p) y, t) over rows (p, t, w)
    g(x, y) = the same on training rows + s min over a of [sum_j p_j |y_j - (1 + a) c_j|^2 + q a^2]

x is the network, the logarithms of the strengths p_j and q, and the centre c of the heads. As p and q grow all tasks
have one model, c; as they fall, each has its own. A task whose labels are noisier needs the same scores, but smaller:
that is a, and costs q and not p (the intercept is not scaled). With d = y - c the minimum over a is

    sum_j p_j |d_j|^2 - <p d, c>^2 / (q + <p c, c>)

 s = N / n, with n the rows of the task and N those of a usual one: a task moves away
from the centre the more, the more rows it has. Without a centre c = 0, s = 1 and intercepts are free but for a penalty
that keeps g strongly convex.

Weights w have the mean 1 over the rows of a task, so that both are means over rows.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

INTERCEPT = 1e-6  # the penalty of an intercept that is free
LOGARITHMS = (
    -15.0,
    8.0,
)  # between which strengths stay: beyond, a head is its own, or the centre, to all digits that count


class Batch(NamedTuple):
    """Rows: arrays with one leading axis."""

    inputs: Any
    target: Any  # a number, or the number of a class among the columns of heads
    known: Any  # which columns are classes of the task; one, True, for regression
    weight: Any
    share: Any  # s


def cross_entropy(outputs: jax.Array, batch: Batch) -> jax.Array:
    """Of each row; only the classes of its task count, the others are not there."""
    return optax.softmax_cross_entropy_with_integer_labels(jnp.where(batch.known, outputs, -1e9), batch.target)


def squared_error(outputs: jax.Array, batch: Batch) -> jax.Array:
    """Of each row."""
    return (outputs[:, 0] - batch.target) ** 2


@dataclasses.dataclass(frozen=True)
class HeadLosses:
    """Both levels."""

    network: Callable[[Any, jax.Array], jax.Array]
    loss: Callable[[jax.Array, Batch], jax.Array]
    linear: int = 0  # how many of the features, the first ones, are the inputs themselves

    def upper(self, x: dict[str, Any], y: jax.Array, batch: Batch) -> jax.Array:
        """The weighted mean loss."""
        outputs = self.network(x["network"], batch.inputs) @ y[:-1] + y[-1:]
        return jnp.mean(batch.weight * self.loss(outputs, batch))

    def lower(self, x: dict[str, Any], y: jax.Array, batch: Batch) -> jax.Array:
        """The same with the penalty."""
        return self.upper(x, y, batch) + jnp.mean(batch.share) * penalty(x, y, self.linear)


@functools.cache
def head_losses(network: Callable[..., jax.Array], loss: Callable[..., jax.Array], linear: int = 0) -> HeadLosses:
    """One object for equal arguments: methods are told apart by the object they belong to, and are to compile once."""
    return HeadLosses(network, loss, linear)


def strengths(x: dict[str, Any], features: int, linear: int) -> jax.Array:
    """p, of each feature and of the intercept, and q, which comes last.

    x["penalty"] has the logarithms: of the intercept, of the scale, of the inputs among the features, and of the other
    features, one for all of them or one for each.
    """
    own = jnp.exp(jnp.clip(x["penalty"], *LOGARITHMS))
    others = jnp.broadcast_to(own[3:], features - linear)
    intercept = own[:1] if "centre" in x else jnp.full(1, INTERCEPT, own.dtype)
    return jnp.concatenate([jnp.broadcast_to(own[2], linear), others, intercept, own[1:2]])


def penalty(x: dict[str, Any], y: jax.Array, linear: int = 0) -> jax.Array:
    """Of a head: how far from the centre it is."""
    own = strengths(x, len(y) - 1, linear)
    p, q = own[:-1, None], own[-1]
    if "centre" not in x:
        return jnp.sum(p * y**2)
    away, scaled = y - x["centre"], p[:-1] * x["centre"][:-1]
    along = jnp.vdot(scaled, away[:-1]) ** 2 / (q + jnp.vdot(scaled, x["centre"][:-1]))
    return jnp.sum(p * away**2) - along
