"""Kernel methods whose bandwidths and penalties are tuned for the worst task, by gradients."""

from __future__ import annotations

from typing import Any

from bilevel._core import values
from bilevel.estimators import networks
from bilevel.estimators.base import Robust
from bilevel.estimators.classification import Classifier
from bilevel.estimators.learning import Learner, Learnt, Settings
from bilevel.estimators.networks import Start
from bilevel.estimators.regression import Regressor


class Kernel(Robust):
    """What the two have in common; their docstrings say what the parameters are."""

    _penalty_per_feature = True
    _plain_penalty = 1e-3

    frequencies: int
    bandwidth: float

    def _check_parameters(self, owner: str) -> None:
        super()._check_parameters(owner)
        values.whole("frequencies", self.frequencies, of=owner)
        values.positive("bandwidth", self.bandwidth, of=owner)

    def _sizes(self) -> tuple[int, ...]:
        return (self.frequencies,)

    def _start(self, columns: int, seed: int) -> Start:
        return networks.fourier(columns, self.frequencies, self.bandwidth, seed)


class RobustKernelClassifier(Classifier, Kernel):
    """Kernel logistic regression for each task, with hyperparameters that all tasks share, tuned for the worst task.

    With W a random normal matrix (K x d), b a bandwidth for each column and * entry by entry, a row p has the features

        phi_b(p) = [sin(W (b * p)), cos(W (b * p))] / sqrt(K)

    whose inner products approximate the Gaussian kernel exp(-|b * (p - q)|^2 / 2). Every task has a linear model y_i on
    them, and x = (log b, log penalties), one penalty for each feature, is shared:

        g_i(x, y) = mean cross-entropy of y on training rows + sum_j penalty_j |y_j - c_j|^2
        f_i(x, y) = mean cross-entropy of y on validation rows

    c, the centre of the heads, is shared too, and the inputs are features beside phi: see
    `RobustRepresentationClassifier`.

    Reference: Gu, Lu, Ram, Weng, ICLR 2023, section 4, "Hyperparameter optimization". Bandwidths and penalties as
    logarithms, the centre, inputs as features, and more than two classes, are ours.

    Args:
        frequencies: K; there are 2K features.
        bandwidth: of every column as it starts, in units of 1 / sqrt(d), inputs being standardised.
        weighting: as for `RobustRepresentationClassifier`, as is all that follows.
        centre: whether heads have a centre.
        linear: whether inputs are among the features.
        cross_fit: whether training and validation rows change places, in two heads a task, so that what is shared is
            fitted to all rows but those for selection.
        shrink: whether weights move only as far as differences between losses are more than noise.
        penalty: all strengths, as they start; None = 3 rows of a usual task for intercept and scale, 10 for the rest.
            Without a centre the penalty of |y|^2, and None = 0.001.
        learning_rate: Adam's, for the logarithms; it falls to zero over the run.
        batch_size: rows of each task in a step; None = all; "auto" = all where they are few in all, and 64 otherwise.
        max_iter: steps.
        patience: evaluations without a lower mean selection loss after which the run stops.
        validation_fraction: the share of a task's rows that hyperparameters are tuned on, without `cross_fit`.
        selection_fraction: the share of rows by which the run is judged.
        smallest: tasks with fewer rows have no say in what is shared.
        random_state: of W, the split and the batches.
        verbose: show a progress bar.

    Attributes are those of `RobustRepresentationClassifier`.
    """

    def __init__(
        self,
        frequencies: int = 128,
        *,
        bandwidth: float = 1.0,
        weighting: Any = "min-max",
        centre: bool = True,
        linear: bool = True,
        cross_fit: bool = True,
        shrink: bool = True,
        penalty: float | None = None,
        learning_rate: float = 0.02,
        batch_size: int | str | None = "auto",
        max_iter: int = 1000,
        patience: int | None = 20,
        validation_fraction: float = 0.2,
        selection_fraction: float = 0.2,
        smallest: int = 20,
        random_state: Any = None,
        verbose: bool = False,
    ):
        self.frequencies = frequencies
        self.bandwidth = bandwidth
        self.weighting = weighting
        self.centre = centre
        self.linear = linear
        self.cross_fit = cross_fit
        self.shrink = shrink
        self.penalty = penalty
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.selection_fraction = selection_fraction
        self.smallest = smallest
        self.random_state = random_state
        self.verbose = verbose

    def _check_parameters(self, owner: str) -> None:
        super()._check_parameters(owner)
        if self.batch_size != "auto":
            values.whole("batch_size", self.batch_size, of=owner, none='all rows; or "auto"')


class RobustKernelRegressor(Regressor, Kernel):
    """Kernel ridge regression for each task, with hyperparameters that all tasks share, tuned for the worst task.

    Features, bandwidths and penalties are those of `RobustKernelClassifier`; the loss is the squared error, and the
    lower level is solved in closed form in every step, so that gradients of what is tuned are exact:

        y_i*(x) = c + (Phi' Phi / n + diag(penalties))^-1 Phi' (t - Phi c) / n

    Args:
        frequencies: K; there are 2K features.
        bandwidth: of every column as it starts, in units of 1 / sqrt(d), inputs being standardised.
        weighting: as for `RobustRepresentationClassifier`, as is all that follows.
        centre: whether heads have a centre.
        linear: whether inputs are among the features.
        cross_fit: whether training and validation rows change places, in two heads a task, so that what is shared is
            fitted to all rows but those for selection.
        shrink: whether weights move only as far as differences between losses are more than noise.
        penalty: all strengths, as they start; None = 3 rows of a usual task for intercept and scale, 10 for the rest.
            Without a centre the penalty of |y|^2, and None = 0.001.
        learning_rate: Adam's, for the logarithms; it falls to zero over the run.
        tuning_rows: at most so many rows of a task train, and as many validate, while hyperparameters are tuned; heads
            are fitted to all rows in the end.
        max_iter: steps.
        patience: evaluations without a lower mean selection loss after which the run stops.
        validation_fraction: the share of a task's rows that hyperparameters are tuned on, without `cross_fit`.
        selection_fraction: the share of rows by which the run is judged.
        smallest: tasks with fewer rows have no say in what is shared.
        random_state: of W and the split.
        verbose: show a progress bar.

    Attributes are those of `RobustRepresentationRegressor`.
    """

    _factors = (1.0,)  # heads were at their ends while penalties were tuned

    def __init__(
        self,
        frequencies: int = 128,
        *,
        bandwidth: float = 1.0,
        weighting: Any = "min-max",
        centre: bool = True,
        linear: bool = True,
        cross_fit: bool = True,
        shrink: bool = True,
        penalty: float | None = None,
        learning_rate: float = 0.05,
        tuning_rows: int = 512,
        max_iter: int = 200,
        patience: int | None = 20,
        validation_fraction: float = 0.2,
        selection_fraction: float = 0.2,
        smallest: int = 20,
        random_state: Any = None,
        verbose: bool = False,
    ):
        self.frequencies = frequencies
        self.bandwidth = bandwidth
        self.weighting = weighting
        self.centre = centre
        self.linear = linear
        self.cross_fit = cross_fit
        self.shrink = shrink
        self.penalty = penalty
        self.learning_rate = learning_rate
        self.tuning_rows = tuning_rows
        self.max_iter = max_iter
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.selection_fraction = selection_fraction
        self.smallest = smallest
        self.random_state = random_state
        self.verbose = verbose

    def _check_parameters(self, owner: str) -> None:
        super()._check_parameters(owner)
        values.whole("tuning_rows", self.tuning_rows, of=owner)

    def _learn(self, learner: Learner, settings: Settings) -> Learnt:
        return learner.closed_form(self.tuning_rows, settings)
