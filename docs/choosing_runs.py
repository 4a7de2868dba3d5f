"""The runs of docs/choosing.md: which there are, how long they take, and those that `compare` is not made for."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp

import bilevel as bl
from bilevel.studies.catalogue import GivenRates, with_rates
from bilevel.studies.comparison import runner
from bilevel.studies.comparison.benchmarks import BENCHMARKS, all_solvers, by_name
from bilevel.studies.comparison.candidates import AUTOMATIC, Candidate
from bilevel.studies.comparison.runner import Budget, plan
from bilevel.studies.records import RecordFiles

Say = Callable[[str], None]

FIRST = ("Tandem", "MORBiT", "SOBA")
STREAMING = ("MASOBA", "AmIGO", "FSLA", "StocBiO", "F2SA", "ALSET", "SUSTAIN", "MRBO")  # more, on data without end
FACTORS = (1.0, 3.0, 10.0)  # of tuned constant rates of x and the weights, from which they fall
FALLING = {"noisy-ball": "SOBA", "letter": "MORBiT"}
RELATIVE = (bl.Tandem, bl.SOBA, bl.SABA, bl.MORBiT, bl.MASOBA)  # solvers that run with Tandem's rates
AUTOMATICALLY = ("Tandem", "MORBiT")  # that run without rates too
WIDENED = 1.5  # about how many more runs a grid that widens takes
PLANS = 2.0  # other solvers take about this many times as long to compile and count as Tandem


@dataclasses.dataclass(frozen=True)
class Setting:
    """One problem, and what runs on it."""

    problem: str
    solvers: Sequence[str]
    seeds: int
    calls: float | None = None
    grid: bl.Grid = dataclasses.field(default_factory=bl.Grid)

    def compare(self, folder: Path, say: Say) -> bl.Comparison:
        """Makes the runs that are missing."""
        say(f"{self.problem}:")
        options = {"seeds": self.seeds, "calls": self.calls, "grid": self.grid, "automatic": AUTOMATICALLY}
        return bl.compare(self.problem, solvers=list(self.solvers), out=folder, say=say, **options)

    @property
    def runs(self) -> float:
        """About how many whole runs a tuned solver makes."""
        tried = len(self.grid.rates()) / runner.TUNING_SHARE + runner.FINALISTS * runner.DRAWS
        return WIDENED * tried + self.seeds


def teller(records: RecordFiles) -> Say:
    """Prints a line, and notes how long it took to get there: what is killed loses the time of one solver only."""
    last = time.perf_counter()

    def say(text: str) -> None:
        nonlocal last
        now = time.perf_counter()
        records.note_time("choosing", "runs", 0, now - last, 0)
        last = now
        print(text, flush=True)

    return say


def settings(quick: bool) -> list[Setting]:
    """What the page has."""
    if quick:
        grid = bl.Grid((1e-2, 1e-1), (1e-1, 4e-1), (1e-2,))
        few = [Setting(name, [*FIRST, "F2SA"], 2, 4000.0, grid) for name in ("noisy-ball", "letter")]
        return few
    every = list(all_solvers())
    return [
        Setting("noisy-ball", every, 10),
        Setting("sinusoids", ["paper", *FIRST, *STREAMING], 10),
        Setting("letter", ["paper", *(name for name in every if name != "STABLE")], 10),  # y is large there
    ]


# ------------------------------------------------------------------ how long it takes


def estimate(setting: Setting, folder: Path) -> float:
    """Seconds that the missing runs on one problem take, from a plan of Tandem's, as all have the same budget."""
    where, cores = BENCHMARKS[setting.problem], os.cpu_count() or 1
    ready = where.start(runner.TUNING_SEED, "")
    began = time.perf_counter()
    budget = Budget(steps=where.steps) if setting.calls is None else Budget(calls=setting.calls)
    found = plan(bl.Tandem(), ready, budget, where.y)
    planned = PLANS * (time.perf_counter() - began)
    one = found.steps * found.profile.seconds / cores
    names = [name for name in setting.solvers if name != "paper"]
    given = (
        len(AUTOMATICALLY) + len(FACTORS) * (setting.problem in FALLING) + len(RELATIVE) * (setting.problem == "letter")
    )
    seconds = (len(names) - _finished(setting, folder)) * (planned + setting.runs * one)
    seconds += given * (planned + setting.seeds * one)
    if "paper" in setting.solvers and where.reference is not None:
        seconds += planned + setting.seeds * where.reference.steps * found.profile.seconds / cores
    return seconds


def _finished(setting: Setting, folder: Path) -> float:
    """How many solvers have been tuned and run, in part."""
    runs = [folder / setting.problem / "runs" / name for name in setting.solvers if name != "paper"]
    return sum(min(setting.seeds, len(list(place.glob("tuned/run/*/seed-*.csv")))) for place in runs) / setting.seeds


def clock(seconds: float) -> str:
    """Hours and minutes."""
    minutes = max(1, round(seconds / 60))
    return f"{minutes} minutes" if minutes < 120 else f"{minutes / 60:.1f} hours"


# ------------------------------------------------------------------ solvers with rates of their own


@dataclasses.dataclass(frozen=True)
class Falling:
    """A rate that falls linearly to zero."""

    first: float
    steps: int

    def __call__(self, step: Any) -> Any:
        """Its value at a step."""
        return self.first * jnp.maximum(0.0, 1 - step / self.steps)


def candidate(found: bl.Comparison, name: str, automatic: bool = False) -> Candidate:
    """One solver of a comparison."""
    return next(c for c in found.candidates if c.name == name and (c.rates == AUTOMATIC) == automatic)


def budget_of(found: bl.Comparison) -> float:
    """The calls of a run of Tandem."""
    own = candidate(found, "Tandem", automatic=True)
    return float(own.profile.calls_at(own.steps))


def falling(problem: str, found: bl.Comparison, folder: Path, say: Say) -> list[Mapping[str, Any]]:
    """A solver with its tuned rates, constant and falling, and Tandem beside it."""
    name = FALLING[problem]
    constant = candidate(found, name)
    solvers = {}
    tuned = [float(rate) for rate in constant.rates.split()]
    for factor in FACTORS:
        # y's is bounded by the curvature of g, whether it falls or not.
        rates = [Falling(t * rate, constant.steps) for t, rate in zip((factor, 1.0, factor), tuned, strict=True)]
        label = f"{name}, falling, x and weights from {factor:g} times the tuned rates"
        solvers[label] = with_rates(by_name([name])[name], GivenRates(*rates, estimator=tuned[1]))
    options = {"grid": None, "calls": budget_of(found), "seeds": len(constant.runs), "say": say}
    other = bl.compare(problem, solvers=solvers, out=folder / "falling", **options)
    rows = {row["solver"] + ", automatic" * (row["rates"] == AUTOMATIC): row for row in found.table()}
    before = dict(rows[name]) | {"solver": f"{name}, constant, as tuned"}
    beside = dict(rows["Tandem, automatic"]) | {"solver": "Tandem, automatic"}
    return [dict(row) | {"problem": problem} for row in (before, *other.table(), beside)]


def relative(found: bl.Comparison, folder: Path, say: Say) -> list[Mapping[str, Any]]:
    """Other solvers with Tandem's rates."""
    options = {"rates": bl.rates.Relative(), "weighting": bl.weightings.SimplexAscent()}
    solvers = {kind.__name__: kind(**options) for kind in RELATIVE}
    runs = {"seeds": len(found.candidates[0].runs), "calls": budget_of(found), "out": folder / "relative", "say": say}
    return bl.compare("letter", solvers=solvers, grid=None, **runs).table()
