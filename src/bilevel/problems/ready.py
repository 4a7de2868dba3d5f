"""What the functions of this folder return: a problem and where to start, with its solution where that is known."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

import numpy as np

from bilevel.problem.base import BaseProblem

ProblemT = TypeVar("ProblemT", bound=BaseProblem)
X = TypeVar("X")


class Ready(NamedTuple, Generic[ProblemT, X]):
    """A problem and where to start; the tasks bring their y, where they have one."""

    problem: ProblemT
    x: X


class Known(NamedTuple, Generic[ProblemT, X]):
    """A problem, where to start, and its solution."""

    problem: ProblemT
    x: X  # a starting point
    solution: np.ndarray  # x*
    weights: np.ndarray  # lambda*
    value: float  # the worst loss at x*
