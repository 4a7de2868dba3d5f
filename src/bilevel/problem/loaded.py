"""Tasks whose rows a loader reads: a step that draws some of them asks for the rows of these."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevel._core import values
from bilevel._core.module import leaf, part
from bilevel.problem.blocks import block_of_bytes
from bilevel.problem.reader import Reader
from bilevel.problem.sources import Arrays, Batch, BlockOfRows, Loss, Sample, Source
from bilevel.problem.task import ROLES


@part
class Loaded(Source):
    """Tasks with equally many rows, which are read where they are asked for: of all tasks of a group at once.

    That is right for the tasks of a step, `chosen`. Where every step sees all tasks, `roles_in_memory` reads them once.
    """

    numbers: jax.Array = leaf()  # of the tasks in the dataset
    reader: Reader = dataclasses.field(default=None)  # type: ignore[assignment]
    role: str = ""

    held = False

    @property
    def axes(self) -> int:  # noqa: D102
        return 0

    @property
    def rows(self) -> int:  # noqa: D102
        return jax.tree.leaves(self.reader.outline[self.role])[0].shape[0]

    def draw(self, key: jax.Array, size: int | None) -> Sample:  # noqa: D102
        return None if size is None else jax.random.randint(key, (size,), 0, self.rows)

    def take(self, sample: jax.Array) -> Batch:  # noqa: D102
        return Arrays(self._read(self.numbers), self.rows).take(sample)

    def average(self, loss: Loss) -> jax.Array:  # noqa: D102
        return loss(self._read(self.numbers))

    def first(self, count: int) -> Sample:  # noqa: D102
        return jnp.arange(count) % self.rows

    def task(self, i: int) -> Batch:  # noqa: D102
        return self.reader.rows(self.role, self.numbers[i])

    def chosen(self, index: jax.Array) -> Arrays:
        """Some tasks, read into memory."""
        return Arrays(self._read(self.numbers[index]), self.rows)

    def roles_in_memory(self) -> dict[str, Source]:
        """All tasks, read once."""
        numbers = np.asarray(self.numbers)
        size = block_of_bytes(self.reader.task_bytes)
        read = [self.reader.read(numbers[i : i + size]) for i in range(0, len(numbers), size)]
        whole = jax.tree.map(lambda *parts: jnp.asarray(np.concatenate(parts)), *read)
        return {role: Arrays(data, jax.tree.leaves(data)[0].shape[1]) for role, data in whole.items()}

    def block_size(self, tasks: int, devices: int = 1) -> int | None:
        """However few they are, so that they are read once for all that is asked of them."""
        return min(block_of_bytes(self.reader.task_bytes), tasks // devices)

    def _read(self, numbers: jax.Array) -> Batch:
        """Under `vmap` too: the host is asked once, for the tasks of all lanes."""

        def of_tasks(one: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((*numbers.shape, *one.shape), one.dtype)

        wanted = jax.tree.map(of_tasks, self.reader.outline[self.role])
        return jax.pure_callback(
            functools.partial(self.reader.rows, self.role), wanted, numbers, vmap_method="expand_dims"
        )

    def blocks(self, size: int | None) -> int:  # noqa: D102
        return 1 if size is None else -(-self.rows // size)

    def block(self, number: jax.Array, size: int | None) -> BlockOfRows:  # noqa: D102
        return Arrays(None, self.rows).block(number, size)


def sources_of(dataset: Any, threads: int) -> dict[str, Loaded | None]:
    """The sources of every role of the tasks of a dataset, or a clear error."""
    values.whole("threads", threads, of="Task.load")
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise TypeError(
            f"Task.load(dataset=...) got {type(dataset).__name__}: it needs len(dataset) and dataset[i], which is task "
            "i. Of a loader that only goes through its data, give what it loads from: loader.dataset of PyTorch's, the "
            "MapDataset before .to_iter_dataset() of grain's."
        )
    if isinstance(dataset, (Mapping, np.ndarray, jax.Array)):
        raise TypeError(
            f"Task.load(dataset=...) got {type(dataset).__name__}: it needs a sequence of tasks; arrays of all tasks "
            "are for Task.stack."
        )
    count = len(dataset)
    if not 0 < count < 2**31:
        raise ValueError(f"Task.load(dataset=...) has {count} tasks: it needs at least one, and less than 2**31.")
    reader, numbers = Reader(dataset, threads), jnp.arange(count, dtype=jnp.int32)
    return {role: Loaded(numbers, reader, role) if role in reader.outline else None for role in ROLES}
