"""How far x overfits the validation rows, and what an earlier end of a run gains."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bilevel.studies.records import Experiment, Records
from bilevel.studies.statistics import Interval, diverged, final, interval

ENDS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)  # shares of a run after which it may end early


class Overfitting(NamedTuple):
    """How far x overfits the validation rows along a run, and what an earlier end would gain."""

    validation: float  # worst losses at the end of the run, means over all trials
    test: float
    end: int  # steps after which the trials that choose have their lowest worst test loss
    at_end: float  # the worst test loss of the other trials at that step
    whole: float  # and after the whole run
    gain: Interval  # the difference of these two, paired
    trials: int


def overfitting(records: Records, experiment: Experiment, variant: str, method: str = "min-max") -> Overfitting | None:
    """Even trials choose the end by their test losses, odd ones report its gain; None where there are too few."""
    runs = [run for run in records.read(experiment, variant, method).values() if not diverged(run)]
    if len(runs) < 4:
        return None
    ends = [round(share * experiment.steps) for share in ENDS]
    tests = np.array([[final(run.until(end), "worst_test") for end in ends] for run in runs])
    best = int(np.argmin(tests[::2].mean(axis=0)))
    others = tests[1::2]
    validation, test = (
        float(np.mean([final(run, f"worst_{kind}") for run in runs])) for kind in ("validation", "test")
    )
    return Overfitting(
        validation,
        test,
        ends[best],
        float(others[:, best].mean()),
        float(others[:, -1].mean()),
        interval(others[:, best] - others[:, -1]),
        len(others),
    )
