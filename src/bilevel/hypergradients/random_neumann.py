"""One random term of the Neumann series: the estimator of the MORBiT paper's theory."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bilevel._core import values
from bilevel._core.module import leaf, part
from bilevel.hypergradients.base import Implicit
from bilevel.hypergradients.neumann import Series, start_series, sum_series
from bilevel.problem.group import TaskView, UpperSample


@part
class RandomNeumann(Implicit):
    """v = terms (1/L) (I - A_p/L) ... (I - A_1/L) f_y, with p uniform in {0, ..., terms - 1}.

    Args:
        terms: the length Q of the series that is sampled.
        lr: the scale 1/L; None = chosen per task and kept up to date.

    Its mean is `Neumann`'s v. Its variance is large: in directions of curvature near L it is zero most of the time and
    Q times too long otherwise. p starts at 0; from 1 on, the mean would always miss f_y / L. On batches it is as
    unbiased as `Neumann`, and for the same reason: all factors and J have rows of their own.

    References: Ghadimi and Wang, "Approximation methods for bilevel programming", 2018; Hong, Wai, Wang, Yang, "A
    two-timescale stochastic algorithm framework for bilevel optimization", 2023; Gu et al., ICLR 2023.
    """

    terms: int = 10
    lr: float | None = leaf(default=None)

    def check(self) -> None:
        """terms >= 1 and lr > 0."""
        values.whole("terms", self.terms, of="RandomNeumann")
        values.positive("lr", self.lr, of="RandomNeumann", none="chosen and kept up to date")

    def init(self, task: TaskView, x: Any, y: Any, sample: UpperSample) -> Series:
        """Measures the curvature once."""
        return start_series(task, x, y, sample)

    def prepare(self, task: TaskView, x: Any, y: Any, state: Series, sample: UpperSample) -> Series:
        """Draws p and keeps its term."""
        # All products are made and one is kept: under vmap a loop of random length would run to the longest anyway.
        p = jax.random.randint(jax.random.fold_in(sample.key, self.terms), (), 0, self.terms)
        keep = lambda q: jnp.where(q == p, float(self.terms), 0.0)  # noqa: E731
        return sum_series(task, x, y, state.curvature, sample, self.terms, self.lr, keep)
