"""Where the loss of a run was going when it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bilevel.results.findings.curve import OF_GAIN, Curve, curve, is_noisy, lowest_of, middle_of_three, noise_of
from bilevel.results.findings.finding import Finding, finding
from bilevel.results.findings.overfitting import held_out

if TYPE_CHECKING:
    from bilevel.results.result import Result

OF_LOSS = 0.05  # or this share of the loss itself, if it is also
LITTLE = 0.01  # this share of the gain: a loss of 1e-6 can always be halved. In any case it is
LEAST = 0.05  # this share of the loss, or of all that was gained since the start, and above
ROUNDING = 1e-6  # of the loss
ELSEWHERE = 0.1  # of a fall: where other rows see less of it, it is no gain
MOVING = 0.1  # a curve has not settled where its last half is as wide as this share of the loss, and of all it gained
FEW = 6  # evaluations, of which no trend is told
BEFORE = 16  # evaluations, by which the noise at one of them is measured: after it, it may be what has grown


class Forecast(NamedTuple):
    """What as much time again would bring, from the pace at which the curve falls now."""

    fall: float  # in the last half of the time
    least: float  # the least that it may be, noise considered
    low: float  # what remains where the pace goes on to slow down as it did, by a constant share with every quarter
    high: float  # and where it does not

    @property
    def middle(self) -> float:
        """Between the two."""
        return (self.low + self.high) / 2


def forecast(own: Curve) -> Forecast:
    """From the paces of the last quarter of the time and of the one before it.

    What happened earlier tells of something else: a loss may rest for long and fall when a task loses its weight.
    """
    half, before, now = own.trend(0.5), own.trend(0.5, 0.75), own.trend(0.75)
    pace = max(0.0, now.fall)
    share = float(np.clip(pace / before.fall, 0, 1)) if before.fall > 0 else 1.0
    slowing = pace / 4 * sum(share**i for i in range(1, 5))  # four more quarters
    if own.values.min() >= 0 and own.level > 0:  # and will be: it falls by shares, those of the last half of the steps
        middle = max(2, int(np.searchsorted(own.time, 1 - ROUNDING)) // 2)  # of those until rates ended
        share = min(1.0, own.level / max(own.level, float(np.median(own.values[middle - 2 : middle + 3]))))
        slowing, pace = min(slowing, own.level * (1 - share)), min(pace, own.level * (1 - share**2))
    return Forecast(half.fall / 2, half.low / 2, slowing, pace)


def is_moving(own: Curve) -> bool:
    """Whether it changed in the last half of the time, in whatever direction: by the medians of its quarters."""
    quarters = np.array_split(own.values[own.time >= 0.5], 4)
    spread = float(np.ptp([np.median(quarter) for quarter in quarters if len(quarter)]))
    return spread > MOVING * abs(own.level) and spread > MOVING * max(0.0, float(own.values[0]) - own.level)


def still_falling(result: Result) -> Finding | None:
    """A loss that was falling when the run or its rates ended."""
    own = curve(result)
    if own is None or result.status == "diverged":
        return None
    ahead = forecast(own)
    seen = ahead.least > ROUNDING * abs(own.level)
    if not seen or not _matters(ahead, own):
        return None
    if not _carries_over(result, ahead.fall) or _is_noise_that_ends(result, own) or _has_caught_up(result, own):
        return None
    low, high = own.level - ahead.high, own.level - ahead.low
    if _steps_become_short(result):
        more = "How far more steps would bring it cannot be told, as steps, and with them the noise, became short"
    else:
        reached = f"{low:.4g} to {high:.4g}" if low < 0.99 * high else f"{high:.4g} or lower"
        more = f"Twice the steps would bring it to about {reached}, if it goes on as it did"
    return finding(
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
    """Whether the loss falls on rows too that x was not fitted to: otherwise more steps bring nothing, or harm."""
    others = held_out(result)
    there = None if others is None else curve(result, others.other)
    return there is None or there.trend(0.5).fall / 2 > ELSEWHERE * fall


def _steps_become_short(result: Result) -> bool:
    """Whether noise ends with the steps, so that a loss falls for two reasons, of which longer runs have one."""
    rates = np.asarray(result.history.upper_rate, float)
    stochastic = result.problem is not None and result.problem.is_stochastic
    return bool(stochastic and rates[-1] < rates[len(rates) // 2] / 2)


def _is_noise_that_ends(result: Result, own: Curve) -> bool:
    """Whether the loss falls as steps become short, and with them the noise of the iterates, but these go nowhere.

    Then it did not fall before, while steps were long; the first third of that time is the way from the start.
    """
    if not _steps_become_short(result):
        return False
    rates = np.asarray(result.history.upper_rate, float)
    long = np.flatnonzero(rates >= np.nanmax(rates) / 2)
    long = long[len(long) // 3 :]
    if len(long) < FEW:
        return False
    steps = np.asarray(result.history.step, float)[long]
    before = Curve(own.name, own.values[long], (steps - steps[0]) / np.ptp(steps))
    return before.trend(0.0).low <= 0


def _has_caught_up(result: Result, own: Curve) -> bool:
    """Whether a loss at y of last visits, which are late where steps see some of very many tasks, has stopped falling.

    It rises while x is fast and falls when it slows down, whatever x is worth: so it is to fall at the very end.
    """
    if result.history.tasks is None:
        return False
    values = own.values[-max(FEW, len(own.values) // 3) :]
    return Curve(own.name, values, np.linspace(0, 1, len(values))).trend(0.0).low <= 0


def _matters(ahead: Forecast, own: Curve) -> bool:
    """Whether as much time again would bring anything to speak of."""
    size, since_start = abs(own.level), max(own.gained, float(own.values[0]) - own.level)
    more = ahead.middle
    much = more > OF_GAIN * own.gained or (more > OF_LOSS * size and more > LITTLE * own.gained)
    return more > 0 and much and (more > LEAST * size or more > LEAST * since_start)


def rising_loss(result: Result) -> Finding | None:
    """A last iterate well above the best one, where the end of the run does not even oscillate around it."""
    own = curve(result)
    if own is None or result.status == "diverged":
        return None
    smooth, end = middle_of_three(own.values), own.values[-len(own.values) // 5 :]
    best, late, at = float(smooth.min()), float(np.median(end)), int(smooth.argmin())
    scale = max(abs(best), own.values[0] - best)
    # The second where it comes back again and again, the third where it was low by the noise that it had by then.
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
    return finding(
        "rising loss",
        f"{words}. {remedy} a smaller upper_lr{'' if exact else ' or a larger batch'}.",
        late=late,
        lowest=best,
        step=step,
    )


def verdict(result: Result, findings: tuple[Finding, ...]) -> str:
    """How a run stands, in a word or three: "settled" where its loss has stopped changing, and nothing was found.

    A loss that has settled is not yet a solution: `bl.certify` measures how far it is from one.
    """
    if result.status == "diverged":
        return result.status
    kinds = {found.kind for found in findings}
    if result.status == "converged":  # of the rows that it saw; the others may say something else
        return "overfitting" if "overfitting" in kinds else result.status
    for kind, word in VERDICTS.items():
        if kind in kinds:
            return word
    own = curve(result)
    if own is None:
        return "not known"
    return "noisy" if is_noisy(own) else "still moving" if is_moving(own) else "settled"


VERDICTS = {  # the first of these that was found
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
