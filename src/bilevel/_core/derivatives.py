"""The derivatives of one task's losses that estimators are made of.

Notation: A = d2g/dy2 (the lower Hessian), J = d2g/dxdy; `lower` is g(x, y, sample).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from bilevel._core import pytrees
from bilevel.problem.sources import Sample

Lower = Callable[[Any, Any, Sample], jax.Array]


def hessian_product(lower: Lower, x: Any, y: Any, v: Any, sample: Sample) -> Any:
    """A v, forward over reverse: about the cost of two gradients, and no matrix."""
    return jax.jvp(lambda y: jax.grad(lower, argnums=1)(x, y, sample), (y,), (v,))[1]


def response(lower: Lower, x: Any, y: Any, move: Any, sample: Sample) -> Any:
    """J' u: how the lower gradient answers to a move u of x."""
    return jax.jvp(lambda x: jax.grad(lower, argnums=1)(x, y, sample), (x,), (move,))[1]


class Second(NamedTuple):
    """Second derivatives of g as matrices."""

    A: jax.Array  # (d_y, d_y)
    J: Any  # x with a leading axis d_y


def second(lower: Lower, x: Any, y: Any, sample: Sample) -> Second:
    """A and J, whole: d_y^2 and d_x d_y numbers."""
    flat, unravel = ravel_pytree(y)
    slope = lambda x, flat: jax.grad(lambda f: lower(x, unravel(f), sample))(flat)  # noqa: E731
    return Second(jax.jacfwd(slope, argnums=1)(x, flat), jax.jacrev(slope)(x, flat))


def stretch(lower: Lower, x: Any, y: Any, vector: Any, sample: Sample) -> tuple[jax.Array, Any]:
    """One power iteration: |A v| / |v| (0 where v is 0) and A v scaled to length 1."""
    image = hessian_product(lower, x, y, vector, sample)
    length, before = optax.tree.norm(image), optax.tree.norm(vector)
    return jnp.where(before > 0, length / jnp.where(before > 0, before, 1), 0), pytrees.unit(image)


def largest_curvature(lower: Lower, x: Any, y: Any, sample: Sample, iterations: int = 20) -> tuple[jax.Array, Any]:
    """The largest curvature of g in y by power iteration, and the direction it lies in."""
    start = pytrees.generic(y)
    norm = jnp.zeros((), optax.tree.norm(y).dtype)
    return jax.lax.fori_loop(0, iterations, lambda _, carry: stretch(lower, x, y, carry[1], sample), (norm, start))
