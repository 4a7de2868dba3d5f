"""Solvers for which v_i ~ A^-1 f_y is a variable like x and y: they step on the linear systems themselves."""

from __future__ import annotations

import jax
import optax

from bilevel._core import values
from bilevel._core.module import leaf, part
from bilevel._core.schedules import Rate
from bilevel._core.types import Scalar, Tree
from bilevel.hypergradients import Tracked
from bilevel.hypergradients.hypergradient import LinearSolution, residual, step_towards
from bilevel.hypergradients.upper import Point, Upper
from bilevel.lower.rules import Rule
from bilevel.problem.group import TaskView, UpperSample
from bilevel.problem.per_task import PerTask, for_tasks
from bilevel.problem.problem import Problem
from bilevel.rates import Measured
from bilevel.rates.protocol import Needs, Rates
from bilevel.solvers._base.bilevel import BilevelSolver
from bilevel.solvers._base.tracking import KeptPoint
from bilevel.solvers.sampling import All, Sampling
from bilevel.weightings import Average
from bilevel.weightings.base import Weighting


@part
class LinearSystemSolver(BilevelSolver):
    """Options of solvers that move v themselves.

    Args:
        upper_lr: the rate of x (alpha): a number, a schedule, or None = chosen and kept up to date.
        lower_lr: the rate of y (beta), likewise; None gives every task its own.
        v_lr: the rate of v; None = that of y, as published.
        weighting: how the tasks' losses move their weights, from `bl.weightings`; its `lr` is gamma.
        upper_rule: from a rate to an optax transformation, for x; None = what the rates are made for.
        lower_rule: likewise for y, per task.
        rates: where rates come from that are None, from `bl.rates`.
        sampling: which tasks a step sees, from `bl.sampling`.
    """

    upper_lr: Rate = leaf(default=None)  # alpha
    lower_lr: Rate = leaf(default=None)  # beta
    v_lr: float | None = leaf(default=None)  # rho
    weighting: Weighting = Average()
    upper_rule: Rule | None = None
    lower_rule: Rule = optax.sgd
    rates: Rates = Measured()
    sampling: Sampling = All()

    @property
    def estimator(self) -> Tracked:
        """f_x - J v; only its surrogate and where v starts matter, as the solver moves v."""
        return Tracked(self.v_lr)

    @property
    def needs(self) -> Needs:
        """Curvature only for y: v moves at y's rate."""
        return super().needs._replace(curvature=self.lower_lr is None)

    def check(self, problem: Problem) -> None:
        """As every solver, and a rate of v."""
        # First: the estimator knows it as its lr, and would name that.
        values.positive("v_lr", self.v_lr, of=type(self).__name__, none="that of y")
        super().check(problem)

    def oracle(self, problem: Problem) -> Upper:
        """The upper level."""
        return Upper(problem, self.estimator)

    def move_v(
        self, v: PerTask[LinearSolution], residual: PerTask[Tree], rate: PerTask[jax.Array], keep: Scalar = 1.0
    ) -> PerTask[LinearSolution]:
        """v <- keep v + rho (f_y - A v) of every task."""

        def one(solution: LinearSolution, residual: Tree, rho: jax.Array) -> LinearSolution:
            return LinearSolution(step_towards(solution.v, residual, rho if self.v_lr is None else self.v_lr, keep))

        return for_tasks(one, v, residual, rate)


def rows_of_g(samples: PerTask[UpperSample]) -> PerTask[Tree]:
    """The rows of g in the samples of the upper level."""
    return PerTask(tuple(sample.lower for sample in samples))


def residuals(problem: Problem, point: Point | KeptPoint, samples: PerTask[UpperSample]) -> PerTask[Tree]:
    """f_y - A v of every task at a point."""

    def one(task: TaskView, y: Tree, solution: LinearSolution, sample: UpperSample) -> Tree:
        return residual(task, point.x, y, solution.v, sample)

    return problem.each(one, point.y, point.v, samples)
