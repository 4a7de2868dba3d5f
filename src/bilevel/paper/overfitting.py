"""How far x overfits the validation rows along a run, and what an earlier end would gain.

The end is chosen on some trials, by their test losses, and its gain is reported on the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bilevel._studies import measures
from bilevel._studies.experiment import Experiment
from bilevel._studies.records import Record, Records
from bilevel._studies.statistics import Interval, interval

SHARES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)  # of the run


class Overfitting(NamedTuple):
    """What an earlier end gains."""

    validation: float  # worst losses at the end of the run, means over all trials
    test: float
    end: int  # steps after which the trials that choose have their lowest worst test loss
    at_end: float  # the worst test loss of the other trials there,
    whole: float  # and after the whole run
    gain: Interval  # the difference of these two, paired
    trials: int


def overfitting(records: Records, experiment: Experiment, variant: str, method: str = "min-max") -> Overfitting | None:
    """Even trials choose, odd ones report; None where there are too few."""
    runs = [
        run
        for run in records.read(experiment, variant, method).values()
        if not measures.diverged(run, int(run["step"][-1]))
    ]
    if len(runs) < 4:
        return None
    ends = [round(share * experiment.steps) for share in SHARES]
    tests = np.array([[measures.final(run.until(end), "worst_test") for end in ends] for run in runs])
    best = int(np.argmin(tests[::2].mean(axis=0)))
    others = tests[1::2]
    return Overfitting(
        _mean(runs, "worst_validation"),
        _mean(runs, "worst_test"),
        ends[best],
        float(others[:, best].mean()),
        float(others[:, -1].mean()),
        interval(others[:, best] - others[:, -1]),
        len(others),
    )


def _mean(runs: Sequence[Record], column: str) -> float:
    return float(np.mean([measures.final(run, column) for run in runs]))
