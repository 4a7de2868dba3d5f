"""What to say of a run that diverged: what broke first, and which rate is to blame."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from bilevel._run.loop import Carry, Point
from bilevel._run.run import Run

MARGIN = 2  # x or y is to blame alone where it has grown this many times as much as the other


class Broken(NamedTuple):
    """What became infinite or NaN in a step, and whose rates may be too large."""

    what: str
    task: int | None = None
    upper: bool = False
    lower: bool = False
    weights: bool = False


def explain(run: Run, best: Point, last: Carry, broken: Carry) -> str:
    """The message for a run whose next step breaks.

    Args:
        run: which.
        best: the best point evaluated, a measure of what size is normal.
        last: the last finite one.
        broken: one step later.
    """
    info, step = broken.info, int(last.state.step)
    found = _find(run, best, last, broken)
    solver, rates = run.solver, []
    if found.upper:
        rates.append(_rate(solver, "upper_lr", "rate of x", "it was", info.upper_rate))
    if found.lower:
        rate = np.nan if found.task is None else info.lower_rate[found.task]
        rates.append(_rate(solver, "lower_lr", "rate of y", "its rate was", rate))
    if found.weights:
        rates.append(_rate(None, "", "lr of the weighting", "its rate was", info.weights_rate))
    given = any(getattr(solver, name, None) is not None for name in ("upper_lr", "lower_lr"))
    chosen = ", or None to have the rates chosen" if given and getattr(solver, "chooses_rates", False) else ""
    return (
        f"{type(solver).__name__} diverged: at step {step} {found.what}. Try a smaller {' or '.join(rates)}{chosen}, "
        "or a larger batch. The result holds the last finite state."
    )


def _rate(solver: object, option: str, words: str, was: str, value: Any) -> str:
    name = option if hasattr(solver, option) else words
    return f"{name} ({was} {float(value):.3g})" if np.isfinite(value) else name


def _find(run: Run, best: Point, last: Carry, broken: Carry) -> Broken:
    """What broke, in the order in which one thing makes the next one break."""
    names = run.problem.names
    losses, norm = jax.device_get((broken.info.losses, broken.info.direction_norm))
    x, y = jax.device_get((broken.state.x, broken.state.y))
    values = run.problem.by_name(y)
    task = next((i for i, name in enumerate(names) if not _finite(values[name])), None)
    if task is not None:
        what, certain = f"y of task {names[task]!r} became infinite or NaN", True
    elif not np.all(np.isfinite(losses)):
        task = int(np.argmin(np.isfinite(losses)))
        what, certain = f"the loss of task {names[task]!r} became {losses[task]}", False
    elif not np.isfinite(norm) and not (np.isnan(norm) and _finite(x)):  # NaN alone: the solver does not know it
        return Broken("the direction of x became infinite or NaN", upper=True)
    elif not _finite(x):
        return Broken("x became infinite or NaN", upper=True)
    else:
        return Broken("the weights became infinite or NaN", weights=True)
    if not np.any(np.isfinite(broken.info.lower_rate)) and not hasattr(run.solver, "lower_lr"):
        return Broken(what, task, upper=True)
    by_x, by_y = _growths(run, best, Point.of(last.state), names[task])
    upper = by_x > MARGIN * by_y or (by_x * MARGIN >= by_y and not certain)
    lower = by_y > MARGIN * by_x or by_y * MARGIN >= by_x
    return Broken(what, task, upper=upper, lower=lower)


def _growths(run: Run, usual: Point, now: Point, task: str) -> tuple[float, float]:
    """How far x and the task's y have gone from where they were when all was well."""

    def pair(point: Point) -> tuple[Any, Any]:
        x, y = jax.device_get((point.x, point.y))
        return x, run.problem.by_name(y)[task]

    x, y = ((_size(b, a) / (1 + _size(a))) for a, b in zip(pair(usual), pair(now), strict=True))
    return x, y


def _size(tree: Any, other: Any = None) -> float:
    """The largest |entry| of a tree, or of its difference from another; squares would overflow here."""
    moved = tree if other is None else jax.tree.map(lambda a, b: a / 2 - b / 2, tree, other)
    return max((float(np.max(np.abs(leaf), initial=0.0)) for leaf in jax.tree.leaves(moved)), default=0.0)


def _finite(tree: Any) -> bool:
    return all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(tree))
