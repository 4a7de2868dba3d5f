"""How a single-loop step moves y, and with it v: along the gradient, or along Newton's direction of a running Hessian.

    Gradient         y <- y - beta h               h ~ grad_y g_i(x, y), beta = 1 / L_i where it is chosen
    RunningHessian   y <- y - beta (A + 0.1 diag A)^-1 h          A <- A + s (A(batch) - A)

y and v follow x by their slowest direction. Along the gradient that takes as many steps as the lower problem is
ill-conditioned, and one penalty that grows makes every other direction slow; along Newton's direction it takes 1 / beta
steps, whatever the units of y. Where a step sees batches the diagonal is raised, as by Marquardt: their noise is not
blown up in directions in which the loss is all but flat. The price is d_y^2 numbers a task, and d_y products with a
batch's Hessian a step.

Reference: Marquardt, "An algorithm for least-squares estimation of nonlinear parameters", 1963.
"""

from __future__ import annotations

import abc
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from bilevel._core import dense
from bilevel._core.module import part
from bilevel._core.types import Tree
from bilevel.lower.solver import tolerance
from bilevel.problem.group import TaskView
from bilevel.problem.per_task import PerTask
from bilevel.problem.sources import Sample

RAISED = 0.1  # of the diagonal


class Move(abc.ABC):
    """Turns a gradient in y, or a residual of the linear system, into a step: for one task, inside `vmap`."""

    needs_curvature: bool = False  # whether its rate is one over the curvature L_i, which the solver then follows

    def init(self, y: Tree) -> Tree:
        """The model of a lower problem before the first step."""
        return ()

    def learn(self, task: TaskView, x: Tree, y: Tree, sample: Sample, known: Tree, moved: jax.Array) -> Tree:
        """The model after a batch; `moved` is the length of x's last step, relative to the size of x."""
        return known

    @abc.abstractmethod
    def apply(self, known: Tree, vector: Tree) -> Tree:
        """The step at rate 1, shaped as y."""


@part
class Gradient(Move):
    """The vector itself, as the papers have it: a step costs one gradient, and nothing is kept."""

    needs_curvature = True

    def apply(self, known: Tree, vector: Tree) -> Tree:
        """The vector."""
        return vector


class Running(NamedTuple):
    """Model of one lower problem."""

    A: jax.Array
    looks: jax.Array
    raised: jax.Array  # by this share of the diagonal


@part
class RunningHessian(Move):
    """(A + 0.1 diag A)^-1 times the vector, A a running mean of the batches' Hessians.

    A batch has the share s = max(1 / k, 2 m) in the mean, where k counts the looks and m is how far x went in the last
    step, relative to its size: while x rests A is the mean of all batches, and it forgets as x leaves. Where a step
    sees all rows, s = 1 and the diagonal stays as it is.
    """

    def init(self, y: Tree) -> Running:
        """No model."""
        flat, _ = ravel_pytree(y)
        zero = jnp.zeros((), flat.dtype)
        return Running(jnp.zeros((flat.size, flat.size), flat.dtype), jnp.zeros((), jnp.int32), zero)

    def learn(self, task: TaskView, x: Tree, y: Tree, sample: Sample, known: Running, moved: jax.Array) -> Running:
        """The mean with one more batch."""
        flat, unravel = ravel_pytree(y)
        own = jax.hessian(lambda flat: task.lower(x, unravel(flat), sample))(flat)
        if task.lower_batch is None:
            return known._replace(A=own)
        looks = known.looks + 1
        share = jnp.maximum(1 / looks, 2 * moved).astype(flat.dtype)
        return Running(known.A + share * (own - known.A), looks, jnp.asarray(RAISED, flat.dtype))

    def apply(self, known: Running, vector: Tree) -> Tree:
        """The step; where A is not positive definite, the vector over a bound of |A|."""
        flat, unravel = ravel_pytree(vector)
        bound = jnp.max(jnp.sum(jnp.abs(known.A), axis=1))
        bound = jnp.where(bound > 0, bound, 1)
        least = tolerance(flat.dtype) * bound
        step = dense.solve_positive(known.A + jnp.diag(known.raised * jnp.diagonal(known.A) + least), flat)
        return unravel(jnp.where(jnp.all(jnp.isfinite(step)), step, flat / bound))


def suited(y: PerTask[Tree]) -> Move:
    """`RunningHessian` where y is so small that all tasks' systems are solved at once by plain operations.

    >>> import jax.numpy as jnp
    >>> suited(PerTask((jnp.zeros((3, 8)),))), suited(PerTask((jnp.zeros((3, 100)),)))
    (RunningHessian(), Gradient())
    """
    sizes = [sum(leaf.size // leaf.shape[0] for leaf in jax.tree.leaves(group)) for group in y]
    return RunningHessian() if max(sizes) <= dense.SMALL else Gradient()
