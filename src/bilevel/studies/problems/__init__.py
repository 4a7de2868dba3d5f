"""Ready problems."""

from bilevel.studies.problems.closed_form import (
    Known,
    Ready,
    adapted_ball,
    bounded_ball,
    enclosing_ball,
    noisy_ball,
    opposed_slopes,
    random_quadratics,
    reduced_ball,
    shrinkage,
)
from bilevel.studies.problems.models import (
    AUCModel,
    FourierLogistic,
    LinearModel,
    area_under_curve,
    auc,
    hyperparameters,
    logistic,
    multitask,
)
from bilevel.studies.problems.networks import MLP, Heads, maml, representation, sinusoid_regression

__all__ = [
    "MLP",
    "AUCModel",
    "FourierLogistic",
    "Heads",
    "Known",
    "LinearModel",
    "Ready",
    "adapted_ball",
    "area_under_curve",
    "auc",
    "bounded_ball",
    "enclosing_ball",
    "hyperparameters",
    "logistic",
    "maml",
    "multitask",
    "noisy_ball",
    "opposed_slopes",
    "random_quadratics",
    "reduced_ball",
    "representation",
    "shrinkage",
    "sinusoid_regression",
]
