"""Where batches come from. The sample is explicit: `draw` chooses it, `take` turns it into a batch.

A sample is row numbers for arrays and the batch itself for a generator. Whoever holds a sample can evaluate at two
points *on the same data*, which variance-reduced methods need. The sample None means "all the data".

A source is a pytree that holds the data of a whole group of tasks. Under `jax.vmap(..., in_axes=source.axes)` it
becomes the source of one task; `draw`, `take` and `average` speak of one task.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from bilevel._core.module import leaf, part

Sample = Any
Batch = Any
Loss = Callable[[Batch], jax.Array]


class Source(Protocol):
    """The data of one group of tasks, for one role (training, validation, test)."""

    @property
    def axes(self) -> Any:
        """The `in_axes` under which `vmap` gives each task its own source."""
        ...

    def draw(self, key: jax.Array, size: int | None) -> Sample:
        """A sample of `size` rows, uniform with replacement; None = all the data."""
        ...

    def take(self, sample: Sample) -> Batch:
        """The batch of a sample that is not None."""
        ...

    def average(self, loss: Loss) -> jax.Array:
        """The loss on all the data, exactly."""
        ...


class Block(NamedTuple):
    """A sample of consecutive rows, of which only the first `count` are there: the last block of a partition."""

    rows: jax.Array
    count: jax.Array


def loss_on(source: Source, sample: Sample, loss: Loss) -> jax.Array:
    """The loss on a sample."""
    if sample is None:
        return source.average(loss)
    if isinstance(sample, Block):
        return _row_mean(source.take(sample.rows), sample.count, loss)
    return loss(source.take(sample))


def _row_mean(rows: Any, count: jax.Array, loss: Loss) -> jax.Array:
    """The mean of the one-row losses of the first `count` rows."""
    losses = jax.vmap(lambda row: loss(jax.tree.map(lambda a: a[None], row)))(rows)
    there = jnp.arange(losses.shape[0]) < count
    return jnp.sum(jnp.where(there, losses, 0)) / count.astype(losses.dtype)


def blocks(source: Source, size: int | None) -> int:
    """How many blocks of `size` rows a partition of the data has; of the longest task, where sizes differ."""
    longest = source.longest if isinstance(source, Ragged) else source.rows  # type: ignore[attr-defined]
    return 1 if size is None else -(-longest // size)


def block(source: Source, number: jax.Array, size: int | None) -> tuple[Sample, jax.Array]:
    """Block `number` of a partition of one task's data, and its share of the rows: 0 where a task has no such one."""
    if size is None:
        return None, jnp.ones(())
    offset, rows = (source.offset, source.size) if isinstance(source, Ragged) else (0, jnp.asarray(source.rows))  # type: ignore
    first = number * size
    count = jnp.clip(rows - first, 0, size)
    index = offset + jnp.minimum(first + jnp.arange(size), rows - 1)
    even = isinstance(source, Arrays) and source.rows % size == 0
    return (index if even else Block(index, jnp.maximum(count, 1))), count / rows


def draw_block(source: Source, key: jax.Array, size: int | None) -> jax.Array:
    """The number of a block, drawn in proportion to its rows."""
    if size is None:
        return jnp.zeros((), jnp.int32)
    rows = source.size if isinstance(source, Ragged) else source.rows  # type: ignore[attr-defined]
    return jax.random.randint(key, (), 0, rows) // size


def _rows(data: Any, index: jax.Array) -> Any:
    # Row numbers come from `draw`, so bounds checks and negative numbers would only cost time.
    return jax.tree.map(lambda a: a.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False), data)


@part
class Arrays:
    """Tasks with equally many rows: leaves of shape (tasks, rows, ...)."""

    data: Any = leaf()
    rows: int = 0

    axes = 0

    def draw(self, key, size):  # noqa: D102
        return None if size is None else jax.random.randint(key, (size,), 0, self.rows)

    def take(self, sample):  # noqa: D102
        return _rows(self.data, sample)

    def average(self, loss):  # noqa: D102
        return loss(self.data)

    def task(self, i: int) -> Any:
        """All the data of task i of the group."""
        return jax.tree.map(lambda a: a[i], self.data)


@part
class Ragged:
    """Tasks with different numbers of rows, stored one after the other: leaves of shape (all rows, ...).

    The loss on all the data of a task is the mean of its one-row losses, so a loss must be a mean over rows.
    """

    data: Any = leaf()
    offset: jax.Array = leaf()
    size: jax.Array = leaf()
    longest: int = 0

    @property
    def axes(self) -> Any:  # noqa: D102
        # The rows are shared: each task finds its own by offset and size.
        return dataclasses.replace(self, data=None, offset=0, size=0)

    def draw(self, key, size):  # noqa: D102
        return None if size is None else self.offset + jax.random.randint(key, (size,), 0, self.size)

    def take(self, sample):  # noqa: D102
        return _rows(self.data, sample)

    def average(self, loss):  # noqa: D102
        number = jnp.arange(self.longest, dtype=self.offset.dtype)
        # Rows past the end repeat the last one (finite, so that gradients are too) and count for nothing.
        rows = _rows(self.data, self.offset + jnp.minimum(number, self.size - 1))
        return _row_mean(rows, self.size, loss)

    def task(self, i: int) -> Any:
        """All the data of task i of the group."""
        start, size = int(self.offset[i]), int(self.size[i])
        return jax.tree.map(lambda a: a[start : start + size], self.data)


def subset(source: Any, index: jax.Array) -> Any:
    """The source of some of the tasks; the rows of tasks of unequal size stay where they are."""
    if isinstance(source, Ragged):
        return dataclasses.replace(source, offset=source.offset[index], size=source.size[index])
    return jax.tree.map(lambda leaf: leaf[index], source)


@part
class Generator:
    """Batches made on demand: `sample(parameters, key, size)` returns a batch of `size` rows.

    Tasks that share `sample` are stacked through their `parameters` (a pytree of arrays). There is no "all the data":
    a generator needs a batch size, and whole losses are measured on one fixed sample of `evaluation` rows.

    >>> def sinusoid(parameters, key, size):
    ...     t = jax.random.uniform(key, (size,), minval=-5.0, maxval=5.0)
    ...     return t, parameters["amplitude"] * jnp.sin(t - parameters["phase"])
    >>> easy = Generator(sinusoid, {"amplitude": 0.5, "phase": 1.0})
    """

    sample: Callable[[Any, jax.Array, int], Batch]
    parameters: Any = leaf()
    evaluation: int = 1000
    seed: int = 0  # of the fixed sample; set by the problem, so that validation and test differ

    axes = 0

    def draw(self, key, size):  # noqa: D102
        if size is None:
            raise ValueError("a Generator has no end: give Problem a lower_batch and an upper_batch.")
        # The batch itself: a key would be cheaper to carry, but every `take` of it would make the batch again.
        return GeneratorSample(self.sample(self.parameters, key, size))

    def take(self, sample):  # noqa: D102
        return sample.batch

    def average(self, loss):  # noqa: D102
        return loss(self.sample(self.parameters, jax.random.key(self.seed), self.evaluation))

    def task(self, i: int) -> Any:
        """The generator of task i of the group."""
        return dataclasses.replace(self, parameters=jax.tree.map(lambda a: a[i], self.parameters))


@part
class GeneratorSample:
    """A generator's sample: the batch."""

    batch: Any = leaf()
