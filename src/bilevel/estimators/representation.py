"""One network for all tasks, learnt for the worst of them, and a linear head for each."""

from __future__ import annotations

from typing import Any

from bilevel._core import values
from bilevel.estimators import networks
from bilevel.estimators.base import Robust
from bilevel.estimators.classification import Classifier
from bilevel.estimators.networks import Start
from bilevel.estimators.regression import Regressor


class Representation(Robust):
    """What the two have in common; their docstrings say what the parameters are."""

    def __init__(
        self,
        layers: tuple[int, ...] = (64,),
        *,
        network: Any = None,
        weighting: Any = "min-max",
        centre: bool = True,
        linear: bool = True,
        cross_fit: bool = True,
        shrink: bool = True,
        penalty: float | None = None,
        learning_rate: float = 2e-3,
        batch_size: int | str | None = "auto",
        max_iter: int = 500,
        patience: int | None = 20,
        validation_fraction: float = 0.2,
        selection_fraction: float = 0.2,
        smallest: int = 20,
        random_state: Any = None,
        verbose: bool = False,
    ):
        self.layers = layers
        self.network = network
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
        sizes = self.layers if isinstance(self.layers, (tuple, list)) else ()
        if not sizes or not all(values.is_whole(size) and size > 0 for size in sizes):
            raise ValueError(f"{owner}(layers={self.layers!r}): it needs one or more sizes, whole numbers.")
        if self.batch_size != "auto":
            values.whole("batch_size", self.batch_size, of=owner, none='all rows; or "auto"')

    def _sizes(self) -> tuple[int, ...]:
        return tuple(self.layers) if self.network is None else ()

    def _start(self, columns: int, seed: int) -> Start:
        if self.network is not None:
            return networks.model(type(self).__name__, self.network, columns, seed)
        return networks.dense(columns, tuple(self.layers), seed)


class RobustRepresentationClassifier(Classifier, Representation):
    """Classes from one network that all tasks share and a linear head for each task, learnt for the worst task.

    With phi_x the network, y_i the head of task i and l the cross-entropy over the classes of the task's own rows,

        min over x of  max over tasks i of  f_i(x, y_i*(x)),      y_i*(x) = argmin over y of g_i(x, y)

        g_i(x, y) = mean of l(phi_x y) over training rows of task i + how far y is from the centre c
        f_i(x, y) = mean of l(phi_x y) over validation rows of task i

    phi_x has the inputs themselves among its features, so that a linear model is a special case. The centre c of the
    heads and the strengths of the way from it are learnt with the network: one model for all tasks and one model a task
    are special cases too, and a task departs from the centre the more, the more rows it has. Intercepts, the scale of
    c, inputs and other features each have a strength of their own (`bilevel.estimators.objectives` has the formula).

    Among the points that a run passes, the one is taken at which the mean loss on selection rows, which x does not see,
    is lowest: the worst of losses on few rows each would be noise. Strengths are then taken times 0.03 to 1,000, and
    outputs times 0.15 to 1, whichever is best on these rows, for the worst third of the tasks more than for others
    (`bilevel.estimators.judging` has the formula). In the end the centre is fitted to all rows, and every head to all
    rows of its task. Inputs are standardised by what training rows show.

    Args:
        layers: sizes of dense layers with ReLU after each; the last is the number of features.
        network: in place of dense layers, a model of Flax NNX or Equinox that takes one row, and the numbers in it are
            where learning starts; or a function of (columns, seed) that makes one.
        weighting: which tasks count: "min-max", the worst; "min-avg", all alike; a number above 0, up to 1, the mean
            over this share of the tasks, the worst ones (CVaR); "regret", the task whose loss is furthest above what it
            reaches with a model of its own; or an object of `bl.weightings`.
        centre: whether heads have a centre. Tasks whose classes are those of few others have none in any case.
        linear: whether inputs are among the features.
        cross_fit: whether training and validation rows change places, in two heads a task, so that what is shared is
            fitted to all rows but those for selection.
        shrink: whether differences between the losses of tasks move weights only as far as they are more than noise
            (`bl.weightings.Shrunk`).
        penalty: all strengths, as they start; None = 3 rows of a usual task for intercept and scale, 10 for the rest.
            Without a centre the penalty of |y|^2, and None = 0.01.
        learning_rate: Adam's, for the network; it falls to zero over the run.
        batch_size: rows of each task in a step; None = all; "auto" = all where they are few in all, and 64 otherwise.
        max_iter: steps.
        patience: stop after this many evaluations, of which there are 50, without a lower mean loss on selection rows;
            None = never.
        validation_fraction: the share of a task's rows that what is shared is fitted to, without `cross_fit`.
        selection_fraction: the share of rows by which the run is judged; the rest trains heads.
        smallest: tasks with fewer rows have a head and no say in what is shared, as have tasks with one class.
        random_state: of the split, the network and the batches.
        verbose: show a progress bar.

    Attributes:
        classes_: of all tasks.
        tasks_: the labels of the tasks.
        task_losses_: the cross-entropy of each task on selection rows, of a head that saw its training rows, by label;
            NaN for a task that had no say.
        task_weights_: how much each task counts in the end, by label.
        worst_task_: the label of the task with the largest loss.
        result_: what `bl.solve` returned, without the rows; `result_.report(path)` writes a page. None where no task
            has rows enough.
        history_: the run as it was evaluated.
        heads_: what each task has of its own.
        shared_: what all tasks share.
        centre_: c, one row a feature and the intercept; None = there is none.
        penalty_: strengths in the end, of each feature, of the intercept and of the scale; `usual_` the rows of a task
            for which they are meant.
        confidence_: what outputs are taken times, up to 1; heads have it in them.

    A task has probabilities for the classes among its own rows, and 0 for others. A task of fewer than `smallest` rows,
    or of one class, may have any class, as the centre has. Without a centre, a task of one class predicts the shares of
    the classes among its rows and one row more of all tasks'.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, clinic = rng.normal(size=(300, 4)), np.repeat(["north", "south", "west"], 100)
    >>> ill = np.where(clinic == "west", -1, 1) * (X[:, 0] + X[:, 1] ** 2) > 0.5
    >>> model = RobustRepresentationClassifier(max_iter=200, random_state=0).fit(X, ill, task=clinic)
    >>> sorted(model.task_losses_), model.predict(X[:2], task=["north", "west"]).shape
    (['north', 'south', 'west'], (2,))
    """


class RobustRepresentationRegressor(Regressor, Representation):
    """Numbers from one network that all tasks share and a linear head for each task, learnt for the worst task.

    As `RobustRepresentationClassifier`, which says what the parameters and attributes are, with the squared error for
    the cross-entropy. Targets are standardised over all tasks: a loss of 1 is the variance of all targets. So the worst
    task is that of the largest error in the units of y; standardise y task by task where tasks have different units.
    """
