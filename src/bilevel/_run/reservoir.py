"""Which step becomes the random iterate: reservoir sampling, decided by the seed alone."""

from __future__ import annotations

import bisect

import numpy as np

BLOCK = 2**16  # draws at once; a run may have more steps than fit into memory


class Reservoir:
    """Step k replaces the random iterate with probability 1 / (k + 1), so that all steps so far are equally likely.

    The draws are made as the run comes to them. How far ahead that is changes none of them.

    >>> reservoir = Reservoir(seed=0)
    >>> reservoir.pick(0, 1), reservoir.pick(0, 1000) == Reservoir(seed=0).pick(0, 1000)
    (0, True)
    """

    def __init__(self, seed: int):
        self._generator = np.random.default_rng(seed)
        self._drawn, self._picks = 0, list[int]()

    def pick(self, step: int, stop: int) -> int | None:
        """The last step in [step, stop) that replaces the random iterate; None where none does."""
        while self._drawn < stop:
            numbers = np.arange(self._drawn + 1, self._drawn + BLOCK + 1)
            self._picks += (np.flatnonzero(self._generator.random(BLOCK) * numbers < 1) + self._drawn).tolist()
            self._drawn += BLOCK
        until = bisect.bisect_left(self._picks, stop)
        return self._picks[until - 1] if until > bisect.bisect_left(self._picks, step) else None
