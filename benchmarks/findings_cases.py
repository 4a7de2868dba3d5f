"""The runs of benchmarks/findings.py that thresholds were fixed on: what each is made to show."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import optax
from findings_problems import (
    ball,
    clinics,
    digits,
    drawn_pairs,
    hyper,
    letters,
    noisy_ball,
    quadratics,
    with_constant,
)

import bilevel as bl
from bilevel.hypergradients import Direct, Exact, Tracked
from bilevel.weightings import Average, Exponentiated, SimplexAscent

HEALTHY = "healthy"


class Case(NamedTuple):
    """A run, and what is to be found of it."""

    name: str
    shows: str  # the kind, or HEALTHY
    make: Callable[[], Any]  # problem, x
    solver: Any
    steps: int
    y: Any = None

    def run(self, times: int = 1) -> bl.Result:
        """The run, or one of several times its steps."""
        problem, x = self.make()[:2]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return bl.solve(problem, self.solver, x, self.y, steps=times * self.steps, progress=False)


def plain(upper, lower, weights, estimator=None):
    return bl.MORBiT(upper, lower, Exact() if estimator is None else estimator, SimplexAscent(weights))


def falling(rate):
    return optax.cosine_decay_schedule(rate, 4000)


def calibration() -> list[Case]:
    return [*first(), *second()]


def first() -> list[Case]:
    x8 = jnp.zeros(8)
    given = plain(0.02, 0.1, 0.01)
    one = lambda seed, **o: lambda: quadratics(seed, **o)  # noqa: E731
    made = [
        *(Case(f"quadratics {s}", HEALTHY, one(s), bl.MORBiT(), 2000) for s in range(4)),
        Case("quadratics, long", HEALTHY, one(0), bl.MORBiT(), 20000),
        Case("quadratics, min-avg", HEALTHY, one(1), bl.MORBiT(weighting=Average()), 2000),
        Case("quadratics, given rates", HEALTHY, one(2), given, 4000),
        Case("clinics, many rows", HEALTHY, lambda: clinics(4, 60, 200, 5), bl.MORBiT(), 2000, x8),
        Case("clinics, min-avg", HEALTHY, lambda: clinics(4, 60, 200, 6), bl.MORBiT(weighting=Average()), 2000, x8),
        Case(
            "clinics, batches",
            HEALTHY,
            lambda: clinics(4, 60, 200, 5, lower_batch=16, upper_batch=16),
            bl.MORBiT(falling(0.1), falling(0.05), Tracked(0.05), SimplexAscent(falling(0.01))),
            4000,
            x8,
        ),
        Case("pairs, many rows", HEALTHY, lambda: drawn_pairs(1500, 0.0, 1, tasks=4, width=4), bl.MORBiT(), 1500),
        Case("pairs, few noisy rows", "overfitting", lambda: drawn_pairs(40, 0.2, 0), bl.MORBiT(), 2000),
        Case(
            "pairs, few rows, batches",
            "overfitting",
            lambda: drawn_pairs(40, 0.2, 1, lower_batch=8, upper_batch=8),
            bl.Tandem(),
            2000,
        ),
        Case("12 clinics", "overfitting", lambda: drawn_pairs(30, 0.1, 2, tasks=12), bl.MORBiT(), 2000),
        Case("quadratics, slow x", "still falling", one(0), bl.MORBiT(0.001, 0.1, Exact(), Average()), 500),
        Case(
            "quadratics, few steps",
            "still falling",
            one(3, upper_condition=100.0),
            bl.MORBiT(2e-4, 0.1, Exact(), Average()),
            300,
        ),
        Case(
            "pairs, short",
            "still falling",
            lambda: drawn_pairs(400, 0.0, 2, tasks=4, lower_batch=16, upper_batch=16),
            bl.Tandem(),
            150,
        ),
        Case("quadratics, fast weights", "cycling weights", one(0), plain(0.02, 0.1, 1.0), 1000),
        Case("quadratics, still weights", "weights do not move", one(1), plain(0.02, 0.1, 1e-8), 2000),
        Case(
            "clinics, few rows",
            "weights off",
            lambda: clinics(4, 12, 40, 2),
            plain(0.1, 0.05, 3e-4),
            2000,
            x8,
        ),
        Case("quadratics, slow weights", "weights off", one(2), plain(0.02, 0.1, 3e-5), 2000),
        Case(
            "first slopes, fast exponents",
            "collapsed weights",
            lambda: bl.problems.opposed_slopes(),
            bl.MORBiT(1e-3, 0.4, Exact(), Exponentiated(lr=10.0)),
            600,
        ),
        Case(
            "clinics, small batches",
            "noisy end",
            lambda: clinics(4, 60, 200, 6, lower_batch=1, upper_batch=1),
            plain(0.1, 0.03, 1e-3, Tracked(0.03)),
            2000,
            x8,
        ),
        Case(
            "clinics, smaller batches",
            "lucky best",
            lambda: clinics(4, 60, 200, 5, lower_batch=1, upper_batch=1),
            plain(0.1, 0.045, 1e-3, Tracked(0.03)),
            2000,
            x8,
        ),
        Case("clinics, one constant", "constant task", lambda: clinics(4, 60, 200, 5, still=1), bl.MORBiT(), 500, x8),
        Case(
            "clinics, Direct",
            "x does not move",
            lambda: clinics(4, 60, 200, 5),
            plain(0.1, 0.1, 0.01, Direct()),
            500,
            x8,
        ),
        Case("quadratics, tiny rate", "x does not move", one(1), plain(1e-9, 0.1, 0.01), 500),
        Case("quadratics, slow y", "lower level lags", one(1), plain(0.02, 1e-5, 0.01), 500),
        Case("clinics of 12 rows", "unsteady end", lambda: clinics(4, 12, 40, 26), bl.MORBiT(), 2000, x8),
    ]
    return made


def second() -> list[Case]:
    rising = optax.linear_schedule(0.02, 1.2, 1500)
    batch, sixteen, large = ({"lower_batch": size, "upper_batch": size} for size in (8, 16, 64))
    return [
        *(Case(f"quadratics {s}", HEALTHY, lambda s=s: quadratics(s), bl.MORBiT(), 2000) for s in (11, 12, 13)),
        Case("quadratics, long", HEALTHY, lambda: quadratics(14), bl.MORBiT(), 20000),
        *(
            Case(f"quadratics, {s.__name__}", HEALTHY, lambda: quadratics(15), s(0.02, 0.1), 3000)
            for s in (bl.TTSA, bl.SOBA, bl.MRBO)
        ),
        Case("quadratics, SOBA min-max", HEALTHY, lambda: quadratics(16), bl.SOBA(weighting=SimplexAscent()), 4000),
        Case("quadratics, Tandem", HEALTHY, lambda: quadratics(17), bl.Tandem(), 4000),
        Case("ball", HEALTHY, ball, bl.MORBiT(), 2000),
        Case("ball, given rates", HEALTHY, ball, plain(0.1, 0.4, 0.02), 1500),
        Case("noisy ball, Tandem", HEALTHY, noisy_ball, bl.Tandem(), 4000),
        Case(
            "noisy ball, larger batches",
            HEALTHY,
            lambda: noisy_ball(1, **sixteen),
            bl.Tandem(),
            3000,
        ),
        Case("slopes", HEALTHY, bl.problems.opposed_slopes, bl.MORBiT(), 2000),
        Case("shrinkage", HEALTHY, bl.problems.shrinkage, bl.MORBiT(), 2000),
        Case("reduced ball, GDA", HEALTHY, bl.problems.reduced_ball, bl.GDA(0.1, weighting=SimplexAscent(0.02)), 2000),
        Case("letters, wrong labels", HEALTHY, lambda: hyper(21, 4, 1440, 0.1, **large), bl.Tandem(), 4000),
        Case("bounded ball", HEALTHY, bl.problems.bounded_ball, bl.MORBiT(), 3000),
        Case("noisy ball, min-avg", HEALTHY, lambda: noisy_ball(5, **sixteen), bl.Tandem(weighting=Average()), 3000),
        Case(
            "slopes, exponentiated",
            HEALTHY,
            bl.problems.opposed_slopes,
            bl.MORBiT(0.05, 0.4, Exact(), Exponentiated(0.05)),
            2000,
        ),
        Case("letters, small and noisy", "overfitting", lambda: letters(70, 0.15), bl.Tandem(), 2000),
        Case(
            "letters, small and noisy, batches", "overfitting", lambda: letters(70, 0.15, 1, **batch), bl.Tandem(), 2000
        ),
        Case("letters, hyperparameters, long", "overfitting", lambda: hyper(0, **batch), bl.Tandem(), 6000),
        Case("digits, small and noisy", "overfitting", lambda: digits(60, 0.15, **batch), bl.Tandem(), 2000),
        Case("letters, short", "still falling", lambda: letters(500, 0.0, 2, tasks=4, **batch), bl.Tandem(), 100),
        Case("ball, slow x", "still falling", ball, plain(0.002, 0.4, 0.02), 500),
        Case("digits, slow x", "still falling", lambda: digits(100, 0.0, 1), plain(0.01, 0.3, 1e-3), 300),
        Case("digits, short", "still falling", lambda: digits(100, 0.0, **batch), bl.Tandem(), 60),
        Case("ball, fast weights", "cycling weights", ball, plain(0.1, 0.4, 0.5), 1500),
        Case("noisy ball, fast weights", "cycling weights", noisy_ball, plain(0.1, 0.4, 1.0, Tracked(0.4)), 1500),
        Case("ball, still weights", "weights do not move", ball, plain(0.1, 0.4, 1e-8), 1500),
        Case(
            "letters, still weights",
            "weights do not move",
            lambda: hyper(3, **batch),
            bl.Tandem(weighting=SimplexAscent(1e-9)),
            3000,
        ),
        Case("ball, slow weights", "weights off", ball, plain(0.1, 0.4, 2e-5), 800),
        Case(
            "letters, slow weights",
            "weights off",
            lambda: hyper(3, **batch),
            bl.Tandem(weighting=SimplexAscent(1e-4)),
            3000,
        ),
        Case(
            "slopes, fast exponents",
            "collapsed weights",
            lambda: bl.problems.opposed_slopes((1.0, 3.0)),
            bl.MORBiT(1e-3, 0.4, Exact(), Exponentiated(lr=12.0)),
            600,
        ),
        Case(
            "other slopes, fast exponents",
            "collapsed weights",
            lambda: bl.problems.opposed_slopes((1.0, 1.5)),
            bl.MORBiT(1e-3, 0.4, Exact(), Exponentiated(lr=10.0)),
            600,
        ),
        Case(
            "noisy ball, growing steps",
            "rising loss",
            lambda: noisy_ball(2),
            bl.MORBiT(rising, 0.4, Tracked(0.4), SimplexAscent(0.02)),
            1500,
        ),
        Case(
            "another noisy ball, growing steps",
            "rising loss",
            lambda: noisy_ball(6),
            bl.MORBiT(optax.linear_schedule(0.02, 1.8, 1500), 0.4, Tracked(0.4), SimplexAscent(0.02)),
            1500,
        ),
        Case(
            "noisy ball, constant rates", "noisy end", lambda: noisy_ball(1), plain(0.2, 0.4, 0.02, Tracked(0.4)), 1500
        ),
        Case("noisy ball, larger rates", "noisy end", lambda: noisy_ball(3), plain(0.3, 0.4, 0.02, Tracked(0.4)), 1500),
        Case(
            "noisy ball, tiny batches",
            "lucky best",
            lambda: noisy_ball(4, lower_batch=2, upper_batch=2),
            plain(0.1, 0.3, 5e-4, Tracked(0.3)),
            1500,
        ),
        Case(
            "letters, tiny batches",
            "lucky best",
            lambda: hyper(4, lower_batch=2, upper_batch=2),
            plain(0.01, 0.4, 1e-3, Tracked(0.1)),
            1500,
        ),
        Case(
            "letters, tiny rate",
            "x does not move",
            lambda: hyper(5, lower_batch=None, upper_batch=None),
            plain(1e-9, 0.5, 0.01),
            500,
        ),
        Case("ball, Direct", "x does not move", ball, plain(0.1, 0.4, 0.02, Direct()), 500),
        Case("ball, tiny rate", "x does not move", ball, plain(1e-9, 0.4, 0.02), 500),
        Case("ball, no rates", "constant losses", ball, plain(1e-12, 1e-12, 0.02), 500),
        Case("letters, one constant", "constant task", with_constant, bl.MORBiT(), 500),
        Case("ball, slow y", "lower level lags", ball, plain(0.05, 1e-4, 0.01), 500),
        Case(
            "letters, slow y",
            "lower level lags",
            lambda: hyper(7, lower_batch=None, upper_batch=None),
            plain(0.03, 1e-3, 0.005),
            500,
        ),
    ]
