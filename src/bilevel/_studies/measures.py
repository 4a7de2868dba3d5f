"""The numbers that claims and figures take from finished runs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bilevel._studies.records import Record
from bilevel._studies.statistics import slope

END = 0.1  # the part of a run, at its end, that its final numbers are means over: single evaluations are noisy
BURN_IN = 0.01  # the part of a run that is left out where exponents are fitted


def final(record: Record, column: str) -> float:
    """The mean over the end of the run."""
    last = record["step"] >= (1 - END) * record["step"][-1]
    return float(record[column][last].mean())


def lowest(record: Record, column: str) -> float:
    """The lowest value of the run."""
    return float(np.nanmin(record[column]))


def unrest(record: Record, column: str) -> float:
    """How much neighbouring evaluations jump: the deviation of noise that second differences, blind to trends, tell."""
    after = record["step"] >= END * record["step"][-1]
    return float(np.sqrt(np.mean(np.diff(record[column][after], 2) ** 2) / 6))


def decay(record: Record) -> float:
    """The exponent p of |gradient|^2 ~ step^p."""
    after = record["step"] >= max(1.0, BURN_IN * record["step"][-1])
    return slope(record["step"][after], record["gradient_norm_squared"][after])


def paired(first: Mapping[int, Record], second: Mapping[int, Record]) -> list[int]:
    """The seeds that both have finished."""
    return sorted(set(first) & set(second))
