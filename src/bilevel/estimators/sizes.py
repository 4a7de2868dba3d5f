"""Sizes that arrays are padded to: few, so that programs which were compiled once are found again."""

from __future__ import annotations

EXACT = 4096  # up to here powers of two; beyond, where memory counts, three leading bits


def padded(count: int, least: int = 1) -> int:
    """The next size from `count` on: at most twice as large, and beyond 4096 at most a quarter larger.

    >>> [padded(n) for n in (1, 3, 100, 4097, 6000, 1_000_000)], padded(3, least=8)
    ([1, 4, 128, 5120, 6144, 1048576], 8)
    """
    count = max(count, least)
    power = 1 << (count - 1).bit_length()
    if power <= EXACT:
        return power
    step = power // 8
    return -(-count // step) * step
