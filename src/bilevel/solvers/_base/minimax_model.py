"""The objective with linear losses, and the moves of x that minimise it with a quadratic term.

With scores s (what the tasks are compared by), slopes G of theirs in x, and W the set of weights,

    m(d) = max over w in W of  <w, s + G d> - pull |w - 1/m|^2

The minimum of m(d) + d' B d / 2 is found through its dual, a quadratic program in w whose solution is the weights. With
B a number and x + d in X it is Nesterov's composite minimax step (Introductory Lectures on Convex Optimization, 2004,
2.3); its dual then has the projection inside, and is solved by Newton's method: a quadratic program for each face of X.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from bilevel._core.linear import Curvature
from bilevel._core.simplex_program import Bounds, maximise, respond
from bilevel._core.types import Tree
from bilevel.weightings.base import Weighting

CANDIDATES = 64  # scores whose weights the program chooses; the others keep those of d = 0
FACES = 20  # of X that a composite step looks at, at most
SLACK, ROUNDS = 1.5, 11  # a move may be so much longer; H is made smaller so often
TURN = 5  # tries after which x goes along the composite step

Map = Callable[[jax.Array], jax.Array]


class Move(NamedTuple):
    """Weights, and what x does with them."""

    weights: jax.Array  # of the scores
    slope: jax.Array  # g = sum_j w_j G_j
    d: jax.Array


class Model(NamedTuple):
    """The objective with linear losses around a point."""

    scores: jax.Array
    slopes: jax.Array
    bounds: Bounds
    pull: jax.Array
    value: jax.Array  # at d = 0
    best: jax.Array  # the weights there

    @classmethod
    def of(cls, by: Weighting, state: Tree, losses: jax.Array, slopes: jax.Array) -> Model:
        """The model of a weighting at these losses."""
        scores, bounds = by.scores(losses, state), by.bounds(losses.shape[0], losses.dtype)
        return cls._at(scores, slopes, bounds, jnp.asarray(by.pull, losses.dtype))

    @classmethod
    def _at(cls, scores: jax.Array, slopes: jax.Array, bounds: Bounds, pull: jax.Array) -> Model:
        weights, value = respond(scores, bounds, pull)
        return cls(scores, slopes, bounds, pull, value, weights)

    def along(self, d: jax.Array) -> jax.Array:
        """m(d)."""
        return respond(self.scores + self.slopes @ d, self.bounds, self.pull).value

    def moved(self, d: jax.Array) -> Model:
        """The model around x + d."""
        return self._at(self.scores + self.slopes @ d, self.slopes, self.bounds, self.pull)

    def pulled(self, strength: jax.Array) -> Model:
        """The model with a stronger pull towards uniform weights: smoother, and nearer to the mean."""
        return self._at(self.scores, self.slopes, self.bounds, self.pull + strength)

    def at(self, weights: jax.Array) -> jax.Array:
        """The objective of these weights at d = 0."""
        return jnp.vdot(weights, self.scores) - self.pull * jnp.sum((weights - 1 / len(weights)) ** 2)

    def newton(self, apply: Map) -> Move:
        """argmin over d of m(d) + d' H^-1 d / 2, where `apply` is H."""
        weights = self._program(apply, self.scores)
        slope = weights @ self.slopes
        return Move(weights, slope, -apply(slope))

    def composite(self, x: jax.Array, project: Map, scale: jax.Array) -> tuple[Move, Map]:
        """argmin over d of m(d) + |d|^2 / (2 scale) with x + d in X; and the directions of X where it ends.

        With u(w) = proj(x - scale g), the dual's gradient is s + G (u(w) - x), and its second derivative -scale G T G',
        T the derivative of the projection. So each round is a quadratic program on the face where the last one ended;
        its step is halved where the dual would fall.
        """

        def end(weights: jax.Array) -> tuple[jax.Array, jax.Array]:
            aim = x - scale * (weights @ self.slopes)
            return aim, project(aim) - x

        def dual(weights: jax.Array) -> jax.Array:
            _, d = end(weights)
            return self.at(weights) + jnp.vdot(weights @ self.slopes, d) + jnp.vdot(d, d) / (2 * scale)

        def one(carry: tuple) -> tuple:
            weights, value, number, _ = carry
            aim, d = end(weights)
            tangent = lambda vector: scale * jax.jvp(project, (aim,), (vector,))[1]  # noqa: E731
            # Linear in w around these weights: the scores at d, less what the quadratic term takes from them.
            scores = self.scores + self.slopes @ d + self.slopes @ tangent(weights @ self.slopes)
            aimed = self._program(tangent, scores)

            def halve(inner: tuple) -> tuple:
                t, _, _ = inner
                new = weights + t / 2 * (aimed - weights)
                return t / 2, new, dual(new)

            first = (jnp.ones_like(value), aimed, dual(aimed))
            rounding = 10 * jnp.finfo(value.dtype).eps * jnp.abs(value)
            low = lambda inner: (inner[2] < value - rounding) & (inner[0] > 1e-3)  # noqa: E731
            _, new, reached = jax.lax.while_loop(low, halve, first)
            better = reached > value + rounding
            moved = jax.tree.map(lambda a, b: jnp.where(reached >= value - rounding, a, b), new, weights)
            return moved, jnp.maximum(reached, value), number + 1, better

        start = (self.best, dual(self.best), jnp.zeros((), jnp.int32), jnp.array(True))
        weights, *_ = jax.lax.while_loop(lambda carry: carry[3] & (carry[2] < FACES), one, start)
        aim, d = end(weights)
        return Move(weights, weights @ self.slopes, d), lambda vector: jax.jvp(project, (aim,), (vector,))[1]

    def _program(self, apply: Map, scores: jax.Array) -> jax.Array:
        """argmax over w of <w, scores> - pull |w - 1/m|^2 - g' H g / 2."""
        m = len(scores)
        count = min(m, CANDIDATES)
        # The scores nearest to the least one that has weight: of min-max, the largest ones.
        least = jnp.min(jnp.where(self.best > self.bounds.low, self.scores, jnp.inf))
        _, chosen = jax.lax.top_k(-jnp.abs(self.scores - least), count)
        others = self.best.at[chosen].set(0)
        slopes, bounds = self.slopes[chosen], Bounds(self.bounds.low[chosen], self.bounds.high[chosen])
        images = jax.vmap(apply)(slopes)
        K = images @ slopes.T
        K = (K + K.T) / 2 + 2 * self.pull * jnp.eye(count, dtype=K.dtype)
        own = scores[chosen] + 2 * self.pull / m - images @ (others @ self.slopes)
        return others.at[chosen].set(maximise(K, own, bounds, 1 - jnp.sum(others)))


class Ways(NamedTuple):
    """The allowed moves of x."""

    weights: jax.Array  # w
    slope: jax.Array  # g
    d: jax.Array
    composite: jax.Array | None  # Nesterov's step, which surely leads down; None = d does

    def candidate(self, x: jax.Array, project: Map, number: jax.Array) -> jax.Array:
        """The point of a try: halvings of d, and of the composite step after some."""
        length = jnp.exp2(-number.astype(x.dtype))
        if self.composite is None:
            return x + length * self.d
        short = x + length * 2**TURN * self.composite
        return jnp.where(number < TURN, project(x + length * self.d), short)


def ways_within(model: Model, x: jax.Array, known: Curvature, project: Map | None, most: jax.Array) -> Ways:
    """(2) and (3), with H as much smaller as it must be for a move of at most `most`.

    A step that is cut off afterwards would have weights for a longer one, at the end of which other tasks may be the
    worst. Where x is constrained, x goes along the face of X that a composite step leads to.
    """

    def move(factor: jax.Array) -> Ways:
        apply = lambda vector: factor * known.apply(vector)  # noqa: E731
        if project is None:
            return Ways(*model.newton(apply), None)
        composite, tangent = model.composite(x, project, factor * known.scale)
        onto = composite.d - tangent(composite.d)
        along = model.moved(onto).newton(lambda vector: tangent(apply(tangent(vector))))
        return Ways(composite.weights, composite.slope, onto + along.d, composite.d)

    def too_long(carry: tuple[jax.Array, jax.Array, Ways]) -> jax.Array:
        number, _, ways = carry
        return (number == 0) | ((jnp.linalg.norm(ways.d) > SLACK * most) & (number < ROUNDS))

    def shorter(carry: tuple[jax.Array, jax.Array, Ways]) -> tuple[jax.Array, jax.Array, Ways]:
        number, factor, ways = carry
        factor = jnp.where(number == 0, factor, factor * most / jnp.linalg.norm(ways.d))
        return number + 1, factor, move(factor)

    # The first move is made inside of the loop, so that its quadratic program is compiled once.
    nothing = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(move, jnp.ones_like(most)))
    return jax.lax.while_loop(too_long, shorter, (jnp.zeros((), jnp.int32), jnp.ones_like(most), nothing))[2]
