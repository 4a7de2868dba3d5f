"""The list of solvers: what each is, and what a step of it costs."""

from __future__ import annotations

import re
import sys
from typing import NamedTuple

import jax.numpy as jnp

from bilevel import solvers
from bilevel._core.values import plain, suggestion
from bilevel._cost.given_rates import GivenRates, with_rates
from bilevel._cost.report import Cost, cost
from bilevel.problems import random_quadratics
from bilevel.solvers._base.card import Card

STEPS = 48  # whole periods of the methods that refresh at intervals
X_SIZE, Y_SIZE = 2, 3
RATES = GivenRates(upper=0.01, lower=0.05, weights=0.01, estimator=0.002)  # at which none diverges


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
    """The solver of this name, however it is written; raises ValueError with the nearest name where there is none."""
    names = {plain(exported): exported for exported in solvers.__all__}
    if plain(name) in names:
        return _listing(names[plain(name)])
    hint = suggestion(name, solvers.__all__) or "`bilevel solvers` lists them."
    raise ValueError(f"there is no solver named {name!r}. {hint}")


def _listing(name: str) -> Listing:
    solver = getattr(solvers, name)
    text = (sys.modules[solver.__module__].__doc__ or "").strip()
    title, _, what = text.partition("\n")[0].partition(":")
    found = re.search(r"^References?:(.*?)(?:\n\s*\n|\Z)", text, re.MULTILINE | re.DOTALL)
    return Listing(
        name,
        what.strip() if plain(title) == plain(name) else text.partition("\n")[0],
        solver.card,
        " ".join(found[1].split()) if found else "",
        text,
        repr(solver()),
    )


def count(listing: Listing) -> Cost | None:
    """The cost of a step of the solver with its default options, at given rates, so that nothing is measured.

    On two small quadratic tasks, with y of `Y_SIZE` numbers: only methods that build matrices depend on it. None for
    solvers of other problems than bilevel ones.
    """
    if listing.card.problem != "bilevel":
        return None
    solver = with_rates(getattr(solvers, listing.name)(), RATES)
    ready = random_quadratics(0, 2, X_SIZE, Y_SIZE)
    return cost(ready.problem, solver, jnp.ones(X_SIZE), steps=STEPS)
