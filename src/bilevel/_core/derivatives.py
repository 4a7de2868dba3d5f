"""The derivatives of one task's losses that estimators are made of.

Notation: A = d2g/dy2 (the lower Hessian), J = d2g/dxdy; `lower` is g(x, y, sample).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
from jax.flatten_util import ravel_pytree

from bilevel._core import linear, pytrees

X = TypeVar("X")
Y = TypeVar("Y")
Lower = Callable[[Any, Y, Any], jax.Array]  # of (x, y, sample)


def hessian_product(lower: Lower[Y], x: object, y: Y, v: Y, sample: object) -> Y:
    """A v, forward over reverse: about the cost of two gradients, and no matrix."""
    return jax.jvp(lambda y: jax.grad(lower, argnums=1)(x, y, sample), (y,), (v,))[1]


def response(lower: Lower[Y], x: X, y: Y, move: X, sample: object) -> Y:
    """J' u: how the lower gradient changes when x moves by u."""
    return jax.jvp(lambda x: jax.grad(lower, argnums=1)(x, y, sample), (x,), (move,))[1]


class Second(NamedTuple):
    """Second derivatives of g as matrices."""

    A: jax.Array  # (d_y, d_y)
    J: Any  # x with a leading axis d_y


def second(lower: Lower[Y], x: object, y: Y, sample: object) -> Second:
    """A and J, whole: d_y^2 and d_x d_y numbers."""
    flat, unravel = ravel_pytree(y)
    slope = lambda x, flat: jax.grad(lambda f: lower(x, unravel(f), sample))(flat)  # noqa: E731
    return Second(jax.jacfwd(slope, argnums=1)(x, flat), jax.jacrev(slope)(x, flat))


def largest_curvature(lower: Lower[Y], x: object, y: Y, sample: object, iterations: int = 20) -> linear.Stretch[Y]:
    """The largest curvature of g in y by power iteration, and the direction it lies in."""
    return linear.power_iteration(lambda v: hessian_product(lower, x, y, v, sample), pytrees.generic(y), iterations)
