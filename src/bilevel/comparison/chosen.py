"""Which solvers are compared, and why some cannot run on a problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

from bilevel import solvers as exported
from bilevel._cost.catalogue import find
from bilevel._studies.experiment import Experiment
from bilevel.comparison.benchmarks import BENCHMARKS
from bilevel.problem import initial_point
from bilevel.problem.base import BaseProblem
from bilevel.problems import Ready
from bilevel.solvers._base.solver import Solver
from bilevel.solvers.recommendation import recommended
from bilevel.weightings import SimplexAscent


class Selection(NamedTuple):
    """The solvers to compare, and whether the paper's own run is among them."""

    solvers: dict[str, Solver]
    paper: bool


class Recommended(NamedTuple):
    """What `bl.solve` takes where no solver is given."""

    name: str
    solver: Solver


def choose(solvers: Sequence[str] | Mapping[str, Solver] | None, benchmark: Experiment) -> Selection:
    """The solvers that a user chose: those chosen by name become min-max methods, objects run as they are given."""
    if solvers is None:
        return Selection(all_solvers(), benchmark.reference is not None)
    if isinstance(solvers, Mapping) and solvers:
        for name, solver in solvers.items():
            if not isinstance(solver, Solver):
                raise TypeError(f"compare(solvers=...): {name!r} is {solver!r}; it needs a solver object.")
        return Selection(dict(solvers), False)
    named = isinstance(solvers, Sequence) and not isinstance(solvers, str) and len(solvers) > 0
    if not named or not all(isinstance(name, str) for name in solvers):
        raise ValueError(f"compare(solvers={solvers!r}): it needs a list of names, or a dict of solvers by label.")
    if "paper" in solvers and benchmark.reference is None:
        has = ", ".join(name for name, other in BENCHMARKS.items() if other.reference is not None)
        raise ValueError(
            f"compare(solvers=...): the paper does not have {benchmark.name!r}, only {has}: leave out 'paper'."
        )
    return Selection(by_name([name for name in solvers if name != "paper"]), "paper" in solvers)


def by_name(names: Sequence[str]) -> dict[str, Solver]:
    """Solvers of these names as min-max methods, rates automatic."""
    return {find(name).name: robust(getattr(exported, find(name).name)()) for name in names}


def all_solvers() -> dict[str, Solver]:
    """Every bilevel solver as a min-max method."""
    every = {name: getattr(exported, name) for name in exported.__all__}
    return {name: robust(solver()) for name, solver in every.items() if solver.card.problem == "bilevel"}


def recommended_for(problem: BaseProblem) -> Recommended:
    """What we recommend among solvers that have rates: theirs are what a comparison tunes, or lets be automatic."""
    solver = recommended(problem)
    if not solver.has_chosen_rates:
        solver = exported.Tandem() if problem.is_stochastic else exported.MORBiT()
    return Recommended(type(solver).__name__, solver)


def robust(solver: Any) -> Solver:
    """The same solver with weights that follow the worst tasks; one without weights stays as it is."""
    return solver.replace(weighting=SimplexAscent()) if hasattr(solver, "weighting") else solver


def refusal(solver: Solver, ready: Ready, y: Any = None) -> str | None:
    """Why a solver cannot run on a problem, in a sentence; None where it can, as far as it says before it runs."""
    try:
        solver.check_kind(ready.problem)
        solver.check(ready.problem)
        x = initial_point.arrays(ready.x, "x")
        solver.check_size(ready.problem, x, ready.problem.starting_y(y, jax.random.key(0)))
    except (TypeError, ValueError, MemoryError) as error:
        return str(error)
    return None
