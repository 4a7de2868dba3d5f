"""What an experiment is: a problem drawn for each seed, and solvers to compare on it, in several variants."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from bilevel.problems import Ready

VARIANTS = {
    "described": "as the paper describes it",
    "published": "as its public scripts have it",
    "ours": "ours",
}
SEEDS = 10

Method = str  # "min-avg", "min-max"


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One comparison.

    Args:
        name: of its folder of results.
        title: what is solved, in a few words.
        start: from a seed and a variant to the problem and where x starts.
        methods: for each variant, the solvers to compare.
        steps: of each run.
        evaluations: how often a run is looked at.
        seen: how many tasks, the first ones, x is made for; the others are watched. None = all.
        require: raises where data are missing, before anything runs.
    """

    name: str
    title: str
    start: Callable[[int, str], Ready]
    methods: Mapping[str, Mapping[Method, Any]]
    steps: int
    evaluations: int = 100
    seen: int | None = None
    require: Callable[[], Any] = lambda: None
    start_y: Any = None  # where the tasks' variables start, if the tasks do not bring them

    def shorter(self, share: int) -> Experiment:
        """The same with that part of the steps, and ten evaluations."""
        return dataclasses.replace(self, steps=max(100, self.steps // share), evaluations=10)

    def settings(self, variant: str, method: Method) -> dict[str, Any]:
        """What a run depends on besides its seed: results of other settings are not taken for it."""
        solver = self.methods[variant][method]
        return {"experiment": self.title, "solver": repr(solver), "steps": self.steps, "seen": self.seen}
