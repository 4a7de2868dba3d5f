"""Rates of a solver that are read and replaced from outside, for solvers that have them.

A solver that a user wrote need not have `upper_lr`, `lower_lr`, a `hypergradient` or a `weighting`: what it does
not have is left alone.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, TypeVar

from bilevel._core.schedules import Rate

S = TypeVar("S")
OF_V = ("v_lr", "penalty_lr")  # what solvers that move v, or what takes its place, themselves call its rate


class GivenRates(NamedTuple):
    """The rates of x, y, the weights, and of an estimator; None = the solver's own stays."""

    upper: Rate = None
    lower: Rate = None
    weights: Rate = None
    estimator: Rate = None


def rates_of(solver: object) -> GivenRates:
    """The rates that a solver was given; None where it chooses one or has none."""
    own = [getattr(solver, name, None) for name in ("upper_lr", "lower_lr")]
    parts = [getattr(getattr(solver, name, None), "lr", None) for name in ("weighting", "hypergradient")]
    of_v = next((getattr(solver, name) for name in OF_V if hasattr(solver, name)), None)
    return GivenRates(own[0], own[1], parts[0], parts[1] if of_v is None else of_v)


def with_rates(solver: S, rates: GivenRates) -> S:
    """The same solver with these rates, of those that it has a field for; weights that do not move have none.

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
    """The same part with another `lr`, or, of a part around a weighting, with that weighting's."""
    if "lr" in field_names(part):
        return dataclasses.replace(part, lr=rate)
    if "weighting" in field_names(part):
        return dataclasses.replace(part, weighting=_with_lr(part.weighting, rate))
    return part


def field_names(value: Any) -> set[str]:
    """The fields of a dataclass; none of anything else."""
    return {field.name for field in dataclasses.fields(value)} if dataclasses.is_dataclass(value) else set()
