"""`compare` runs solvers on one problem at equal budgets, each with rates tuned on the same grid."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jax.typing import ArrayLike

from bilevel import Baselines, Problem, Solver
from bilevel._core import pytrees, values
from bilevel.diagnostics.costs import DivergedError
from bilevel.problem import initial_point
from bilevel.results.findings.finding import Finding
from bilevel.studies.comparison import figure
from bilevel.studies.comparison.benchmarks import (
    OPTIMA,
    PAPER,
    benchmark,
    choose,
    own_benchmark,
    recommended_for,
    refusal,
)
from bilevel.studies.comparison.candidates import (
    AUTOMATIC,
    Candidate,
    Rank,
    TableRow,
    ranks,
    table_findings,
    table_regrets,
    table_row,
    table_text,
    write_tables,
)
from bilevel.studies.comparison.runner import TUNING_SEED, Budget, Grid, OverBudgetError, Runner, tunable, tuned_on
from bilevel.studies.problems.closed_form import AnyProblem
from bilevel.studies.records import Experiment, MemoryRecords, RecordFiles
from bilevel.weightings import Weighting

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The result of `compare`.

    Attributes:
        title: of the problem.
        candidates: the solvers that ran, ordered by their final worst loss: on selection rows, or on test rows if there
            are none, or else on validation rows. Solvers that diverge come last.
        skipped: solvers that did not run on the problem, and why.
        target: the worst validation loss to which calls and seconds are counted.
        optimum: the lowest possible worst loss, if it is known.
        baselines: the loss that each task could reach; if given, worst regrets are shown beside worst losses.
    """

    title: str
    candidates: list[Candidate]
    skipped: dict[str, str]
    target: float
    optimum: float | None = None
    baselines: Baselines | None = None

    @property
    def ranks(self) -> list[Rank | None]:
        """The rank of each candidate, with an interval over the seeds; None for the paper's run: its budget differs."""
        return self._ranks([c.ranked_by for c in self.candidates])

    @property
    def test_ranks(self) -> list[Rank | None]:
        """The ranks by test rows, which neither train nor tune anything; all None if there are no test rows."""
        if not all(c.has("worst_test") for c in self.candidates):
            return [None] * len(self.candidates)
        return self._ranks(["worst_test"] * len(self.candidates))

    def _ranks(self, columns: Sequence[str]) -> list[Rank | None]:
        equal = [(c, by) for c, by in zip(self.candidates, columns, strict=True) if c.name != PAPER]
        found = iter(ranks([c.ends(by).tolist() for c, by in equal]))
        return [None if c.name == PAPER else next(found) for c in self.candidates]

    def table(self) -> list[TableRow]:
        """A row for every solver: ranks, final losses, calls and seconds to the target, memory, share that diverged.

        With baselines, also worst regrets, and the tasks with the worst loss and regret.
        """
        ranks, known = self.ranks, self.baselines
        first = next((rank for rank in ranks if rank is not None), None)
        return [
            table_row(candidate, rank, test, first, self.target)
            | ({} if known is None else table_regrets(candidate, known.names))
            for candidate, rank, test in zip(self.candidates, ranks, self.test_ranks, strict=True)
        ]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Reasons to doubt the ranks: ties for the first place, rates at the edge of a grid."""
        return table_findings(self.table())

    def summary(self) -> str:
        """The table as text."""
        return table_text(self.title, self.table(), self.skipped, self.target)

    def plot(self, path: str | os.PathLike | None = None) -> Figure:
        """Worst losses on validation, selection and test rows, against calls and against time; ranks by the names."""
        places = {(c.name, c.rates): rank for c, rank in zip(self.candidates, self.ranks, strict=True) if rank}
        return figure.draw(self.title, self.candidates, self.target, self.optimum, path, places)

    def write(self, folder: Path) -> None:
        """Tables and figures as files."""
        write_tables(self.table(), self.candidates, folder)
        for suffix in ("png", "pdf"):
            self.plot(folder / f"comparison.{suffix}")

    def __str__(self) -> str:
        return self.summary()


GRID = Grid()


def compare(
    problem: str | AnyProblem,
    x: Any = None,
    y: Any = None,
    *,
    solvers: Sequence[str] | Mapping[str, Solver] | None = None,
    calls: float | None = None,
    seconds: float | None = None,
    seeds: int = 10,
    grid: Grid | None = GRID,
    automatic: Sequence[str] | None = None,
    target: float | None = None,
    baselines: Baselines | ArrayLike | None = None,
    out: str | Path | None = None,
    progress: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Runs solvers on one problem with equal budgets and several seeds.

    Solvers chosen by name run as min-max methods, even if they average the tasks as published. Their three rates are
    tuned on the same grid. Tuning minimises the worst selection loss at the end of a run, or the worst validation loss
    if there are no selection rows, on draws that no reported run uses. First all rates of the grid run a quarter of the
    steps on one draw, then the best three run all steps on three draws. Rates whose run ends early, or above ten times
    the first loss, are never preferred. While the best rates lie on an edge of the grid, the grid widens there, up to
    four times a side. A solver's estimator has the rate of y, unless it was given its own.

    Solvers are ranked by the worst selection loss, or by the worst test loss if there are no selection rows, or else by
    the worst validation loss. Ranks by the worst test loss are shown too, but test data steer nothing. Solvers tie if
    they share a place or if their intervals overlap.

    The budget counts all calls of a run: for first values and tables, for loops that grow, and for automatic rates,
    before the run and along it. Evaluations on all the data are not counted.

    Solvers given as objects keep their weighting and their rates; only rates that are None are tuned.

    Args:
        problem: a name ("ball", "noisy-ball", "sinusoids", "letter", "fashion"), or a `bl.Problem`.
        x: the initial x, for a problem of yours.
        y: the initial variables of the tasks, likewise.
        solvers: names, or a dict of solvers by label. "paper" is MORBiT with the paper's rates and steps, if the
            problem is in the paper. None = "paper", and every bilevel solver that can run on the problem.
        calls: the budget in oracle calls per task, for a `bl.Problem`. A call is one value, gradient or product on one
            row.
        seconds: the budget in seconds of steps instead. None for both = the calls of a run of the solver that
            `bl.recommended` names, or as many steps on problems of another kind.
        seeds: runs of each solver.
        grid: the rates to try; None = do not tune: rates are automatic, or as the solvers were given them.
        automatic: names of solvers that also run with automatic rates; None = the one that `bl.recommended` names, if
            it is among the solvers.
        target: a worst validation loss; the table has the calls and seconds until it is reached. None = the final loss
            of "paper", or else of MORBiT, or else of the median solver.
        baselines: the loss that each task of a problem of yours could reach, from `bl.baselines`, or one number per
            task. Worst regrets are then shown beside worst losses. None = the baselines of the first solver whose
            weighting has some (`Regret`, `Ratio`).
        out: the folder for runs, table and figure, with a folder for each problem. Finished runs in it are not made
            again. None = write no files.
        progress: show progress bars where there is a terminal.
        say: called with a line of text for each thing done.
    """
    where = _benchmark_of(problem, x, y)
    _check_numbers(calls, seconds, seeds, grid, target)
    chosen, with_paper = choose(solvers, where)
    _check_automatic(automatic, chosen)
    where = _with_baselines(where, problem, baselines, chosen)
    folder = _folder_of(out, where, chosen)
    where.require()
    ready = where.start(TUNING_SEED, "")
    if calls is not None and not isinstance(ready.problem, Problem):
        kind = type(ready.problem).__name__
        raise ValueError(f"compare(calls={calls!r}): calls are counted on a bl.Problem, not on a {kind}: give seconds.")
    records = MemoryRecords() if folder is None else RecordFiles(folder)
    runner = Runner(where, ready, records, range(seeds), Budget(calls, seconds), progress, say)
    ran, skipped = _run(runner, chosen, solvers is not None, grid, automatic)
    paper = [runner.paper()] if with_paper else []
    candidates = sorted(paper + ran, key=lambda candidate: candidate.order)
    if not candidates:
        name, why = next(iter(skipped.items()))
        raise ValueError(f"compare(problem=...): there is no solver to run. {name}: {why}")
    goal = default_target(candidates) if target is None else float(target)
    found = Comparison(where.title, candidates, skipped, goal, OPTIMA.get(where.name), where.baselines)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        found.write(folder)
    return found


def default_target(candidates: Sequence[Candidate]) -> float:
    """The final loss of the paper's own run, or else of MORBiT, or else of the median solver."""
    # Only solvers without a diverged run: the mean of the runs that are left would mislead.
    whole = [candidate for candidate in candidates if not candidate.diverged.any()]
    whole.sort(key=lambda candidate: candidate.rates != AUTOMATIC)  # tuned runs of a solver replace automatic ones
    ends = {candidate.name: candidate.worst for candidate in whole}
    return ends.get(PAPER, ends.get("MORBiT", float(np.median(list(ends.values()))) if ends else float("nan")))


def _run(
    runner: Runner, solvers: Mapping[str, Solver], named: bool, grid: Grid | None, automatic: Sequence[str] | None
) -> tuple[list[Candidate], dict[str, str]]:
    """Runs the solvers that can run. Others are left out, with the reason, or raise if the user named them."""
    candidates: list[Candidate] = []
    # Check all of them first: runs may take hours.
    skipped = {name: why for name, solver in solvers.items() if (why := _left_out(runner, name, solver, named, grid))}
    for own, solver in solvers.items():
        if own in skipped:
            continue
        for name, run, asked_for in _ways(runner, own, solver, named, grid, automatic):
            try:
                candidates.append(run())
            except OverBudgetError as error:
                skipped[name] = str(error)
            except DivergedError as error:
                if asked_for:
                    raise ValueError(f"compare(solvers=...): {name} cannot be compared: {_why(error)}") from error
                skipped[name] = _why(error)
    return candidates, skipped


def _left_out(runner: Runner, name: str, solver: Solver, named: bool, grid: Grid | None) -> str | None:
    """Why a solver does not run, from checks before any run; None if it can. Raises if the user named the solver."""
    as_run = solver if grid is None else next(iter(tuned_on(grid, solver).values()))
    why = refusal(as_run, runner.ready, runner.benchmark.y)
    if why and named:
        raise ValueError(f"compare(solvers=...): {name} cannot run on this problem: {why}")
    if why or named:
        return why
    try:
        return runner.too_slow(name, solver)
    except (OverBudgetError, DivergedError) as error:
        return _why(error)


def _why(error: OverBudgetError | DivergedError) -> str:
    if isinstance(error, OverBudgetError):
        return str(error)
    return f"it diverges at step {error.step} of the {error.steps} on which its calls are counted."


def _ways(
    runner: Runner, name: str, solver: Solver, named: bool, grid: Grid | None, automatic: Sequence[str] | None
) -> Iterator[tuple[str, Callable[[], Candidate], bool]]:
    """The ways to run a solver, each with its name, and whether the user asked for it.

    With tuned rates if the solver has any to tune; as it is, if the user asks for that or nothing can be tuned.
    """
    as_it_is = functools.partial(runner.as_it_is, name, solver)
    if grid is None or not any(tunable(solver)):
        yield name, as_it_is, named
        return
    yield name, functools.partial(runner.tuned, name, solver, grid), named
    if name in ((type(recommended_for(runner.ready.problem)).__name__,) if automatic is None else automatic):
        yield f"{name}, automatic", as_it_is, automatic is not None


def _benchmark_of(problem: str | AnyProblem, x: Any, y: Any) -> Experiment:
    if isinstance(problem, str):
        if x is not None or y is not None:
            raise ValueError("compare(x=..., y=...) is for a problem of yours: a named one has its own x and y.")
        return benchmark(problem)
    if not isinstance(problem, AnyProblem):
        raise TypeError(f"compare(problem=...) got {type(problem).__name__}: it needs a name or a bl.Problem.")
    if x is None:
        raise ValueError("compare(x=None): it needs the initial x.")
    initial_point.arrays(x, "compare(x)")
    pytrees.check(y, "compare(y)")
    return own_benchmark(problem, x, y)


def _with_baselines(where: Experiment, problem: Any, baselines: Any, solvers: Mapping[str, Solver]) -> Experiment:
    """Adds baselines to a benchmark: as given, or from the first solver whose weighting has some."""
    if isinstance(problem, str):
        if baselines is not None:
            raise ValueError("compare(baselines=...) is for a problem of yours: a named one has its own tasks.")
        return where
    names = tuple(map(str, problem.names))
    if baselines is None:
        weightings = (getattr(solver, "weighting", None) for solver in solvers.values())
        known = (own.known_baselines(len(names)) for own in weightings if isinstance(own, Weighting))
        found = next((own for own in known if own is not None), None)
    elif isinstance(baselines, Baselines) and baselines.names:
        found = baselines.array(problem)
    else:
        found = baselines.values if isinstance(baselines, Baselines) else baselines
        values.one_per_task("baselines", found, len(names), of="compare")
    if found is None:
        return where
    return dataclasses.replace(where, baselines=Baselines(np.asarray(found, float), names=names))


def _check_numbers(
    calls: float | None, seconds: float | None, seeds: int, grid: Grid | None, target: float | None
) -> None:
    if calls is not None and seconds is not None:
        raise ValueError("compare(calls=..., seconds=...): one budget, not both.")
    for name, value in (("calls", calls), ("seconds", seconds)):
        values.positive(name, value, of="compare", none="another budget")
    values.whole("seeds", seeds, of="compare")
    if grid is not None and not isinstance(grid, Grid):
        raise TypeError(f"compare(grid={grid!r}): it needs a bl.Grid, or None = the solvers as they are.")
    for name, rates in zip(Grid._fields, grid or (), strict=False):
        if values.numbers_of(name, rates, of="Grid").ndim != 1 or len(rates) == 0:
            raise ValueError(f"compare(grid={grid!r}): it needs one rate or more of x, of y and of the weights.")
    values.number("target", target, of="compare", none="chosen from the runs")


def _check_automatic(automatic: Sequence[str] | None, solvers: Mapping[str, Solver]) -> None:
    if isinstance(automatic, str) or not isinstance(automatic, (Iterable, type(None))):
        raise ValueError(f"compare(automatic={automatic!r}): it needs a list of names.")
    for name in automatic or ():
        if name not in solvers:
            raise ValueError(f"compare(automatic=...) names {name!r}, which is not among the solvers compared.")
        if not getattr(solvers[name], "chooses_rates", False):
            raise ValueError(f"compare(automatic=...) names {name!r}, which chooses no rates.")


def _folder_of(out: str | Path | None, where: Experiment, solvers: Mapping[str, Solver]) -> Path | None:
    """The folder of a benchmark's files, which may not exist yet; None = no files."""
    if out is None:
        return None
    if Path(out).is_file():
        raise NotADirectoryError(f"compare(out={str(out)!r}): it is a file, and it needs a folder.")
    for label in solvers:
        if label in ("", ".", "..") or any(sign in label for sign in "/\\\0"):
            raise ValueError(
                f"compare(solvers=..., out=...): with out, the label {label!r} becomes the name of a folder: it needs "
                "one or more characters without '/' and '\\', and not '.' or '..'."
            )
    return Path(out) / where.name
