"""Theorem 1 and Corollary 1: rates, bounds and the number of steps, as claimed and as the argument gives them.

With K steps, n tasks and nu as in `Constants.lower_limit`:

    alpha = min(mu_g nu / (16 G_y L), K^{-3/5} / (4 G_y L))      x
    beta  = min(nu, 4 K^{-2/5} / mu_g)                           y
    gamma = 2 K^{-3/5} / (B_l sqrt(n))                           weights

The paper claims O(sqrt(n) K^{-2/5}) for all three gaps (its introduction has K^{-5/2} in one place, a slip).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

from bilevel._core import values
from bilevel.hypergradients import RandomNeumann
from bilevel.solvers import MORBiT
from bilevel.theory.constants import Constants
from bilevel.weightings import SimplexAscent

MOST_STEPS = 10**100  # beyond which no number of steps is looked for


class StepSizes(NamedTuple):
    """Theorem 1's step sizes."""

    upper: float  # alpha
    lower: float  # beta
    weights: float  # gamma


class Bounds(NamedTuple):
    """Of the three gaps that `bl.certify` measures, in expectation over the run and the random iterate."""

    y: float  # A: max_i |y_i - y_i*(x)|^2
    weights: float  # max over w of F(x, w), less F(x, weights)
    x: float  # |x_hat - x|^2


@dataclasses.dataclass(frozen=True)
class Start:
    """What the bounds need to know of where a run starts.

    Args:
        lower_gap: max_i |y_i - y_i*(x)|^2 at the start.
        envelope: the Moreau envelope of F at the first x; None = B_l, which it cannot exceed.
        rho: of the proximal map, above the weak convexity of F; None = twice the larger of it and L_f.
    """

    lower_gap: float  # Delta^0
    envelope: float | None = None  # Phi_{1/rho}(x^0)
    rho: float | None = None

    def check(self, constants: Constants) -> None:
        """Raises where an argument is not a number, or no bound could follow from it."""
        values.number("lower_gap", self.lower_gap, least=0, of="Start")
        values.number("envelope", self.envelope, least=-constants.loss_bound, of="Start", none="loss_bound")
        weak = constants.weak_convexity
        values.number("rho", self.rho, above=weak, of="Start", none="twice the larger of weak_convexity and L_f")


class Complexity(NamedTuple):
    """What it takes to bring the bounds below a number."""

    steps: float  # K
    terms: int  # Q of the estimator's series, each a Hessian product
    queries: float  # of each task's stochastic oracle: K (Q + 3)
    order: float  # n^{5/4} eps^{-5/2} log(1/eps), which the corollary claims queries grow as; nan unless eps < 1


def step_sizes(constants: Constants, n: int, steps: float) -> StepSizes:
    """Theorem 1's alpha, beta and gamma for n tasks and K = `steps` steps.

    Always alpha / beta <= mu_g / (16 G_y L). The lemma on the weights has sqrt(2) in place of gamma's 2.
    """
    _check(constants, n, steps)
    scale = constants.response * constants.direction_lipschitz
    mu, nu = constants.strong_convexity, constants.lower_limit
    return StepSizes(
        upper=min(mu * nu / (16 * scale), steps**-0.6 / (4 * scale)),
        lower=min(nu, 4 * steps**-0.4 / mu),
        weights=2 * steps**-0.6 / (constants.loss_bound * n**0.5),
    )


def series_terms(constants: Constants, bias: float) -> int:
    """The smallest Q at which a Neumann series with scale 1/L_g has at most this bias.

    C_gxy C_fy (1 - 1/kappa)^Q / mu_g <= bias, so that Q is O(kappa log(1/bias)). The variance of `RandomNeumann` grows
    with Q too, while the theorem takes sigma_f as given.
    """
    _check_constants(constants)
    values.positive("bias", bias, of="series_terms")
    first = constants.response * constants.upper_slope
    if first <= bias or constants.condition <= 1:
        return 1
    return max(1, math.ceil(math.log(bias / first) / math.log1p(-1 / constants.condition)))


def morbit(constants: Constants, n: int, steps: int) -> MORBiT:
    """MORBiT as Theorem 1 has it: its rates, and a RandomNeumann series long enough for b_k^2 <= alpha.

    >>> constants = Constants(upper_lipschitz=3.0, upper_slope=3.0, upper_y_smoothness=1.0, loss_bound=4.0,
    ...                       loss_slope=6.0, lower_smoothness=2.0, strong_convexity=1.0, cross_bound=2.0)
    >>> solver = morbit(constants, n=4, steps=1000)
    >>> round(solver.upper_lr, 6), round(solver.lower_lr, 4), round(solver.weighting.lr, 6), solver.hypergradient.terms
    (0.000991, 0.25, 0.003962, 8)
    """
    values.whole("steps", steps, of="morbit")
    rates = step_sizes(constants, n, steps)
    terms = series_terms(constants, rates.upper**0.5)
    return MORBiT(
        upper_lr=rates.upper,
        lower_lr=rates.lower,
        hypergradient=RandomNeumann(terms, lr=1 / constants.lower_smoothness),
        weighting=SimplexAscent(lr=rates.weights),
    )


def bounds(constants: Constants, n: int, steps: float, start: Start) -> Bounds:
    """The bounds as Theorem 1 states them, letter for letter: claimed.

    Its proof does not give all of it. In `mended_bounds` these are mended:

    - A's first term has a 1/mu_g that cancels in the proof; its third misses the loss at the start, at most B_l.
    - A has 4 K^{-2/5} / mu_g for beta and K^{-3/5} / (4 G_y L) for alpha also for small K, where the other terms of
      their minima are the smaller ones. It needs alpha <= 1 / (4 L_f), which holds once K is large.
    - One line of the proof has n gamma B_l for n gamma B_l^2. The next line, and A, are right again.
    - The gap of the weights has G_f A, but |f(y*) - f(y)| <= G_f |y* - y| is an error that is not squared.
    - The bound on x follows a Moreau envelope of F whose weights stand still, but they move.
    - The last loss and the last envelope are left out as if neither could be negative, but |l_i| <= B_l allows -B_l.

    These are not: the proof bounds max_i E |y_i - y_i*|^2 and not E max_i, max over w of E F and not E max over w, and
    uses B_l, a bound of l_i, for f_i(x, y_i) and for what is seen of it on samples.

    What A bounds is |y_i^{k+1} - y_i*(x^k)|^2, as `result.random` has them; the paper's algorithm returns y^{k-1} with
    x^k, of which the proof says nothing.
    """
    rates, bias = _rates_and_bias(constants, n, steps, start)
    mu, size = constants.strong_convexity, constants.direction_lipschitz
    lag, noise = constants.response / size, 16 * constants.lower_noise**2 / mu**2
    A = (
        start.lower_gap / mu * steps**-0.6
        + noise * steps**-1.4
        + lag * steps**-0.8
        + 2 * n**0.5 * constants.loss_bound * lag * steps**-0.4
        + (bias**2 + constants.upper_noise**2 / 2) / size**2 * steps**-0.4
        + noise * steps**-0.4
    )
    weights = 2**0.5 * constants.loss_bound * n**0.5 * steps**-0.4 + constants.upper_lipschitz * A
    rho, gap, envelope = _proximal(constants, start)
    first = 16 * envelope * constants.response * size / (gap * rho) * steps**-0.4
    return Bounds(A, weights, first + _settled(constants, rates, bias, A, gap))


def mended_bounds(constants: Constants, n: int, steps: float, start: Start) -> Bounds:
    """What the paper's argument gives when the slips that `bounds` lists are mended: ours, not the paper's.

    With the rates alpha, beta, gamma as they are at this K, and A the bound on y,

        A        = 4/(mu_g beta) (Delta^0/K + beta^2 sigma_g^2 (1 + 1/K)
                     + 16 alpha G_y^2/(mu_g beta) (2 B_l/K + n gamma B_l^2 + 4 alpha b_0^2 + 2 alpha sigma_f^2))
        weights <= n gamma B_l^2/2 + 1/(gamma K) + 2 G_f sqrt(A)
        x       <= 4/(rho - mu_l) (((Phi + B_l)/K + n gamma B_l^2)/(rho alpha) + ...as before)

    so y keeps O(sqrt(n) K^{-2/5}); the weights have O(n^{1/4} K^{-1/5}), that is n^{5/4} eps^{-5} steps; and the bound
    on x does not vanish: as the weights move the envelope may rise by n gamma B_l^2 a step, and gamma/alpha does not
    fall with K. That is what the argument gives, not what happens. While alpha > 1/(4 L_f), it gives nothing: all are
    infinite.

    Taken on trust: that A bounds E max_i |y_i - y_i*|^2, as the theorem says, and not only max_i E, as its proof does.
    """
    rates, bias = _rates_and_bias(constants, n, steps, start)
    alpha, beta, gamma = rates
    if 4 * alpha * constants.gradient_lipschitz > 1:
        return Bounds(math.inf, math.inf, math.inf)
    mu = constants.strong_convexity
    drift = n * gamma * constants.loss_bound**2  # how far a step of the weights moves F, at most
    kicks = 2 * constants.loss_bound / steps + drift + 4 * alpha * bias**2 + 2 * alpha * constants.upper_noise**2
    chase = 16 * alpha * constants.response**2 / (mu * beta) * kicks
    A = 4 / (mu * beta) * (start.lower_gap / steps + beta**2 * constants.lower_noise**2 * (1 + 1 / steps) + chase)
    weights = drift / 2 + 1 / (gamma * steps) + 2 * constants.upper_lipschitz * A**0.5
    rho, gap, envelope = _proximal(constants, start)
    first = 4 * ((envelope + constants.loss_bound) / steps + drift) / (gap * rho * alpha)
    return Bounds(A, weights, first + _settled(constants, rates, bias, A, gap))


def steps_for(
    constants: Constants,
    n: int,
    eps: float,
    start: Start,
    bound: Callable[[Constants, int, float, Start], Bounds] = bounds,
    gap: Callable[[Bounds], float] = max,
) -> float:
    """The smallest K at which a bound is at most eps; inf where no K brings it there.

    Args:
        constants: of the problem.
        n: how many tasks.
        eps: wanted, in squared units as Theorem 1's are.
        start: of the run.
        bound: `bounds` or `mended_bounds`.
        gap: what must be small: by default all three, or for instance `operator.attrgetter("y")`.
    """
    values.positive("eps", eps, of="steps_for")

    def reached(steps: int) -> bool:
        return gap(bound(constants, n, steps, start)) <= eps

    high = 1
    while not reached(high):
        high *= 2
        if high > MOST_STEPS:
            return math.inf
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def sample_complexity(
    constants: Constants,
    n: int,
    eps: float,
    start: Start,
    bound: Callable[[Constants, int, float, Start], Bounds] = bounds,
    gap: Callable[[Bounds], float] = max,
) -> Complexity:
    """Corollary 1 in numbers: steps until the bound is at most eps, and queries of each task's stochastic oracle.

    A step asks a task for one gradient of g, one of f (with its loss), one product with J and, at most, Q with A. The
    corollary claims queries of order n^{5/4} eps^{-5/2} log(1/eps). Arguments as for `steps_for`.
    """
    steps = steps_for(constants, n, eps, start, bound, gap)
    order = n**1.25 * eps**-2.5 * math.log(1 / eps) if eps < 1 else math.nan
    if steps == math.inf:
        return Complexity(steps, 0, math.inf, order)
    terms = series_terms(constants, step_sizes(constants, n, steps).upper ** 0.5)
    return Complexity(steps, terms, steps * (terms + 3), order)


def _settled(constants: Constants, rates: StepSizes, bias: float, A: float, gap: float) -> float:
    """The terms of the bound on x that do not come from where it starts."""
    off = constants.direction_lipschitz**2 * A
    moments = constants.upper_second_moment + 3 * bias**2 + 3 * off
    return 8 * (bias**2 + off) / gap**2 + 2 * rates.upper * moments / gap


def _rates_and_bias(constants: Constants, n: int, steps: float, start: Start) -> tuple[StepSizes, float]:
    rates = step_sizes(constants, n, steps)
    if not isinstance(start, Start):
        raise TypeError(f"start got {type(start).__name__}: it needs a bl.theory.Start.")
    start.check(constants)
    return rates, rates.upper**0.5 if constants.bias is None else constants.bias


def _proximal(constants: Constants, start: Start) -> tuple[float, float, float]:
    """rho, rho - mu_l and the Moreau envelope at the start."""
    rho = 2 * max(constants.gradient_lipschitz, constants.weak_convexity) if start.rho is None else start.rho
    envelope = constants.loss_bound if start.envelope is None else start.envelope
    return rho, rho - constants.weak_convexity, envelope


def _check(constants: Constants, n: int, steps: float) -> None:
    _check_constants(constants)
    values.whole("n", n)
    values.number("steps", steps, least=1)


def _check_constants(constants: Constants) -> None:
    if not isinstance(constants, Constants):
        raise TypeError(f"constants got {type(constants).__name__}: it needs a bl.theory.Constants.")
    constants.check()
