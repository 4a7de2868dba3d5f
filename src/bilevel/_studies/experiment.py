"""What an experiment is: a problem drawn for each seed, and solvers to run on it, in several variants."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from bilevel.oracles.upper import Point
from bilevel.problem.problem import Problem
from bilevel.problems import Ready
from bilevel.solvers._base.solver import Solver
from bilevel.weightings.baselines import Baselines

SEEDS = 10

Method = str  # "min-avg", "min-max"
Probe = Callable[[Problem, Point], float]


class Reference(NamedTuple):
    """A solver that others are compared with, and how long it runs."""

    solver: Solver
    steps: int


@dataclasses.dataclass(frozen=True, eq=False)
class Experiment:
    """One problem and the solvers that run on it. A benchmark is an experiment whose solvers are chosen later.

    Args:
        name: of its folder of results.
        title: what is solved, in a few words.
        start: from a seed and a variant to the problem and where x starts.
        steps: of each run; of a benchmark, of the solver that is recommended for it.
        methods: for each variant, the solvers by name.
        evaluations: how often a run is evaluated.
        rows: how many of the evaluations are kept, evenly; the lowest losses so far are of all. None = all.
        seen: how many tasks, the first ones, x is made for; the others are watched. None = all.
        require: raises where data are missing, before anything runs.
        y: where the tasks' variables start, if the tasks do not bring them.
        reference: of a benchmark, the solver as the paper describes it, where the paper has the problem.
        probe: for each variant that has one, what is measured besides at some points of its min-max runs.
        baselines: what each task could reach, where regrets are to be kept too; the tasks are then the same for all
            seeds.
    """

    name: str
    title: str
    start: Callable[[int, str], Ready]
    steps: int
    methods: Mapping[str, Mapping[Method, Solver]] = dataclasses.field(default_factory=dict)
    evaluations: int = 100
    rows: int | None = None
    seen: int | None = None
    require: Callable[[], Any] = lambda: None
    y: Any = None
    reference: Reference | None = None
    probe: Mapping[str, Probe] = dataclasses.field(default_factory=dict)
    baselines: Baselines | None = None

    def shorter(self, share: int) -> Experiment:
        """The same with a 1/share of the steps, ten evaluations and no probes, which take as long in a short run."""
        return dataclasses.replace(self, steps=max(100, self.steps // share), evaluations=10, rows=None, probe={})

    def settings(self, variant: str, method: Method) -> dict[str, Any]:
        """What a run depends on besides its seed: results of other settings are not taken for it."""
        solver = self.methods[variant][method]
        probe = {"probe": repr(self.probe[variant])} if variant in self.probe else {}
        known = {} if self.baselines is None else {"baselines": np.asarray(self.baselines.values).tolist()}
        settings = {"experiment": self.title, "solver": repr(solver), "steps": self.steps, "seen": self.seen}
        return settings | probe | known
