"""Sources of batches. The sample is explicit: `draw` chooses it, `take` turns it into a batch.

A sample is row numbers for arrays and the batch itself for a generator, which makes batches on demand, without end.
Whoever holds a sample can evaluate at two points *on the same data*, which variance-reduced methods need. The sample
None means "all the data".

A source is a pytree that holds the data of a whole group of tasks. Under `jax.vmap(..., in_axes=source.axes)` it
becomes the source of one task; `draw`, `take`, `average` and the methods about blocks are for one task.

Of very many tasks, what is made on the way of looking at all of them exists for a block of them only (`block_size`).
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevel._core.module import leaf, part
from bilevel._core.types import Batch, Tree

Loss = Callable[[Batch], jax.Array]


AT_ONCE = 1024  # tasks; not more than these are one block
BLOCK_BYTES, SMALLEST, LARGEST = 2**26, 16, 4096  # of data, and in tasks


class Block(NamedTuple):
    """A sample of consecutive rows, of which only the first `valid` exist: the last block of a partition."""

    rows: jax.Array
    valid: jax.Array


@part
class GeneratorSample:
    """A generator's sample: the batch."""

    batch: Batch = leaf()


Sample = jax.Array | Block | GeneratorSample | None


class BlockOfRows(NamedTuple):
    """One block of a partition of a task's data, and its share of the rows: 0 where a task has no such block."""

    sample: Sample
    share: jax.Array


class Source(abc.ABC):
    """The data of one group of tasks, for one role (training, validation, selection, test)."""

    finite: ClassVar[bool] = True  # whether there is such a thing as all the data
    equal_sizes: ClassVar[bool] = True  # whether every task of the group has the same number of rows
    held: ClassVar[bool] = True  # whether the rows are in memory, rather than in files or with a loader
    data: Batch = None  # the arrays, where they are finite and in memory

    @property
    @abc.abstractmethod
    def axes(self) -> Tree:
        """The `in_axes` under which `vmap` gives each task its own source."""

    @property
    @abc.abstractmethod
    def rows(self) -> int | jax.Array:
        """How many rows a task has; an array over the tasks of the group where they differ."""

    @abc.abstractmethod
    def draw(self, key: jax.Array, size: int | None) -> Sample:
        """A sample of `size` rows, uniform with replacement; None = all the data."""

    @abc.abstractmethod
    def take(self, sample: Tree) -> Batch:
        """The batch of a sample that is not None."""

    @abc.abstractmethod
    def average(self, loss: Loss) -> jax.Array:
        """The loss on all the data, exactly."""

    @abc.abstractmethod
    def task(self, i: int) -> Tree:
        """All the data of task i of the group, as its user gave them."""

    @abc.abstractmethod
    def first(self, count: int) -> Sample:
        """A sample of the first `count` rows, repeated from the beginning where there are fewer."""

    def chosen(self, index: jax.Array) -> Source:
        """The source of some of the tasks."""
        return jax.tree.map(lambda leaf: leaf[index], self)

    def roles_in_memory(self) -> dict[str, Source]:
        """If a loader reads the tasks: the sources of all roles, read into memory."""
        return {}

    def block_size(self, tasks: int, devices: int = 1) -> int | None:
        """How many of so many tasks on devices each looks at at once, where all are looked at; None = all."""
        return block_size(tasks, sum(leaf.nbytes for leaf in jax.tree.leaves(self)) // tasks, devices)

    def cut(self, start: int, stop: int, devices: int) -> Source:
        """The tasks from `start` to `stop`, laid out in as many equal parts as there are devices; not under `jit`."""
        return jax.tree.map(lambda leaf: leaf[start:stop], self)

    def on_device(self, number: jax.Array) -> Source:
        """The source of one device, in its part of what `cut` has made."""
        return self

    def loss_on(self, sample: Sample, loss: Loss) -> jax.Array:
        """The loss on a sample."""
        if sample is None:
            return self.average(loss)
        if isinstance(sample, Block):
            return _row_mean(self.take(sample.rows), sample.valid, loss)
        return loss(self.take(sample))

    def rows_in(self, sample: Sample) -> int | jax.Array:
        """How many rows a sample has."""
        if sample is None:
            return self.rows
        return sample.valid if isinstance(sample, Block) else jax.tree.leaves(sample)[0].shape[0]

    def sizes(self) -> np.ndarray:
        """The different numbers of rows that tasks of the group have, by task where they differ."""
        return np.atleast_1d(np.asarray(self.rows))

    # ------------------------------------------------------------------ the data cut into blocks of a batch each

    def blocks(self, size: int | None) -> int:
        """How many blocks of `size` rows a partition of the data has; of the longest task, where sizes differ."""
        raise NotImplementedError(f"{type(self).__name__} is infinite, so that it cannot be cut into blocks.")

    def block(self, number: jax.Array, size: int | None) -> BlockOfRows:
        """Block `number` of a partition of one task's data."""
        raise NotImplementedError(f"{type(self).__name__} is infinite, so that it cannot be cut into blocks.")

    def draw_block(self, key: jax.Array, size: int | None) -> jax.Array:
        """The number of a block, drawn in proportion to its rows."""
        if size is None:
            return jnp.zeros((), jnp.int32)
        return jax.random.randint(key, (), 0, self.rows) // size


def _row_mean(rows: Batch, count: jax.Array, loss: Loss) -> jax.Array:
    """The mean of the one-row losses of the first `count` rows."""
    losses = jax.vmap(lambda row: loss(jax.tree.map(lambda a: a[None], row)))(rows)
    exists = jnp.arange(losses.shape[0]) < count
    return jnp.sum(jnp.where(exists, losses, 0)) / count.astype(losses.dtype)


def _rows(data: Batch, index: jax.Array) -> Batch:
    # Row numbers come from `draw`, so bounds checks and negative numbers would only cost time.
    return jax.tree.map(lambda a: a.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False), data)


def _block(offset: int | jax.Array, rows: jax.Array, number: jax.Array, size: int) -> tuple[Block, jax.Array]:
    first = number * size
    count = jnp.clip(rows - first, 0, size)
    index = offset + jnp.minimum(first + jnp.arange(size), rows - 1)
    # As a float first: the ratio of two int32 is a float32, also where the run is in float64.
    return Block(index, jnp.maximum(count, 1)), count.astype(float) / rows


@part
class Arrays(Source):
    """Tasks with equally many rows: leaves of shape (tasks, rows, ...)."""

    data: Batch = leaf()
    length: int = 0

    @property
    def axes(self) -> int:  # noqa: D102
        return 0

    @property
    def rows(self) -> int:  # noqa: D102
        return self.length

    def draw(self, key: jax.Array, size: int | None) -> Sample:  # noqa: D102
        return None if size is None else jax.random.randint(key, (size,), 0, self.rows)

    def take(self, sample: jax.Array) -> Batch:  # noqa: D102
        return _rows(self.data, sample)

    def average(self, loss: Loss) -> jax.Array:  # noqa: D102
        return loss(self.data)

    def task(self, i: int) -> Batch:  # noqa: D102
        return jax.tree.map(lambda a: a[i], self.data)

    def first(self, count: int) -> Sample:  # noqa: D102
        return jnp.arange(count) % self.rows

    def blocks(self, size: int | None) -> int:  # noqa: D102
        return 1 if size is None else -(-self.rows // size)

    def block(self, number: jax.Array, size: int | None) -> BlockOfRows:  # noqa: D102
        if size is None:
            return BlockOfRows(None, jnp.ones(()))
        block, share = _block(0, jnp.asarray(self.rows), number, size)
        return BlockOfRows(block.rows if self.rows % size == 0 else block, share)


@part
class Ragged(Source):
    """Tasks with different numbers of rows, stored one after the other: leaves of shape (all rows, ...).

    The loss on all the data of a task is the mean of its one-row losses, so a loss must be a mean over rows.
    """

    data: Batch = leaf()
    offset: jax.Array = leaf()
    size: jax.Array = leaf()
    longest: int = 0

    equal_sizes = False

    @property
    def axes(self) -> Tree:  # noqa: D102
        # The rows are shared: each task finds its own by offset and size.
        return dataclasses.replace(self, data=None, offset=0, size=0)

    @property
    def rows(self) -> jax.Array:  # noqa: D102
        return self.size

    def draw(self, key: jax.Array, size: int | None) -> Sample:  # noqa: D102
        return None if size is None else self.offset + jax.random.randint(key, (size,), 0, self.size)

    def take(self, sample: jax.Array) -> Batch:  # noqa: D102
        return _rows(self.data, sample)

    def average(self, loss: Loss) -> jax.Array:  # noqa: D102
        number = jnp.arange(self.longest, dtype=self.offset.dtype)
        # Rows past the end repeat the last one (finite, so that gradients are too) and count for nothing.
        rows = _rows(self.data, self.offset + jnp.minimum(number, self.size - 1))
        return _row_mean(rows, self.size, loss)

    def task(self, i: int) -> Batch:  # noqa: D102
        start, size = int(self.offset[i]), int(self.size[i])
        return jax.tree.map(lambda a: a[start : start + size], self.data)

    def first(self, count: int) -> Sample:  # noqa: D102
        return self.offset + jnp.arange(count) % self.size

    def chosen(self, index: jax.Array) -> Ragged:
        """The rows stay where they are."""
        return dataclasses.replace(self, offset=self.offset[index], size=self.size[index])

    def cut(self, start: int, stop: int, devices: int) -> Ragged:
        """Every part begins with rows of its own and is as long as the longest; what is left over stays 0."""
        offset, size = (np.asarray(a)[start:stop].reshape(devices, -1) for a in (self.offset, self.size))
        long = int(size.sum(axis=1).max())
        first = np.cumsum(size, axis=1) - size + long * np.arange(devices)[:, None]
        tasks = list(zip(*map(np.ravel, (first, offset, size)), strict=True))

        def lay_out(rows: Batch) -> np.ndarray:
            rows = np.asarray(rows)
            laid = np.zeros((devices * long, *rows.shape[1:]), rows.dtype)
            for to, at, count in tasks:
                laid[to : to + count] = rows[at : at + count]
            return laid

        place = jnp.asarray(first.ravel(), jnp.int32)
        data = jax.tree.map(lay_out, self.data)
        return dataclasses.replace(self, data=data, offset=place, size=jnp.asarray(size.ravel(), jnp.int32))

    def on_device(self, number: jax.Array) -> Ragged:
        """Offsets count from the first row of the part."""
        long = jax.tree.leaves(self.data)[0].shape[0]
        return dataclasses.replace(self, offset=self.offset - (number * long).astype(self.offset.dtype))

    def blocks(self, size: int | None) -> int:  # noqa: D102
        return 1 if size is None else -(-self.longest // size)

    def block(self, number: jax.Array, size: int | None) -> BlockOfRows:  # noqa: D102
        return (
            BlockOfRows(None, jnp.ones(()))
            if size is None
            else BlockOfRows(*_block(self.offset, self.size, number, size))
        )


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

    sample: Callable[[Tree, jax.Array, int], Batch]
    parameters: Tree = leaf()
    evaluation: int = 1000
    seed: int = 0  # of the fixed sample; set by the problem, so that the roles differ

    finite = False

    @property
    def axes(self) -> int:  # noqa: D102
        return 0

    @property
    def rows(self) -> int:
        """The loss on the fixed sample."""
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


def block_size(tasks: int, task_bytes: int, devices: int = 1) -> int | None:
    """How many of so many tasks in memory, in equal parts on devices, are a block of each; None = all.

    >>> block_size(1000, 12), block_size(10**6, 12)
    (None, 4096)
    """
    return None if tasks // devices <= AT_ONCE else block_of_bytes(task_bytes)


def block_of_bytes(task_bytes: int) -> int:
    """How many tasks are a block.

    >>> block_of_bytes(2**20)
    64
    """
    return min(max(BLOCK_BYTES // max(task_bytes, 1), SMALLEST), LARGEST)


def places_of_blocks(tasks: int, size: int) -> np.ndarray:
    """The tasks of every block; the last one is filled up with the last task.

    >>> places_of_blocks(5, 2).tolist()
    [[0, 1], [2, 3], [4, 4]]
    """
    count = -(-tasks // size)
    return np.minimum(np.arange(count * size, dtype=np.int32), tasks - 1).reshape(count, size)
