"""Several runs of one kind: a sequence of results, and statistics over them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, overload

import numpy as np

from bilevel.results.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Results(Sequence[Result]):
    """Runs that differ in their seed (or their tasks).

    `worst`, `mean`, `test_worst` and `test_mean` are arrays with one number per run. `band(of)` follows any quantity
    over the runs' histories.
    """

    def __init__(self, results: Iterable[Result]):
        self._results = list(results)

    @overload
    def __getitem__(self, i: int) -> Result: ...
    @overload
    def __getitem__(self, i: slice) -> Results: ...
    def __getitem__(self, i: int | slice) -> Result | Results:
        return Results(self._results[i]) if isinstance(i, slice) else self._results[i]

    def __len__(self) -> int:
        return len(self._results)

    @property
    def worst(self) -> np.ndarray:
        """The largest validation loss of each run."""
        return np.array([result.last.worst for result in self])

    @property
    def mean(self) -> np.ndarray:
        """The mean validation loss of each run."""
        return np.array([result.last.mean for result in self])

    @property
    def test_worst(self) -> np.ndarray:
        """The largest test loss of each run; NaN without test data."""
        return np.array([result.last.test_worst for result in self], float)

    @property
    def test_mean(self) -> np.ndarray:
        """The mean test loss of each run; NaN without test data."""
        return np.array([result.last.test_mean for result in self], float)

    def band(self, of: Callable[[Result], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """(steps, values): `of(result)`, one number per evaluation, for every run, over the steps that all reached."""
        length = min(result.history.evaluations for result in self)
        longest = max(self, key=lambda result: result.history.evaluations)
        return longest.history.step[:length], np.stack([of(result)[:length] for result in self])

    def summary(self) -> str:
        """The runs in a few lines of text: mean and standard deviation over the runs."""
        counts = Counter(result.status for result in self)
        statuses = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
        lines = [f"{len(self)} runs ({statuses})"]
        for name in ("worst", "mean", "test_worst", "test_mean"):
            values = getattr(self, name)
            if np.all(np.isfinite(values)):
                lines.append(
                    f"{name.replace('_', ' '):<12}{values.mean():>10.5g} ± {values.std(ddof=len(self) > 1):.2g}"
                )
        return "\n".join(lines)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draws the runs: medians, and bands from the 10 % to the 90 % quantile; see `bl.plot`."""
        from bilevel.results.plots import plot

        return plot(self, path)

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        return f"Results({len(self)} runs)"
