"""Problems and solvers to compare, by name, and checks that they fit together."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from bilevel import MORBiT, Solver, recommended
from bilevel import solvers as exported
from bilevel._core.values import suggestion
from bilevel.hypergradients import Unrolled
from bilevel.problem import initial_point
from bilevel.studies.catalogue import find
from bilevel.studies.datasets import fashion_pairs, letter_pairs, sinusoids
from bilevel.studies.paper import experiments
from bilevel.studies.problems import (
    Ready,
    enclosing_ball,
    hyperparameters,
    noisy_ball,
    representation,
    sinusoid_regression,
)
from bilevel.studies.problems.closed_form import AnyProblem
from bilevel.studies.records import Experiment, Reference
from bilevel.weightings import SimplexAscent

OWN_STEPS = 1000  # of the recommended solver on a user's problem
PAPER = "MORBiT, paper"  # what the run of a benchmark's reference is called


_BALLS = {"ball": enclosing_ball(), "noisy-ball": noisy_ball()}
OPTIMA = {name: known.value for name, known in _BALLS.items()}  # known worst losses


def _ball(name: str, seed: int, variant: str) -> Ready:
    return Ready(_BALLS[name].problem, _BALLS[name].x)


def _sinusoids(seed: int, variant: str) -> Ready:
    return sinusoid_regression(sinusoids(6, 2, seed=seed), seed=seed)


def _letter(seed: int, variant: str) -> Ready:
    return hyperparameters(letter_pairs(16, seed=seed, rows=experiments.LETTER_ROWS, selection=0.25))


@functools.lru_cache(maxsize=1)  # it is large, and all rates are tried on one draw
def _fashion(seed: int, variant: str) -> Ready:
    return representation(fashion_pairs(seed=seed, data=experiments.images(), selection=0.1), seed=seed)


_waves = MORBiT(0.007, 0.005, Unrolled(), SimplexAscent(0.003, pull=3.0))

# Their steps are for the recommended solver. The calls of its run are the budget, unless one is given.
BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        Experiment("ball", "smallest enclosing ball, exact oracles", functools.partial(_ball, "ball"), steps=500),
        Experiment(
            "noisy-ball",
            "smallest enclosing ball, noisy batches of finite data",
            functools.partial(_ball, "noisy-ball"),
            steps=2000,
        ),
        Experiment(
            "sinusoids", "six sinusoids share a network", _sinusoids, steps=5000, reference=Reference(_waves, 20_000)
        ),
        Experiment(
            "letter",
            "16 pairs of letters share hyperparameters, a quarter of the training rows for selection",
            _letter,
            steps=4000,
            reference=Reference(experiments.letter_described, experiments.LETTER.steps),
        ),
        Experiment(
            "fashion",
            "ten pairs of FashionMNIST classes share a layer, a tenth of the training rows for selection",
            _fashion,
            steps=1500,
            require=experiments.images,
            reference=Reference(experiments.fashion_described, experiments.FASHION.steps),
        ),
    )
}


def benchmark(name: str) -> Experiment:
    """The benchmark of this name, or an error that suggests the nearest."""
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    near = f"there is no such problem; there are {', '.join(BENCHMARKS)}. {suggestion(name, BENCHMARKS)}"
    raise ValueError(f"compare(problem={name!r}): {near.rstrip()}")


def own_benchmark(problem: AnyProblem, x: Any, y: Any) -> Experiment:
    """A benchmark of a user's problem. Its name is a fingerprint, by which finished runs are found again."""
    ready = Ready(problem, x)
    name = f"problem-{fingerprint(ready, y)}"
    return Experiment(name, "a problem of yours", lambda seed, variant: ready, steps=OWN_STEPS, y=y)


def fingerprint(ready: Ready, y: Any) -> str:
    """Eight hexadecimal digits that differ for another problem, another start or other losses."""
    losses = [loss for group in ready.problem.groups for loss in (group.upper, group.lower)]
    known = hashlib.sha256()
    for part in (*jax.tree.leaves((ready, y)), *losses):
        known.update(_code(part) if callable(part) else np.asarray(part).tobytes())
    return known.hexdigest()[:8]


def _code(function: Any) -> bytes:
    """The code of a function and its constants; for an object, the name of its class."""
    code = getattr(function, "__code__", None)
    return type(function).__qualname__.encode() if code is None else code.co_code + repr(code.co_consts).encode()


def choose(
    solvers: Sequence[str] | Mapping[str, Solver] | None, benchmark: Experiment
) -> tuple[dict[str, Solver], bool]:
    """The solvers that a user chose, and whether the paper's own run is among them.

    Solvers chosen by name become min-max methods; objects run as they are given.
    """
    if solvers is None:
        return all_solvers(), benchmark.reference is not None
    if isinstance(solvers, Mapping) and solvers:
        for name, solver in solvers.items():
            if not isinstance(solver, Solver):
                raise TypeError(f"compare(solvers=...): {name!r} is {solver!r}; it needs a solver object.")
        return dict(solvers), False
    named = isinstance(solvers, Sequence) and not isinstance(solvers, str) and len(solvers) > 0
    if not named or not all(isinstance(name, str) for name in solvers):
        raise ValueError(f"compare(solvers={solvers!r}): it needs a list of names, or a dict of solvers by label.")
    if "paper" in solvers and benchmark.reference is None:
        has = ", ".join(name for name, other in BENCHMARKS.items() if other.reference is not None)
        raise ValueError(
            f"compare(solvers=...): {benchmark.name!r} is not in the paper, which has only {has}: leave out 'paper'."
        )
    return by_name([name for name in solvers if name != "paper"]), "paper" in solvers


def by_name(names: Sequence[str]) -> dict[str, Solver]:
    """Solvers of these names as min-max methods, rates automatic."""
    return {find(name).name: robust(getattr(exported, find(name).name)()) for name in names}


def all_solvers() -> dict[str, Solver]:
    """Every bilevel solver as a min-max method."""
    return by_name([name for name in exported.__all__ if getattr(exported, name).card.problem == "bilevel"])


def recommended_for(problem: AnyProblem) -> Solver:
    """The recommended solver among those that have rates: a comparison tunes them or leaves them automatic."""
    solver = recommended(problem)
    if not solver.has_chosen_rates:
        solver = exported.Tandem() if problem.is_stochastic else exported.MORBiT()
    return solver


def robust(solver: Any) -> Solver:
    """The solver with weights that follow the worst tasks; one without weights stays as it is."""
    return solver.replace(weighting=SimplexAscent()) if hasattr(solver, "weighting") else solver


def refusal(solver: Solver, ready: Ready, y: Any = None) -> str | None:
    """Why a solver cannot run on a problem, in a sentence; None if its checks before the run pass."""
    try:
        solver.check_kind(ready.problem)
        solver.check(ready.problem)
        x = initial_point.arrays(ready.x, "x")
        solver.check_size(ready.problem, x, ready.problem.starting_y(y, jax.random.key(0)))
    except (TypeError, ValueError, MemoryError) as error:
        return str(error)
    return None
