"""Rates of a solver that are read and replaced from outside, for solvers that have them.

A solver that a user wrote need not have `upper_lr`, `lower_lr`, a `hypergradient` or a `weighting`: what it has not is
not touched.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, TypeVar

from bilevel._core.module import Rate

S = TypeVar("S")


class Rates(NamedTuple):
    """The rates of x, y, the weights, and of an estimator; None = the solver's own stays."""

    upper: Rate = None
    lower: Rate = None
    weights: Rate = None
    estimator: Rate = None


def rates_of(solver: object) -> Rates:
    """The rates that a solver was given; None where it chooses one or has none."""
    weighting, estimator = getattr(solver, "weighting", None), getattr(solver, "hypergradient", None)
    return Rates(
        getattr(solver, "upper_lr", None),
        getattr(solver, "lower_lr", None),
        getattr(weighting, "lr", None),
        getattr(estimator, "lr", None),
    )


def with_rates(solver: S, rates: Rates) -> S:
    """The same solver with these rates, of those that it has a field for; weights that do not move have none.

    >>> import bilevel as bl
    >>> solver = with_rates(bl.MORBiT(lower_lr=0.5), Rates(upper=0.1, weights=0.01))
    >>> rates_of(solver)
    Rates(upper=0.1, lower=0.5, weights=0.01, estimator=None)
    """
    options: dict[str, Any] = {"upper_lr": rates.upper, "lower_lr": rates.lower}
    if rates.weights is not None and has_weights_rate(solver):
        options["weighting"] = _with_lr(getattr(solver, "weighting", None), rates.weights)
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
