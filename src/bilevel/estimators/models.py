"""The four estimators, and `load`.

A representation is one network for all tasks, learnt for the worst of them, with a linear head for each task. A kernel
method has fixed features; its bandwidths and penalties are tuned for the worst task by gradients. Fields are
parameters: scikit-learn's `get_params` and `clone` read them from the constructor that `dataclass` makes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bilevel._core import values
from bilevel._core.files import FilePath
from bilevel.estimators import files, networks
from bilevel.estimators.estimator import Robust
from bilevel.estimators.learning import Learner, Learnt, RunSettings
from bilevel.estimators.networks import Shared
from bilevel.estimators.targets import Classifier, Regressor


@dataclass(eq=False, repr=False)
class Representation(Robust):
    """The base of the two representations, whose docstrings describe the parameters."""

    layers: tuple[int, ...] = (64,)
    network: Any = field(default=None, kw_only=True)
    batch_size: int | str | None = field(default="auto", kw_only=True)

    def _check_parameters(self, owner: str) -> None:
        super()._check_parameters(owner)
        sizes = self.layers if isinstance(self.layers, (tuple, list)) else ()
        if not sizes or not all(values.is_whole(size) and size > 0 for size in sizes):
            raise ValueError(f"{owner}(layers={self.layers!r}): it needs one or more sizes, whole numbers.")

    def _sizes(self) -> tuple[int, ...]:
        return tuple(self.layers) if self.network is None else ()

    def _start(self, columns: int, seed: int) -> Shared:
        if self.network is not None:
            return networks.model(type(self).__name__, self.network, columns, seed)
        return networks.dense(columns, tuple(self.layers), seed)


class RobustRepresentationClassifier(Classifier, Representation):
    """Predicts classes by one network that all tasks share, learnt for the worst task, and a linear head for each task.

    With phi_x the network, y_i the head of task i and l the cross-entropy over the classes of the task's own rows,

        min over x of  max over tasks i of  f_i(x, y_i*(x)),      y_i*(x) = argmin over y of g_i(x, y)

        g_i(x, y) = mean of l(phi_x y) over training rows of task i + how far y is from the centre c
        f_i(x, y) = mean of l(phi_x y) over validation rows of task i

    The inputs themselves are among the features of phi_x, so a linear model is a special case. The centre c of the
    heads, and the strengths of the penalty for the distance from it, are learnt with the network. So one model for all
    tasks and one model for each task are special cases too. The more rows a task has, the further its head moves from
    the centre. Intercepts, the scale of c, inputs and other features each have their own strength
    (`bilevel.estimators.objectives` has the formula).

    The run keeps the point with the lowest mean loss on selection rows, which x does not see: the worst of many losses
    on few rows would be noise. Strengths are then multiplied by 0.03 to 1,000 and outputs by 0.15 to 1, whichever is
    best on these rows, for the worst third of the tasks more than for others (`bilevel.estimators.heads` has the
    formula). In the end the centre is fitted to all rows, and every head to all rows of its task. Inputs are
    standardised by the means and standard deviations of training rows.

    Args:
        layers: sizes of dense layers with ReLU after each; the last is the number of features.
        network: in place of dense layers, a model of Flax NNX or Equinox that takes one row, and whose parameters are
            the initial ones; or a function of (columns, seed) that makes such a model.
        weighting: which tasks count: "min-max", the worst; "min-avg", all alike; a number above 0, up to 1, the mean
            over this share of the tasks, the worst ones (CVaR); "regret", the task whose loss is furthest above what it
            reaches with a model of its own; or an object of `bl.weightings`.
        centre: whether heads have a centre. They have none if tasks have few classes in common.
        linear: whether inputs are among the features.
        cross_fit: whether to fit each task twice, with training and validation rows exchanged, so that what is shared
            is fitted to all rows but selection rows.
        shrink: whether differences between the losses of tasks move weights only as far as they exceed noise
            (`bl.weightings.Shrunk`).
        penalty: the initial value of all strengths; None = 3 rows of a usual task for intercept and scale, 10 for the
            rest. Without a centre, the initial penalty of |y|^2, and None = 0.01.
        learning_rate: Adam's, for the network; it falls to zero over the run.
        batch_size: rows of each task in a step; None = all; "auto" = all if there are few in all, and 64 otherwise.
        max_iter: steps.
        patience: stop after this many of the 50 evaluations without a lower mean loss on selection rows; None = never.
        validation_fraction: the share of a task's rows that fit what is shared, without `cross_fit`.
        selection_fraction: the share of rows that judge the run; the rest fits heads.
        smallest: smaller tasks get a head, but have no say in what is shared; nor have tasks with one class.
        random_state: of the split, the network and the batches.
        verbose: show a progress bar.

    Attributes:
        classes_: the classes of all tasks.
        tasks_: the labels of the tasks.
        task_losses_: the cross-entropy of each task on selection rows, by label, for a head that saw its training rows;
            NaN for a task that had no say.
        task_weights_: the final weight of each task, by label.
        worst_task_: the label of the task with the largest loss.
        result_: what `bl.solve` returned, without the rows; `result_.report(path)` writes a page. None if no task has
            enough rows.
        history_: the evaluations of the run.
        heads_: the head of each task, by label.
        shared_: what all tasks share.
        centre_: c, with one row for each feature and one for the intercept; None = there is none.
        penalty_: the final strengths: of each feature, of the intercept and of the scale. They are meant for a task of
            `usual_` rows.
        confidence_: the factor of outputs, up to 1; heads include it.

    A task has probabilities for the classes among its own rows, and 0 for others. A task with fewer than `smallest`
    rows, or with one class, may have any class that the centre has. Without a centre, a task with one class predicts
    the shares of the classes among its rows plus one average row of all tasks.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, clinic = rng.normal(size=(300, 4)), np.repeat(["north", "south", "west"], 100)
    >>> ill = np.where(clinic == "west", -1, 1) * (X[:, 0] + X[:, 1] ** 2) > 0.5
    >>> model = RobustRepresentationClassifier(max_iter=200, random_state=0).fit(X, ill, task=clinic)
    >>> sorted(model.task_losses_), model.predict(X[:2], task=["north", "west"]).shape
    (['north', 'south', 'west'], (2,))
    """


class RobustRepresentationRegressor(Regressor, Representation):
    """Predicts numbers by one network that all tasks share, learnt for the worst task, and a linear head for each task.

    Parameters and attributes are those of `RobustRepresentationClassifier`, with the squared error in place of the
    cross-entropy. Targets are standardised over all tasks: a loss of 1 is the variance of all targets. So the worst
    task is the one with the largest error in the units of y. If tasks have different units, standardise y task by task.
    """


@dataclass(eq=False, repr=False)
class Kernel(Robust):
    """The base of the two kernel methods, whose docstrings describe the parameters."""

    _penalty_per_feature = True
    _plain_penalty = 1e-3

    frequencies: int = 128
    bandwidth: float = field(default=1.0, kw_only=True)

    def _check_parameters(self, owner: str) -> None:
        super()._check_parameters(owner)
        values.whole("frequencies", self.frequencies, of=owner)
        values.positive("bandwidth", self.bandwidth, of=owner)

    def _sizes(self) -> tuple[int, ...]:
        return (self.frequencies,)

    def _start(self, columns: int, seed: int) -> Shared:
        return networks.fourier(columns, self.frequencies, self.bandwidth, seed)


@dataclass(eq=False, repr=False)
class RobustKernelClassifier(Classifier, Kernel):
    """Kernel logistic regression for each task, with hyperparameters that all tasks share, tuned for the worst task.

    With W a random normal matrix (K x d), b a bandwidth for each column and * entry by entry, a row p has the features

        phi_b(p) = [sin(W (b * p)), cos(W (b * p))] / sqrt(K)

    whose inner products approximate the Gaussian kernel exp(-|b * (p - q)|^2 / 2). Every task has a linear model y_i on
    them, and x = (log b, log penalties), one penalty for each feature, is shared:

        g_i(x, y) = mean cross-entropy of y on training rows + sum_j penalty_j |y_j - c_j|^2
        f_i(x, y) = mean cross-entropy of y on validation rows

    The centre c of the heads is shared too, and the inputs are features beside phi: see
    `RobustRepresentationClassifier`.

    Reference: Gu, Lu, Ram, Weng, ICLR 2023, section 4, "Hyperparameter optimization". Bandwidths and penalties as
    logarithms, the centre, inputs as features, and more than two classes, are ours.

    Args:
        frequencies: K; there are 2K features.
        bandwidth: the initial bandwidth of every column, in units of 1 / sqrt(d), for standardised inputs.
        penalty: the initial value of all strengths. Without a centre, None = 0.001.
        learning_rate: Adam's, for the logarithms; it falls to zero over the run.
        random_state: of W, the split and the batches.

    Other parameters and all attributes are those of `RobustRepresentationClassifier`.
    """

    learning_rate: float = field(default=0.02, kw_only=True)
    batch_size: int | str | None = field(default="auto", kw_only=True)
    max_iter: int = field(default=1000, kw_only=True)


@dataclass(eq=False, repr=False)
class RobustKernelRegressor(Regressor, Kernel):
    """Kernel ridge regression for each task, with hyperparameters that all tasks share, tuned for the worst task.

    Features, bandwidths and penalties are those of `RobustKernelClassifier`. The loss is the squared error. Every step
    solves the lower level in closed form, so that gradients in the hyperparameters are exact:

        y_i*(x) = c + (Phi' Phi / n + diag(penalties))^-1 Phi' (t - Phi c) / n

    Other parameters are those of `RobustKernelClassifier`, without `batch_size`, and attributes those of
    `RobustRepresentationRegressor`.

    Args:
        tuning_rows: how many rows of a task train at most, and how many validate, while hyperparameters are tuned. In
            the end heads are fitted to all rows.
    """

    _factors = (1.0,)  # heads had converged while penalties were tuned

    learning_rate: float = field(default=0.05, kw_only=True)
    tuning_rows: int = field(default=512, kw_only=True)
    max_iter: int = field(default=200, kw_only=True)

    def _check_parameters(self, owner: str) -> None:
        super()._check_parameters(owner)
        values.whole("tuning_rows", self.tuning_rows, of=owner)

    def _learn(self, learner: Learner, settings: RunSettings) -> Learnt:
        return learner.closed_form(self.tuning_rows, settings)


def load(path: FilePath, **parameters: Any) -> Any:
    """Reads a fitted estimator of any of these classes from a file that `save` wrote.

    Args:
        path: of the file.
        **parameters: parameters that a file cannot hold, such as `network`, a model like the one that was fitted.

    Raises:
        ValueError: the file is damaged, or its content is contradictory.
    """
    classes: tuple[type[Robust], ...] = (
        RobustKernelClassifier,
        RobustKernelRegressor,
        RobustRepresentationClassifier,
        RobustRepresentationRegressor,
    )
    return files.load(classes, path, parameters)
