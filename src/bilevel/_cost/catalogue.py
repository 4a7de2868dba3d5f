"""The list of solvers: what each says of itself, and what a step of it costs."""

from __future__ import annotations

import re
import sys
from typing import NamedTuple

import jax.numpy as jnp

from bilevel import solvers
from bilevel._core.words import plain, suggestion
from bilevel._cost.given_rates import Rates, with_rates
from bilevel._cost.report import Cost, cost
from bilevel.problems import random_quadratics
from bilevel.solvers._base.card import Card

STEPS = 48  # whole periods of the methods that refresh now and then
X_SIZE, Y_SIZE = 2, 3
RATES = Rates(upper=0.01, lower=0.05, weights=0.01, estimator=0.02)


class Entry(NamedTuple):
    """A solver, as a list shows it."""

    name: str
    what: str  # one sentence
    card: Card
    reference: str
    text: str  # the updates, the theory and the reference
    options: str  # with their defaults


def entries() -> list[Entry]:
    """Every exported solver, by name."""
    return [_entry(name) for name in sorted(solvers.__all__, key=str.lower)]


def find(name: str) -> Entry:
    """The solver of this name, however it is written; raises ValueError with the nearest name where there is none."""
    names = {plain(exported): exported for exported in solvers.__all__}
    if plain(name) in names:
        return _entry(names[plain(name)])
    hint = suggestion(name, solvers.__all__) or "`bilevel solvers` lists them."
    raise ValueError(f"there is no solver named {name!r}. {hint}")


def _entry(name: str) -> Entry:
    solver = getattr(solvers, name)
    text = (sys.modules[solver.__module__].__doc__ or "").strip()
    title, _, what = text.partition("\n")[0].partition(":")
    found = re.search(r"^References?:(.*?)(?:\n\s*\n|\Z)", text, re.MULTILINE | re.DOTALL)
    return Entry(
        name,
        what.strip() if plain(title) == plain(name) else text.partition("\n")[0],
        solver.card,
        " ".join(found[1].split()) if found else "",
        text,
        repr(solver()),
    )


def count(entry: Entry) -> Cost | None:
    """The cost of a step of the solver as it comes, at given rates, so that nothing is measured on the way.

    On two small quadratic tasks, with y of `Y_SIZE` numbers: only methods that build matrices depend on it. None for
    solvers of other problems than bilevel ones.
    """
    if entry.card.problem != "bilevel":
        return None
    solver = with_rates(getattr(solvers, entry.name)(), RATES)
    return cost(solver, random_quadratics(0, 2, X_SIZE, Y_SIZE).problem, jnp.ones(X_SIZE), steps=STEPS)
