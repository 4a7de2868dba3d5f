"""What moves the weights of tasks that a step does not see: the table of last losses, and what the weights are owed."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from bilevel.problem.per_task import InOrder


class Owed(NamedTuple):
    """Losses seen since the weights last moved.

    The sum over these steps of  rate ([i drawn] (F_i - c_i) / share_i + c_i),  with c_i as it was in each of them, is
    rate_sum c_i + rest_i  with today's c_i: it changes for visited tasks only.
    """

    last: InOrder[jax.Array]  # c_i, the loss at the last visit
    rest: InOrder[jax.Array]
    rate: jax.Array  # the sum of the rates
    steps: jax.Array  # how many

    @classmethod
    def start(cls, losses: jax.Array) -> Owed:
        """Nothing is owed yet."""
        zero = jnp.zeros((), losses.dtype)
        return cls(InOrder(losses), InOrder(jnp.zeros_like(losses)), zero, jnp.zeros((), jnp.int32))

    def see(self, index: jax.Array, share: jax.Array, losses: jax.Array, rate: jax.Array) -> Owed:
        """One step more, in which the tasks at `index` had these losses."""
        last, total = self.last.value, self.rate + rate
        before = last[index]
        change = losses - before
        # A task that is there twice has one row, which is set, and two parts of the estimate, which are added.
        rest = self.rest.value.at[index].set(self.rest.value[index] - total * change)
        rest = rest.at[index].add(rate * change / share)
        # The sum is the losses. By themselves they could be written before the rows are read, and all would be copied.
        return Owed(InOrder(last.at[index].set(before + change)), InOrder(rest), total, self.steps + 1)

    def losses(self) -> jax.Array:
        """The mean of the estimated losses, weighted by the rates; the weights move by it times their sum."""
        some = self.rate > 0
        return self.last.value + jnp.where(some, self.rest.value / jnp.where(some, self.rate, 1), 0)

    def paid(self) -> Owed:
        """After the weights have moved."""
        return Owed.start(self.last.value)
