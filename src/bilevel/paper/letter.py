"""Letter: pairs of letters share the hyperparameters of kernel logistic regression (Figures 2a, 2b and 2c).

Settings: section 4 and appendix C of the paper, with 128 frequencies, which it does not give. In every trial the pairs,
their splits and all batches are drawn anew; the frequencies stay. Every pair has 1,468 rows, as many as the smallest.
"""

from __future__ import annotations

import functools

from bilevel._studies.experiment import Experiment
from bilevel.datasets import letter_pairs
from bilevel.hypergradients import Direct, Tracked, Unrolled
from bilevel.problems import Ready, hyperparameters
from bilevel.rules.plateau import Plateau
from bilevel.solvers import MORBiT
from bilevel.weightings import Average, SimplexAscent

ROWS = 1468


def start(tasks: int, batch: int, seed: int, variant: str) -> Ready:
    """The problem of one trial."""
    return hyperparameters(letter_pairs(tasks, seed=seed, rows=ROWS), lower_batch=batch, upper_batch=batch)


plateau = Plateau(patience=30)
described = MORBiT(1e-4, 1e-3, Unrolled(), SimplexAscent(1e-3), upper_rule=plateau, lower_rule=plateau)
published = described.replace(hypergradient=Direct())
# Chosen on other draws of pairs, by validation rows that were held out of the runs.
ours = MORBiT(1e-2, 1e-1, Tracked(1e-1), SimplexAscent(1e-3))
SOLVERS = {"described": described, "published": published, "ours": ours}


def experiment(tasks: int, batch: int, compared: bool = False) -> Experiment:
    """The experiment with this many tasks and rows in a batch; `compared` with min-avg, or min-max alone."""
    average = {"min-avg": Average()} if compared else {}
    return Experiment(
        name=f"letter-{tasks}-batch-{batch}",
        title=f"Letter, {tasks} pairs of letters share hyperparameters, batch {batch}",
        start=functools.partial(start, tasks, batch),
        methods={
            variant: {name: solver.replace(weighting=w) for name, w in average.items()} | {"min-max": solver}
            for variant, solver in SOLVERS.items()
        },
        steps=20_000,
    )


LETTER = experiment(16, 8, compared=True)
TASKS = {4: experiment(4, 8), 16: LETTER, 64: experiment(64, 8)}
BATCHES = {8: LETTER, 32: experiment(16, 32), 128: experiment(16, 128)}
