"""The losses of tasks that share a network, with a linear head each, as functions of (x, y, batch).

With phi the features of x and y a head with an intercept,

    f(x, y) = mean of w l(phi(p) y, t) over rows (p, t, w)
    g(x, y) = the same on training rows + s min over a of [sum_j p_j |y_j - (1 + a) c_j|^2 + q a^2]

x holds the network, the logarithms of the strengths p_j and q, and the centre c of the heads. With large p and q all
tasks have one model, c; with small ones, each task has its own. A task with noisier labels needs the same scores on a
smaller scale. This is what a does: it costs q, not p, and does not scale the intercept. With d = y - c the minimum over
a is

    sum_j p_j |d_j|^2 - <p d, c>^2 / (q + <p c, c>)

s = N / n, with n the rows of the task and N those of a usual task: the more rows a task has, the further its head moves
from the centre. Without a centre c = 0, s = 1, and intercepts have only the small penalty that keeps g strongly convex.

Weights w have the mean 1 over the rows of a task, so that both are means over rows.

`SolvedHeads` is least squares with heads in closed form: every step solves the lower level. With Phi the features of
the training rows and a column of ones, t their targets, w their weights and P the penalties,

    y*(x) = argmin_y g(x, y) = (Phi' diag(w) Phi / n + P)^-1 (Phi' diag(w) t / n + P c)
    F(x)  = f(x, y*(x)),       grad F = f_x - J v,       v = A^-1 f_y(x, y*),      A the Hessian of g in y

Like every hypergradient of this library, it is a surrogate whose value is f and whose gradient is that of F:

    s(x) = f(x, y*) - <grad_y g(x, y*), v>,              y* and v held fixed
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bilevel._core import dense
from bilevel._core.module import part
from bilevel.problem.group import Group, TaskView, UpperSample

INTERCEPT = 1e-6  # the penalty of an intercept that is free
# Bounds of the logarithms of strengths. Beyond them a head does not depend on the centre, or equals it, to all digits.
LOGARITHMS = (-15.0, 8.0)

Network = Callable[[Any, jax.Array], jax.Array]
# x: network, penalty, perhaps centre, and for `SolvedHeads` a head of which only the shape counts.
X = dict[str, Any]


class Batch(NamedTuple):
    """Rows: arrays with one leading axis."""

    inputs: Any
    target: Any  # a number, or the number of a class among the columns of heads
    known: Any  # which columns are classes of the task; for regression a single True
    weight: Any
    share: Any  # s


def cross_entropy(outputs: jax.Array, batch: Batch) -> jax.Array:
    """The loss of each row, over the classes of its task only."""
    return optax.softmax_cross_entropy_with_integer_labels(jnp.where(batch.known, outputs, -1e9), batch.target)


def squared_error(outputs: jax.Array, batch: Batch) -> jax.Array:
    """The loss of each row."""
    return (outputs[:, 0] - batch.target) ** 2


@dataclasses.dataclass(frozen=True)
class HeadLosses:
    """The losses of both levels, f and g."""

    network: Network
    loss: Callable[[jax.Array, Batch], jax.Array]
    linear: int = 0  # how many of the features, the first ones, are the inputs themselves

    def upper(self, x: X, y: jax.Array, batch: Batch) -> jax.Array:
        """f: the weighted mean loss."""
        outputs = self.network(x["network"], batch.inputs) @ y[:-1] + y[-1:]
        return jnp.mean(batch.weight * self.loss(outputs, batch))

    def lower(self, x: X, y: jax.Array, batch: Batch) -> jax.Array:
        """g: the same with the penalty."""
        return self.upper(x, y, batch) + jnp.mean(batch.share) * penalty(x, y, self.linear)


@functools.cache
def head_losses(network: Network, loss: Callable[..., jax.Array], linear: int = 0) -> HeadLosses:
    """One object for equal arguments. A compiled program is found by the object, so equal losses compile once."""
    return HeadLosses(network, loss, linear)


def strengths(x: X, features: int, linear: int) -> jax.Array:
    """The strengths p of each feature and of the intercept, and then q.

    x["penalty"] holds logarithms: of the intercept, of q, of the inputs among the features, and of the other features,
    one for all of them or one for each.
    """
    own = jnp.exp(jnp.clip(x["penalty"], *LOGARITHMS))
    others = jnp.broadcast_to(own[3:], features - linear)
    intercept = own[:1] if "centre" in x else jnp.full(1, INTERCEPT, own.dtype)
    return jnp.concatenate([jnp.broadcast_to(own[2], linear), others, intercept, own[1:2]])


def penalty(x: X, y: jax.Array, linear: int = 0) -> jax.Array:
    """The penalty of a head: how far it is from the centre."""
    own = strengths(x, len(y) - 1, linear)
    p, q = own[:-1, None], own[-1]
    if "centre" not in x:
        return jnp.sum(p * y**2)
    away, scaled = y - x["centre"], p[:-1] * x["centre"][:-1]
    along = jnp.vdot(scaled, away[:-1]) ** 2 / (q + jnp.vdot(scaled, x["centre"][:-1]))
    return jnp.sum(p * away**2) - along


@dataclasses.dataclass(frozen=True)
class SquaredLoss:
    """loss(x, batch) with the head in x, as a value: equal ones compile once."""

    network: Network

    def __call__(self, x: X, batch: Batch) -> jax.Array:
        """The weighted mean loss."""
        return HeadLosses(self.network, squared_error).upper(x, x["head"], batch)


@part
class SolvedHeads:
    """F_i(x), the loss on validation rows of the head that solves the lower level on all training rows."""

    network: Network
    linear: int = 0  # how many of the features, the first ones, are the inputs themselves

    roles = ("train", "validation")

    def check(self) -> None:
        """Nothing can be wrong."""

    def draw(self, group: Group, key: jax.Array) -> UpperSample:
        """Draws all rows: there are no batches."""
        return group.draw_upper(key)

    def value(self, task: TaskView, x: X, sample: UpperSample) -> jax.Array:
        """The surrogate."""
        fixed = jax.lax.stop_gradient(x)
        A, y = self.solution(task, fixed)
        source: Any = task.train
        share = source.take(source.first(1)).share[0]  # the same for all rows of the task
        upper = lambda x, y: task.upper(x | {"head": y}, (), sample.upper)  # noqa: E731
        lower = lambda x, y: task.lower(x | {"head": y}, (), sample.lower) + share * penalty(x, y, self.linear)  # noqa: E731
        slope = jax.lax.stop_gradient(jax.grad(upper, argnums=1)(fixed, y))
        v = dense.solve_positive(A, slope[:, 0])[:, None]
        inner = jnp.vdot(jax.grad(lower, argnums=1)(x, y), v)
        return upper(x, y) - inner + jax.lax.stop_gradient(inner)

    def report(self, task: TaskView, x: X) -> jax.Array:
        """The loss on all validation rows."""
        return task.upper(x | {"head": self.solution(task, x)[1]}, (), None)

    def solution(self, task: TaskView, x: X) -> tuple[jax.Array, jax.Array]:
        """A and y*."""
        source: Any = task.train  # tasks have different numbers of rows; those beyond a task's own weigh nothing
        sample = source.block(jnp.zeros((), jnp.int32), source.longest).sample
        batch: Batch = source.take(sample.rows)
        exists = jnp.arange(source.longest) < sample.valid
        weight = jnp.where(exists, batch.weight, 0) / sample.valid.astype(batch.weight.dtype)
        features = self.network(x["network"], batch.inputs)
        features = jnp.concatenate([features, jnp.ones_like(features[:, :1])], axis=1)
        weighted = 2 * weight[:, None] * features
        zero = jnp.zeros((features.shape[1], 1), features.dtype)
        P2 = batch.share[0] * jax.hessian(lambda y: penalty(x, y[:, None], self.linear))(zero[:, 0])
        slope = batch.share[0] * jax.grad(lambda y: penalty(x, y, self.linear))(zero)[:, 0]  # -2 P c
        A = weighted.T @ features + P2
        return A, dense.solve_positive(A, weighted.T @ batch.target - slope)[:, None]
