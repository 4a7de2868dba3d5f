"""Estimates beside the truth."""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class EstimateErrors:
    """Estimates and the true gradient: of every task, a row each, or of the average over the tasks.

    Attributes:
        exact: the true gradient, flat.
        mean: of the estimates.
        variance: E |estimate - mean|^2.
        standard_error: of the mean.
        scale: what biases are relative to: |exact|, and for the average the mean of the tasks' |exact|, as gradients of
            tasks that pull apart cancel.
        rounding: about what rounding does to the numbers.
    """

    exact: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    standard_error: np.ndarray
    scale: np.ndarray
    rounding: float

    @property
    def size(self) -> np.ndarray:
        """|exact|."""
        return np.linalg.norm(self.exact, axis=-1)

    @property
    def bias(self) -> np.ndarray:
        """|mean - exact|."""
        return np.linalg.norm(self.mean - self.exact, axis=-1)

    @property
    def relative_error(self) -> np.ndarray:
        """|mean - exact| / |exact|."""
        return _ratio(self.bias, self.size)

    @property
    def noise(self) -> np.ndarray:
        """sqrt(variance) / |exact|: how far one estimate deviates."""
        return _ratio(np.sqrt(self.variance), self.size)

    @property
    def cosine(self) -> np.ndarray:
        """Of the angle between mean and exact; 0 where one of them is 0."""
        product = np.linalg.norm(self.mean, axis=-1) * self.size
        return np.sum(self.mean * self.exact, axis=-1) / np.where(product > 0, product, 1)

    @property
    def hidden(self) -> np.ndarray:
        """The relative bias that noise can hide."""
        return _ratio(4 * self.standard_error, self.scale)

    def is_biased(self, tolerance: float) -> np.ndarray:
        """Whether the bias is more than this fraction of the gradient, beyond what noise and rounding explain."""
        return ~(self.bias - 4 * self.standard_error - self.rounding <= tolerance * self.scale)


def errors_of(
    exact: np.ndarray, mean: np.ndarray, variance: np.ndarray, error: np.ndarray
) -> tuple[EstimateErrors, EstimateErrors]:
    """Those of the tasks and those of their average, which comes last in what was estimated."""
    eps = np.finfo(exact.dtype).eps
    exact, mean, variance, error = (np.asarray(a, float) for a in (exact, mean, variance, error))
    sizes = np.linalg.norm(exact, axis=1)
    rounding = float(1000 * eps * np.max(sizes))
    tasks = EstimateErrors(exact, mean[:-1], variance[:-1], error[:-1], sizes, rounding)
    return tasks, EstimateErrors(exact.mean(axis=0), mean[-1], variance[-1], error[-1], np.mean(sizes), rounding)


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """above / below; 0 / 0 = 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(above == 0, 0.0, above / below)
