"""Recovery of a run that diverged: what broke first, which rate is to blame, and where the run continues."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np

from bilevel._core.types import Tree
from bilevel._run.loop import Carry, Variables
from bilevel._run.recording import evaluated_at, objective_of
from bilevel._run.run import Run
from bilevel._run.run_state import DIVERGED, FINISHED, RunState, score
from bilevel.results.history import Divergence
from bilevel.solvers._base.fresh_tasks import FreshTasks
from bilevel.solvers._base.solver import Solver
from bilevel.solvers._base.state import Info
from bilevel.weightings.base import Weighting

LOST = 0.5  # share of the gain and of the best objective; a run that loses more than both goes back
AT_END = 0.05  # share of the best objective; a run that ends higher above it ends at its best point instead
ROUNDING = 1e-6  # share of a loss that a fit of y may leave
MARGIN = 2  # x or y alone is to blame if it has grown this many times as much as the other

_UNKNOWN_RATES = (
    "Its rates cannot be made smaller: it has none in fields named upper_lr or lower_lr, and no with_scaled_rates of "
    "its own."
)


class Broken(NamedTuple):
    """The quantity that became infinite or NaN in a step, and the rates that may be too large."""

    quantity: str  # as in `Divergence`
    what: str
    task: int | None = None
    upper: bool = False
    lower: bool = False
    weights: bool = False


def respond(run: Run, reached: RunState, last: Carry, broken: Carry) -> RunState:
    """Decides about a run whose next step breaks: it ends, or continues from a safe point with smaller rates.

    Args:
        run: the run.
        reached: its state before the call that broke. The best point in it shows which sizes are normal.
        last: the last finite state.
        broken: the state one step later.
    """
    step, found = int(last.state.step), _find(run, reached.best.point, last, broken)
    name = None if found.task is None else run.problem.names[found.task]
    task = name if name is None or isinstance(name, int) else str(name)
    said = f"{type(run.solver).__name__} diverged: at step {step} {found.what}."
    factor, before = run.policy.factor_after(reached.divergences), reached.divergences
    if factor is not None and run.solver.with_scaled_rates(factor) is None:
        factor, said = None, f"{said} {_UNKNOWN_RATES}"
    elif factor is None and before:
        said = f"{said} It had gone back {len(before)} times, with rates down to {reached.scale:.3g} of the first."
    if factor is None:
        message = f"{said} {_advice(run, found, broken.info)} {_held(run, reached, last)}"
        event = Divergence(step, task, found.quantity, message)
        ended = reached._replace(carry=last, step=step, divergences=(*before, event))
        return ended.ended(DIVERGED, message)
    safe = last if reached.safe is None else reached.safe
    back_to = int(safe.state.step)
    message = f"{said} It continued from step {back_to} with its rates times {factor:g}."
    return _gone_back(reached, safe, Divergence(step, task, found.quantity, message, factor, back_to))


def solver_of(run: Run, reached: RunState) -> Solver:
    """The solver at the rates that the run has come to, where these are no longer the first."""
    scaled = run.solver.with_scaled_rates(reached.scale)
    return run.stepper if scaled is None else scaled.stepper()


def guarded(run: Run, reached: RunState, last: bool) -> RunState:
    """Decides about a run at an evaluation, under a policy that lets it go back to the point of the lowest objective.

    A run goes back if its objective exceeds the best one by half of the best and by half of all that was gained. It
    then continues with smaller rates, as after a divergence, as often as the policy says. A run with automatic rates
    may end up to a twentieth above its best and not above its start: otherwise it ends at its best point.
    """
    if not run.problem.comparable_losses:
        return reached
    row = reached.rows[-1]
    known = isinstance(getattr(run.solver, "weighting", None), Weighting)  # what it minimises
    if not known or run.part is not None or not row.fitted or reached.safe is None:
        better = reached.since_best == 0 and (row.fitted or not run.fits)
        return reached._replace(safe=reached.carry) if better else reached
    # By what the run minimises, not by selection rows: those say which iterate to use, and not whether steps work.
    back_to, name = int(reached.safe.state.step), type(run.solver).__name__
    lowest = next((own for own in reached.rows if own.step == back_to), reached.rows[0])
    now, best, start = (objective_of(run, own) for own in (row, lowest, reached.rows[0]))
    if now < best:
        return reached._replace(safe=reached.carry)
    lost = now - best > LOST * max(abs(best), start - best)
    said = f"{name} lost ground: at step {reached.step} its objective was {now:.4g}, and {best:.4g} at step {back_to}."
    factor = run.policy.factor_after(reached.divergences) if lost and not last else None
    if factor is not None and run.solver.with_scaled_rates(factor) is not None:
        message = f"{said} It continued from there with its rates times {factor:g}."
        event = Divergence(reached.step, None, "objective", message, factor, back_to)
        return _gone_back(reached, reached.safe, event)
    if last and run.stepper.has_chosen_rates and now > min(start, best + AT_END * abs(best)):
        # The history does not change; only the last point does.
        return reached._replace(carry=reached.safe, seen=None).ended(FINISHED, f"{said} That point is its end.")
    return reached


def _gone_back(reached: RunState, safe: Carry, event: Divergence) -> RunState:
    back_to = int(safe.state.step)
    return reached._replace(
        carry=safe,
        step=back_to,
        # Rows of steps that are taken again are dropped, or they would be there twice. The best point stays.
        rows=tuple(row for row in reached.rows if row.step <= back_to),
        since_best=0,
        divergences=(*reached.divergences, event),
        seen=None,
    )


class _Rate(NamedTuple):
    words: str
    given: bool  # by the user; False = chosen by the solver

    @staticmethod
    def of(owner: object, option: str, words: str, was: str, value: Tree) -> _Rate:
        given = getattr(owner, option, None) is not None
        name = option if words.startswith("rate") and hasattr(owner, option) else words
        return _Rate(f"{name} ({was} {float(value):.3g})" if np.isfinite(value) else name, given)


def _advice(run: Run, found: Broken, info: Info) -> str:
    """Advice which rate to make smaller: a given one, if there is one, since chosen ones may depend on it."""
    solver, chooses = run.solver, getattr(run.solver, "chooses_rates", False)
    places = np.flatnonzero(info.numbers(run.problem) == found.task)  # NaN if the step did not see the task
    lower_rate = info.lower_rate[places] if len(places) else info.lower_rate
    upper = _Rate.of(solver, "upper_lr", "rate of x", "it was", info.upper_rate)
    lower = _Rate.of(solver, "lower_lr", "rate of y", "its rate was", np.max(lower_rate))
    blamed = [upper] * found.upper + [lower] * found.lower
    if found.weights:
        owner = getattr(solver, "weighting", None)
        blamed.append(_Rate.of(owner, "lr", "lr of the weighting", "its rate was", info.weights_rate))
    elif chooses and not any(rate.given for rate in blamed):
        blamed += [rate for rate in (upper, lower) if rate.given]
    rates = " or ".join(rate.words for rate in sorted(blamed, key=lambda rate: not rate.given))
    batch = ", or a larger batch" if run.problem.is_stochastic else ""
    if chooses and not any(rate.given for rate in blamed):
        policy = "" if run.policy.goes_back else "on_divergence=bl.divergence.SmallerRates(), or "
        return f"Its rates were chosen. Try {policy}a rate of your own, a smaller {rates}{batch}."
    return f"Try a smaller {rates}{', or None to have the rates chosen' if chooses else ''}{batch}."


def _held(run: Run, reached: RunState, last: Carry) -> str:
    """What the result holds. If losses grew without bound, an earlier point is better."""
    words = "The result holds the last finite state"
    if not run.problem.comparable_losses:
        return f"{words}."
    now, best = score(run, evaluated_at(run, last.state)), score(run, reached.best)
    better = now > best + ROUNDING * abs(best)
    return f"{words}; result.best is a better one, from before." if better else f"{words}."


def _find(run: Run, best: Variables, last: Carry, broken: Carry) -> Broken:
    """The quantity that broke first, checked in the order in which one breaks the next."""
    names = run.problem.names
    losses, norm = jax.device_get((broken.info.losses, broken.info.direction_norm))
    x, y = jax.device_get(run.whole((broken.state.x, broken.state.y)))
    values = run.problem.by_name(y)
    task = next((i for i, name in enumerate(names) if not _finite(values[name])), None)
    if task is not None:
        quantity, what, certain = "y", f"y of task {names[task]!r} became infinite or NaN", True
    elif isinstance(run.stepper, FreshTasks) and not np.all(np.isfinite(losses)):
        return Broken("loss", "the loss of a new task became infinite or NaN", upper=True, lower=True)
    elif not np.all(np.isfinite(losses)):
        place = int(np.argmin(np.isfinite(losses)))
        task = int(broken.info.numbers(run.problem)[place])
        quantity, what, certain = "loss", f"the loss of task {names[task]!r} became {losses[place]}", False
    elif not np.isfinite(norm) and not (np.isnan(norm) and _finite(x)):  # NaN = not reported
        return Broken("direction", "the direction of x became infinite or NaN", upper=True)
    elif not _finite(x):
        return Broken("x", "x became infinite or NaN", upper=True)
    else:
        return Broken("weights", "the weights became infinite or NaN", weights=True)
    if not np.any(np.isfinite(broken.info.lower_rate)) and not hasattr(run.solver, "lower_lr"):
        return Broken(quantity, what, task, upper=True)
    by_x, by_y = _growths(run, best, Variables.of(last.state), names[task])
    upper = by_x > MARGIN * by_y or (by_x * MARGIN >= by_y and not certain)
    lower = by_y > MARGIN * by_x or by_y * MARGIN >= by_x
    return Broken(quantity, what, task, upper=upper, lower=lower)


def _growths(run: Run, usual: Variables, now: Variables, task: str) -> tuple[float, float]:
    """How far x and the task's y are from the last good point."""

    def pair(point: Variables) -> tuple[Tree, Tree]:
        x, y = jax.device_get(run.whole((point.x, point.y)))
        return x, run.problem.by_name(y)[task]

    x, y = ((_size(b, a) / (1 + _size(a))) for a, b in zip(pair(usual), pair(now), strict=True))
    return x, y


def _size(tree: Tree, other: Tree = None) -> float:
    """The largest |entry| of a tree, or of its difference from another. A norm would overflow here."""
    moved = tree if other is None else jax.tree.map(lambda a, b: a / 2 - b / 2, tree, other)
    return max((float(np.max(np.abs(leaf), initial=0.0)) for leaf in jax.tree.leaves(moved)), default=0.0)


def _finite(tree: Tree) -> bool:
    return all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(tree))
