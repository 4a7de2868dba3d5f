"""Central differences of l_i(x) = f_i(x, y_i*(x)), the lower problems solved anew at both ends."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from bilevel.diagnostics.exact import solve_lower
from bilevel.problem.per_task import PerTask
from bilevel.problem.problem import Problem

COORDINATES = 20  # directions: each coordinate of x up to this many numbers, random ones beyond


class Differences(NamedTuple):
    """Slopes of every l_i along some directions: arrays of shape (tasks, directions)."""

    measured: np.ndarray  # from differences
    predicted: np.ndarray  # from the gradient
    rounding: np.ndarray  # about what rounding does to a difference

    @property
    def relative_error(self) -> np.ndarray:
        """|measured - predicted| / |predicted|, per task; relative to rounding where the gradient is below it."""
        apart, size, rounding = (
            np.linalg.norm(a, axis=1) for a in (self.measured - self.predicted, self.predicted, self.rounding)
        )
        size = np.maximum(size, rounding)
        return apart / np.where(size > 0, size, 1)

    @property
    def agree(self) -> np.ndarray:
        """Whether both say the same, per task."""
        apart, size, rounding = (
            np.linalg.norm(a, axis=1) for a in (self.measured - self.predicted, self.predicted, self.rounding)
        )
        return apart <= 1e-3 * size + 100 * rounding


def central_differences(problem: Problem, x: Any, y: PerTask[Any], gradients: np.ndarray) -> Differences:
    """Compares gradients (tasks, numbers in x) with differences between points of X around x.

    Where x lies on the border of X, differences are to one side and their error is larger.
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
def _inside(problem: Problem, x: Any) -> Any:
    return problem.constraint.project(x)
