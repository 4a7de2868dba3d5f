"""Rows that stay in a file: a memory-mapped array is used in place, and read as steps need it.

On a CPU an array of JAX may lie in memory that numpy has mapped. Nothing is copied then: a step that takes the rows of
some tasks reads these pages, and the system keeps as many of them as there is room for. Other devices have a memory of
their own, into which the whole array is copied.
"""

from __future__ import annotations

import mmap
import warnings
from typing import NamedTuple, TypeGuard

import jax
import numpy as np

from bilevel._core.module import part, static
from bilevel._core.types import Data
from bilevel.problem.sources import Arrays

ALIGNED = 64  # bytes: where XLA needs arrays to begin
READ_INTO_MEMORY = (
    "a memory-mapped array of shape {shape} is read into memory ({size:.1f} GB): to stay in its file it must be "
    "contiguous and begin at a multiple of {aligned} bytes. Use one file for each array, as np.save writes it."
)

JOINED = (
    "{count} stacks of like tasks of which some are memory-mapped are joined in memory. To leave rows in their files, "
    "give one stack, or a loader for each (bl.Task.load)."
)


class Pages(NamedTuple):
    """Addresses of a mapped array in memory."""

    address: int
    task_bytes: int
    tasks: int


@part
class Mapped(Arrays):
    """Tasks with equally many rows in mapped files: leaves of shape (tasks, rows, ...)."""

    pages: tuple[Pages | None, ...] = static(by=len, default=())  # of every leaf; None = it is in memory

    held = False

    def chosen(self, index: jax.Array) -> Arrays:
        """Some tasks, read into memory."""
        return Arrays(jax.tree.map(lambda leaf: leaf[index], self.data), self.length)

    def cut(self, start: int, stop: int, devices: int) -> Arrays:
        """Still in the file: what a device has is read into its memory when it is put there, and nothing else."""
        return Arrays(jax.tree.map(lambda leaf: np.asarray(leaf)[start:stop], self.data), self.length)


def is_mapped(array: object) -> TypeGuard[np.ndarray]:
    """Whether an array lies in a mapped file, also as a view.

    >>> is_mapped(np.zeros(3))
    False
    """
    return _map_of(array) is not None


def _map_of(array: object) -> np.memmap | mmap.mmap | None:
    while isinstance(array, np.ndarray) and not isinstance(array, np.memmap):
        array = array.base
    return array if isinstance(array, (np.memmap, mmap.mmap)) else None


def checked(array: np.ndarray, where: str) -> np.ndarray:
    """A mapped array, of a dtype that JAX counts in."""
    needed = np.dtype(jax.dtypes.canonicalize_dtype(array.dtype)).newbyteorder("=")
    if array.dtype != needed:
        raise ValueError(
            f"{where} is memory-mapped with dtype {array.dtype}, and JAX counts in {needed}: a conversion would read "
            f"all of it into memory. Write the file with dtype {needed}, or give np.array(...) of it."
        )
    return np.asarray(array)


def as_array(array: np.ndarray) -> jax.Array:
    """An array of JAX that lies where a mapped one does."""
    if not array.flags.c_contiguous or array.ctypes.data % ALIGNED:
        said = READ_INTO_MEMORY.format(shape=array.shape, size=array.nbytes / 1e9, aligned=ALIGNED)
        warnings.warn(said, stacklevel=2)
    return jax.device_put(np.asarray(array), may_alias=True)


def source(data: Data, length: int, given: Data) -> Arrays:
    """The source of stacked tasks, of which some leaves may lie in the mapped arrays that were given."""
    pages = []
    for leaf, own in zip(jax.tree.leaves(data), jax.tree.leaves(given), strict=True):
        lies_there = is_mapped(own) and isinstance(leaf, jax.Array) and _address(leaf) == own.ctypes.data
        pages.append(Pages(own.ctypes.data, own.nbytes // len(own), len(own)) if lies_there else None)
    return Mapped(data, length, tuple(pages)) if any(pages) else Arrays(data, length)


def _address(array: jax.Array) -> int | None:
    return array.unsafe_buffer_pointer() if len(array.devices()) == 1 else None
