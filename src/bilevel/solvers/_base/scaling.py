"""The rates of any solver times a factor: found by their names, so that they need not be known one by one."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from bilevel._core import module
from bilevel._core.schedules import Rate, ScaledSchedule

T = TypeVar("T")
PARTS = ("weighting", "hypergradient")  # options that are objects with rates of their own


def scaled_rate(rate: Rate, factor: float) -> Rate:
    """A number or a schedule times a factor; None stays None."""
    if rate is None:
        return None
    return ScaledSchedule(rate, factor) if callable(rate) else rate * factor


def scaled(part: T, factor: float) -> T | None:
    """A solver, or a part of one, with all rates times a factor; None where none was given.

    A rate is a field named `lr`, or one whose name ends in `_lr`; a weighting and an estimator have theirs.

    >>> import bilevel as bl
    >>> smaller = scaled(bl.MORBiT(upper_lr=0.2, weighting=bl.weightings.SimplexAscent(0.1)), 0.5)
    >>> smaller.upper_lr, smaller.lower_lr, smaller.weighting.lr
    (0.1, None, 0.05)
    """
    names = {field.name for field in dataclasses.fields(part)} if dataclasses.is_dataclass(part) else set()  # type: ignore[arg-type]
    own: dict[str, Any] = {}
    for name in names:
        value = getattr(part, name)
        if name == "lr" or name.endswith("_lr"):
            own[name] = scaled_rate(value, factor)
        elif name in PARTS:
            own[name] = scaled(value, factor)
    given = {name: value for name, value in own.items() if value is not None}
    return module.replace(part, **given) if given else None
