"""No implicit term at all."""

from __future__ import annotations

import math
from typing import Any

import jax

from bilevel._core.module import part
from bilevel.hypergradients.base import Hypergradient
from bilevel.problem.group import TaskView, UpperSample


@part
class Direct(Hypergradient):
    """s(x) = f(x, y): the gradient f_x alone, as if y* did not move with x.

    It is what the public scripts of the MORBiT paper do. It is biased by J A^-1 f_y, and blind wherever x reaches f
    only through y (a penalty, say); batches add nothing to that, as their mean is f_x. Here for comparison.
    """

    gradient_error = math.inf

    def surrogate(self, task: TaskView, x: Any, y: Any, state: Any, sample: UpperSample) -> jax.Array:
        """f(x, y)."""
        return task.upper(x, y, sample.upper)
