"""`Hypergradient`, the base of estimators, and the implicit surrogate that most of them share."""

from __future__ import annotations

import abc
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax

from bilevel._core.linear import hessian_product
from bilevel._core.types import Tree
from bilevel.problem.group import TaskView, UpperSample

V = TypeVar("V")


class Hypergradient(abc.ABC):
    """Estimates grad l_i(x) for one task at a time: inside `vmap`, and knowing nothing of other tasks.

    To write one, make a part (`bl.part`) that inherits this and has a `surrogate`; where something is carried from step
    to step (a warm start, a tracked v), also `init` and `prepare`. `bl.testing.check_hypergradient` runs
    the checks that ours must pass.
    """

    needs_curvature: bool = False  # whether it needs `task.curvature`
    needs_replay: bool = False  # whether it needs `task.replay`

    # What `bl.testing.check_hypergradient` allows for, on a quadratic of condition 2 with f_yy = 1, once the
    # estimate has settled: its bias relative to the gradient, and the error of its value relative to f_i.
    gradient_error: float = 0.0
    value_error: float = 0.0

    def check(self) -> None:  # noqa: B027  (most have nothing to refuse)
        """Raises where an argument makes no sense."""

    def init(self, task: TaskView, x: Tree, y: Tree, sample: UpperSample) -> Tree:
        """The first state of the estimator; for most, empty."""
        return ()

    def prepare(self, task: TaskView, x: Tree, y: Tree, state: Tree, sample: UpperSample) -> Tree:
        """Moves what is carried; no gradient flows through this."""
        return state

    @abc.abstractmethod
    def surrogate(self, task: TaskView, x: Tree, y: Tree, state: Tree, sample: UpperSample) -> jax.Array:
        """A scalar whose gradient in x is the estimate, with what `prepare` returned.

        Its value is f_i(x, y), which drives the weights; `Penalty` alone has another one, the penalised loss.
        """


class LinearSolution(NamedTuple):
    """v ~ A^-1 f_y."""

    v: Tree


class Implicit(Hypergradient):
    """The base of estimators of v ~ A^-1 f_y; their state has a field `v`."""

    def surrogate(self, task: TaskView, x: Tree, y: Tree, state: Tree, sample: UpperSample) -> jax.Array:
        """f(x, y) - <grad_y g(x, y), v>, with the value of its second term taken out again."""
        return implicit(task, x, y, state.v, sample)


def implicit(task: TaskView, x: Tree, y: Tree, v: Tree, sample: UpperSample) -> jax.Array:
    """The surrogate of value f and gradient f_x - J v."""
    # <grad_y g, v> as a forward derivative: the reverse pass over x then runs once, through g itself.
    _, slope = jax.jvp(lambda y: task.lower(x, y, sample.lower), (y,), (v,))
    return task.upper(x, y, sample.upper) - (slope - jax.lax.stop_gradient(slope))


def upper_gradient(task: TaskView, x: Tree, y: Tree, sample: UpperSample) -> Tree:
    """f_y, the right-hand side of A v = f_y."""
    return jax.grad(task.upper, argnums=1)(x, y, sample.upper)


def residual(task: TaskView, x: Tree, y: Tree, v: Tree, sample: UpperSample) -> Tree:
    """f_y - A v, both on the sample."""
    return optax.tree.sub(upper_gradient(task, x, y, sample), hessian_product(task.lower, x, y, v, sample.lower))


def step_towards(v: V, residual: V, lr: jax.Array | float, keep: jax.Array | float = 1.0) -> V:
    """v <- keep v + lr (f_y - A v): one step on the linear system A v = f_y, whose residual is given."""
    return jax.tree.map(lambda v, r: (keep * v + lr * r).astype(v.dtype), v, residual)


def rate_from(curvature: jax.Array) -> jax.Array:
    """1 / L; 1 where the curvature is not positive."""
    return 1 / jnp.where(curvature > 0, curvature, 1)
