"""The list of solvers: what each says of itself, and what a step of it costs."""

from __future__ import annotations

import dataclasses
import difflib
import re
import sys
from typing import NamedTuple

import jax.numpy as jnp

from bilevel import solvers
from bilevel._cost.report import Cost, cost
from bilevel.problems import random_quadratics
from bilevel.solvers._base.card import Card
from bilevel.solvers._base.solver import Solver
from bilevel.weightings import SimplexAscent

STEPS = 48  # whole periods of the methods that refresh now and then
X_SIZE, Y_SIZE = 2, 3
RATES = {"upper_lr": 0.01, "lower_lr": 0.05}
SMALL = 0.002  # of v, of an estimator, of a penalised problem, whose curvature is the strength times that of g
WEIGHTS_RATE = 0.01


class Listing(NamedTuple):
    """A solver, as a list shows it."""

    name: str
    what: str  # one sentence
    card: Card
    reference: str
    text: str  # the updates, the theory and the reference
    options: str  # the constructor call, with its defaults


def listings() -> list[Listing]:
    """Every exported solver, by name."""
    return [_listing(name) for name in sorted(solvers.__all__, key=str.lower)]


def find(name: str) -> Listing:
    """The solver of this name, however it is written; raises ValueError with the nearest names where there is none."""
    names = {_plain(exported): exported for exported in solvers.__all__}
    if _plain(name) in names:
        return _listing(names[_plain(name)])
    near = [names[n] for n in difflib.get_close_matches(_plain(name), names, n=3)]
    hint = f"did you mean {' or '.join(near)}?" if near else "`bilevel solvers` lists them."
    raise ValueError(f"there is no solver named {name!r}; {hint}")


def _listing(name: str) -> Listing:
    solver = getattr(solvers, name)
    text = (sys.modules[solver.__module__].__doc__ or "").strip()
    title, _, what = text.partition("\n")[0].partition(":")
    found = re.search(r"^References?:(.*?)(?:\n\s*\n|\Z)", text, re.MULTILINE | re.DOTALL)
    return Listing(
        name,
        what.strip() if _plain(title) == _plain(name) else text.partition("\n")[0],
        solver.card,
        " ".join(found[1].split()) if found else "",
        text,
        repr(solver()),
    )


def _plain(name: str) -> str:
    """A name without case and hyphens: MA-SOBA is MASOBA."""
    return name.replace("-", "").lower()


def count(listing: Listing) -> Cost | None:
    """The cost of a step of the solver with its default options, at given rates, so that nothing is measured.

    On two small quadratic tasks, with y of `Y_SIZE` numbers: only methods that build matrices depend on it. None for
    solvers of other problems than bilevel ones.
    """
    if listing.card.problem != "bilevel":
        return None
    solver = with_small_rates(getattr(solvers, listing.name)())
    return cost(random_quadratics(0, 2, X_SIZE, Y_SIZE), solver, jnp.ones(X_SIZE), steps=STEPS)


def with_small_rates(solver: Solver) -> Solver:
    """The same solver with every rate given, and small enough for `random_quadratics`."""
    rates: dict[str, object] = {name: RATES.get(name, SMALL) for name in _fields(solver) if name.endswith("_lr")}
    if "weighting" in _fields(solver):
        rates["weighting"] = SimplexAscent(lr=WEIGHTS_RATE)
    estimator = getattr(solver, "hypergradient", None)
    if "lr" in _fields(estimator):
        rates["hypergradient"] = dataclasses.replace(estimator, lr=SMALL)  # type: ignore[type-var]
    return dataclasses.replace(solver, **rates)  # type: ignore[type-var]


def _fields(part: object) -> set[str]:
    return {field.name for field in dataclasses.fields(part)} if dataclasses.is_dataclass(part) else set()
