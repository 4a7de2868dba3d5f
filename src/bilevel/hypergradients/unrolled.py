"""No linear system: derivatives through the lower steps just taken, or no implicit term at all."""

from __future__ import annotations

import math

import jax

from bilevel._core.module import part
from bilevel._core.types import Tree
from bilevel.hypergradients.hypergradient import Hypergradient
from bilevel.problem.group import TaskView, UpperSample


@part
class Unrolled(Hypergradient):
    """s(x) = f(x, y(x)), with y(x) the solver's own last lower steps, optimiser included, replayed as a function of x.

    One lower step sees J and none of A^-1: the more `lower_steps` the solver takes, the smaller the bias. The paper's
    appendix C describes this estimator with one step.

    On batches it is unbiased given the rows of those lower steps, as f has rows of its own. Over the rows of the lower
    steps it is biased: a step's J sees the rows that made y.

    Reference: Franceschi et al., "Bilevel programming for hyperparameter optimization and meta-learning", ICML 2018.
    """

    needs_replay = True

    def surrogate(self, task: TaskView, x: Tree, y: Tree, state: Tree, sample: UpperSample) -> jax.Array:
        """f(x, replay(x))."""
        if task.replay is None:
            raise ValueError("Unrolled needs lower steps to replay, and this solver takes none before it moves x.")
        return task.upper(x, task.replay(x), sample.upper)


@part
class Direct(Hypergradient):
    """s(x) = f(x, y): the gradient f_x alone, as if y* did not move with x.

    It is what the public scripts of the MORBiT paper do. It is biased by J A^-1 f_y, and blind wherever x reaches f
    only through y (a penalty, say); batches add nothing to that, as their mean is f_x. Here for comparison.
    """

    gradient_error = math.inf

    def surrogate(self, task: TaskView, x: Tree, y: Tree, state: Tree, sample: UpperSample) -> jax.Array:
        """f(x, y)."""
        return task.upper(x, y, sample.upper)
