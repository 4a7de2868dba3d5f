"""`check_hypergradient`: an estimator of the hypergradient against the truth.

The truth itself is checked against central differences of l_i(x) = f_i(x, y_i*(x)), with the lower problems solved anew
at both ends.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, SupportsFloat

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from bilevel._core import values
from bilevel._core.types import Tree
from bilevel.diagnostics.points import (
    check_estimator,
    check_is_problem,
    columns,
    lower_remarks,
    solve_lower,
    start,
    task_gradients,
)
from bilevel.diagnostics.regularity import lower_spectra
from bilevel.diagnostics.sampling import EstimateErrors, SampledEstimator, errors_of, moments_of
from bilevel.hypergradients import Tracked
from bilevel.hypergradients.hypergradient import Hypergradient
from bilevel.problem.per_task import Names, PerTask
from bilevel.problem.problem import Problem

TRACKED = Tracked()  # the estimator that solvers have by default
SHOWN = 10  # tasks in the text
COORDINATES = 20  # directions of differences: the coordinates of x up to this many, random directions beyond


@dataclasses.dataclass(frozen=True, eq=False)
class HypergradientReport:
    """What `check_hypergradient` measured. Arrays are in the order of the tasks; gradients are flat.

    Attributes:
        tasks: the estimates of every grad l_i against the truth.
        average: the same for their average over the tasks.
        differences: the true gradients against central differences of l_i.
        samples: the number of samples.
        tolerance: the bias that is accepted, as a fraction of the gradient.
        remarks: problems with the measurement itself.
    """

    names: Names
    hypergradient: Hypergradient
    tasks: EstimateErrors
    average: EstimateErrors
    differences: Differences
    samples: int
    tolerance: float
    remarks: tuple[str, ...]

    @property
    def biased(self) -> np.ndarray:
        """The tasks whose estimates are off by more than the tolerance and more than noise explains."""
        return self.tasks.is_biased(self.tolerance)

    @property
    def ok(self) -> bool:
        """Whether a sound measurement saw no bias, and would have seen one of half the gradient's length."""
        biased = np.any(self.biased) or self.average.is_biased(self.tolerance)
        return not (self.remarks or biased) and bool(self.average.hidden <= 0.5)

    @property
    def verdict(self) -> str:
        """The outcome in a few sentences."""
        biased, noise = np.flatnonzero(self.biased), float(self.average.noise)
        if not np.all(np.isfinite(self.tasks.mean)):
            return " ".join(["The estimates became infinite or NaN.", *self.remarks])
        if len(biased):
            first = self._say_bias(biased)
        elif self.average.is_biased(self.tolerance):
            first = f"Biased on average over the tasks, by {100 * float(self.average.relative_error):.3g} %."
        elif self.average.hidden > 0.5:
            first = (
                f"Too noisy to tell: {self.samples} samples hide a bias as long as {self.average.hidden:.2g} gradients."
            )
        else:
            limit = max(self.tolerance, float(np.max(self.tasks.hidden)))
            first = f"No bias, or none above {100 * limit:.2g} % of a task's gradient."
        said = f"One estimate strays from its mean by {noise:.2g} times the gradient." if noise else "It does not vary."
        return " ".join([first, said, *self.remarks])

    def _say_bias(self, biased: np.ndarray) -> str:
        i = int(biased[np.argmax(self.tasks.relative_error[biased])])
        size, cosine = float(self.tasks.size[i]), float(self.tasks.cosine[i])
        said = (
            f"Biased for {len(biased)} of {len(self.names)} tasks: the mean estimate of task {self.names[i]!r} is "
            f"{100 * self.tasks.relative_error[i]:.3g} % of the gradient away from it (cosine {cosine:.3f})."
        )
        length = np.linalg.norm(self.tasks.mean[i]) / size if size else 0.0
        return said + (f" Its direction is right, its length {length:.3g} times the true one." if cosine > 0.99 else "")

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [
            ("", "cosine", "relative error", "bias", "standard error", "variance", "|gradient|", "differences")
        ]
        worst = np.argsort(-self.tasks.relative_error, kind="stable")[:SHOWN]
        apart = self.differences.relative_error
        table = np.stack(_numbers(self.tasks), axis=1)
        rows += [(self.names[int(i)], *map(_show, table[i]), f"{apart[i]:.2g}") for i in worst]
        rows.append(("average", *map(_show, _numbers(self.average)), ""))
        head = f"{self.hypergradient} over {self.samples} samples"
        more = [f"(the worst {SHOWN} of {len(self.names)} tasks)"] if len(self.names) > SHOWN else []
        return "\n".join([head, *columns(rows), *more, self.verdict])


def _numbers(one: EstimateErrors) -> tuple[np.ndarray, ...]:
    return one.cosine, one.relative_error, one.bias, one.standard_error, one.variance, one.size


def _show(number: SupportsFloat) -> str:
    return f"{float(number):.3g}"


def check_hypergradient(
    problem: Problem,
    x: Tree,
    y: Tree = None,
    hypergradient: Hypergradient = TRACKED,
    samples: int = 100,
    seed: int = 0,
    *,
    lower_steps: int = 1,
    tolerance: float = 0.05,
) -> HypergradientReport:
    """Compares an estimator at (x, y*(x)) with the true hypergradient, and the latter with central differences.

    The truth, grad l_i(x) = f_x - J A^-1 f_y at y_i*(x), is computed on all the data, with the lower problem and the
    linear system solved to tolerance. The differences are those of l_i, with the lower problems solved at both ends.
    The estimator sees what it would see in a run: the problem's batches, fresh keys, and its own state carried from
    sample to sample. If it carries a state, it first runs at the fixed point until its mean no longer changes.

    Args:
        problem: the problem.
        x: where to look.
        y: where the lower problems are solved from, as for `solve`.
        hypergradient: the estimator, from `bl.hypergradients` or your own.
        samples: the number of samples behind mean and variance.
        seed: of the samples.
        lower_steps: the number of lower steps that `Unrolled` replays, with rate 1/L_i.
        tolerance: the bias that is accepted, as a fraction of the gradient.

    >>> import bilevel as bl
    >>> known = bl.problems.shrinkage()
    >>> report = bl.check_hypergradient(known.problem, known.x, hypergradient=bl.hypergradients.Direct())
    >>> report.ok, report.tasks.relative_error.tolist()
    (False, [1.0, 1.0])
    """
    owner = "check_hypergradient"
    check_is_problem(owner, problem)
    values.whole("samples", samples, least=2, of=owner)  # for there to be a variance
    values.number("tolerance", tolerance, least=0, of=owner)
    values.whole("lower_steps", lower_steps, of=owner)
    values.whole("seed", seed, least=0, of=owner)
    check_estimator(owner, hypergradient)
    x, y = start(problem, x, y, jax.random.key(seed))
    solved = solve_lower(problem, x, y)
    exact = task_gradients(problem, x, solved.y)
    moments, settled = moments_of(SampledEstimator(hypergradient, lower_steps), problem, x, solved.y, samples, seed)
    remarks = lower_remarks(problem, solved, *lower_spectra(problem, x, solved.y))
    differences = central_differences(problem, x, solved.y, exact)
    if not np.all(differences.agree):
        i = int(np.argmin(differences.agree))
        remarks.append(
            f"The exact gradient of task {problem.names[i]!r} is {100 * differences.relative_error[i]:.2g} % off "
            "central differences: its losses may not be smooth here, or rounding is too coarse."
        )
    if not settled:
        remarks.append("The estimator had not settled: its mean was still moving.")
    tasks, average = errors_of(exact, *map(np.asarray, (moments.mean, moments.variance, moments.error)))
    return HypergradientReport(
        problem.names, hypergradient, tasks, average, differences, samples, tolerance, tuple(remarks)
    )


class Differences(NamedTuple):
    """Slopes of every l_i along some directions, as arrays (tasks, directions)."""

    measured: np.ndarray  # from differences
    predicted: np.ndarray  # from the gradient
    rounding: np.ndarray  # the approximate rounding error of a difference

    @property
    def relative_error(self) -> np.ndarray:
        """|measured - predicted| / |predicted|, per task; relative to rounding where the gradient is below it."""
        apart, size, rounding = self._lengths
        size = np.maximum(size, rounding)
        return apart / np.where(size > 0, size, 1)

    @property
    def agree(self) -> np.ndarray:
        """Whether both agree, per task."""
        apart, size, rounding = self._lengths
        return apart <= 1e-3 * size + 100 * rounding

    @property
    def _lengths(self) -> list[np.ndarray]:
        rows = self.measured - self.predicted, self.predicted, self.rounding
        return [np.linalg.norm(own, axis=1) for own in rows]


def central_differences(problem: Problem, x: Tree, y: PerTask[Tree], gradients: np.ndarray) -> Differences:
    """Compares gradients (tasks, numbers in x) with differences between points of X around x.

    On the border of X differences are one-sided and have a larger error.
    """
    flat, unravel = ravel_pytree(x)
    size = flat.size
    random = np.random.default_rng(0).normal(size=(COORDINATES, size))
    vectors = np.eye(size) if size <= COORDINATES else random / np.linalg.norm(random, axis=1, keepdims=True)
    typical = float(jnp.linalg.norm(flat)) / size**0.5 or 1.0
    eps = float(jnp.finfo(flat.dtype).eps)
    measured, predicted, rounding = [], [], []
    for vector in vectors:
        reach = eps ** (1 / 3) * max(typical, float(np.abs(vector @ np.asarray(flat))))
        moves = (jnp.asarray(sign * reach * vector, flat.dtype) for sign in (1, -1))
        ends = [_inside(problem, unravel(flat + move)) for move in moves]
        move = np.subtract(*(np.asarray(ravel_pytree(end)[0]) for end in ends))
        apart = np.linalg.norm(move)
        if not apart > 0:  # a corner of X
            continue
        high, low = (np.asarray(solve_lower(problem, end, y).losses) for end in ends)
        measured.append((high - low) / apart)
        predicted.append(gradients @ (move / apart))
        rounding.append(eps * (np.abs(high) + np.abs(low)) / apart)
    if not measured:
        measured = predicted = rounding = [np.zeros(problem.size)]
    return Differences(*(np.stack(a, axis=1) for a in (measured, predicted, rounding)))


@jax.jit
def _inside(problem: Problem, x: Tree) -> Tree:
    return problem.constraint.project(x)
