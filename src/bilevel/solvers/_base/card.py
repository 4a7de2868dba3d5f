"""The description of a solver in the list of solvers."""

from __future__ import annotations

from typing import NamedTuple


class Card(NamedTuple):
    """A solver in a few words.

    Rates are numbers of samples until the squared gradient norm is below eps, as published for one task.
    """

    loops: str  # "single" or "double"
    keeps: str  # besides x, y and the weights
    rate: str
    paper: str
    extension: str  # what goes beyond the paper, without a theorem
    problem: str = "bilevel"
    constraint: str = "projection"
