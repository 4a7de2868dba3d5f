"""`Results`: several runs of one kind, with statistics over them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from bilevel._core.types import Tree
from bilevel.results.result import Reportable, Result

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


def _of_each(name: str, says: str) -> Any:
    """A property: what the last iterate of each run has."""
    return property(lambda self: np.array([getattr(result.last, name) for result in self], float), doc=says)


class Results(Sequence[Result], Reportable):
    """Runs that differ in their seed (or their tasks).

    `worst`, `mean`, `selection_worst`, `selection_mean`, `test_worst` and `test_mean` are arrays with one number per
    run, NaN where there are no such rows. `band(of)` follows any quantity over the runs' histories.
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

    worst: np.ndarray = _of_each("worst", "The largest validation loss of each run.")
    mean: np.ndarray = _of_each("mean", "The mean validation loss of each run.")
    selection_worst: np.ndarray = _of_each("selection_worst", "The largest selection loss of each run, or NaN.")
    selection_mean: np.ndarray = _of_each("selection_mean", "The mean selection loss of each run, or NaN.")
    test_worst: np.ndarray = _of_each("test_worst", "The largest test loss of each run, or NaN.")
    test_mean: np.ndarray = _of_each("test_mean", "The mean test loss of each run, or NaN.")

    def band(self, of: Callable[[Result], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """(steps, values): `of(result)`, one number per evaluation, for every run, over the steps that all reached."""
        length = min(result.history.evaluations for result in self)
        longest = max(self, key=lambda result: result.history.evaluations)
        return longest.history.step[:length], np.stack([of(result)[:length] for result in self])

    def summary(self) -> str:
        """The runs in a few lines of text: mean and standard deviation over the runs."""
        statuses = _counted(result.status for result in self)
        lines = [f"{len(self)} runs ({statuses}; {_counted(result.verdict for result in self)})"]
        names = ("worst", "mean", "selection_worst", "selection_mean", "test_worst", "test_mean")
        found = {name.replace("_", " "): getattr(self, name) for name in names}
        found = {name: values for name, values in found.items() if np.all(np.isfinite(values))}
        width = max([12, *(len(name) + 1 for name in found)])
        for name, values in found.items():
            lines.append(f"{name:<{width}}{values.mean():>10.5g} ± {values.std(ddof=len(self) > 1):.2g}")
        lines += self._regrets()
        kinds = Counter(finding.kind for result in self for finding in result.findings)
        if kinds:
            lines.append(f"found: {_counted(kinds.elements())}")
        return "\n".join(lines)

    def _regrets(self) -> list[str]:
        """A line for each kind of rows: the worst regrets, and the task that has them most often."""
        found = [r.last.worst_regrets(known) for r in self if (known := r.baselines) is not None]
        lines = []
        for rows in found[0] if len(found) == len(self) > 0 else ():
            own = [one[rows] for one in found if rows in one]
            values = np.array([worst.value for worst in own])
            task, times = Counter(worst.task for worst in own).most_common(1)[0]
            spread = f"{values.mean():.5g} ± {values.std(ddof=len(own) > 1):.2g}"
            lines.append(f"worst {rows} regret {spread}, in {times} of {len(own)} runs that of {task}")
        return lines

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes all runs to one file, which `Results.load` reads: all but the problem and its functions.

        An existing file is replaced at once or, if anything fails, not at all; see `Result.save`.
        """
        from bilevel.results import storage

        storage.save_all(self, path)

    @staticmethod
    def load(path: str | os.PathLike[str], *, x: Tree = None, y: Tree = None) -> Results:
        """Reads what `Results.save` wrote. Arguments are those of `bilevel.load`, which reads one run.

        >>> import tempfile, bilevel as bl
        >>> known = bl.problems.opposed_slopes()
        >>> results = bl.solve(known.problem, bl.MORBiT(0.1, 0.5), known.x, steps=20, seeds=2, progress=False)
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     results.save(f"{directory}/slopes.safetensors")
        ...     again = bl.Results.load(f"{directory}/slopes.safetensors")
        >>> again.summary() == results.summary()
        True
        """
        from bilevel.results import storage

        return Results(storage.read_all(path, x, y))

    def to_dataframe(self) -> pandas.DataFrame:
        """The histories as one table: those of `Result.to_dataframe`, with columns run (0, 1, ...) and seed first."""
        tables = [result.to_dataframe() for result in self]
        import pandas  # where it is missing, the line above has said so

        for run, (result, table) in enumerate(zip(self, tables, strict=True)):
            table.insert(0, "run", run)
            table.insert(1, "seed", int(result.seed))
        return pandas.concat(tables, ignore_index=True)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draws the runs: medians, and bands from the 10 % to the 90 % quantile; see `bl.plot`."""
        from bilevel.results.plots import plot

        return plot(self, path)

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        return f"Results({len(self)} runs)"


def _counted(words: Iterable[str]) -> str:
    return ", ".join(f"{count} {word}" for word, count in sorted(Counter(words).items()))
