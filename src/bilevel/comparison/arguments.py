"""What `compare` is given, checked before anything runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bilevel._core import pytrees, values
from bilevel._studies.experiment import Experiment
from bilevel.comparison.benchmarks import benchmark, own_benchmark
from bilevel.comparison.tuning import Grid
from bilevel.problem import initial_point
from bilevel.problem.base import BaseProblem
from bilevel.problem.problem import Problem
from bilevel.solvers._base.solver import Solver
from bilevel.weightings.base import Weighting
from bilevel.weightings.baselines import Baselines, values_of


def benchmark_of(problem: str | BaseProblem, x: Any, y: Any) -> Experiment:
    """The benchmark of a name, or of a user's problem."""
    if isinstance(problem, str):
        if x is not None or y is not None:
            raise ValueError("compare(x=..., y=...) goes with a problem of yours: a named one has its own.")
        return benchmark(problem)
    if not isinstance(problem, BaseProblem):
        raise TypeError(f"compare(problem=...) got {type(problem).__name__}: it needs a name or a bl.Problem.")
    if x is None:
        raise ValueError("compare(x=None): it needs where x starts.")
    initial_point.arrays(x, "compare(x)")
    pytrees.check(y, "compare(y)")
    return own_benchmark(problem, x, y)


def with_baselines(where: Experiment, problem: Any, baselines: Any, solvers: Mapping[str, Solver]) -> Experiment:
    """The benchmark with what its tasks could reach: as given, or as the first of the solvers knows it."""
    if isinstance(problem, str):
        if baselines is not None:
            raise ValueError("compare(baselines=...) goes with a problem of yours: a named one has tasks of its own.")
        return where
    names = tuple(map(str, problem.names))
    if baselines is None:
        weightings = (getattr(solver, "weighting", None) for solver in solvers.values())
        known = (own.known_baselines(len(names)) for own in weightings if isinstance(own, Weighting))
        found = next((own for own in known if own is not None), None)
    elif isinstance(baselines, Baselines) and baselines.names:
        found = baselines.array(problem)
    else:
        found = values_of(baselines)
        values.one_per_task("baselines", found, len(names), of="compare")
    if found is None:
        return where
    return dataclasses.replace(where, baselines=Baselines(np.asarray(found, float), names=names))


def check_numbers(
    calls: float | None, seconds: float | None, seeds: int, grid: Grid | None, target: float | None
) -> None:
    """One budget at most, and numbers that make sense."""
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


def check_automatic(automatic: Sequence[str] | None, solvers: Mapping[str, Solver]) -> None:
    """Names of solvers that are compared, and that choose rates."""
    if isinstance(automatic, str) or not isinstance(automatic, (Iterable, type(None))):
        raise ValueError(f"compare(automatic={automatic!r}): it needs a list of names.")
    for name in automatic or ():
        if name not in solvers:
            raise ValueError(f"compare(automatic=...) names {name!r}, which is not among the solvers compared.")
        if not getattr(solvers[name], "chooses_rates", False):
            raise ValueError(f"compare(automatic=...) names {name!r}, which chooses no rates.")


def check_counted(calls: float | None, problem: BaseProblem) -> None:
    """Refuses a budget in calls where they are not counted."""
    if calls is not None and not isinstance(problem, Problem):
        kind = type(problem).__name__
        raise ValueError(f"compare(calls={calls!r}): calls are counted on a bl.Problem, not on a {kind}: give seconds.")


def folder_of(out: str | Path | None, where: Experiment, solvers: Mapping[str, Solver]) -> Path | None:
    """The folder of a benchmark's files, which is not made yet; None = no files."""
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
