"""`compare`: any solvers on one problem at equal budgets, each with rates tuned on the same grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jax.typing import ArrayLike

from bilevel._cost.report import DivergedError
from bilevel._studies.record_files import RecordFiles
from bilevel._studies.records import MemoryRecords
from bilevel.comparison.arguments import (
    benchmark_of,
    check_automatic,
    check_counted,
    check_numbers,
    folder_of,
    with_baselines,
)
from bilevel.comparison.benchmarks import OPTIMA
from bilevel.comparison.candidates import Candidate
from bilevel.comparison.chosen import choose, recommended_for, refusal
from bilevel.comparison.profiles import Budget, OverBudgetError
from bilevel.comparison.result import Comparison, default_target
from bilevel.comparison.runner import TUNING_SEED, Runner
from bilevel.comparison.tuning import Grid, tunable, tuned_on
from bilevel.problem.base import BaseProblem
from bilevel.solvers._base.solver import Solver
from bilevel.weightings.baselines import Baselines

GRID = Grid()


def compare(
    problem: str | BaseProblem,
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

    Solvers chosen by name run as min-max methods, also those that average the tasks as published. Their three rates
    are tuned on the same grid, by the worst selection loss at the end of runs on draws of their own, or the worst
    validation loss where there are no selection rows: all of them with a quarter of the steps on one draw, the best
    three with all of them on three. Rates with which a run ends early, or above ten times the first loss, are never
    preferred. While the best rates lie on an edge of the grid, it widens there, up to four times a side. The rate of a
    solver's estimator, where it was not given, is y's.

    Solvers are ranked by the worst selection loss, and beside it by the worst test loss: test data steer nothing. Where
    there are no selection rows they are ranked by the worst test loss, or else by the worst validation loss. Solvers
    that share a place, or whose intervals of places overlap, tie.

    A run may use as many calls as the budget says, all told: first values and tables, loops that grow, and what
    automatic rates measure before and along the run. Evaluations on all the data are not counted.

    Solvers given as objects run as they are given: their weighting and the rates that they were given stay, and only
    rates that are None are tuned.

    Args:
        problem: a name ("ball", "noisy-ball", "sinusoids", "letter", "fashion"), or a `bl.Problem`.
        x: where x starts, for a problem of yours.
        y: where the tasks' variables start, likewise.
        solvers: names, or a dict of solvers by label; "paper" is MORBiT as the paper has it, for as many steps, where
            the paper has the problem. None = this, and every bilevel solver that can run on the problem.
        calls: the budget in oracle calls per task, a call being one value, gradient or product on one row; of a
            `bl.Problem` only.
        seconds: the budget in seconds of steps instead; None for both = the calls of a run of what `bl.recommended`
            says, or as many steps on problems of another kind.
        seeds: runs of each solver.
        grid: the rates to try; None = none: automatic rates, or those that the solvers were given.
        automatic: names of solvers that run with automatic rates too; None = that which
            `bl.recommended` says, if it is among them.
        target: a worst validation loss; calls and seconds until it are reported. None = where MORBiT as the
            paper has it ends, or else MORBiT, or else the median solver.
        baselines: what each task of a problem of yours could reach, as `bl.baselines` measures it, or one number per
            task: worst regrets then stand beside worst losses. None = those of the first of the solvers whose weighting
            has some (`Regret`, `Ratio`).
        out: folder for runs, table and figure, in a folder for each problem; finished runs there are not made again.
            None = no files are written.
        progress: show progress bars where there is a terminal.
        say: called with a line of text for each thing done.
    """
    where = benchmark_of(problem, x, y)
    check_numbers(calls, seconds, seeds, grid, target)
    chosen = choose(solvers, where)
    check_automatic(automatic, chosen.solvers)
    where = with_baselines(where, problem, baselines, chosen.solvers)
    folder = folder_of(out, where, chosen.solvers)
    where.require()
    ready = where.start(TUNING_SEED, "")
    check_counted(calls, ready.problem)
    records = MemoryRecords() if folder is None else RecordFiles(folder)
    runner = Runner(where, ready, records, range(seeds), Budget(calls, seconds), progress, say)
    ran = _run(runner, chosen.solvers, _Wanted(solvers is not None, grid, automatic))
    paper = [runner.paper()] if chosen.paper else []
    candidates = sorted(paper + ran.candidates, key=lambda candidate: candidate.order)
    if not candidates:
        name, why = next(iter(ran.skipped.items()))
        raise ValueError(f"compare(problem=...): there is no solver to run. {name}: {why}")
    goal = default_target(candidates) if target is None else float(target)
    found = Comparison(where.title, candidates, ran.skipped, goal, OPTIMA.get(where.name), where.baselines)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        found.write(folder)
    return found


class _Wanted(NamedTuple):
    """What the user asked for."""

    named: bool  # whether the solvers were named: one that cannot run is then an error
    grid: Grid | None
    automatic: Sequence[str] | None


class _Ran(NamedTuple):
    """The solvers that ran, and why others did not."""

    candidates: list[Candidate]
    skipped: dict[str, str]


def _run(runner: Runner, solvers: Mapping[str, Solver], wanted: _Wanted) -> _Ran:
    """Runs what can run; what cannot is left out, or raises where it was asked for."""
    ran = _Ran([], {})
    # Before any of them runs, which may take hours.
    able = {name: solver for name, solver in solvers.items() if _is_able(runner, name, solver, wanted, ran.skipped)}
    for name, solver in able.items():
        for way in _ways(runner, name, solver, wanted):
            try:
                ran.candidates.append(way.run())
            except OverBudgetError as error:
                ran.skipped[way.name] = str(error)
            except DivergedError as error:
                if way.asked_for:
                    raise ValueError(f"compare(solvers=...): {way.name} cannot be compared: {_why(error)}") from error
                ran.skipped[way.name] = _why(error)
    return ran


def _is_able(runner: Runner, name: str, solver: Solver, wanted: _Wanted, skipped: dict[str, str]) -> bool:
    """Whether a solver can run, as far as it says before it runs; if not, why goes into `skipped`."""
    as_run = solver if wanted.grid is None else next(iter(tuned_on(wanted.grid, solver).values()))
    why = refusal(as_run, runner.ready, runner.benchmark.y)
    if why and wanted.named:
        raise ValueError(f"compare(solvers=...): {name} cannot run on this problem: {why}")
    if not why and not wanted.named:
        try:
            why = runner.too_slow(name, solver)
        except (OverBudgetError, DivergedError) as error:
            why = _why(error)
    if why:
        skipped[name] = why
    return not why


def _why(error: OverBudgetError | DivergedError) -> str:
    if isinstance(error, OverBudgetError):
        return str(error)
    return f"it diverges at step {error.step} of the {error.steps} on which its calls are counted."


class _Way(NamedTuple):
    """One way to run a solver."""

    name: str
    run: Callable[[], Candidate]
    asked_for: bool


def _ways(runner: Runner, name: str, solver: Solver, wanted: _Wanted) -> list[_Way]:
    """With tuned rates where a solver has any to tune; as it is, where that is wanted or nothing can be tuned."""
    grid, found = wanted.grid, []
    if grid is not None and any(tunable(solver)):
        found.append(_Way(name, lambda: runner.tuned(name, solver, grid), wanted.named))
    if not found:
        return [_Way(name, lambda: runner.as_it_is(name, solver), wanted.named)]
    automatic = wanted.automatic
    if name in ((recommended_for(runner.ready.problem).name,) if automatic is None else automatic):
        found.append(_Way(f"{name}, automatic", lambda: runner.as_it_is(name, solver), automatic is not None))
    return found
