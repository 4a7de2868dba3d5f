"""Batches made on demand, without end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from bilevel._core.module import leaf, part
from bilevel.problem.sources import Batch, GeneratorSample, Loss, Sample, Source


@part
class Generator(Source):
    """Batches made on demand: `sample(parameters, key, size)` returns a batch of `size` rows.

    Tasks that share `sample` are stacked through their `parameters` (a pytree of arrays). A generator is infinite: it
    needs a batch size, and whole losses are measured on one fixed sample of `evaluation` rows.

    >>> def sinusoid(parameters, key, size):
    ...     t = jax.random.uniform(key, (size,), minval=-5.0, maxval=5.0)
    ...     return t, parameters["amplitude"] * jnp.sin(t - parameters["phase"])
    >>> easy = Generator(sinusoid, {"amplitude": 0.5, "phase": 1.0})
    """

    sample: Callable[[Any, jax.Array, int], Batch]
    parameters: Any = leaf()
    evaluation: int = 1000
    seed: int = 0  # of the fixed sample; set by the problem, so that the roles differ

    finite = False

    @property
    def axes(self) -> int:  # noqa: D102
        return 0

    @property
    def rows(self) -> int:
        """Of the fixed sample."""
        return self.evaluation

    def draw(self, key: jax.Array, size: int | None) -> Sample:  # noqa: D102
        if size is None:
            raise ValueError("a Generator is infinite: give Problem a lower_batch and an upper_batch.")
        # The batch itself: a key would be cheaper to carry, but every `take` of it would make the batch again.
        return GeneratorSample(self.sample(self.parameters, key, size))

    def take(self, sample: GeneratorSample) -> Batch:  # noqa: D102
        return sample.batch

    def average(self, loss: Loss) -> jax.Array:  # noqa: D102
        return loss(self.sample(self.parameters, jax.random.key(self.seed), self.evaluation))

    def task(self, i: int) -> Generator:  # noqa: D102
        return dataclasses.replace(self, parameters=jax.tree.map(lambda a: a[i], self.parameters))

    def first(self, count: int) -> Sample:
        """Some rows: there are no first ones."""
        return self.draw(jax.random.key(0), count)
