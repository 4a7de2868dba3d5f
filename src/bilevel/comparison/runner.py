"""Makes the runs of a comparison: profiles steps, tunes rates, runs all seeds, and keeps what is finished."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from bilevel._cost.given_rates import GivenRates, with_rates
from bilevel._cost.report import DivergedError
from bilevel._studies.experiment import Experiment, Method
from bilevel._studies.measures import score
from bilevel._studies.records import Records
from bilevel._studies.running import Stage, run
from bilevel.comparison.benchmarks import PAPER
from bilevel.comparison.candidates import Candidate
from bilevel.comparison.chosen import recommended_for
from bilevel.comparison.profiles import Budget, Profile, profile
from bilevel.comparison.tuning import AUTOMATIC, Grid, label, tunable, tuned_on
from bilevel.problem.problem import Problem
from bilevel.problems import Ready
from bilevel.solvers._base.solver import Solver

EVALUATIONS = 50
TUNING_SEED = 10_000  # draws from here on, which no reported run has
TUNING_SHARE = 4  # all rates have a quarter of the budget on one draw, then
FINALISTS, DRAWS = 3, 3  # the best of them have all of it on several
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

    def profile(self, name: str, solver: Solver) -> Profile:
        """What its steps cost; measured once and kept."""
        automatic = tunable(solver).upper
        file = f"cost-{name}{', automatic' * automatic}"
        # Other rates cost the same, so that all tuned ones share a profile.
        kind = repr(solver if automatic else with_rates(solver, GivenRates(1.0, 1.0, 1.0, 1.0)))
        kept = self.records.read_facts(file)
        if kept.get("solver") == kind:
            return Profile(float(kept["calls"]), float(kept["seconds"]), int(kept["bytes"]))
        found = profile(solver, self.ready, self.benchmark.y)
        self.records.keep_facts(file, found._asdict() | {"solver": kind})
        return found

    def steps(self, own: Profile) -> int:
        """What the budget buys; by default, the calls of a run of what we recommend, or else as many steps."""
        if self.budget.calls is not None or self.budget.seconds is not None:
            return self.budget.steps(own)
        if not isinstance(self.ready.problem, Problem):
            return self.benchmark.steps
        name, solver = recommended_for(self.ready.problem)
        try:
            recommended = self.profile(name, solver)
        except DivergedError as error:
            raise ValueError(
                f"compare(calls=None, seconds=None): the budget would be the calls of a run of {name}, which diverges "
                f"at step {error.step}: give calls or seconds."
            ) from error
        return Budget(self.benchmark.steps * recommended.calls, None).steps(own)

    def too_slow(self, name: str, solver: Solver) -> str | None:
        """Why a solver is left out that could run, in a sentence; None where it need not be."""
        own = self.profile(name, with_rates(solver, GivenRates(1.0, 1.0, 1.0, 1.0)))
        needed = self.steps(own) * own.seconds
        if needed < SLOWEST:
            return None
        return f"a step takes {own.seconds:.2g} s, so that one run with this budget would take {needed:.0f} s."

    def tuned(self, name: str, solver: Solver, grid: Grid) -> Candidate:
        """The best rates of the grid, run with all seeds."""
        tried = tuned_on(grid, solver)
        steps = self.steps(self.profile(name, next(iter(tried.values()))))
        # What is best early, or on one draw, may diverge later or elsewhere: the best are compared in longer runs.
        short = self._scores(name, tried, max(1, steps // TUNING_SHARE), 1)
        finalists = sorted(tried, key=lambda rates: short[rates])[:FINALISTS]
        scores = self._scores(name, {rates: tried[rates] for rates in finalists}, steps, DRAWS)
        best = min(scores, key=lambda rates: scores[rates])
        return self._run(name, tried[best], best)

    def as_it_is(self, name: str, solver: Solver) -> Candidate:
        """All seeds with the rates that the solver has, or chooses."""
        return self._run(name, solver, label(solver))

    def paper(self) -> Candidate:
        """The benchmark's reference, for as many steps as the paper ran it."""
        assert self.benchmark.reference is not None
        solver, steps = self.benchmark.reference
        return self._run(PAPER, solver, "the paper's", steps)

    def _scores(self, name: str, tried: Mapping[Method, Solver], steps: int, draws: int) -> dict[str, float]:
        """The mean final worst validation loss on draws for tuning; infinite where a run diverged."""
        experiment, seeds = self._experiment(name, {"tuning": tried}, steps), range(TUNING_SEED, TUNING_SEED + draws)
        run(Stage(experiment, "tuning"), seeds, self.records, self.progress)
        ended = {rates: self.records.read(experiment, "tuning", rates) for rates in tried}
        return {rates: float(np.mean([score(runs.get(s), steps) for s in seeds])) for rates, runs in ended.items()}

    def _run(self, name: str, solver: Solver, rates: str, steps: int | None = None) -> Candidate:
        own = self.profile(name, solver)
        steps = self.steps(own) if steps is None else steps
        variant = AUTOMATIC if rates == AUTOMATIC else "tuned"
        experiment = self._experiment(name, {variant: {"run": solver}}, steps)
        ran = run(Stage(experiment, variant), self.seeds, self.records, self.progress)
        kept = self.records.read(experiment, variant, "run")
        found = Candidate(name, own, rates, {seed: kept[seed] for seed in self.seeds if seed in kept}, steps)
        gone = f", {found.diverged.sum()} of {len(found.runs)} runs diverged" if found.diverged.any() else ""
        end = f"worst validation loss {found.worst:.4g} after {steps:,} steps{gone}"
        self.say(f"{name} ({rates}): {end}, {ran.seconds:.0f} s")
        return found

    def _experiment(self, name: str, methods: Mapping[str, Mapping[Method, Solver]], steps: int) -> Experiment:
        """The benchmark with these solvers and this length."""
        return dataclasses.replace(self.benchmark, name=name, methods=methods, steps=steps, evaluations=EVALUATIONS)
