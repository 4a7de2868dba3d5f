"""The constants of the paper's Assumptions 1 to 3, those its lemma derives from them, and how to measure them."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from bilevel._core import values
from bilevel._core.types import Tree
from bilevel.diagnostics.points import check_estimator, check_is_problem, solve_lower, start, task_gradients
from bilevel.diagnostics.regularity import (
    Smoothness,
    bends,
    draw_pair,
    is_strongly_convex,
    lower_noise,
    lower_spectra,
    smoothness,
)
from bilevel.diagnostics.sampling import SampledEstimator, moments_of
from bilevel.hypergradients import RandomNeumann
from bilevel.hypergradients.hypergradient import Hypergradient
from bilevel.problem.problem import Problem


@dataclasses.dataclass(frozen=True, kw_only=True)
class Constants:
    """Bounds that hold for every task, all x in X and all y.

    Convexity is meant as usual, with mu/2 |.|^2: the curvature of g in y is at least `strong_convexity`, that of l_i at
    least minus `weak_convexity`. The paper writes both definitions with mu |.|^2 but its proofs use the usual ones.

    Attributes:
        bias: how far the mean direction of x may be off; None = as far as the theorem's rate allows, b_0^2 = alpha.
            A number is for the bounds alone: `morbit` and `sample_complexity` take a series for b_0^2 = alpha.

    >>> plain = Constants(upper_lipschitz=3.0, upper_slope=3.0, upper_y_smoothness=1.0, loss_bound=4.0, loss_slope=6.0,
    ...                   lower_smoothness=1.0, strong_convexity=1.0, cross_bound=2.0)
    >>> plain.response, plain.direction_lipschitz, plain.gradient_lipschitz, plain.lower_limit
    (2.0, 2.0, 4.0, 1.0)
    """

    # Assumption 1: f_i, and l_i(x) = f_i(x, y_i*(x))
    upper_lipschitz: float  # G_f: of f in y
    upper_slope: float  # C_fy: |grad_y f|; the smallest is G_f
    upper_x_smoothness: float = 0.0  # L_fx: of grad_x f in y
    upper_y_smoothness: float  # L_fy: of grad_y f in y
    upper_cross_smoothness: float = 0.0  # bar L_fy: of grad_y f in x
    weak_convexity: float = 0.0  # mu_l
    loss_bound: float  # B_l: |l_i|
    loss_slope: float  # C_l: |grad l_i|
    # Assumption 2: g_i
    lower_smoothness: float  # L_g: of grad_y g in y
    strong_convexity: float  # mu_g
    cross_bound: float  # C_gxy: |J|, J = d2g/dxdy
    cross_lipschitz: float = 0.0  # L_gxy: of J in y
    hessian_lipschitz: float = 0.0  # L_gyy: of A = d2g/dy2 in y
    cross_lipschitz_in_x: float = 0.0  # bar L_gxy: of J in x
    hessian_lipschitz_in_x: float = 0.0  # bar L_gyy: of A in x
    # Assumption 3: what is estimated from samples
    lower_noise: float = 0.0  # sigma_g: E |h - grad_y g|^2 <= sigma_g^2 (1 + |grad_y g|^2)
    upper_noise: float = 0.0  # sigma_f: E |h_x - E h_x|^2 <= sigma_f^2
    bias: float | None = None  # b_0

    @property
    def condition(self) -> float:
        """Condition number of the lower problems (kappa)."""
        return self.lower_smoothness / self.strong_convexity

    @property
    def response(self) -> float:
        """Lipschitz constant of y_i*(x) (G_y). The paper writes C_g / mu_g, where C_g can only be C_gxy."""
        return self.cross_bound / self.strong_convexity

    @property
    def direction_lipschitz(self) -> float:
        """Lipschitz constant of the direction of x in y (L)."""
        mu = self.strong_convexity
        bent = self.cross_lipschitz / mu + self.hessian_lipschitz * self.cross_bound / mu**2
        return self.upper_x_smoothness + self.upper_y_smoothness * self.response + self.upper_slope * bent

    @property
    def gradient_lipschitz(self) -> float:
        """Lipschitz constant of grad l_i in x (L_f), as the paper has it.

        The paper's first term is L_fx, of grad_x f in y. What the chain rule needs there is that of grad_x f in x, for
        which no constant is assumed: where f bends in x by itself, L_f is too small.
        """
        mu = self.strong_convexity
        bent = self.cross_lipschitz_in_x / mu + self.hessian_lipschitz_in_x * self.cross_bound / mu**2
        through_y = (self.upper_cross_smoothness + self.direction_lipschitz) * self.response
        return self.upper_x_smoothness + through_y + self.upper_slope * bent

    @property
    def lower_limit(self) -> float:
        """The largest rate of y that the proof allows (nu)."""
        mu = self.strong_convexity
        return min(mu / (self.lower_smoothness**2 * (1 + self.lower_noise**2)), 1 / mu)

    @property
    def upper_second_moment(self) -> float:
        """Second moment of an estimated direction of x at y* (sigma_f tilde, squared)."""
        return self.upper_noise**2 + 3 * self.loss_slope**2

    def check(self) -> None:
        """Raises where the theorem would divide by zero, or a constant cannot be a bound."""
        for field in dataclasses.fields(self):
            none = "as far as the theorem's rate allows" if field.name == "bias" else None
            values.number(field.name, getattr(self, field.name), least=0, of="Constants", none=none)
        for name in ("lower_smoothness", "strong_convexity", "loss_bound"):
            values.positive(name, getattr(self, name), of="Constants")
        if self.strong_convexity > self.lower_smoothness * (1 + 1e-6):
            raise ValueError(
                f"Constants(strong_convexity={self.strong_convexity!r}): it needs at most lower_smoothness, "
                f"{self.lower_smoothness!r}."
            )
        if not self.response * self.direction_lipschitz > 0:
            raise ValueError(
                "Constants: cross_bound, and what makes the direction of x depend on y, need to be positive: Theorem 1 "
                f"divides by G_y L, here {self.response:.3g} * {self.direction_lipschitz:.3g}."
            )


ESTIMATOR = RandomNeumann()  # the estimator of the paper's theory
DRAWS = 200  # of batches, for each measurement of noise


def estimate_constants(
    problem: Problem,
    x: Tree,
    y: Tree = None,
    samples: int = 10,
    seed: int = 0,
    *,
    radius: float = 1.0,
    hypergradient: Hypergradient = ESTIMATOR,
) -> Constants:
    """The constants of Assumptions 1 to 3 as seen around (x, y*(x)): lower bounds on the true ones.

    The assumptions ask for the worst over all of X and all y. What is seen at a few points, in directions that power
    iteration finds from below, can only be too good: every constant is at most the true one, except strong convexity,
    which is at least the true one. (Noise is a mean over draws, and may err either way.) So rates from these constants
    may be too large, and bounds too small. A squared loss, whose slope grows without end, has no `upper_slope` at all:
    what is measured then grows with the radius.

    Curvatures, norms and slopes are the largest over the points; Lipschitz constants of second derivatives are taken
    between neighbouring points, weak convexity between all pairs of them. `bias` is left at None.

    Args:
        problem: the problem.
        x: the centre.
        y: where the lower problems are solved from, as for `solve`.
        samples: how many points to look at besides the centre.
        seed: of the points and batches.
        radius: how far from the centre the points are, at most, in x and in each y; neighbours are as far again.
        hypergradient: the estimator whose noise `upper_noise` is, the largest over the tasks; with `RandomNeumann` it
            depends on the length of the series, so take that of `series_terms`.
    """
    check_is_problem("estimate_constants", problem)
    values.whole("samples", samples, of="estimate_constants")
    values.whole("seed", seed, least=0, of="estimate_constants")
    check_estimator("estimate_constants", hypergradient)
    values.positive("radius", radius, of="estimate_constants")
    x, y = start(problem, x, y, jax.random.key(seed))
    generator = np.random.default_rng(int(seed))
    centre = solve_lower(problem, x, y).y
    pairs = [draw_pair(problem, x, centre, radius, generator) for _ in range(samples)]
    pairs.append(pairs[0]._replace(x=x, y=centre))
    seen = Smoothness(*(float(np.max(column)) for column in zip(*(smoothness(problem, p) for p in pairs), strict=True)))

    points, losses, gradients, slopes = [], [], [], [seen.upper_slope]
    for pair in pairs:
        solved = solve_lower(problem, pair.x, centre)
        points.append(np.asarray(ravel_pytree(pair.x)[0]))
        losses.append(np.asarray(solved.losses))
        gradients.append(task_gradients(problem, pair.x, solved.y))
        slopes.append(float(np.max(smoothness(problem, pair._replace(y=solved.y)).upper_slope)))
    smallest, largest = _curvatures(problem, pairs)
    moments, _ = moments_of(SampledEstimator(hypergradient), problem, x, centre, DRAWS, seed)
    return Constants(
        upper_lipschitz=max(slopes),
        upper_slope=max(slopes),
        upper_x_smoothness=seen.upper_cross,
        upper_y_smoothness=seen.upper_hessian,
        upper_cross_smoothness=seen.upper_cross,
        weak_convexity=bends(points, gradients),
        loss_bound=float(np.max(np.abs(losses))),
        loss_slope=float(np.max(np.linalg.norm(gradients, axis=-1))),
        lower_smoothness=largest,
        strong_convexity=smallest,
        cross_bound=seen.cross,
        cross_lipschitz=seen.cross_in_y,
        hessian_lipschitz=seen.hessian_in_y,
        cross_lipschitz_in_x=seen.cross_in_x,
        hessian_lipschitz_in_x=seen.hessian_in_x,
        lower_noise=_lower_noise(problem, pairs, seed),
        upper_noise=float(np.max(np.asarray(moments.variance)[:-1]) ** 0.5),
    )


def _curvatures(problem: Problem, pairs: list) -> tuple[float, float]:
    spectra = [lower_spectra(problem, pair.x, pair.y) for pair in pairs]
    smallest, largest = (np.asarray(column) for column in zip(*spectra, strict=True))
    if not np.all(is_strongly_convex(smallest, largest)):
        i = int(np.argmin(smallest.min(axis=0)))
        raise ValueError(
            f"estimate_constants(problem=...): the lower problem of task {problem.names[i]!r} has curvature "
            f"{smallest.min():.3g} within the radius, and the theory needs it positive. Try a smaller radius."
        )
    return float(smallest.min()), float(largest.max())


def _lower_noise(problem: Problem, pairs: list, seed: int) -> float:
    if all(group.lower_batch is None for group in problem.groups):
        return 0.0
    key, numbers = jax.random.key(seed), np.arange(DRAWS)
    return float(np.max([lower_noise(problem, p.x, p.y, key, numbers) for p in pairs]) ** 0.5)
