"""Makes the runs of a comparison: plans them, tunes rates, runs all seeds, and keeps what is finished."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping

import numpy as np

from bilevel._cost.given_rates import GivenRates, with_rates
from bilevel._cost.report import DivergedError
from bilevel._studies.experiment import Experiment, Method
from bilevel._studies.measures import score
from bilevel._studies.records import Records
from bilevel._studies.running import Stage, run
from bilevel.comparison import plans
from bilevel.comparison.benchmarks import PAPER
from bilevel.comparison.candidates import Candidate
from bilevel.comparison.chosen import recommended_for
from bilevel.comparison.profiles import EVALUATIONS, Budget, Plan, counted, plan, with_given
from bilevel.comparison.ranks import typical
from bilevel.comparison.search import Search
from bilevel.comparison.tuning import AUTOMATIC, Grid, label, tunable, tuned_on
from bilevel.problem.problem import Problem
from bilevel.problems import Ready
from bilevel.solvers._base.solver import Solver

TUNING_SEED = 10_000  # draws from here on, which no reported run has
TUNING_SHARE = 4  # all rates have a quarter of the steps on one draw, then
DRAWS = 3  # the best of them have all of the steps on several
SLOWEST = 120.0  # seconds of a run beyond which a solver is left out


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
        """How many steps the budget buys, or so many, and what they cost; found once and kept."""
        budget = self.allowed if steps is None else Budget(steps=steps)
        file = f"cost-{name}{', automatic' * tunable(solver).upper}"
        # Other rates cost the same, so that all tuned ones share a plan.
        kind = {"solver": repr(with_given(solver, GivenRates(1.0, 1.0, 1.0, 1.0))), "budget": repr(tuple(budget))}
        kind["experiment"] = self.benchmark.title  # a benchmark may have other rows in another version
        kept = self.records.read_facts(file)
        if all(kept.get(what) == value for what, value in kind.items()):
            return plans.read(kept)
        found = plan(solver, self.ready, budget, self.benchmark.y)
        self.records.keep_facts(file, plans.written(found) | kind)
        return found

    @functools.cached_property
    def allowed(self) -> Budget:
        """What every run may use: as given, or the calls of a run of what we recommend, or else as many steps."""
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
        """Why a solver is left out that could run, in a sentence; None where it need not be."""
        steps, own = self.plan(name, with_rates(solver, GivenRates(1.0, 1.0, 1.0, 1.0)))
        needed = steps * own.seconds
        if needed < SLOWEST:
            return None
        return f"a step takes {own.seconds:.2g} s, so that one run with this budget would take {needed:.0f} s."

    def tuned(self, name: str, solver: Solver, grid: Grid) -> Candidate:
        """The best rates of the grid, run with all seeds."""
        steps = self.plan(name, next(iter(tuned_on(grid, solver).values()))).steps
        # What is best early, or on one draw, may diverge later or elsewhere: the best are compared in longer runs.
        short = functools.partial(self._scores, name, max(1, steps // TUNING_SHARE), 1)
        best = Search(solver, grid, short, functools.partial(self._scores, name, steps, DRAWS)).run()
        return self._run(name, best.solver, best.rates)._replace(edges=best.edges)

    def as_it_is(self, name: str, solver: Solver) -> Candidate:
        """All seeds with the rates that the solver has, or chooses."""
        return self._run(name, solver, label(solver))

    def paper(self) -> Candidate:
        """The benchmark's reference, for as many steps as the paper ran it."""
        assert self.benchmark.reference is not None
        solver, steps = self.benchmark.reference
        return self._run(PAPER, solver, "the paper's", steps)

    def _scores(self, name: str, steps: int, draws: int, tried: Mapping[Method, Solver]) -> dict[str, float]:
        """The mean final worst loss on draws for tuning, by selection rows if any; infinite where a run diverged."""
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
