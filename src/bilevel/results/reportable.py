"""What results and many results have in common: they can be written as a page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bilevel.diagnostics.certificate import Certificate
    from bilevel.results.result import Result
    from bilevel.weightings.baselines import Baselines


class Reportable:
    """A `Result` or `Results`."""

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

        A verdict, losses by task, losses and weights over the run as charts with the tables behind them, findings,
        settings and versions; of several runs medians, and the spread over them. Of very many tasks the worst are shown
        one by one, and the spread over all. The same results give the same page.

        Args:
            path: of the page, such as "run.html"; a file that is there is replaced at once or not at all.
            against: a result of the same tasks to compare with, or several: min-avg runs, say.
            certificate: what `bl.certify` measured of this result.
            title: of the page; None = the solver's name.
            baselines: what each task could reach, as `bl.baselines` measures it: the page then has worst regrets beside
                worst losses. None = those of the first of the runs whose weighting has some (`Regret`, `Ratio`).
        """
        from bilevel.report import page

        page.write(self, path, against=against, certificate=certificate, title=title, baselines=baselines)
