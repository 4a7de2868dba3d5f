"""Linear algebra on pytrees, by products alone: power iteration and conjugate gradients.

`jax.scipy.sparse.linalg.cg` fails under two `vmap`s where y has several leaves (it moves them to the device in one
operation that wants them batched along one axis). Nothing here is differentiated through a solve, so that what
lineax adds (derivatives of solves, many solvers) is not needed, and its import is saved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax

from bilevel._core import pytrees

V = TypeVar("V")


class Stretch(NamedTuple, Generic[V]):
    """By how much a linear map stretches a vector, and the image, scaled to length 1."""

    value: jax.Array
    vector: V


def stretch(product: Callable[[V], V], vector: V) -> Stretch[V]:
    """One power iteration: |A v| / |v| (0 where v is 0) and A v scaled to length 1."""
    image = product(vector)
    length, before = optax.tree.norm(image), optax.tree.norm(vector)
    return Stretch(jnp.where(before > 0, length / jnp.where(before > 0, before, 1), 0), pytrees.unit(image))


def power_iteration(product: Callable[[V], V], start: V, iterations: int | jax.Array) -> Stretch[V]:
    """The largest stretch of a symmetric map, from below, and the direction it lies in."""
    first = Stretch(jnp.zeros((), optax.tree.norm(start).dtype), start)
    return jax.lax.fori_loop(0, iterations, lambda _, found: stretch(product, found.vector), first)


def conjugate_gradient(
    product: Callable[[V], V], right: V, start: V | None, iterations: int, tolerance: float | jax.Array
) -> V:
    """v with |A v - right| <= tolerance |right|, or after `iterations` products; A symmetric and positive definite.

    It starts from `start`; None = zero, which saves a product.
    """

    def square(v: V) -> jax.Array:
        return optax.tree.norm(v, squared=True)

    def move(a: V, scale: jax.Array, b: V) -> V:
        return jax.tree.map(lambda a, b: a + (scale * b).astype(a.dtype), a, b)

    def unfinished(carry: tuple) -> jax.Array:
        *_, rest, count = carry
        return (rest > enough) & (count < iterations)

    def step(carry: tuple) -> tuple:
        v, residual, along, rest, count = carry
        image = product(along)
        length = rest / optax.tree.vdot(along, image)
        residual = move(residual, -length, image)
        new = square(residual)
        return move(v, length, along), residual, move(residual, new / rest, along), new, count + 1

    enough = jnp.square(tolerance) * square(right)
    residual = right if start is None else optax.tree.sub(right, product(start))
    v = optax.tree.zeros_like(right) if start is None else start
    first = (v, residual, residual, square(residual), jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(unfinished, step, first)[0]
