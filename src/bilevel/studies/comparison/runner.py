"""Plans the runs of a comparison within the budget, tunes rates, runs all seeds, and saves finished runs.

All solvers are tuned on one grid of rates, which widens while the best rates lie on an edge. A solver keeps
rates that it was given; only those that are None are tuned.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from bilevel import Problem, Solver
from bilevel._core.module import field_names
from bilevel._core.schedules import Rate
from bilevel._run.driver import run_one
from bilevel._run.progress import Quiet
from bilevel._run.run import Run
from bilevel.diagnostics.costs import DivergedError, RunCost, RunCounter
from bilevel.studies.catalogue import GivenRates, has_weights_rate, rates_of, with_rates
from bilevel.studies.comparison.benchmarks import PAPER, recommended_for
from bilevel.studies.comparison.candidates import AS_GIVEN, AUTOMATIC, EVALUATIONS, Candidate, Profile, Used, typical
from bilevel.studies.problems import Ready
from bilevel.studies.records import Experiment, Method, Records
from bilevel.studies.running import Stage, run
from bilevel.studies.statistics import score

AXES = ("x", "y", "weights")
SMALLER = ("smallest", "smallest", "")  # sides to widen where every run diverges
TUNING_SEED = 10_000  # the first draw for tuning; no reported run has it
TUNING_SHARE = 4  # all rates are tried on one draw with a quarter of the steps
WIDENINGS = 4  # of every side of the grid
FINALISTS = 3  # the best rates of the short runs, which whole runs compare
DRAWS = 3  # the best rates are compared on this many draws, with all steps
SLOWEST = 120.0  # a solver whose run takes more seconds is left out
CHECKED_STEPS = 32  # these must stay finite, however short the run
LONGEST = 2_000_000  # steps of a run
TIMED_SECONDS = 1.0  # at least, for a step's time
TOO_SMALL_TO_DIVERGE = GivenRates(1e-6, 1e-3, 1e-6, 1e-3)


class OverBudgetError(ValueError):
    """A solver exceeds the budget before its first step."""


class Grid(NamedTuple):
    """The rates that every solver is tried with. If the best lies on an edge, more are tried beyond it.

    A variable with a single rate has no edge.
    """

    upper: tuple[float, ...] = (1e-3, 1e-2, 1e-1, 1.0)
    lower: tuple[float, ...] = (1e-2, 1e-1, 4e-1)
    weights: tuple[float, ...] = (1e-2, 1e-1)

    def rates(self) -> dict[str, tuple[float, float, float]]:
        """(upper, lower, weights) by the text that a table shows."""
        return {f"{a:g} {b:g} {c:g}": (a, b, c) for a, b, c in itertools.product(*self)}


class Tunable(NamedTuple):
    """Which rates of a solver are None and could be numbers."""

    upper: bool
    lower: bool
    weights: bool


class Budget(NamedTuple):
    """The limit of every run: oracle calls per task, or seconds of steps, or just steps."""

    calls: float | None = None
    seconds: float | None = None
    steps: int | None = None


class Plan(NamedTuple):
    """The length of a run, and its cost."""

    steps: int
    profile: Profile

    def to_facts(self) -> dict[str, str | float]:
        """The plan as numbers and texts, to be kept in a file."""
        steps, (calls, seconds, memory, used) = self
        facts: dict[str, str | float] = {"steps": steps, "calls": calls, "seconds": seconds, "bytes": memory}
        if used is None:
            return facts
        columns = {"at": used.steps, "used": used.calls}
        return facts | {n: " ".join(f"{v:.9g}" for v in c) for n, c in columns.items()} | {"besides": used.besides}

    @classmethod
    def from_facts(cls, facts: Mapping[str, str | float]) -> Plan:
        """The plan that `to_facts` wrote."""
        used = None
        if "at" in facts:
            at, calls = (np.array(str(facts[name]).split(), float) for name in ("at", "used"))
            used = Used(at, calls, float(facts["besides"]))
        profile = Profile(float(facts["calls"]), float(facts["seconds"]), int(facts["bytes"]), used)
        return cls(int(facts["steps"]), profile)


@dataclasses.dataclass(frozen=True)
class Runner:
    """Makes the runs."""

    benchmark: Experiment
    ready: Ready  # its problem, as drawn for tuning: steps are timed and counted on it
    records: Records
    seeds: range  # of the reported runs
    budget: Budget  # of every run
    progress: bool
    say: Callable[[str], None]  # called with a line of text for each thing done

    def plan(self, name: str, solver: Solver, steps: int | None = None) -> Plan:
        """The number of steps within the budget, or the given number, and their cost. Measured once and saved."""
        budget = self.allowed if steps is None else Budget(steps=steps)
        file = f"cost-{name}{', automatic' * tunable(solver).upper}"
        # The cost does not depend on the rates, so all tuned rates share a plan.
        kind = {"solver": repr(with_given(solver, GivenRates(1.0, 1.0, 1.0, 1.0))), "budget": repr(tuple(budget))}
        kind["experiment"] = self.benchmark.title  # a benchmark may have other rows in another version
        kept = self.records.read_facts(file)
        if all(kept.get(what) == value for what, value in kind.items()):
            return Plan.from_facts(kept)
        found = plan(solver, self.ready, budget, self.benchmark.y)
        self.records.keep_facts(file, found.to_facts() | kind)
        return found

    @functools.cached_property
    def allowed(self) -> Budget:
        """The budget as given, or the calls of a run of the recommended solver, or else its steps."""
        if self.budget.calls is not None or self.budget.seconds is not None:
            return self.budget
        if not isinstance(self.ready.problem, Problem):
            return Budget(steps=self.benchmark.steps)
        solver = recommended_for(self.ready.problem)
        kind = {"solver": repr(solver), "steps": self.benchmark.steps, "experiment": self.benchmark.title}
        kept = self.records.read_facts("budget")
        if all(kept.get(what) == value for what, value in kind.items()):
            return Budget(calls=float(kept["calls"]))
        try:
            cost = counted(solver, self.ready, Budget(steps=self.benchmark.steps), self.benchmark.y)
        except DivergedError as error:
            raise ValueError(
                "compare(calls=None, seconds=None): the budget would be the calls of a run of "
                f"{type(solver).__name__}, which diverges at step {error.step}: give calls or seconds."
            ) from error
        self.records.keep_facts("budget", kind | {"calls": float(cost.rows[-1])})
        return Budget(calls=float(cost.rows[-1]))

    def too_slow(self, name: str, solver: Solver) -> str | None:
        """Why a solver that can run is left out, in a sentence; None if it is not left out."""
        steps, own = self.plan(name, with_rates(solver, GivenRates(1.0, 1.0, 1.0, 1.0)))
        needed = steps * own.seconds
        if needed < SLOWEST:
            return None
        return f"a step takes {own.seconds:.2g} s, so that one run with this budget would take {needed:.0f} s."

    def tuned(self, name: str, solver: Solver, grid: Grid) -> Candidate:
        """The best rates of the grid, run with all seeds."""
        steps = self.plan(name, next(iter(tuned_on(grid, solver).values()))).steps
        # Rates that are best early or on one draw may diverge later or on another: longer runs compare the best.
        short = functools.partial(self._scores, name, max(1, steps // TUNING_SHARE), 1)
        best = Search(solver, grid, short, functools.partial(self._scores, name, steps, DRAWS)).run()
        return self._run(name, best.solver, best.rates)._replace(edges=best.edges)

    def as_it_is(self, name: str, solver: Solver) -> Candidate:
        """The solver with its own rates, given or automatic, run with all seeds."""
        return self._run(name, solver, label(solver))

    def paper(self) -> Candidate:
        """The benchmark's reference, for as many steps as the paper ran it."""
        assert self.benchmark.reference is not None
        solver, steps = self.benchmark.reference
        return self._run(PAPER, solver, "the paper's", steps)

    def _scores(self, name: str, steps: int, draws: int, tried: Mapping[Method, Solver]) -> dict[str, float]:
        """Mean final worst losses on draws for tuning, of selection rows if any; infinite where a run diverged."""
        experiment, seeds = self._experiment(name, {"tuning": tried}, steps), range(TUNING_SEED, TUNING_SEED + draws)
        run(Stage(experiment, "tuning"), seeds, self.records, self.progress)
        ended = {rates: self.records.read(experiment, "tuning", rates) for rates in tried}
        return {rates: float(np.mean([score(runs.get(s), steps) for s in seeds])) for rates, runs in ended.items()}

    def _run(self, name: str, solver: Solver, rates: str, steps: int | None = None) -> Candidate:
        steps, own = self.plan(name, solver, steps)
        variant = AUTOMATIC if rates == AUTOMATIC else "tuned"
        experiment = self._experiment(name, {variant: {"run": solver}}, steps)
        ran = run(Stage(experiment, variant), self.seeds, self.records, self.progress)
        kept = self.records.read(experiment, variant, "run")
        found = Candidate(name, own, rates, {seed: kept[seed] for seed in self.seeds if seed in kept}, steps)
        gone = f", {found.diverged.sum()} of {len(found.runs)} runs diverged" if found.diverged.any() else ""
        by = found.ranked_by.replace("_", " ")
        shown = "" if by == "worst validation" else f"{by} loss {float(typical(found.ends(found.ranked_by))):.4g}, "
        end = f"{shown}worst validation loss {found.worst:.4g} after {steps:,} steps{gone}"
        self.say(f"{name} ({rates}): {end}, {ran.seconds:.0f} s")
        return found

    def _experiment(self, name: str, methods: Mapping[str, Mapping[Method, Solver]], steps: int) -> Experiment:
        """The benchmark with these solvers and this length."""
        return dataclasses.replace(self.benchmark, name=name, methods=methods, steps=steps, evaluations=EVALUATIONS)


def with_given(solver: Solver, rates: GivenRates) -> Solver:
    """Replaces the rates that a solver was given; automatic rates stay automatic."""
    known = rates_of(solver)
    kept = (new if old is not None else None for new, old in zip(rates, known, strict=True))
    return with_rates(solver, GivenRates(*kept))


def plan(solver: Solver, ready: Ready, budget: Budget, y: Any = None) -> Plan:
    """Counts calls and times steps to find how many fit a budget, with small rates: cost does not depend on rates."""
    typical = with_given(solver, TOO_SMALL_TO_DIVERGE)
    state = typical.init(ready.problem, ready.x, y, key=jax.random.key(0), steps=1)
    memory = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    seconds = seconds_a_step(Run(ready.problem, typical, ready.x, y, 0, 1, 1))
    steps = budget.steps if budget.seconds is None else max(1, int(budget.seconds / seconds))
    if not isinstance(ready.problem, Problem):
        assert steps is not None
        return Plan(steps, Profile(float("nan"), seconds, memory))
    cost = counted(typical, ready, Budget(budget.calls, None, steps), y)
    return Plan(cost.length, Profile(cost.rows[-1] / cost.length, seconds, memory, Used.of(cost)))


def counted(solver: Solver, ready: Ready, budget: Budget, y: Any = None) -> RunCost:
    """Cost of a run of the budget's steps, or of the longest run within its calls."""
    counter = RunCounter(ready.problem, solver, ready.x, y)
    first = counter.count(CHECKED_STEPS)
    if budget.calls is None:
        assert budget.steps is not None
        return counter.count(budget.steps)
    if first.start.rows > budget.calls:
        raise OverBudgetError(
            f"before its first step it makes {first.start.rows:,.0f} calls per task, more than the budget of "
            f"{budget.calls:,.0f}."
        )
    if first.steps.rows == 0:
        raise ValueError("compare(calls=...): a step makes no calls that are counted: give seconds.")
    if budget.calls * CHECKED_STEPS / first.steps.rows > LONGEST:
        raise ValueError(
            f"compare(calls={budget.calls!r}): that is more than {LONGEST:,} steps of {type(solver).__name__}, which "
            "would take too long: give fewer."
        )
    return counter.within(budget.calls)


def seconds_a_step(run: Run) -> float:
    """Seconds per step, without evaluations: the difference between a longer run and a shorter one."""

    def took(steps: int) -> float:
        began = time.perf_counter()
        result = run_one(dataclasses.replace(run, steps=steps, every=steps), Quiet())
        if result.status == "interrupted":  # Ctrl-C stops the whole comparison
            raise KeyboardInterrupt
        return time.perf_counter() - began

    for steps in (2, 22):  # to compile; the longer one also measures automatic rates again
        took(steps)
    short, steps = took(2), 20
    while True:
        longer = took(steps + 2) - short
        if longer > TIMED_SECONDS or steps > 20_000:
            return max(longer, 1e-9) / steps
        steps *= 4


def tunable(solver: Solver) -> Tunable:
    """The rates of a solver that can be tuned; none of a solver without fields for them.

    >>> import bilevel as bl
    >>> tunable(bl.MORBiT(upper_lr=0.1, weighting=bl.weightings.Average()))
    Tunable(upper=False, lower=True, weights=False)
    """
    given = rates_of(solver)
    return Tunable(
        "upper_lr" in field_names(solver) and given.upper is None,
        "lower_lr" in field_names(solver) and given.lower is None,
        has_weights_rate(solver) and given.weights is None,
    )


def tuned_on(grid: Grid, solver: Solver) -> dict[str, Solver]:
    """The solver with every combination of rates of the grid, by the text that a table shows.

    An estimator's rate, where it is None, is tuned together with y's.
    """
    open_, given = tunable(solver), rates_of(solver)
    choices = [rates if free else (None,) for rates, free in zip(grid, open_, strict=True)]
    found = {}
    for upper, lower, weights in itertools.product(*choices):
        estimator = lower if given.estimator is None else None
        tried = with_rates(solver, GivenRates(upper, lower, weights, estimator))
        found[" ".join(map(_text, rates_of(tried)[:3]))] = tried
    return found


def label(solver: Solver) -> str:
    """The name, in a table, of the rates of a solver that is not tuned."""
    return AUTOMATIC if tunable(solver).upper else AS_GIVEN


def _text(rate: Rate) -> str:
    if rate is None:
        return "-"
    return "schedule" if callable(rate) else f"{float(rate):g}"


Scores = Callable[[Mapping[str, Solver]], dict[str, float]]


class TunedRates(NamedTuple):
    """The rates that did best."""

    rates: str  # as a table shows them
    solver: Solver
    edges: tuple[str, ...]  # where they are the largest or the smallest that were tried: "largest x"


class Axis(NamedTuple):
    """The rates that are tried for one variable, in increasing order, and how many were added below and above.

    A rate that was given has none, and neither it nor a single rate has sides.
    """

    rates: tuple[float, ...]
    below: int = 0
    above: int = 0

    def side(self, rate: Rate) -> str:
        """The side that the rate lies on, "smallest" or "largest"; "" for neither."""
        if len(self.rates) < 2:
            return ""
        return "smallest" if rate == self.rates[0] else "largest" if rate == self.rates[-1] else ""

    def widened(self, side: str) -> Axis:
        """With one more rate on this side, at the ratio of its next two neighbours, if one more may be added there."""
        added = self.below if side == "smallest" else self.above
        if not side or len(self.rates) < 2 or added == WIDENINGS:
            return self
        if side == "smallest":
            low, next_ = self.rates[:2]
            return self._replace(rates=(_beyond(low, next_), *self.rates), below=self.below + 1)
        next_, high = self.rates[-2:]
        return self._replace(rates=(*self.rates, _beyond(high, next_)), above=self.above + 1)


def _beyond(rate: float, neighbour: float) -> float:
    return float(f"{rate * (rate / neighbour):.6g}")  # 0.1, not 0.10000000000000002


class Search:
    """Finds the rates of a solver that were not given.

    Short runs try all rates of the grid. While the best lies on an edge, the grid gets one more rate there, at its own
    ratio; where every run diverges, it gets one smaller rate of x and of y; at most four on each side. Whole runs
    compare the best three, or the next three where these diverge. Where the winner lies on an edge, the grid widens and
    the best are compared again.
    """

    def __init__(self, solver: Solver, grid: Grid, short: Scores, whole: Scores):
        self.solver, self.short, self.whole = solver, short, whole
        self.axes = [Axis(tuple(sorted(own)) if free else ()) for own, free in zip(grid, tunable(solver), strict=True)]

    def run(self) -> TunedRates:
        """The rates that did best."""
        while True:
            tried = tuned_on(Grid(*(axis.rates for axis in self.axes)), self.solver)
            scores = self.short(tried)
            order = sorted((rates for rates in tried if np.isfinite(scores[rates])), key=lambda rates: scores[rates])
            if self._widen(self._sides(tried[order[0]]) if order else SMALLER):
                continue
            best = self._winner({rates: tried[rates] for rates in order})
            if self._widen(SMALLER if best is None else self._sides(tried[best])):
                continue
            best = next(iter(order or tried)) if best is None else best  # all diverge, this one too
            sides = zip(self._sides(tried[best]), AXES, strict=True)
            return TunedRates(best, tried[best], tuple(f"{side} {name}" for side, name in sides if side))

    def _winner(self, order: Mapping[str, Solver]) -> str | None:
        """The best of the first three in whole runs, or of the next three where these diverge; None if all do."""
        left = list(order)
        while left:
            finalists, left = left[:FINALISTS], left[FINALISTS:]
            scores = self.whole({rates: order[rates] for rates in finalists})
            best = min(scores, key=lambda rates: scores[rates])
            if np.isfinite(scores[best]):
                return best
        return None

    def _sides(self, solver: Solver) -> list[str]:
        """The side of each axis that the solver's rate lies on."""
        return [axis.side(rate) for axis, rate in zip(self.axes, rates_of(solver), strict=False)]

    def _widen(self, sides: Sequence[str]) -> bool:
        """Adds a rate on these sides, where that is allowed; whether any was added."""
        grown = [axis.widened(side) for axis, side in zip(self.axes, sides, strict=True)]
        changed, self.axes = grown != self.axes, grown
        return changed
