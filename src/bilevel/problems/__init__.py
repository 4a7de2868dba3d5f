"""Ready problems."""

from bilevel.problems.closed_form import (
    Known,
    bounded_ball,
    enclosing_ball,
    noisy_ball,
    opposed_slopes,
    shrinkage,
)
from bilevel.problems.quadratic import random_quadratics

__all__ = [
    "Known",
    "bounded_ball",
    "enclosing_ball",
    "noisy_ball",
    "opposed_slopes",
    "random_quadratics",
    "shrinkage",
]
