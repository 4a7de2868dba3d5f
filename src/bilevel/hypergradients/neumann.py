"""The Neumann series: summed, or one random term of it, the estimator of the MORBiT paper's theory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from bilevel._core import values
from bilevel._core.linear import hessian_product, largest_curvature
from bilevel._core.module import leaf, part
from bilevel._core.types import Scalar, Tree
from bilevel.hypergradients.hypergradient import Implicit, rate_from, upper_gradient
from bilevel.problem.group import TaskView, UpperSample


class Series(NamedTuple):
    """v, and the curvature that scales the series."""

    v: Tree
    curvature: jax.Array  # L


@part
class Neumann(Implicit):
    """v = sum over q < terms of (1/L) (I - A_q/L) ... (I - A_1/L) f_y, a fresh batch for every factor.

    Args:
        terms: how many terms; the bias is A^-1 (I - A/L)^terms f_y.
        lr: the scale 1/L; None = chosen per task and kept up to date.

    With r the last factor's product, each term is v += r/L, r -= A r/L. Whatever L, A v + r = f_y stays true, so L may
    follow the curvature that the products themselves show, max(.999 L, |A r|/|r|), at no cost.

    Unbiased on batches up to the end of the series, where lr is given: no two factors share rows, and J has rows of its
    own. An L that follows the products depends on their rows, so that the mean is then not quite that on all the data.

    Reference: Ji, Yang, Liang, "Bilevel optimization: convergence analysis and enhanced design" (StocBiO), ICML 2021.
    """

    terms: int = 10
    lr: float | None = leaf(default=None)

    @property
    def gradient_error(self) -> float:  # type: ignore[override]
        """(1 - mu/L)^terms at the automatic scale; unknown at any other."""
        return 0.5**self.terms if self.lr is None else math.inf

    def check(self) -> None:
        """terms >= 1 and lr > 0."""
        values.whole("terms", self.terms, of="Neumann")
        values.positive("lr", self.lr, of="Neumann", none="chosen and kept up to date")

    def init(self, task: TaskView, x: Tree, y: Tree, sample: UpperSample) -> Series:
        """Measures the curvature once."""
        return start_series(task, x, y, sample)

    def prepare(self, task: TaskView, x: Tree, y: Tree, state: Series, sample: UpperSample) -> Series:
        """Sums the series."""
        return sum_series(task, x, y, state.curvature, sample, self.terms, self.lr, lambda q: 1.0)


def start_series(task: TaskView, x: Tree, y: Tree, sample: UpperSample) -> Series:
    """v = 0 and a measured curvature."""
    curvature = largest_curvature(task.lower, x, y, sample.lower).value
    return Series(optax.tree.zeros_like(y), curvature)


def sum_series(
    task: TaskView,
    x: Tree,
    y: Tree,
    curvature: jax.Array,
    sample: UpperSample,
    terms: int,
    lr: Scalar | None,
    coefficient: Callable[[jax.Array], Scalar],
) -> Series:
    """Sum over q < terms of coefficient(q) r_q / L_q."""
    right = upper_gradient(task, x, y, sample)

    def add(q: Tree, v: Tree, r: Tree, curvature: jax.Array) -> tuple[Tree, Tree]:
        scale = rate_from(curvature) if lr is None else lr
        return scale, jax.tree.map(lambda v, r: v + (coefficient(q) * scale * r).astype(v.dtype), v, r)

    def go_on(q: jax.Array, carry: tuple) -> tuple:
        v, r, curvature = carry
        image = hessian_product(task.lower, x, y, r, task.draw(jax.random.fold_in(sample.key, q)))
        before = optax.tree.norm(r)
        seen = jnp.where(before > 0, optax.tree.norm(image) / jnp.where(before > 0, before, 1), 0)
        curvature = jnp.maximum(0.999 * curvature, seen).astype(curvature.dtype)
        scale, v = add(q, v, r, curvature)
        r = jax.tree.map(lambda r, a: r - (scale * a).astype(r.dtype), r, image)
        return v, r, curvature

    # The last term needs no product after it, but its scale, where that is not given, needs one.
    products = terms if lr is None else terms - 1
    v, r, curvature = jax.lax.fori_loop(0, products, go_on, (optax.tree.zeros_like(right), right, curvature))
    return Series(v if lr is None else add(terms - 1, v, r, curvature)[1], curvature)


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

    def init(self, task: TaskView, x: Tree, y: Tree, sample: UpperSample) -> Series:
        """Measures the curvature once."""
        return start_series(task, x, y, sample)

    def prepare(self, task: TaskView, x: Tree, y: Tree, state: Series, sample: UpperSample) -> Series:
        """Draws p and keeps its term."""
        # All products are made and one is kept: under vmap a loop of random length would run to the longest anyway.
        p = jax.random.randint(jax.random.fold_in(sample.key, self.terms), (), 0, self.terms)
        keep = lambda q: jnp.where(q == p, float(self.terms), 0.0)  # noqa: E731
        return sum_series(task, x, y, state.curvature, sample, self.terms, self.lr, keep)
