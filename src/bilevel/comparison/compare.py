"""`compare`: any solvers on one problem at equal budgets, each with rates tuned on the same grid."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bilevel._studies.records import Records
from bilevel.comparison.benchmarks import CONTESTS, Contest, contest, fingerprint
from bilevel.comparison.profiles import Grid, by_name, everyone, is_automatic, refusal, robust, usual
from bilevel.comparison.runner import TUNING_SEED, Budget, Court, Entry, diverged, final
from bilevel.problem import checks
from bilevel.problem.problem import Grouped
from bilevel.problems import Ready

GRID = Grid()
PAPER = "MORBiT, paper"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What came out.

    Attributes:
        title: of the problem.
        entries: the solvers, in the order of their final worst validation loss.
        skipped: solvers that cannot run on the problem, and why.
        target: the worst validation loss to which calls and seconds are counted.
    """

    title: str
    entries: list[Entry]
    skipped: dict[str, str]
    target: float

    def table(self) -> list[dict[str, Any]]:
        """A row for every solver: final losses, calls and seconds to the target, memory, share that diverged."""
        from bilevel.comparison.table import row

        return [row(entry, self.target) for entry in self.entries]

    def summary(self) -> str:
        """The table as text."""
        from bilevel.comparison.table import text

        return text(self)

    def plot(self, path: Any = None) -> Any:
        """Worst validation loss against calls and against time."""
        from bilevel.comparison.figure import draw

        return draw(self, path)

    def __str__(self) -> str:
        return self.summary()


def compare(
    problem: str | Grouped,
    x: Any = None,
    y: Any = None,
    *,
    solvers: Sequence[str] | Mapping[str, Any] | None = None,
    calls: float | None = None,
    seconds: float | None = None,
    seeds: int = 10,
    grid: Grid | None = GRID,
    automatic: Sequence[str] | None = None,
    target: float | None = None,
    out: str | Path | None = None,
    progress: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Runs solvers on one problem with equal budgets and several seeds.

    Every solver runs as a min-max method. Its three rates are tuned on the same grid, by the worst validation loss at
    the end of runs on draws of their own: all of them with a quarter of the budget on one draw, the best three with all
    of it on three. Test data steer nothing.

    Args:
        problem: a name ("ball", "noisy-ball", "sinusoids", "letter", "fashion"), or a `bl.Problem`.
        x: where x starts, for a problem of yours.
        y: where the tasks' variables start, likewise.
        solvers: names, or a dict of solvers by label; "paper" is MORBiT as the paper has it, for as many steps, where
            the paper has the problem. None = this, and every bilevel solver that can run on the problem.
        calls: the budget in oracle calls per task, a call being one value, gradient or product on one row.
        seconds: the budget in seconds of steps instead; None for both = the calls of a usual run of
            what `bl.recommended` says.
        seeds: runs of each solver.
        grid: the rates to try; None = none: automatic rates, or those that the solvers were given.
        automatic: names of solvers that run with automatic rates too; None = that which
            `bl.recommended` says, if it is among them.
        target: a worst validation loss; calls and seconds until it are reported. None = where MORBiT as the
            paper has it ends, or else MORBiT, or else the median solver.
        out: folder for runs, table and figure, in a folder for each problem; finished runs there are not made again.
            None = nothing is kept.
        progress: show progress bars where there is a terminal.
        say: told what was done.
    """
    where, y = _contest(problem, x, y)
    _check(calls, seconds, seeds, grid, target, out)
    entering, with_paper = _solvers(solvers, where)
    if isinstance(automatic, str):
        raise ValueError(f"compare(automatic={automatic!r}): it needs a list of names.")
    for name in automatic or ():
        if name not in entering:
            raise ValueError(f"compare(automatic=...) names {name!r}, which is not among the solvers compared.")
    where.require()
    ready = where.start(TUNING_SEED, "")
    refused = {name: why for name, solver in entering.items() if (why := refusal(solver, ready, y))}
    if refused and solvers is not None:
        name, why = next(iter(refused.items()))
        raise ValueError(f"compare(solvers=...): {name} cannot run on this problem: {why}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch if out is None else out) / where.name
        folder.mkdir(parents=True, exist_ok=True)
        court = Court(where, ready, y, Records(folder), range(seeds), Budget(calls, seconds), progress, say)
        entries = []
        if solvers is None:
            entering = {name: solver for name, solver in entering.items() if name not in refused}
            refused |= {name: why for name, solver in entering.items() if (why := court.too_slow(name, solver))}
        if with_paper:
            entries.append(court.run(PAPER, where.paper, "the paper's", where.paper_steps))
        of_itself = (usual(ready.problem)[0],) if automatic is None else automatic
        for name, solver in entering.items():
            if name in refused:
                continue
            if grid is not None:
                entries.append(court.tuned(name, solver, grid))
            if grid is None or name in of_itself:
                entries.append(court.run(name, solver, "automatic" if is_automatic(solver) else "as given"))
        if not entries:
            name, why = next(iter(refused.items()))
            raise ValueError(f"compare(problem=...): there is no solver to run. {name}: {why}")
        entries.sort(key=_order)
        found = Comparison(where.title, entries, refused, _target(target, entries))
        if out is not None:
            from bilevel.comparison.table import write

            write(found, folder)
            found.plot(folder / "comparison.png")
            found.plot(folder / "comparison.pdf")
    return found


def _order(entry: Entry) -> tuple[float, float]:
    """Solvers that diverge come last."""
    ends = [final(record) for record in entry.runs.values()]
    return float(diverged(entry).mean()), float(np.mean(ends))


def _target(target: float | None, entries: Sequence[Entry]) -> float:
    if target is not None:
        return float(target)
    # A mean over some runs of a solver that diverges in others would be a target for nobody.
    whole = [entry for entry in entries if not diverged(entry).any()]
    whole.sort(key=lambda entry: entry.rates != "automatic")  # tuned runs of a solver count before automatic ones
    ends = {entry.entrant.name: float(np.mean([final(r) for r in entry.runs.values()])) for entry in whole}
    return ends.get(PAPER, ends.get("MORBiT", float(np.median(list(ends.values()))) if ends else float("nan")))


def _contest(problem: Any, x: Any, y: Any) -> tuple[Contest, Any]:
    if isinstance(problem, str):
        if x is not None or y is not None:
            raise ValueError("compare(x=..., y=...) goes with a problem of yours: a named one has its own.")
        return contest(problem), None
    if not isinstance(problem, Grouped):
        raise TypeError(f"compare(problem=...) got {type(problem).__name__}: it needs a name or a bl.Problem.")
    if x is None:
        raise ValueError("compare(x=None): it needs where x starts.")
    ready = Ready(problem, x)
    # Runs that are kept must not be taken for those of another problem.
    return Contest(f"problem-{fingerprint(ready, y)}", "a problem of yours", lambda seed, variant: ready, 1000), y


def _solvers(solvers: Any, where: Contest) -> tuple[dict[str, Any], bool]:
    """Those that compete, and whether the paper's own run does."""
    if solvers is None:
        return everyone(), where.paper is not None
    if isinstance(solvers, Mapping) and solvers:
        for name, solver in solvers.items():
            if isinstance(solver, type) or not hasattr(solver, "step"):
                raise TypeError(f"compare(solvers=...): {name!r} is {solver!r}; it needs a solver object.")
        return {name: robust(solver) for name, solver in solvers.items()}, False
    named = isinstance(solvers, Sequence) and not isinstance(solvers, str) and len(solvers) > 0
    if not named or not all(isinstance(name, str) for name in solvers):
        raise ValueError(f"compare(solvers={solvers!r}): it needs a list of names, or a dict of solvers by label.")
    if "paper" in solvers and where.paper is None:
        raise ValueError(
            f"compare(solvers=...): the paper does not have {where.name!r}, only {_papers()}: leave out 'paper'."
        )
    return by_name([name for name in solvers if name != "paper"]), "paper" in solvers


def _papers() -> str:
    return ", ".join(name for name, contest in CONTESTS.items() if contest.paper is not None)


def _check(calls: Any, seconds: Any, seeds: Any, grid: Any, target: Any, out: Any) -> None:
    if calls is not None and seconds is not None:
        raise ValueError("compare(calls=..., seconds=...): one budget, not both.")
    for name, value in (("calls", calls), ("seconds", seconds)):
        if value is not None and not checks.is_positive(value):
            raise ValueError(f"compare({name}={value!r}): a budget is a number above 0.")
    checks.check_count("compare(seeds)", seeds)
    if grid is not None and not all(len(rates) for rates in grid):
        raise ValueError(f"compare(grid={grid!r}): it needs one rate or more of x, of y and of the weights.")
    if target is not None and not checks.is_number(target):
        raise ValueError(f"compare(target={target!r}): it needs a number.")
    if out is not None and Path(out).is_file():
        raise NotADirectoryError(f"compare(out={str(out)!r}): it is a file, and it needs a folder.")
