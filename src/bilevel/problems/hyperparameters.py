"""Hyperparameters shared by many tasks: kernel logistic regression with random Fourier features.

With W a fixed random normal matrix (K x d) and * entry by entry, a point p has the features

    phi(p) = [sin(W (bandwidth * p)), cos(W (bandwidth * p))]                 (2K of them)

every task fits a linear model y_i on them, and x = {bandwidth >= 0, penalty >= 0} is shared:

    g_i(x, y) = mean logistic loss of y on training rows + ||penalty * y||^2
    f_i(x, y) = mean logistic loss of y on validation rows

Reference: Gu, Lu, Ram, Weng, ICLR 2023, section 4, "Hyperparameter optimization".
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from bilevel._core.values import number, whole
from bilevel.constraints import NonNegative
from bilevel.problem.problem import Problem
from bilevel.problem.task import Task
from bilevel.problems.ready import Ready
from bilevel.problems.rows import check_signs, listed, points_of
from bilevel.problems.sincos import sincos

Shared = dict[str, jax.Array]  # x: bandwidth and penalty


class FourierLogistic:
    """The two losses; `W` is one matrix for all tasks."""

    def __init__(self, W: jax.Array):
        self.W = W

    def upper(self, x: Shared, y: jax.Array, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        """The mean logistic loss."""
        points, signs = batch
        phase = (points * x["bandwidth"][None]) @ self.W.T
        features = jnp.concatenate(sincos(phase), axis=1)
        return jnp.mean(jax.nn.softplus(-signs * (features @ y)))

    def lower(self, x: Shared, y: jax.Array, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        """The same with the weighted ridge penalty."""
        return self.upper(x, y, batch) + jnp.sum((x["penalty"] * y) ** 2)


@functools.cache
def _losses(frequencies: int, d: int, seed: int, dtype: str) -> FourierLogistic:
    """One object for equal arguments: JAX tells functions apart by identity, and equal ones should compile once."""
    return FourierLogistic(jnp.asarray(np.random.default_rng(seed).normal(size=(frequencies, d)), dtype))


def hyperparameters(
    tasks: Sequence[Task],
    frequencies: int = 128,
    lower_batch: int | None = 8,
    upper_batch: int | None = 8,
    bandwidth: float = 1.0,
    penalty: float = 0.1,
    seed: int = 0,
) -> Ready[Problem, Shared]:
    """The paper's hyperparameter optimisation for any binary tasks.

    Args:
        tasks: rows (points, labels -1 or 1), as `datasets.letter_pairs` gives.
        frequencies: K; every task fits 2K numbers.
        lower_batch: training rows per step and task.
        upper_batch: validation rows per step and task.
        bandwidth: where every bandwidth starts.
        penalty: where every penalty starts.
        seed: of W.
    """
    tasks = listed("hyperparameters", tasks)
    whole("frequencies", frequencies, of="hyperparameters")
    number("bandwidth", bandwidth, least=0, of="hyperparameters")
    number("penalty", penalty, least=0, of="hyperparameters")
    first = points_of("hyperparameters", tasks[0])
    check_signs("hyperparameters", tasks)
    d = first.shape[1]
    losses = _losses(frequencies, d, seed, str(jnp.asarray(first).dtype))
    W = losses.W
    tasks = [dataclasses.replace(task, y=jnp.zeros(2 * frequencies, W.dtype)) for task in tasks]
    problem = Problem(losses.upper, losses.lower, tasks, NonNegative(), lower_batch, upper_batch)
    x = {"bandwidth": jnp.full(d, bandwidth, W.dtype), "penalty": jnp.full(2 * frequencies, penalty, W.dtype)}
    return Ready(problem, x)
