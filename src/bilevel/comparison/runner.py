"""Makes the runs of a comparison: counts and times steps, tunes rates, runs all seeds, and keeps what is finished."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from bilevel._studies.experiment import Experiment
from bilevel._studies.records import Record, Records
from bilevel._studies.running import Stage, run
from bilevel.comparison.benchmarks import Contest
from bilevel.comparison.profiles import Entrant, Grid, enter, is_automatic, steps_for, usual, with_rates
from bilevel.problems import Ready

EVALUATIONS = 50
TUNING_SEED = 10_000  # draws from here on, which no reported run has
TUNING_SHARE = 4  # all rates have a quarter of the budget on one draw, then
FINALISTS, DRAWS = 3, 3  # the best of them have all of it on several
FAR = 10.0  # times the first loss: a run that ends above diverged
SLOWEST = 120.0  # seconds of a run beyond which a solver is left out
SLOW_STEP = 0.1  # seconds of a step, likewise: batched factorisations so large can stand still in two runs at once


class Budget(NamedTuple):
    """What every run may use: oracle calls per task, or seconds; none of them = a usual run's calls."""

    calls: float | None
    seconds: float | None


class Entry(NamedTuple):
    """A solver that ran."""

    entrant: Entrant
    rates: str  # upper, lower and weights, as tuned; "automatic"
    runs: dict[int, Record]
    steps: int


@dataclasses.dataclass(frozen=True)
class Court:
    """Makes the runs."""

    contest: Contest
    ready: Ready
    y: Any
    records: Records
    seeds: range
    budget: Budget
    progress: bool
    say: Callable[[str], None]

    def entrant(self, name: str, solver: Any) -> Entrant:
        """What its steps cost; measured once and kept."""
        automatic = is_automatic(solver)
        file = self.records.folder / f"cost-{name}{', automatic' * automatic}.json"
        kind = repr(solver if automatic else with_rates(solver, (1.0, 1.0, 1.0)))
        kept = json.loads(file.read_text()) if file.is_file() else {}
        if kept.pop("solver", None) == kind:
            return Entrant(name, solver, **kept)
        found = enter(name, solver, self.ready, self.y)
        said = {"calls": found.calls, "seconds": found.seconds, "bytes": found.bytes, "solver": kind}
        file.write_text(json.dumps(said, indent=1))
        return found

    def steps(self, entrant: Entrant) -> int:
        """What the budget buys; by default, the calls of a usual run of what we recommend."""
        if self.budget.calls is None and self.budget.seconds is None:
            recommended = self.entrant(*usual(self.ready.problem))
            return steps_for(entrant, self.contest.steps * recommended.calls, None)
        return steps_for(entrant, *self.budget)

    def too_slow(self, name: str, solver: Any) -> str | None:
        """Why a solver is left out that could run, in a sentence; None where it need not be."""
        entrant = self.entrant(name, with_rates(solver, (1.0, 1.0, 1.0)))
        needed = self.steps(entrant) * entrant.seconds
        if needed < SLOWEST and entrant.seconds < SLOW_STEP:
            return None
        return f"a step takes {entrant.seconds:.2g} s, so that one run with this budget would take {needed:.0f} s."

    def tuned(self, name: str, solver: Any, grid: Grid) -> Entry:
        """The best rates of the grid, run with all seeds."""
        tried = {called: with_rates(solver, rates) for called, rates in grid.rates().items()}
        steps = self.steps(self.entrant(name, next(iter(tried.values()))))
        # What is best early, or on one draw, may go off later or elsewhere: the best meet again in longer runs.
        short = self._ends(name, tried, max(1, steps // TUNING_SHARE), 1)
        finalists = sorted(tried, key=lambda called: short[called])[:FINALISTS]
        ends = self._ends(name, {called: tried[called] for called in finalists}, steps, DRAWS)
        best = min(ends, key=lambda called: ends[called])
        return self.run(name, tried[best], best)

    def _ends(self, name: str, tried: Mapping[str, Any], steps: int, draws: int) -> dict[str, float]:
        """Where solvers end, on average over so many draws for tuning."""
        experiment, seeds = self._experiment(name, {"tuning": tried}, steps), range(TUNING_SEED, TUNING_SEED + draws)
        run(Stage(experiment, "tuning"), seeds, self.records, self.progress)
        ended = {called: self.records.read(experiment, "tuning", called) for called in tried}
        return {called: float(np.mean([final(runs.get(s)) for s in seeds])) for called, runs in ended.items()}

    def run(self, name: str, solver: Any, rates: str, steps: int | None = None) -> Entry:
        """All seeds with given rates, for what the budget buys or for so many steps."""
        entrant = self.entrant(name, solver)
        steps = self.steps(entrant) if steps is None else steps
        variant = "automatic" if rates == "automatic" else "tuned"
        experiment = self._experiment(name, {variant: {"run": solver}}, steps)
        ran = run(Stage(experiment, variant), self.seeds, self.records, self.progress)
        kept = self.records.read(experiment, variant, "run")
        entry = Entry(entrant, rates, {seed: kept[seed] for seed in self.seeds if seed in kept}, steps)
        worst = np.mean([final(record) for record in entry.runs.values()])
        self.say(f"{name} ({rates}): worst validation loss {worst:.4g} after {steps:,} steps, {ran.seconds:.0f} s")
        return entry

    def _experiment(self, name: str, methods: Mapping, steps: int) -> Experiment:
        return Experiment(name, self.contest.title, self.contest.start, methods, steps, EVALUATIONS, start_y=self.y)


def final(record: Record | None) -> float:
    """The mean worst validation loss over the last tenth of a run; infinite for one that ended early or nowhere."""
    if record is None or not np.isfinite(record["worst_validation"][-1]):
        return float("inf")
    last = record["step"] >= 0.9 * record["step"][-1]
    return float(record["worst_validation"][last].mean())


def diverged(entry: Entry) -> np.ndarray:
    """Which runs ended before their time, or nowhere, or far above where they began."""
    return np.array(
        [r["step"][-1] < entry.steps or not final(r) < FAR * r["worst_validation"][0] for r in entry.runs.values()]
    )
