"""What a comparison found."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bilevel.comparison import figure, findings, table, table_text
from bilevel.comparison.benchmarks import PAPER
from bilevel.comparison.candidates import Candidate
from bilevel.comparison.ranks import Rank, ranked
from bilevel.comparison.tuning import AUTOMATIC
from bilevel.results.findings.finding import Finding
from bilevel.weightings.baselines import Baselines

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What a comparison found.

    Attributes:
        title: of the problem.
        candidates: the solvers that ran, in the order of their final worst selection loss, or of the test loss where
            there are no selection rows, or else of the validation loss; those that diverge last.
        skipped: solvers that did not run on the problem, and why.
        target: the worst validation loss to which calls and seconds are counted.
        optimum: the lowest worst loss there is, where it is known.
        baselines: what each task could reach, where worst regrets are shown beside worst losses.
    """

    title: str
    candidates: list[Candidate]
    skipped: dict[str, str]
    target: float
    optimum: float | None = None
    baselines: Baselines | None = None

    @property
    def ranks(self) -> list[Rank | None]:
        """The rank of every candidate, with an interval over the seeds; None for the paper's run, of another budget."""
        return self._ranks([c.ranked_by for c in self.candidates])

    @property
    def test_ranks(self) -> list[Rank | None]:
        """The same by test rows, on which nobody trained or tuned; None for all where there are none."""
        if not all(c.has("worst_test") for c in self.candidates):
            return [None] * len(self.candidates)
        return self._ranks(["worst_test"] * len(self.candidates))

    def _ranks(self, columns: Sequence[str]) -> list[Rank | None]:
        equal = [(c, by) for c, by in zip(self.candidates, columns, strict=True) if c.name != PAPER]
        found = iter(ranked([c.ends(by).tolist() for c, by in equal]))
        return [None if c.name == PAPER else next(found) for c in self.candidates]

    def table(self) -> list[table.Row]:
        """A row for every solver: ranks, final losses, calls and seconds to the target, memory, share that diverged.

        With baselines, also worst regrets, and the tasks with the worst loss and regret.
        """
        ranks, known = self.ranks, self.baselines
        first = next((rank for rank in ranks if rank is not None), None)
        return [
            table.row(candidate, table.Ranks(rank, test, first), self.target)
            | ({} if known is None else table.regrets(candidate, known.names))
            for candidate, rank, test in zip(self.candidates, ranks, self.test_ranks, strict=True)
        ]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What should be known before the ranks are believed: ties for the first place, rates at the edge of a grid."""
        return findings.found(self.table())

    def summary(self) -> str:
        """The table as text."""
        return table_text.text(self.title, self.table(), self.skipped, self.target)

    def plot(self, path: str | os.PathLike | None = None) -> Figure:
        """Worst losses on validation, selection and test rows, against calls and against time; ranks by the names."""
        places = {(c.name, c.rates): rank for c, rank in zip(self.candidates, self.ranks, strict=True) if rank}
        return figure.draw(self.title, self.candidates, figure.Levels(self.target, self.optimum), path, places)

    def write(self, folder: Path) -> None:
        """Tables and figures as files."""
        table.write(self.table(), self.candidates, folder)
        for suffix in ("png", "pdf"):
            self.plot(folder / f"comparison.{suffix}")

    def __str__(self) -> str:
        return self.summary()


def default_target(candidates: Sequence[Candidate]) -> float:
    """Where MORBiT as the paper has it ends, or else MORBiT, or else the median solver."""
    # A mean over some runs of a solver that diverges in others would be a target for nobody.
    whole = [candidate for candidate in candidates if not candidate.diverged.any()]
    whole.sort(key=lambda candidate: candidate.rates != AUTOMATIC)  # tuned runs of a solver replace automatic ones
    ends = {candidate.name: candidate.worst for candidate in whole}
    return ends.get(PAPER, ends.get("MORBiT", float(np.median(list(ends.values()))) if ends else float("nan")))
