"""Problems to compare solvers on, by name."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import jax
import numpy as np

from bilevel._core.words import suggestion
from bilevel._studies.experiment import Experiment, Reference
from bilevel.datasets import fashion_pairs, letter_pairs, sinusoids
from bilevel.hypergradients import Unrolled
from bilevel.paper import fashion, letter
from bilevel.problem.base import BaseProblem
from bilevel.problems import Ready, enclosing_ball, hyperparameters, noisy_ball, representation, sinusoid_regression
from bilevel.solvers import MORBiT
from bilevel.weightings import SimplexAscent

OWN_STEPS = 1000  # of what we recommend for a user's problem
PAPER = "MORBiT, paper"  # what the run of a benchmark's reference is called


def _ball(seed: int, variant: str = "") -> Ready:
    known = enclosing_ball()
    return Ready(known.problem, known.x)


def _noisy(seed: int, variant: str = "") -> Ready:
    known = noisy_ball()
    return Ready(known.problem, known.x)


def _sinusoids(seed: int, variant: str = "") -> Ready:
    return sinusoid_regression(sinusoids(6, 2, seed=seed), seed=seed)


def _letter(seed: int, variant: str = "") -> Ready:
    return hyperparameters(letter_pairs(16, seed=seed, rows=letter.ROWS, selection=0.25))


@functools.lru_cache(maxsize=1)  # it is large, and all rates are tried on one draw
def _fashion(seed: int, variant: str = "") -> Ready:
    return representation(fashion_pairs(seed=seed, data=fashion.images(), selection=0.1), seed=seed)


_waves = MORBiT(0.007, 0.005, Unrolled(), SimplexAscent(0.003, pull=3.0))

# Their steps are those of what we recommend; what these cost in calls is the budget, unless one is given.
BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        Experiment("ball", "smallest enclosing ball, exact oracles", _ball, steps=500),
        Experiment("noisy-ball", "smallest enclosing ball, noisy batches of finite data", _noisy, steps=2000),
        Experiment(
            "sinusoids", "six sinusoids share a network", _sinusoids, steps=5000, reference=Reference(_waves, 20_000)
        ),
        Experiment(
            "letter",
            "16 pairs of letters share hyperparameters, a quarter of the training rows for selection",
            _letter,
            steps=4000,
            reference=Reference(letter.described, letter.LETTER.steps),
        ),
        Experiment(
            "fashion",
            "ten pairs of FashionMNIST classes share a layer, a tenth of the training rows for selection",
            _fashion,
            steps=1500,
            require=fashion.images,
            reference=Reference(fashion.described, fashion.FASHION.steps),
        ),
    )
}

OPTIMA = {"ball": enclosing_ball().value, "noisy-ball": noisy_ball().value}  # worst losses that are known


def benchmark(name: str) -> Experiment:
    """The benchmark of this name, or an error that suggests the nearest."""
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    known = f"there is no such problem; there are {', '.join(BENCHMARKS)}. {suggestion(name, BENCHMARKS)}"
    raise ValueError(f"compare(problem={name!r}): {known.rstrip()}")


def own_benchmark(problem: BaseProblem, x: Any, y: Any) -> Experiment:
    """A benchmark of a user's problem; its name tells it from others, as finished runs are found by it."""
    ready = Ready(problem, x)
    name = f"problem-{fingerprint(ready, y)}"
    return Experiment(name, "a problem of yours", lambda seed, variant: ready, steps=OWN_STEPS, y=y)


def fingerprint(ready: Ready, y: Any) -> str:
    """Eight hexadecimal digits that differ for another problem, another start or other losses."""
    known = hashlib.sha256()
    for leaf in jax.tree.leaves((ready, y)):
        if callable(leaf):
            known.update(_code(leaf))
        else:
            known.update(np.asarray(leaf).tobytes())
    for group in ready.problem.groups:
        for loss in (group.upper, group.lower):
            known.update(_code(loss))
    return known.hexdigest()[:8]


def _code(function: Any) -> bytes:
    """The code of a function and its constants; for an object, the name of its class."""
    code = getattr(function, "__code__", None)
    return type(function).__qualname__.encode() if code is None else code.co_code + repr(code.co_consts).encode()
