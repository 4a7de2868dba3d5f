"""How the loss of a run ended: still falling, rising, noisy, or never moving; and the verdict on the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bilevel._core.types import Tree
from bilevel.results.findings.finding import (
    ENOUGH,
    OF_GAIN,
    Curve,
    Finding,
    curve,
    end_of,
    is_noisy,
    lowest_of,
    middle_of_three,
    noise_of,
)
from bilevel.results.findings.overfitting import held_out
from bilevel.results.history import column_names, in_words, of_distribution

if TYPE_CHECKING:
    from bilevel.results.result import Result

# More steps are worth it if they would bring more than `OF_GAIN` of the gain so far, or more than `OF_LOSS` of the loss
# and `LITTLE` of the gain (a loss of 1e-6 can always be halved). In either case they must bring more than `LEAST` of
# the loss, or of the gain since the start.
OF_LOSS, LITTLE, LEAST = 0.05, 0.01, 0.05
ROUNDING = 1e-6  # share of a loss that rounding may cause
ELSEWHERE = 0.1  # a fall is no gain if other rows see less than this share of it
MOVING = 0.1  # a curve moves if its last half is wider than this share of the loss, and of its gain
FEW_EVALUATIONS = 6  # too few for a trend
BEFORE = 16  # evaluations before one that measure the noise there; later ones may be the rise itself
FEW_STEPS = 10  # too few to say that nothing moves
GAIN = 1e-3  # share of a loss; steps of x that bring less count as nothing
WORTH = 1e-3  # share of a loss that x could bring if it moved by its own size
MUCH = 0.15  # share of a loss by which a best iterate must differ to be worth a finding


def still_falling(result: Result) -> Finding | None:
    """Finds a loss that was still falling when the run or its rates ended."""
    own = curve(result)
    if own is None or result.status == "diverged":
        return None
    ahead = forecast(own)
    if not ahead.least > ROUNDING * abs(own.level) or not _matters(ahead, own):
        return None
    if not _carries_over(result, ahead.fall) or _is_noise_that_ends(result, own) or _has_caught_up(result, own):
        return None
    low, high = own.level - ahead.high, own.level - ahead.low
    if _steps_become_short(result):
        more = "Nobody can tell how far more steps would bring it, because steps, and with them the noise, became small"
    else:
        reached = f"{low:.4g} to {high:.4g}" if low < 0.99 * high else f"{high:.4g} or lower"
        more = f"Twice the steps would bring it to about {reached}, if it keeps its pace"
    return Finding.of(
        "still falling",
        f"The {own.name} was still falling when the run ended: by {ahead.fall:.3g} in the last half of the run, "
        f"counted in rates of x, to {own.level:.4g}. {more}: give more steps, or larger rates where they are given.",
        level=own.level,
        fall=ahead.fall,
        least_fall=ahead.least,
        forecast_low=low,
        forecast_high=high,
    )


def _carries_over(result: Result, fall: float) -> bool:
    """Whether the loss also falls on rows that x was not fitted to. If not, more steps do nothing, or harm."""
    others = held_out(result)
    there = None if others is None else curve(result, others.other)
    return there is None or there.trend(0.5).fall / 2 > ELSEWHERE * fall


def _steps_become_short(result: Result) -> bool:
    """Whether rates fall, and the noise with them. The loss then falls for two reasons, and only one lasts."""
    rates = np.asarray(result.history.upper_rate, float)
    stochastic = result.problem is not None and result.problem.is_stochastic
    return bool(stochastic and rates[-1] < rates[len(rates) // 2] / 2)


def _is_noise_that_ends(result: Result, own: Curve) -> bool:
    """Whether the loss falls only because steps get shorter and the iterates less noisy.

    Then it did not fall while steps were long. The first third of the run is left out: it is the way from the start.
    """
    if not _steps_become_short(result):
        return False
    rates = np.asarray(result.history.upper_rate, float)
    long = np.flatnonzero(rates >= np.nanmax(rates) / 2)
    long = long[len(long) // 3 :]
    if len(long) < FEW_EVALUATIONS:
        return False
    steps = np.asarray(result.history.step, float)[long]
    before = Curve(own.name, own.values[long], (steps - steps[0]) / np.ptp(steps))
    return before.trend(0.0).low <= 0


def _has_caught_up(result: Result, own: Curve) -> bool:
    """Whether a loss has stopped falling that is measured at an old y, because steps see only some of very many tasks.

    Such a loss rises while x is fast and falls when x slows down, however good x is. Only a fall at the end counts.
    """
    if result.history.tasks is None:
        return False
    values = own.values[-max(FEW_EVALUATIONS, len(own.values) // 3) :]
    return Curve(own.name, values, np.linspace(0, 1, len(values))).trend(0.0).low <= 0


class Forecast(NamedTuple):
    """Forecast for the same time again, at the pace at which the curve falls now."""

    fall: float  # in the last half of the time
    least: float  # the lower end of its interval
    low: float  # the gain if the pace keeps slowing down by the same share every quarter
    high: float  # and if it does not slow down


def forecast(own: Curve) -> Forecast:
    """A forecast from the last quarter of the time and the quarter before it.

    Earlier quarters say little: a loss may rest for long, and then fall when a task loses its weight.
    """
    half, before, now = own.trend(0.5), own.trend(0.5, 0.75), own.trend(0.75)
    pace = max(0.0, now.fall)
    share = float(np.clip(pace / before.fall, 0, 1)) if before.fall > 0 else 1.0
    slowing = pace / 4 * sum(share**i for i in range(1, 5))  # four more quarters
    if own.values.min() >= 0 and own.level > 0:
        # A loss that stays positive falls by shares; take the share of the last half.
        middle = max(2, int(np.searchsorted(own.time, 1 - ROUNDING)) // 2)  # of the evaluations until rates became 0
        share = min(1.0, own.level / max(own.level, float(np.median(own.values[middle - 2 : middle + 3]))))
        slowing, pace = min(slowing, own.level * (1 - share)), min(pace, own.level * (1 - share**2))
    return Forecast(half.fall / 2, half.low / 2, slowing, pace)


def _matters(ahead: Forecast, own: Curve) -> bool:
    size, since_start = abs(own.level), max(own.gained, float(own.values[0]) - own.level)
    more = (ahead.low + ahead.high) / 2
    much = more > OF_GAIN * own.gained or (more > OF_LOSS * size and more > LITTLE * own.gained)
    return more > 0 and much and (more > LEAST * size or more > LEAST * since_start)


def rising_loss(result: Result) -> Finding | None:
    """Finds a last iterate well above the best one, in a run that does not come back to it."""
    own = curve(result)
    if own is None or result.status == "diverged":
        return None
    smooth, end = middle_of_three(own.values), own.values[-len(own.values) // 5 :]
    best, late, at = float(smooth.min()), float(np.median(end)), int(smooth.argmin())
    scale = max(abs(best), own.values[0] - best)
    # No finding if the loss comes back again and again, or if the best was low only by the noise at that time.
    if late <= best + 0.5 * scale or np.quantile(end, 0.2) <= best + 0.25 * scale:
        return None
    if late - best <= lowest_of(len(smooth)) * noise_of(own.values[max(0, at - BEFORE) : max(at, 4) + 1]):
        return None
    step = int(result.history.step[at])
    if step == 0:
        words, remedy = f"The {own.name} was never below that of the start ({best:.4g}) and is {late:.4g}", "Give"
    else:
        words = f"The {own.name} rose to {late:.4g} after {best:.4g} at step {step}"
        remedy = "Take result.best, or give"
    exact = result.problem is not None and not result.problem.is_stochastic
    return Finding.of(
        "rising loss",
        f"{words}. {remedy} a smaller upper_lr{'' if exact else ' or a larger batch'}.",
        late=late,
        lowest=best,
        step=step,
    )


def constant_losses(result: Result) -> Finding | None:
    """Finds losses that never change, of all tasks or of some."""
    losses = np.asarray(result.history.validation, float)
    if result.steps < FEW_STEPS or result.status == "diverged" or not np.all(np.isfinite(losses)):
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
        still_tasks = f"The loss of task {names[0]!r}{others}"
        words = f"{still_tasks} did not change in the whole run: no x helps it. Look at its data"
    return Finding.of(
        "constant losses" if still.all() else "constant task",
        f"{words} (rows that are all alike, a loss that does not depend on x and y); bl.check_problem looks for more.",
        tasks=count,
        task=names[0],
    )


def x_does_not_move(result: Result) -> Finding | None:
    """Finds an x without a direction, or with steps too short to shorten the direction."""
    history = result.history
    norms = np.asarray(history.direction_norm, float)[1:]
    if result.steps < FEW_STEPS or result.status == "diverged" or len(norms) < 3 or not np.all(np.isfinite(norms)):
        return None
    if norms.max() == 0:
        return Finding.of(
            "x does not move",
            "x did not move: its direction is 0. Either f does not depend on x but through y, which bl.hypergradients."
            "Direct does not see (take another), or the gradient is stopped.",
            direction_norm=0.0,
        )
    # Steps are plain if x moves by a given rate times the direction, whose length is in the history.
    solver: Any = result.solver
    rule = getattr(solver, "rule_of_x", getattr(solver, "upper_rule", None))
    if rule is not optax.sgd or getattr(solver, "upper_lr", None) is None:
        return None
    rates, loss = np.asarray(history.upper_rate, float)[1:], float(np.abs(history.validation[-1]).max())
    gain = float(np.sum(rates * norms**2 * np.diff(history.step)))  # to first order
    worth = norms[-1] * max(1.0, _size(result.x))
    before = norms[len(norms) // 4]  # by then y, which may start anywhere, has settled
    if not gain < GAIN * loss or norms[-1] < 0.5 * before or worth < WORTH * loss:
        return None
    return Finding.of(
        "x does not move",
        f"x hardly moved: its steps bring {gain:.2g} of a loss of {loss:.4g}, and its direction is as long as it "
        f"was ({norms[-1]:.3g}). Give a larger upper_lr, or none, so that it is measured.",
        gain=gain,
        loss=loss,
        direction_norm=norms[-1],
    )


def _size(x: Tree) -> float:
    # Without random keys.
    numbers = [leaf for leaf in jax.tree.leaves(x) if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)]
    return float(np.sqrt(sum(np.sum(np.square(np.asarray(leaf, float))) for leaf in numbers)))


def noisy_end(result: Result) -> Finding | None:
    """Finds a last iterate that noise has put well above the average iterate."""
    if result.problem is None or not result.problem.is_stochastic or result.status == "diverged":
        return None
    fraction = of_distribution(result.solver)
    last, average = (own.worst if fraction is None else own.tail(fraction) for own in (result.last, result.average))
    what = "worst loss" if fraction is None else in_words(fraction, "validation")
    if not last > average + 0.1 * abs(average):
        return None
    return Finding.of(
        "noisy end",
        f"The last iterate is noisy (its {what} is {last:.4g}, that of the average iterate {average:.4g}): take "
        "result.average, or give larger batches or rates that decay.",
        last=last,
        average=average,
    )


def unsteady_end(result: Result) -> Finding | None:
    """Finds a loss that jumped or oscillates well above its lowest, although every step sees all the data."""
    own = curve(result)
    if own is None or not _sees_everything(result) or result.status == "diverged":
        return None
    first = len(own.values) // 10  # y settles before this
    smooth = middle_of_three(own.values)[first:]
    at = first + int(smooth.argmin())
    lowest, rise = float(smooth.min()), own.level - float(smooth.min())
    jumped = at + 1 < len(own.values) and np.diff(own.values[at:]).max() > rise / 2  # from one evaluation to the next
    if rise <= MUCH * abs(own.level) or not (jumped or is_noisy(own)):
        return None
    late, step = own.values[-max(5, len(own.values) // 4) :], int(result.history.step[at])
    return Finding.of(
        "unsteady end",
        f"The {own.name} was {lowest:.4g} at step {step} and then jumped, although every step sees all the data: in "
        f"the last quarter of the evaluations it is between {late.min():.4g} and {late.max():.4g}. The steps are too "
        "long here: take result.best, give a smaller upper_lr, or keep x near with a constraint.",
        level=own.level,
        lowest=lowest,
        step=step,
    )


def lucky_best(result: Result) -> Finding | None:
    """Finds a best iterate that is below the others by no more than their noise."""
    history, by = result.history, result.best_by
    if by == "last" or history.evaluations < ENOUGH or result.status == "diverged" or _sees_everything(result):
        return None
    if of_distribution(result.solver) is not None:  # every evaluation has the same tasks and rows
        return None
    column = history.worst if by == "validation" else history.selection_worst
    if column is None or not np.all(np.isfinite(column)):
        return None
    (level, noise), best = end_of(column), float(column.min())
    if level - best <= MUCH * abs(level) or level - best > lowest_of(history.evaluations) * noise:
        return None
    return Finding.of(
        "lucky best",
        f"That result.best has a worst {by} loss of {best:.4g} is luck: it is the lowest of {history.evaluations} "
        f"noisy evaluations, and the last of them are {level:.4g} ± {noise:.2g}. Take result.average, or give larger "
        "batches or rates that decay.",
        best=best,
        level=level,
        noise=noise,
    )


def _sees_everything(result: Result) -> bool:
    """Whether every step saw all rows of all tasks, so that the run has no noise."""
    sampling = getattr(result.solver, "sampling", None)
    some = getattr(sampling, "draws", False) or getattr(sampling, "fresh", False)
    return result.problem is not None and not result.problem.is_stochastic and not some


VERDICTS = {  # the first of these kinds that was found decides
    "constant losses": "nothing moved",
    "x does not move": "x did not move",
    "rising loss": "rising",
    "still falling": "still falling",
    "overfitting": "overfitting",
    "cycling weights": "cycling",
    "weights off": "weights not settled",
    "collapsed weights": "weights not settled",
    "weights do not move": "weights not settled",
    "noisy end": "noisy",
    "unsteady end": "noisy",
    "lucky best": "noisy",
}


def verdict(result: Result, findings: tuple[Finding, ...]) -> str:
    """The state of a run in up to three words; "settled" = its loss has stopped changing and nothing was found.

    A settled loss is not yet a solution: `bl.certify` measures how far it is from one.
    """
    if result.status == "diverged":
        return result.status
    kinds = {found.kind for found in findings}
    if result.status == "converged":  # on the rows that x saw; held-out rows may disagree
        return "overfitting" if "overfitting" in kinds else result.status
    for kind, word in VERDICTS.items():
        if kind in kinds:
            return word
    own = curve(result)
    if own is None:
        return "not known"
    if is_noisy(own):
        return "noisy"
    # It is moving if it changed in the last half of the time, up or down, by the medians of four parts of it.
    quarters = np.array_split(own.values[own.time >= 0.5], 4)
    spread = float(np.ptp([np.median(quarter) for quarter in quarters if len(quarter)]))
    since_start = max(0.0, float(own.values[0]) - own.level)
    moving = spread > MOVING * abs(own.level) and spread > MOVING * since_start
    return "still moving" if moving else "settled"
