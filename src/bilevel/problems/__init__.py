"""Ready problems."""

from bilevel.problems.closed_form import (
    Known,
    bounded_ball,
    enclosing_ball,
    noisy_ball,
    opposed_slopes,
    shrinkage,
)
from bilevel.problems.hyperparameters import FourierLogistic, Ready, hyperparameters
from bilevel.problems.quadratic import random_quadratics

__all__ = [
    "FourierLogistic",
    "Known",
    "Ready",
    "bounded_ball",
    "enclosing_ball",
    "hyperparameters",
    "noisy_ball",
    "opposed_slopes",
    "random_quadratics",
    "shrinkage",
]
