"""Linear algebra on pytrees by products alone, second derivatives of a task's losses, and a quasi-Newton matrix.

`jax.scipy.sparse.linalg.cg` fails under two `vmap`s where y has several leaves (it moves them to the device in one
operation that wants them batched along one axis). Nothing here is differentiated through a solve, so that what
lineax adds (derivatives of solves, many solvers) is not needed, and its import is saved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from bilevel._core import pytrees
from bilevel._core.types import Tree

V = TypeVar("V")
X = TypeVar("X")
Y = TypeVar("Y")
Lower = Callable[[Tree, Y, Tree], jax.Array]  # g, a function of (x, y, sample)

DAMPED = 0.2  # share of the expected curvature that a pair must show at least


# ------------------------------------------------------------------ power iteration and conjugate gradients


class Stretch(NamedTuple, Generic[V]):
    """The factor by which a linear map stretches a vector, and the image scaled to length 1."""

    value: jax.Array
    vector: V


def stretch(product: Callable[[V], V], vector: V) -> Stretch[V]:
    """One power iteration: |A v| / |v| (0 where v is 0) and A v scaled to length 1."""
    image = product(vector)
    length, before = optax.tree.norm(image), optax.tree.norm(vector)
    return Stretch(jnp.where(before > 0, length / jnp.where(before > 0, before, 1), 0), pytrees.unit(image))


def power_iteration(product: Callable[[V], V], start: V, iterations: int | jax.Array) -> Stretch[V]:
    """The largest stretch of a symmetric map, approached from below, and its direction."""
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


# ------------------------------------------------------------------ derivatives
# Notation: A = d2g/dy2 (the lower Hessian), J = d2g/dxdy.


def hessian_product(lower: Lower[Y], x: object, y: Y, v: Y, sample: object) -> Y:
    """A v, forward over reverse: about the cost of two gradients, and no matrix."""
    return jax.jvp(lambda y: jax.grad(lower, argnums=1)(x, y, sample), (y,), (v,))[1]


def response(lower: Lower[Y], x: X, y: Y, move: X, sample: object) -> Y:
    """J' u: how the lower gradient changes when x moves by u."""
    return jax.jvp(lambda x: jax.grad(lower, argnums=1)(x, y, sample), (x,), (move,))[1]


class Second(NamedTuple):
    """Second derivatives of g as matrices."""

    A: jax.Array  # (d_y, d_y)
    J: Tree  # x with a leading axis d_y


def second(lower: Lower[Y], x: object, y: Y, sample: object) -> Second:
    """A and J as whole matrices: d_y^2 and d_x d_y numbers."""
    flat, unravel = ravel_pytree(y)
    slope = lambda x, flat: jax.grad(lambda f: lower(x, unravel(f), sample))(flat)  # noqa: E731
    return Second(jax.jacfwd(slope, argnums=1)(x, flat), jax.jacrev(slope)(x, flat))


def largest_curvature(lower: Lower[Y], x: object, y: Y, sample: object, iterations: int = 20) -> Stretch[Y]:
    """The largest curvature of g in y by power iteration, and its direction."""
    return power_iteration(lambda v: hessian_product(lower, x, y, v, sample), pytrees.generic(y), iterations)


# ------------------------------------------------------------------ a limited-memory quasi-Newton matrix


class Curvature(NamedTuple):
    """What the last moves tell about the curvature of a function: H ~ (second derivatives)^-1.

    H is kept as the last moves s and the changes u of the slope along them, oldest first (pairs that do not exist yet
    are zero), and applied by the two-loop recursion. It stays positive where the function bends down: there u is
    replaced by a mixture with H^-1 s, the change that was expected (Powell's damping). For a step s = -t H g that
    change is -t g and costs nothing.

    `optax.lbfgs` has the recursion inside an optimiser of one function with its own line search; a minimax step needs H
    itself, applied to the slopes of several tasks.

    References: Nocedal, "Updating quasi-Newton matrices with limited storage", 1980; Powell, "Algorithms for nonlinear
    constraints that use Lagrangian functions", 1978.
    """

    moves: jax.Array  # s, (memory, d)
    changes: jax.Array  # u, (memory, d)
    scale: jax.Array  # H without pairs

    @classmethod
    def unknown(cls, size: int, memory: int, scale: jax.Array) -> Self:
        """H without pairs."""
        nothing = jnp.zeros((memory, size), scale.dtype)
        return cls(nothing, nothing, scale)

    def apply(self, vector: jax.Array) -> jax.Array:
        """H vector."""
        bends = jnp.sum(self.moves * self.changes, axis=1)
        inverse = jnp.where(bends > 0, 1 / jnp.where(bends > 0, bends, 1), 0)

        def forth(vector: jax.Array, pair: tuple) -> tuple[jax.Array, jax.Array]:
            s, u, inverse = pair
            share = inverse * jnp.vdot(s, vector)
            return vector - share * u, share

        def back(vector: jax.Array, pair: tuple) -> tuple[jax.Array, None]:
            s, u, inverse, share = pair
            return vector + (share - inverse * jnp.vdot(u, vector)) * s, None

        pairs = (self.moves, self.changes, inverse)
        vector, shares = jax.lax.scan(forth, vector, pairs, reverse=True)
        return jax.lax.scan(back, self.scale * vector, (*pairs, shares))[0]

    def learn(self, move: jax.Array, change: jax.Array, expected: jax.Array, rescale: bool = True) -> Curvature:
        """H with one more pair; a move of length 0 adds none.

        Args:
            move: s.
            change: u, the change of the slope along it.
            expected: H^-1 s, which is mixed in if the change shows too little curvature.
            rescale: whether this curvature becomes that of directions about which no pair tells.
        """
        usual, seen = jnp.vdot(move, expected), jnp.vdot(move, change)
        weak = seen < DAMPED * usual
        share = jnp.where(weak, (1 - DAMPED) * usual / jnp.where(weak, usual - seen, 1), 1)
        change = share * change + (1 - share) * expected
        bend, size = jnp.vdot(move, change), jnp.vdot(change, change)
        good = (bend > 0) & jnp.isfinite(size) & (size > 0)
        more = Curvature(
            jnp.roll(self.moves, -1, axis=0).at[-1].set(move),
            jnp.roll(self.changes, -1, axis=0).at[-1].set(change),
            bend / jnp.where(good, size, 1) if rescale else self.scale,
        )
        return jax.tree.map(lambda new, old: jnp.where(good, new, old), more, self)
