"""Tasks from a mixture of the weights and the uniform distribution: the heavy ones often, every one sometimes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bilevel._core import values
from bilevel._core.module import leaf, part
from bilevel.sampling.base import Draw, Sampling

MARGIN = 1e-5  # of the ticks, left over for what rounding takes


class Urn(NamedTuple):
    """Every task of a group as an interval of whole numbers (ticks), one after the other in a random order.

    Whole numbers: the running sum of a million shares in float32 would be wrong by a tenth of a share.
    """

    order: jax.Array
    end: jax.Array  # of the intervals, in the random order

    @classmethod
    def of(cls, share: jax.Array, count: int, order: jax.Array) -> Urn:
        """The urn for wanted shares, of sum `count`; those that it really has are the lengths of its intervals."""
        spacing = float(ticks(count))
        length = jnp.maximum((share[order] * (spacing * (1 - MARGIN))).astype(jnp.uint32), 1)
        left = jnp.uint32(count * ticks(count)) - jnp.sum(length, dtype=jnp.uint32)
        each, more = jnp.divmod(left, jnp.uint32(len(share)))
        length = length + each + (jnp.arange(len(share), dtype=jnp.uint32) < more)
        # In any order, as whole numbers are exact: a third of the time of jnp.cumsum on a CPU.
        return cls(order, jax.lax.associative_scan(jnp.add, length))

    def at(self, first: jax.Array, count: int, dtype: Any) -> Draw:
        """The tasks at tick `first` and every `ticks(count)` from there."""
        points = first + jnp.arange(count, dtype=jnp.uint32) * jnp.uint32(ticks(count))
        i = jnp.searchsorted(self.end, points, side="right", method="scan_unrolled")
        begin = jnp.where(i > 0, self.end[jnp.maximum(i, 1) - 1], 0)
        return Draw(self.order[i], (self.end[i] - begin).astype(dtype) / float(ticks(count)))


def ticks(count: int) -> int:
    """How many ticks lie between neighbouring points of a draw: a power of 2, so that random bits are uniform in it.

    >>> ticks(3) == 2**30, ticks(64) == 2**25
    (True, True)
    """
    return 1 << (((2**32 - 1) // count).bit_length() - 1)


@part
class Mixture(Sampling):
    """`tasks` tasks in every step, task i with a probability proportional to (1 - uniform) weights_i + uniform / n.

    Probabilities above 1 are 1, and the others the larger for it. Heavy tasks are seen in almost every step, and the
    weighted direction has little variance; every task is still seen again after about n / (uniform m) steps, so that
    one whose loss has grown is found. Drawn systematically: a random point on a line of the tasks, each as long as its
    probability, and from there on every point at a distance of 1. No task is drawn twice, and the cost is m log n.

    Args:
        tasks: m.
        uniform: the part that does not look at the weights, in (0, 1].

    >>> import bilevel as bl
    >>> bl.MORBiT(sampling=bl.sampling.Mixture(64)).sampling
    Mixture(tasks=64, uniform=0.5)
    """

    tasks: int
    uniform: float = leaf(default=0.5)  # rho

    def check(self, sizes: Sequence[int]) -> None:
        """A number of tasks, and a share."""
        super().check(sizes)
        values.share("uniform", self.uniform, of="Mixture")

    def fill(self, weights: jax.Array, count: int, key: jax.Array) -> Urn:
        """Tasks in a random order: in the user's, those at equal distances may be alike."""
        return Urn.of(self.shares(weights, count), count, jax.random.permutation(key, len(weights)))

    def refill(self, urn: Urn, weights: jax.Array, count: int) -> Urn:
        """Other shares in the same order: a few passes over n numbers."""
        return Urn.of(self.shares(weights, count), count, urn.order)

    def draw(self, urn: Urn, weights: jax.Array, count: int, key: jax.Array) -> Draw:
        """The tasks at equally spaced ticks."""
        if count == len(weights):
            return Draw(jnp.arange(count), jnp.ones_like(weights))
        first = jax.random.bits(key, dtype=jnp.uint32) & jnp.uint32(ticks(count) - 1)
        return urn.at(first, count, weights.dtype)

    def shares(self, weights: jax.Array, count: int) -> jax.Array:
        """min(1, t ((1 - uniform) weights + uniform / n)), with t such that their sum is `count`."""
        size, dtype = len(weights), weights.dtype
        if count == size:
            return jnp.ones(size, dtype)
        uniform, total = jnp.asarray(self.uniform, dtype), jnp.sum(weights)
        part = jnp.where(total > 0, weights / jnp.where(total > 0, total, 1), 1 / size)
        wanted = (1 - uniform) * part + uniform / size

        def rise(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            factor, _ = state
            full = factor * wanted >= 1
            rest = jnp.sum(jnp.where(full, 0, wanted))
            new = (count - jnp.sum(full, dtype=dtype)) / jnp.where(rest > 0, rest, 1)
            return jnp.maximum(factor, new), new > factor

        start = jnp.asarray(count, dtype), jnp.array(True)
        factor, _ = jax.lax.while_loop(lambda state: state[1], rise, start)
        return jnp.minimum(factor * wanted, 1)
