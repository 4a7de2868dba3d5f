"""The runs of a comparison: plans them within the budget, tunes rates, runs all seeds, and keeps what is finished."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from bilevel._cost.given_rates import GivenRates, rates_of, with_rates
from bilevel._cost.report import DivergedError
from bilevel._cost.run_cost import RunCost, RunCounter
from bilevel._run.driver import run_one
from bilevel._run.progress import Quiet
from bilevel._run.reached import INTERRUPTED
from bilevel._run.run import Run
from bilevel._studies.experiment import Experiment, Method
from bilevel._studies.measures import score
from bilevel._studies.records import Records
from bilevel._studies.running import Stage, run
from bilevel.comparison.benchmarks import PAPER, recommended_for
from bilevel.comparison.candidates import EVALUATIONS, Candidate, Profile, Used, typical
from bilevel.comparison.tuning import AUTOMATIC, Grid, Search, label, tunable, tuned_on
from bilevel.problem.problem import Problem
from bilevel.problems import Ready
from bilevel.solvers._base.solver import Solver

TUNING_SEED = 10_000  # the first draw for tuning; no reported run has it
TUNING_SHARE = 4  # all rates are tried on one draw with a quarter of the steps
DRAWS = 3  # the best rates are compared on this many draws, with all steps
SLOWEST = 120.0  # a solver whose run takes more seconds is left out
CHECKED_STEPS = 32  # these must stay finite, however short the run
LONGEST = 2_000_000  # steps of a run
TIMED_SECONDS = 1.0  # at least, for a step's time
TOO_SMALL_TO_DIVERGE = GivenRates(1e-6, 1e-3, 1e-6, 1e-3)


class OverBudgetError(ValueError):
    """A solver exceeds the budget before its first step."""


class Budget(NamedTuple):
    """What every run may use: oracle calls per task, or seconds of steps, or just steps."""

    calls: float | None = None
    seconds: float | None = None
    steps: int | None = None


class Plan(NamedTuple):
    """How long a run is, and what it costs."""

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
    """Makes the runs.

    Args:
        benchmark: what is solved.
        ready: its problem, as drawn for tuning; steps are profiled on it.
        records: where finished runs are kept.
        seeds: of the runs that are reported.
        budget: what every run may use.
        progress: show progress bars where there is a terminal.
        say: called with a line of text for each thing done.
    """

    benchmark: Experiment
    ready: Ready
    records: Records
    seeds: range
    budget: Budget
    progress: bool
    say: Callable[[str], None]

    def plan(self, name: str, solver: Solver, steps: int | None = None) -> Plan:
        """The steps that the budget buys, or the given number of them, and their cost. Measured once and kept."""
        budget = self.allowed if steps is None else Budget(steps=steps)
        file = f"cost-{name}{', automatic' * tunable(solver).upper}"
        # The cost does not depend on the rates, so that all tuned ones share a plan.
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
        name, solver = recommended_for(self.ready.problem)
        kind = {"solver": repr(solver), "steps": self.benchmark.steps, "experiment": self.benchmark.title}
        kept = self.records.read_facts("budget")
        if all(kept.get(what) == value for what, value in kind.items()):
            return Budget(calls=float(kept["calls"]))
        try:
            cost = counted(solver, self.ready, Budget(steps=self.benchmark.steps), self.benchmark.y)
        except DivergedError as error:
            raise ValueError(
                f"compare(calls=None, seconds=None): the budget would be the calls of a run of {name}, which diverges "
                f"at step {error.step}: give calls or seconds."
            ) from error
        self.records.keep_facts("budget", kind | {"calls": float(cost.rows[-1])})
        return Budget(calls=float(cost.rows[-1]))

    def too_slow(self, name: str, solver: Solver) -> str | None:
        """Why a solver that could run is left out, in a sentence; None where it is not."""
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
    """The solver with other rates where rates were given; automatic rates stay automatic."""
    known = rates_of(solver)
    kept = (new if old is not None else None for new, old in zip(rates, known, strict=True))
    return with_rates(solver, GivenRates(*kept))


def plan(solver: Solver, ready: Ready, budget: Budget, y: Any = None) -> Plan:
    """How many steps a budget buys: counts calls, times steps. Rates are small, as cost does not depend on them."""
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
    """Cost of a run of the budget's steps, or of the longest run that its calls buy."""
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
        if result.status == INTERRUPTED:  # Ctrl-C stops the whole comparison
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
