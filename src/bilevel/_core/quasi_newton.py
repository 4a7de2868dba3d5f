"""A limited-memory quasi-Newton matrix: what the last moves tell about the curvature of a function.

H ~ (second derivatives)^-1 is kept as the last moves s and the changes u of the slope along them, and applied by the
two-loop recursion. It stays positive where the function bends down: there u is replaced by a mixture with H^-1 s, the
change that was expected (Powell's damping). A step s = -t H g has it for nothing: it is -t g.

`optax.lbfgs` has the recursion inside of an optimiser of one function with its own line search; a minimax step needs H
itself, applied to the slopes of several tasks.

References: Nocedal, "Updating quasi-Newton matrices with limited storage", 1980; Powell, "Algorithms for nonlinear
constraints that use Lagrangian functions", 1978.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import jax
import jax.numpy as jnp

DAMPED = 0.2  # of the expected curvature, what a pair must show at least


class Curvature(NamedTuple):
    """The last moves, oldest first; a pair that is not there yet is zero."""

    moves: jax.Array  # s, (memory, d)
    changes: jax.Array  # u, (memory, d)
    scale: jax.Array  # H without pairs

    @classmethod
    def unknown(cls, size: int, memory: int, scale: jax.Array) -> Self:
        """No pairs yet."""
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
        """The same with one pair more; a move of nothing adds none.

        Args:
            move: s.
            change: u, of the slope along it.
            expected: H^-1 s, with which a change that shows too little curvature is mixed.
            rescale: whether its curvature becomes that of directions of which no pair tells.
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
