"""Ready problems."""

from bilevel.problems.auc import AUCModel, area_under_curve, auc
from bilevel.problems.closed_form import (
    bounded_ball,
    enclosing_ball,
    noisy_ball,
    opposed_slopes,
    shrinkage,
)
from bilevel.problems.hyperparameters import FourierLogistic, hyperparameters
from bilevel.problems.meta_learning import maml
from bilevel.problems.multitask import LinearModel, logistic, multitask
from bilevel.problems.quadratic import random_quadratics
from bilevel.problems.ready import Known, Ready
from bilevel.problems.representation import MLP, Heads, representation, sinusoid_regression
from bilevel.problems.single_level import adapted_ball, reduced_ball

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
