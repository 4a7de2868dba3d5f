"""What does not move: x, all losses, or those of some tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bilevel.results.findings.finding import Finding, finding
from bilevel.results.history import column_names

if TYPE_CHECKING:
    from bilevel.results.result import Result

FEW = 10  # steps: nothing is said of so short a run
ROUNDING = 1e-6  # of a loss
GAIN = 1e-3  # of a loss: what the steps of x bring is nothing where it is less
WORTH = 1e-3  # of a loss: what x could bring, were it moved by its own size


def constant_losses(result: Result) -> Finding | None:
    """Losses that are the same at every evaluation: all of them, or those of some tasks."""
    losses = np.asarray(result.history.validation, float)
    if result.steps < FEW or result.status == "diverged" or not np.all(np.isfinite(losses)):
        return None
    sizes = np.abs(losses).max(axis=0)
    still = np.ptp(losses, axis=0) <= ROUNDING * np.maximum(sizes, 1e-3 * sizes.max())  # a loss may be 0 at the start
    if not still.any():
        return None
    own_names = column_names(result.history, result.y.names)
    count, names = int(still.sum()), [str(own_names[int(i)]) for i in np.flatnonzero(still)]
    if still.all():
        words = "No loss changed in the whole run: neither x nor y moves it. Look at the rates, and at the data"
    else:
        others = f" (and of {count - 1} more)" if count > 1 else ""
        words = (
            f"The loss of task {names[0]!r}{others} did not change in the whole run: no x helps it. Look at its data"
        )
    return finding(
        "constant losses" if still.all() else "constant task",
        f"{words} (rows that are all alike, a loss that does not depend on x and y); bl.check_problem looks for more.",
        tasks=count,
        task=names[0],
    )


def x_does_not_move(result: Result) -> Finding | None:
    """No direction at all, or steps so short that they bring nothing while the direction stays as long as it was."""
    history = result.history
    norms = np.asarray(history.direction_norm, float)[1:]
    if result.steps < FEW or result.status == "diverged" or len(norms) < 3 or not np.all(np.isfinite(norms)):
        return None
    if norms.max() == 0:
        return finding(
            "x does not move",
            "x did not move: its direction is 0. Either f does not depend on x but through y, which bl.hypergradients."
            "Direct does not see (take another), or the gradient is stopped.",
            direction_norm=0.0,
        )
    if not _steps_are_plain(result.solver):
        return None
    rates, loss = np.asarray(history.upper_rate, float)[1:], float(np.abs(history.validation[-1]).max())
    gain = float(np.sum(rates * norms**2 * np.diff(history.step)))  # to first order
    worth = norms[-1] * max(1.0, _size(result.x))
    before = norms[len(norms) // 4]  # by when y, which starts anywhere, has come near
    if not gain < GAIN * loss or norms[-1] < 0.5 * before or worth < WORTH * loss:
        return None
    return finding(
        "x does not move",
        f"x hardly moved: its steps bring {gain:.2g} of a loss of {loss:.4g}, and its direction is as long as it "
        f"was ({norms[-1]:.3g}). Give a larger upper_lr, or none, so that it is measured.",
        gain=gain,
        loss=loss,
        direction_norm=norms[-1],
    )


def _steps_are_plain(solver: Any) -> bool:
    """Whether x moves by a rate that was given times the direction, which is as long as it is told."""
    rule = getattr(solver, "rule_of_x", getattr(solver, "upper_rule", None))
    return rule is optax.sgd and getattr(solver, "upper_lr", None) is not None


def _size(x: Any) -> float:
    numbers = [leaf for leaf in jax.tree.leaves(x) if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)]  # no keys
    return float(np.sqrt(sum(np.sum(np.square(np.asarray(leaf, float))) for leaf in numbers)))
