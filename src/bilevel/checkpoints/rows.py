"""Reads rows of arrays that Orbax has written, each process those of its own devices.

Orbax restores whole arrays. On another number of devices the tasks of a group are cut elsewhere, so that a device needs
rows out of the middle of one array, or of two. TensorStore, by which Orbax writes, reads those.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Sharding


class Saved(NamedTuple):
    """Rows of one leaf that are one array in the folder."""

    key: str
    start: int


class Rows:
    """The arrays of one folder."""

    def __init__(self, place: Path):
        self._base = {"driver": "file", "path": os.path.join(os.path.abspath(place), "")}
        self._open = functools.lru_cache(self._opened)

    def on_devices(self, saved: Sequence[Saved], start: int, shape: tuple[int, ...], sharding: Sharding) -> jax.Array:
        """Rows from `start` on, in their place."""

        def part(index: tuple[slice, ...] | None) -> np.ndarray:
            ranges = [slice(*own.indices(size)[:2]) for own, size in zip(index or (), shape, strict=True)]
            first = slice(start + ranges[0].start, start + ranges[0].stop)
            return self.read(saved, (first, *ranges[1:]))

        return jax.make_array_from_callback(shape, sharding, part)

    def read(self, saved: Sequence[Saved], ranges: tuple[slice, ...]) -> np.ndarray:
        """A part of a leaf."""
        wanted, reads = ranges[0], []
        for key, start in saved:
            store = self._open(key)
            low, high = max(wanted.start, start), min(wanted.stop, start + store.shape[0])
            if low < high:
                reads.append(store[(slice(low - start, high - start), *ranges[1:])].read())
        found = [np.asarray(read.result()) for read in reads]
        whole = found[0] if len(found) == 1 else np.concatenate(found)
        if whole.shape != tuple(own.stop - own.start for own in ranges):
            raise ValueError(f"array {saved[0].key!r} has the shape {whole.shape} where it was asked for {ranges}")
        return whole

    def _opened(self, key: str) -> Any:
        import tensorstore

        kept = {"driver": "ocdbt", "base": self._base, "path": f"{key}/"}
        return tensorstore.open({"driver": "auto", "kvstore": kept}, read=True).result()
