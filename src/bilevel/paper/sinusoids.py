"""Sinusoid regression: a network 1 -> 80 -> 80 -> 10 shared by seen tasks, and watched by unseen ones (Figure 1c).

Settings: appendix C.1 of the paper; it does not say how many steps, nor how many of 20 tasks are hard: 20,000, and a
third as with 3 tasks. Unseen tasks fit their heads along the run as the seen ones do, and x knows nothing of them.
"""

from __future__ import annotations

import dataclasses
import functools

import optax

from bilevel._studies.experiment import Experiment
from bilevel.datasets import sinusoids
from bilevel.hypergradients import Direct, Tracked, Unrolled
from bilevel.problems import Ready
from bilevel.problems.representation import sinusoid_regression
from bilevel.solvers import MORBiT
from bilevel.weightings import Average, SimplexAscent, Watched

UNSEEN = 1000  # seeds of unseen tasks begin here


def start(tasks: int, seed: int, variant: str) -> Ready:
    """The problem of one trial: seen tasks first."""
    hard = round(tasks / 3)
    unseen = [dataclasses.replace(t, name=f"unseen {t.name}") for t in sinusoids(tasks, hard, seed=UNSEEN + seed)]
    return sinusoid_regression([*sinusoids(tasks, hard, seed=seed), *unseen], seed=seed)


def experiment(tasks: int) -> Experiment:
    """The experiment with this many seen tasks and as many unseen ones."""
    seen = functools.partial(Watched, tasks)
    # The paper pulls weights to 1/n with strength 3; its scripts leave out the factor 2 of the derivative: 1.5.
    described = MORBiT(0.007, 0.005, Unrolled(), seen(SimplexAscent(0.003, pull=3.0)))
    published = described.replace(hypergradient=Direct(), weighting=seen(SimplexAscent(0.003, pull=1.5)))
    # Features grow along the run, so y and v take their rates from the measured curvature, and x Adam's steps.
    ours = MORBiT(1e-3, None, Tracked(), seen(SimplexAscent(0.003)), upper_rule=optax.adam)
    average = {"weighting": seen(Average()), "lower_lr": 0.011}
    return Experiment(
        name=f"sinusoids-{tasks}",
        title=f"{tasks} sinusoids share a network, {tasks} unseen ones use it",
        start=functools.partial(start, tasks),
        methods={
            "described": {"min-avg": described.replace(**average), "min-max": described},
            "published": {"min-avg": published.replace(**average), "min-max": published},
            "ours": {"min-avg": ours.replace(weighting=seen(Average())), "min-max": ours},
        },
        steps=20_000,
        evaluations=200,
        seen=tasks,
    )


SINUSOIDS = experiment(3)
MORE_SINUSOIDS = experiment(20)
