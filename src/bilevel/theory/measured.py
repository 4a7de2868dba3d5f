"""The constants of a problem, measured around a point."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from bilevel._core import values
from bilevel.diagnostics.points import check_estimator, check_is_problem, solve_lower, task_gradients
from bilevel.diagnostics.regularity import (
    Smoothness,
    bends,
    draw_pair,
    is_strongly_convex,
    lower_noise,
    lower_spectra,
    smoothness,
)
from bilevel.diagnostics.sampling import Estimate, moments_of
from bilevel.hypergradients import RandomNeumann
from bilevel.hypergradients.base import Hypergradient
from bilevel.problem import findings, initial_point
from bilevel.problem.per_task import PerTask
from bilevel.problem.problem import Problem
from bilevel.theory.constants import Constants

ESTIMATOR = RandomNeumann()  # the estimator of the paper's theory
DRAWS = 200  # of batches, for each measurement of noise


def estimate_constants(
    problem: Problem,
    x: Any,
    y: Any = None,
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
    x = initial_point.arrays(x, "x")
    y = initial_point.lower_points(problem, y, jax.random.key(seed))
    findings.raise_first(findings.at_start(problem, x, y))

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
        gradients.append(_rows(task_gradients(problem, pair.x, solved.y)))
        slopes.append(float(np.max(smoothness(problem, pair._replace(y=solved.y)).upper_slope)))
    smallest, largest = _curvatures(problem, pairs)
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
        upper_noise=_upper_noise(problem, x, centre, hypergradient, seed),
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


def _upper_noise(problem: Problem, x: Any, y: PerTask[Any], hypergradient: Hypergradient, seed: int) -> float:
    moments, _ = moments_of(Estimate(hypergradient), problem, x, y, DRAWS, seed)
    return float(np.max(np.asarray(moments.variance)[:-1]) ** 0.5)


def _rows(gradients: Any) -> np.ndarray:
    return np.asarray(jax.vmap(lambda g: ravel_pytree(g)[0])(gradients))
