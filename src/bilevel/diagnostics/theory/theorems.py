"""What the paper proves: Theorem 1, Corollary 1 and Propositions 1 to 3, as claimed and as the arguments give them.

With K steps, n tasks and nu as in `Constants.lower_limit`, Theorem 1 has the rates

    alpha = min(mu_g nu / (16 G_y L), K^{-3/5} / (4 G_y L))      x
    beta  = min(nu, 4 K^{-2/5} / mu_g)                           y
    gamma = 2 K^{-3/5} / (B_l sqrt(n))                           weights

and claims O(sqrt(n) K^{-2/5}) for all three gaps (the paper's introduction has K^{-5/2} in one place, a slip).

Propositions 1 to 3 say how much worse tasks may do on new data than on the data that x was chosen on. F_i is a task's
expected loss, hat F_i its mean over m_i batches, R the Rademacher complexity of the losses that the candidates x can
produce. Batches are pairs of a training and a validation part, y is fitted to the former. Two slips of the paper matter
here, and are mended:

- Its signs are +-1/2, where the statement it quotes (Mohri et al., Theorem 3.3) has +-1. That halves R, so with such an
  R the factor 2 in front of it would have to be 4. Here signs are +-1 and the factor is 2.
- |l| <= B_l lets a loss range over 2 B_l, and McDiarmid's inequality asks for the range. Here `width` is how wide the
  range of the losses is: B_l for losses in [0, B_l], as nearly all are.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bilevel._core import values
from bilevel.diagnostics.theory.constants import Constants
from bilevel.hypergradients import RandomNeumann
from bilevel.solvers import MORBiT
from bilevel.weightings import SimplexAscent

MOST_STEPS = 10**100  # the search for a number of steps ends here


class StepSizes(NamedTuple):
    """Theorem 1's step sizes."""

    upper: float  # alpha
    lower: float  # beta
    weights: float  # gamma


class Bounds(NamedTuple):
    """Bounds on the three gaps that `bl.certify` measures, in expectation over the run and the random iterate."""

    y: float  # A: max_i |y_i - y_i*(x)|^2
    weights: float  # max over w of F(x, w), less F(x, weights)
    x: float  # |x_hat - x|^2


@dataclasses.dataclass(frozen=True)
class Start:
    """The start of a run, as the bounds need it.

    Args:
        lower_gap: max_i |y_i - y_i*(x)|^2 at the start.
        envelope: the Moreau envelope of F at the first x; None = B_l, which it cannot exceed.
        rho: of the proximal map, above the weak convexity of F; None = twice the larger of it and L_f.
    """

    lower_gap: float  # Delta^0
    envelope: float | None = None  # Phi_{1/rho}(x^0)
    rho: float | None = None

    def check(self, constants: Constants) -> None:
        """Raises where an argument is not a number, or no bound follows from it."""
        values.number("lower_gap", self.lower_gap, least=0, of="Start")
        values.number("envelope", self.envelope, least=-constants.loss_bound, of="Start", none="loss_bound")
        weak = constants.weak_convexity
        values.number("rho", self.rho, above=weak, of="Start", none="twice the larger of weak_convexity and L_f")


class Complexity(NamedTuple):
    """Steps and queries that bring the bounds below a number."""

    steps: float  # K
    terms: int  # Q of the estimator's series, each a Hessian product
    queries: float  # of each task's stochastic oracle: K (Q + 3)
    order: float  # n^{5/4} eps^{-5/2} log(1/eps), which the corollary claims queries grow as; nan unless eps < 1


def step_sizes(constants: Constants, n: int, steps: float) -> StepSizes:
    """Theorem 1's alpha, beta and gamma for n tasks and K = `steps` steps.

    Always alpha / beta <= mu_g / (16 G_y L). The lemma on the weights has sqrt(2) in place of gamma's 2.
    """
    _check_constants(constants)
    values.whole("n", n)
    values.number("steps", steps, least=1)
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
    """Bounds by the paper's argument with the slips that `bounds` lists mended: ours, not the paper's.

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
    """The terms of the bound on x that do not depend on where it starts."""
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


def _check_constants(constants: Constants) -> None:
    if not isinstance(constants, Constants):
        raise TypeError(f"constants got {type(constants).__name__}: it needs a bl.theory.Constants.")
    constants.check()


# ------------------------------------------------------------------ generalisation


class Rademacher(NamedTuple):
    """An empirical Rademacher complexity, by Monte Carlo."""

    value: float
    error: float  # standard error of the value


def rademacher_complexity(losses: ArrayLike, samples: int = 1000, seed: int = 0) -> Rademacher:
    """E over signs of max over candidates of 1/m sum_j sign_j loss_j, for a finite family of x, on the data at hand.

    Args:
        losses: of shape (candidates, rows): the loss of every candidate x on every batch, each with its own y*.
        samples: how many draws of the signs.
        seed: of the signs.

    Every draw is used with both its signs, so that a single candidate has complexity 0 exactly. It is the complexity on
    these rows, where the propositions have its mean over data: see `observed` there. What holds for a finite family
    says nothing of all x in X.

    >>> rademacher_complexity([[0.2, 0.7, 0.1]]).value
    0.0
    """
    losses = values.numbers_of("losses", losses, of="rademacher_complexity")
    if losses.ndim != 2 or not losses.size or not np.all(np.isfinite(losses)):
        raise ValueError(
            f"rademacher_complexity(losses=...) got shape {losses.shape}: it needs finite numbers of shape "
            "(candidates, rows)."
        )
    values.whole("samples", samples, of="rademacher_complexity")
    values.whole("seed", seed, least=0, of="rademacher_complexity")
    generator = np.random.default_rng(int(seed))
    rows = losses.shape[1]
    largest = np.empty(samples)
    for k in range(samples):  # one draw at a time: samples x rows numbers may be many
        correlation = losses @ generator.choice([-1.0, 1.0], size=rows) / rows
        largest[k] = (correlation.max() - correlation.min()) / 2
    return Rademacher(float(largest.mean()), float(largest.std(ddof=1) / samples**0.5) if samples > 1 else math.inf)


def seen_task_bound(
    loss: float, complexity: float, width: float, rows: int, risk: float = 0.05, *, observed: bool = False
) -> float:
    """Proposition 1: F_i(x) <= hat F_i(x) + 2 R + width sqrt(log(1/risk) / 2m), for all x at once.

    Args:
        loss: hat F_i(x), the mean over the batches.
        complexity: R, with signs +-1.
        width: of the range of the losses (B_l where they are in [0, B_l]).
        rows: how many batches (m_i).
        risk: delta; the bound fails with at most this probability.
        observed: whether R was measured on the same batches, as `rademacher_complexity` does, instead of being its mean
            over data; the last term is then 3 width sqrt(log(2/risk) / 2m).

    >>> round(seen_task_bound(0.3, 0.05, 1.0, 200, risk=0.1), 4)
    0.4759
    """
    values.whole("rows", rows)
    _check_risk(risk)
    values.number("loss", loss)
    values.number("complexity", complexity, least=0)
    values.number("width", width, least=0)
    deviation = 3 * math.sqrt(math.log(2 / risk)) if observed else math.sqrt(math.log(1 / risk))
    return float(loss + 2 * complexity + width * deviation / math.sqrt(2 * rows))


def worst_task_bound(
    losses: ArrayLike,
    complexities: ArrayLike,
    width: float,
    rows: ArrayLike,
    risk: float = 0.05,
    *,
    observed: bool = False,
) -> float:
    """Proposition 2: max_i F_i(x) <= max_i hat F_i(x) + 2 R + width sqrt(log(n/risk) / 2m), for all x at once.

    Complexities and rows are one for all tasks, as in the paper, or one each: then it is the largest of the tasks' own
    bounds at risk/n. Arguments as for `seen_task_bound`.
    """
    return float(np.max(_each(losses, complexities, width, rows, risk, observed)))


def unseen_task_bound(
    losses: ArrayLike,
    complexities: ArrayLike,
    width: float,
    rows: ArrayLike,
    mixture: ArrayLike,
    risk: float = 0.05,
    *,
    observed: bool = False,
) -> float:
    """Proposition 3: F_{n+1}(x) <= max_i hat F_i(x) + sum_i a_i (2 R_i + width sqrt(log(n/risk) / 2 m_i)).

    The new task's pairs of training and validation batches come from those of the seen tasks, each pair as a whole from
    task i with probability a_i. A task whose every batch has rows of two seen tasks is not of this kind.

    Args:
        losses: hat F_i(x) of every seen task.
        complexities: R_i, one for all or one each.
        width: of the range of the losses.
        rows: m_i, one for all or one each.
        mixture: a, on the simplex.
        risk: delta.
        observed: as for `seen_task_bound`.
    """
    losses, mixture = values.numbers_of("losses", losses), values.numbers_of("mixture", mixture)
    if mixture.shape != losses.shape or np.any(mixture < 0) or not math.isclose(mixture.sum(), 1, rel_tol=1e-5):
        raise ValueError(
            f"unseen_task_bound(mixture={mixture!r}): it needs {losses.size} numbers, 0 or more, that sum to 1."
        )
    each = _each(losses, complexities, width, rows, risk, observed)
    return float(np.max(losses) + mixture @ (each - losses))


def _each(
    losses: ArrayLike, complexities: ArrayLike, width: float, rows: ArrayLike, risk: float, observed: bool
) -> np.ndarray:
    """The bound of every task, such that all hold together: a union bound."""
    losses = values.numbers_of("losses", losses)
    if losses.ndim != 1 or not losses.size:
        raise ValueError(f"losses got shape {losses.shape}: it needs one number for each task.")
    _check_risk(risk)  # its share for each task would be a probability even where it is not
    own = []
    for name, given in (("complexities", complexities), ("rows", rows)):
        values.numbers_of(name, given)
        if np.shape(given) not in ((), losses.shape):
            raise ValueError(
                f"{name} got shape {np.shape(given)}: it needs one number, or one for each of the {losses.size} tasks."
            )
        own.append(np.broadcast_to(given, losses.shape).tolist())
    terms = zip(losses.tolist(), *own, strict=True)
    return np.array([seen_task_bound(f, R, width, m, risk / losses.size, observed=observed) for f, R, m in terms])


def _check_risk(risk: float) -> None:
    values.number("risk", risk, above=0, below=1)
