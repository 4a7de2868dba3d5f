"""The list of solvers, and the cost of a step of each. Reads and replaces the rates of any solver."""

from __future__ import annotations

import dataclasses
import re
import sys
from typing import Any, NamedTuple, TypeVar

import jax.numpy as jnp

from bilevel import Cost, cost, solvers
from bilevel._core.module import field_names
from bilevel._core.schedules import Rate
from bilevel._core.values import plain, suggestion
from bilevel.solvers._base.solver import Card
from bilevel.studies.problems import random_quadratics


class GivenRates(NamedTuple):
    """The rates of x, y, the weights, and of an estimator; None = keep the solver's own.

    A user's solver may have no `upper_lr`, `lower_lr`, `hypergradient` or `weighting`: such rates are ignored.
    """

    upper: Rate = None
    lower: Rate = None
    weights: Rate = None
    estimator: Rate = None


STEPS = 48  # whole periods of the methods that refresh at intervals
X_SIZE, Y_SIZE = 2, 3
OF_V = ("v_lr", "penalty_lr")  # fields with the rate of v, or of its replacement
RATES = GivenRates(upper=0.01, lower=0.05, weights=0.01, estimator=0.002)  # no solver diverges at these


class Listing(NamedTuple):
    """One entry of the list."""

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
    """Finds a solver by name, whatever its case and hyphens; a ValueError suggests the nearest name."""
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
    """Counts the cost of a step with default options; None if the solver is for another kind of problem.

    Rates are given, so that none are measured. The problem has two small quadratic tasks with y of `Y_SIZE` numbers;
    that size only affects methods that build matrices.
    """
    if listing.card.problem != "bilevel":
        return None
    solver = with_rates(getattr(solvers, listing.name)(), RATES)
    ready = random_quadratics(0, 2, X_SIZE, Y_SIZE)
    return cost(ready.problem, solver, jnp.ones(X_SIZE), steps=STEPS)


S = TypeVar("S")


def rates_of(solver: object) -> GivenRates:
    """The rates that a solver was given; None = it chooses the rate, or has none."""
    own = [getattr(solver, name, None) for name in ("upper_lr", "lower_lr")]
    parts = [getattr(getattr(solver, name, None), "lr", None) for name in ("weighting", "hypergradient")]
    of_v = next((getattr(solver, name) for name in OF_V if hasattr(solver, name)), None)
    return GivenRates(own[0], own[1], parts[0], parts[1] if of_v is None else of_v)


def with_rates(solver: S, rates: GivenRates) -> S:
    """Sets these rates in a solver, if it has fields for them. Weights that do not move have no rate.

    >>> import bilevel as bl
    >>> solver = with_rates(bl.MORBiT(lower_lr=0.5), GivenRates(upper=0.1, weights=0.01))
    >>> rates_of(solver)
    GivenRates(upper=0.1, lower=0.5, weights=0.01, estimator=None)
    """
    options: dict[str, Any] = {"upper_lr": rates.upper, "lower_lr": rates.lower}
    if rates.weights is not None and has_weights_rate(solver):
        options["weighting"] = _with_lr(getattr(solver, "weighting", None), rates.weights)
    options |= dict.fromkeys(OF_V, rates.estimator)
    if rates.estimator is not None:
        options["hypergradient"] = _with_lr(getattr(solver, "hypergradient", None), rates.estimator)
    known = {name: value for name, value in options.items() if value is not None and name in field_names(solver)}
    return dataclasses.replace(solver, **known) if known else solver  # type: ignore[type-var]


def has_weights_rate(solver: object) -> bool:
    """Whether the losses move a solver's weights, so that these have a rate."""
    return bool(getattr(getattr(solver, "weighting", None), "moves", False))


def _with_lr(part: Any, rate: Rate) -> Any:
    """Sets the `lr` of a part. If the part wraps a weighting, the inner one gets it."""
    if "lr" in field_names(part):
        return dataclasses.replace(part, lr=rate)
    if "weighting" in field_names(part):
        return dataclasses.replace(part, weighting=_with_lr(part.weighting, rate))
    return part
