"""`Result`, which `solve` returns, and `load`, which reads one from a file."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

import numpy as np

from bilevel._core.types import Tree, X, Y
from bilevel.problem.per_task import TaskValues
from bilevel.problem.problem import BaseProblem
from bilevel.results import findings, summary
from bilevel.results.findings import convergence
from bilevel.results.findings.finding import Finding
from bilevel.results.history import Divergence, History, Iterate, column_names, fraction_of
from bilevel.weightings.base import Weighting
from bilevel.weightings.baselines import Baselines

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from bilevel.diagnostics.certificate import Certificate


class Reportable:
    """The `report` that `Result` and `Results` share."""

    def report(
        self: Any,
        path: str | os.PathLike[str],
        *,
        against: Result | Sequence[Result] | None = None,
        certificate: Certificate | None = None,
        title: str | None = None,
        baselines: Baselines | None = None,
    ) -> None:
        """Writes one HTML page that opens offline; it needs the extra `report`.

        The page has a verdict, losses by task, charts of losses and weights over the run with the tables behind them,
        findings, settings and versions. Several runs are shown by medians and their spread; of very many tasks the
        worst are shown one by one, and the spread over all. The same results give the same page.

        Args:
            path: of the page, such as "run.html"; an existing file is replaced at once or not at all.
            against: a result of the same tasks to compare with, or several: min-avg runs, say.
            certificate: what `bl.certify` measured of this result.
            title: of the page; None = the solver's name.
            baselines: what each task could reach, as `bl.baselines` measures it: the page then has worst regrets beside
                worst losses. None = those of the first run whose weighting has baselines (`Regret`, `Ratio`).
        """
        from bilevel.report import page

        page.write(self, path, against=against, certificate=certificate, title=title, baselines=baselines)


class Stored(NamedTuple):
    """A file's facts about the solver and the problem, which it does not hold."""

    objective: str | None
    findings: tuple[Finding, ...] | None  # None = the file is of a version that did not keep them
    fits_validation: bool = False  # whether x was fitted to validation rows, as far as the file says
    verdict: str | None = None  # None = likewise not kept
    baselines: np.ndarray | None = None  # those of the weighting

    @classmethod
    def of(cls, result: Result) -> Stored:
        """The facts to store with a result, whose solver and problem are not stored."""
        known = result.baselines
        values = None if known is None else np.asarray(known.values)
        return cls(result.objective, result.findings, result.fits_validation, result.verdict, values)


@dataclasses.dataclass(frozen=True, eq=False)
class Result(Reportable, Generic[X, Y]):
    """The last iterate of a run, other iterates of it, and its history.

    `x`, `y`, `weights`, `losses`, `selection_losses`, `test_losses`, `worst`, `mean` and `worst_task` are those of
    `last`.

    Where steps saw some of the tasks (`sampling=`), every y of `last`, `best` and `average` has been fitted to their x
    at the end: see `bl.sampling`.

    Attributes:
        problem: what was solved; None where the result was loaded.
        solver: how; its repr where the result was loaded.
        last: the last iterate.
        best: the evaluated iterate with the lowest worst selection loss, or validation loss where there are no
            selection rows. With tasks from a distribution, the one with the lowest objective, which is their mean loss
            or the mean over the worst of them.
        random: x^t and weights^t at a uniformly random step t. Its y is fitted to x^t, as in every iterate; with
            `solve(fitted=False)` it is the method's y^{t+1} (y^t for a solver that moves x first), and the iterate that
            the theory speaks of.
        average: the average over the run with weights that favour its end (Shamir and Zhang, 2013): the one to take
            when batches are small and the last iterate is noisy.
        history: the run as it was evaluated.
        status: "converged" (there is nothing more to gain), "finished", "stopped early", "interrupted", "diverged" or
            "callback failed".
        message: what happened, in a sentence.
        steps: how many steps were taken.
        seconds: how long the run took, compiling included.
        seed: the seed of everything random.
        compile_seconds: the part of `seconds` that went into compiling; 0 where the file of a loaded result has none.
        divergences: every time that the run diverged: step, task, quantity, and what was done.
        best_by: what `best` was chosen by, "selection" or "validation"; "last" = it is the last, as losses do not say
            which iterate is better.
        stored: what the file of a loaded result says about the solver and the problem; None = not loaded.
    """

    problem: BaseProblem[X, Y] | None = dataclasses.field(repr=False)
    solver: Any
    last: Iterate[X, Y] = dataclasses.field(repr=False)
    best: Iterate[X, Y] = dataclasses.field(repr=False)
    random: Iterate[X, Y] = dataclasses.field(repr=False)
    average: Iterate[X, Y] = dataclasses.field(repr=False)
    history: History
    status: str
    message: str
    steps: int
    seconds: float
    seed: int
    compile_seconds: float = 0.0
    divergences: tuple[Divergence, ...] = dataclasses.field(default=(), repr=False)
    best_by: str = "validation"
    stored: Stored | None = dataclasses.field(default=None, repr=False)

    @property
    def x(self) -> X:
        """What the tasks share."""
        return self.last.x

    @property
    def y(self) -> TaskValues[Y]:
        """Every task's own variable, by name."""
        return self.last.y

    @property
    def weights(self) -> np.ndarray:
        """One weight per task."""
        return self.last.weights

    @property
    def losses(self) -> np.ndarray:
        """Validation losses, in the order of the tasks."""
        return self.last.losses

    @property
    def selection_losses(self) -> np.ndarray | None:
        """Selection losses, in the order of the tasks."""
        return self.last.selection_losses

    @property
    def test_losses(self) -> np.ndarray | None:
        """Test losses, in the order of the tasks."""
        return self.last.test_losses

    @property
    def worst(self) -> float:
        """The largest validation loss."""
        return self.last.worst

    @property
    def mean(self) -> float:
        """The mean validation loss."""
        return self.last.mean

    @property
    def tail(self) -> float | None:
        """The mean over the worst validation losses, in the fraction that `CVaR` has; None with other weightings."""
        fraction = fraction_of(self.solver)
        return None if fraction is None else self.last.tail(fraction)

    @property
    def worst_task(self) -> str:
        """The name of the task with the largest validation loss."""
        return self.last.worst_task

    @property
    def objective(self) -> str | None:
        """The name of the solver's weighting; None where it has none."""
        if self.stored is not None:
            return self.stored.objective
        weighting = getattr(self.solver, "weighting", None)
        return None if weighting is None else type(weighting).__name__

    @property
    def baselines(self) -> Baselines | None:
        """What each task could reach, as the weighting has it (`Regret`, `Ratio`); None with other weightings.

        `result.baselines.regrets(result.test_losses)` are the regrets on test rows.
        """
        names, weighting = self.y.names, getattr(self.solver, "weighting", None)
        found = weighting.known_baselines(len(names)) if isinstance(weighting, Weighting) else None
        if found is None and self.stored is not None:
            found = self.stored.baselines
        return None if found is None else Baselines(found, names=tuple(map(str, names)))

    @property
    def fits_validation(self) -> bool:
        """Whether x was fitted to the validation rows, so that their losses say little about other rows."""
        if self.problem is not None:
            return self.problem.fits_validation
        return self.stored is not None and self.stored.fits_validation

    def summary(self) -> str:
        """The result in a few lines of text, findings included; fast."""
        return summary.text(self)

    @functools.cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What the history and the iterates show that a user should know, each with a remedy.

        Findings are: overfitting; a loss that still fell, rose or jumped; a noisy end; weights that cycle or are not
        those of a solution; an x or losses that do not move. `finding.kind` says which one it is, `finding.numbers`
        has the evidence, and `str(finding)` is a sentence. Nothing is computed on the problem; `bl.check_result` also
        solves the lower problems further, and says whether y lags behind x.
        """
        if self.stored is not None and self.stored.findings is not None:
            return self.stored.findings
        return findings.found(self)

    @property
    def verdict(self) -> str:
        """How the run stands: "converged", "settled", "still falling", "still moving", "noisy", "rising", "cycling",
        "overfitting", "weights not settled", "x did not move", "nothing moved", "diverged", or "not known" of few
        evaluations.

        `status` says why a run ended; this says whether its loss had stopped changing.
        """  # noqa: D205
        if self.stored is not None and self.stored.verdict is not None:
            return self.stored.verdict
        return convergence.verdict(self, self.findings)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the result to one file, which `bilevel.load` reads: all of it but the problem and its functions.

        The arrays are in the safetensors format, the rest is JSON in its metadata; nothing in the file can run code.
        An existing file is replaced at once or, if anything fails, not at all.
        """
        from bilevel.results import storage

        storage.save(self, path)

    def to_dataframe(self) -> pandas.DataFrame:
        """The history as a table with one row per evaluation and task.

        Its columns: step, seconds, task, validation, selection and test (where there is such data), metrics, weight,
        lower_rate, direction_norm, upper_rate and weights_rate; the last three are the same for all tasks of an
        evaluation.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_dataframe needs pandas: pip install 'bilevel[pandas]'") from error

        history, names = self.history, column_names(self.history, self.y.names)
        tasks = len(names)
        by_task = {role: history[role] for role in ("validation", "selection", "test") if role in history}
        by_task |= {**history.metrics, "weight": history.weights, "lower_rate": history.lower_rate}
        columns: dict[str, Any] = {name: np.repeat(history[name], tasks) for name in ("step", "seconds")}
        columns["task"] = names * history.evaluations
        columns |= {name: np.asarray(own, float).ravel() for name, own in by_task.items()}
        for name in ("direction_norm", "upper_rate", "weights_rate"):
            columns[name] = np.repeat(history[name], tasks)
        return pandas.DataFrame(columns)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draws the losses, the weights and the tasks, and saves the figure where a path is given; see `bl.plot`."""
        from bilevel.results.plots import plot

        return plot(self, path)

    def __str__(self) -> str:
        return self.summary()


def load(path: str | os.PathLike[str], *, x: Tree = None, y: Tree = None) -> Result:
    """Reads a result that `Result.save` wrote, bit for bit: all of it but the problem and its functions.

    `problem` is None, `solver` is the text of the solver, and the findings are those of the result that was saved.
    Dicts, lists, tuples and None come back as they were. Any other node of a pytree (a named tuple, a dataclass, a
    module) comes back as a dict with the names of its parts, unless an example gives the structure. Arrays of x and y
    are JAX arrays; those that JAX would round (float64 where `jax_enable_x64` is off) stay numpy arrays.

    Args:
        path: of the file.
        x: an example of x, for its structure and shapes; None = as the file describes it.
        y: an example of one task's y, or a dict of them by task name; None = as the file describes it.

    Raises:
        ValueError: the file is damaged, was not written by `Result.save`, or does not fit the examples.

    >>> import tempfile, bilevel as bl
    >>> known = bl.problems.opposed_slopes()
    >>> result = bl.solve(known.problem, bl.MORBiT(0.1, 0.5), known.x, steps=20, progress=False)
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     result.save(f"{directory}/slopes.safetensors")
    ...     again = bl.load(f"{directory}/slopes.safetensors")
    >>> again.worst == result.worst and again.summary() == result.summary()
    True
    """
    from bilevel.results import storage

    return storage.read(path, x, y)
