"""Very many tasks, some at a time: what is made on the way of looking at all of them exists for a block only."""

from __future__ import annotations

import numpy as np

AT_ONCE = 1024  # tasks; not more than these are one block
BLOCK_BYTES, SMALLEST, LARGEST = 2**26, 16, 4096  # of data, and in tasks


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
