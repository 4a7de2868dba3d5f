"""From a file to a robust model: reads, infers, holds rows out, fits, judges against what people do today."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bilevel import estimators
from bilevel._core.words import suggestion
from bilevel.tables import columns, described, dividing, judging, outcomes, reading, rivals, verdict
from bilevel.tables.arrow_values import Values, rows_of
from bilevel.tables.columns import Column
from bilevel.tables.encoding import Encoder
from bilevel.tables.errors import InputError
from bilevel.tables.judging import AVERAGE, ONE_EACH, POOLED, ROBUST, Line
from bilevel.tables.outcomes import CLASSIFICATION, REGRESSION, Outcomes
from bilevel.tables.settings import Settings
from bilevel.tables.verdict import Verdict

ESTIMATORS = {
    ("representation", CLASSIFICATION): "RobustRepresentationClassifier",
    ("representation", REGRESSION): "RobustRepresentationRegressor",
    ("kernel", CLASSIFICATION): "RobustKernelClassifier",
    ("kernel", REGRESSION): "RobustKernelRegressor",
}
OWN = ("weighting", "max_iter", "random_state", "verbose", "network")  # which options say, or no file can hold

Say = Callable[[str], None]


class Data(NamedTuple):
    """The rows that have a target and a task, and what their columns are."""

    outcomes: Outcomes
    columns: list[Column]
    values: Mapping[str, Values]
    left_out: Mapping[str, str]


class Fitted(NamedTuple):
    """All that `bilevel fit` has found."""

    settings: Settings
    kind: str
    encoder: Encoder
    left_out: Mapping[str, str]
    lines: list[Line]
    verdict: Verdict
    model: Any  # the estimator that is kept
    results: Mapping[str, Any]  # of the two runs, by name; none where no task could be validated
    rows: int
    seconds: float


def fit(settings: Settings, say: Say, halted: Callable[[], bool] = lambda: False) -> Fitted:
    """Fits and judges.

    Args:
        settings: what is asked for.
        say: is told what was inferred, and what is done.
        halted: whether Ctrl-C was pressed, which a run of the solver answers by ending early.
    """
    began = time.monotonic()
    data = inferred(settings, say)
    found = data.outcomes
    model = _estimator(settings, found.kind)
    held = dividing.held_out(found, settings.test, settings.smallest, settings.seed)
    train, test = np.flatnonzero(~held), np.flatnonzero(held)
    encoder = Encoder.fitted(data.columns, data.values, train)
    say(f"Held out from everything: {len(test):,} of {len(held):,} rows; {encoder.width} inputs.")
    matrices = encoder.matrix(data.values, train), encoder.matrix(data.values, test)
    outputs, fitted = _ours(model, found, train, test, matrices, say, halted)
    codes, names = found.tasks
    target = _Target(found, train)
    rows = [
        rivals.Rows(X, target.numbers[own], codes[own], target.classes)
        for X, own in zip(matrices, (train, test), strict=True)
    ]
    outputs = {name: target.standard(own) for name, own in outputs.items()} | _rivals(rows, len(names), settings, say)
    judged = judging.Outputs(rows[1].target, rows[1].task, {name: outputs[name] for name in judging.MODELS})
    weights = {str(label): weight for label, weight in fitted[ROBUST].task_weights_.items()}
    lines = judged.lines(names, np.bincount(codes, minlength=len(names)), weights)
    answer = verdict.verdict(judged.losses(), judged.task, names, settings.seed)
    results = {name: one.result_ for name, one in fitted.items() if one.result_ is not None}
    kept = fitted[AVERAGE if settings.weighting == "min-avg" else ROBUST]
    if settings.refit:
        say("Fitting the heads to all rows.")
        kept.adapt(encoder.matrix(data.values, np.arange(len(held))), found.target, found.tasks.texts())
    took = time.monotonic() - began
    return Fitted(settings, found.kind, encoder, data.left_out, lines, answer, kept, results, len(held), took)


def inferred(settings: Settings, say: Say) -> Data:
    """What the columns of the file are."""
    table = reading.read(Path(settings.data), settings.separator, settings.encoding)
    for option in ("exclude", "number", "category", "date"):
        for name in getattr(settings, option):
            table.column(name, f"--{option}")
    own = outcomes.outcomes(table, settings.target, settings.task, settings.kind)
    reasons = {settings.target: "the target", settings.task: "the task"}
    reasons = dict.fromkeys(settings.exclude, "as you say") | reasons
    found = columns.found(table, reasons, settings.kinds)
    for line in described.table(table, settings, own, found):
        say(line)
    if len(own.rows) == table.rows:
        values: Mapping[str, Values] = found.values
    else:
        values = {name: rows_of(values, own.rows) for name, values in found.values.items()}
    return Data(own, found.columns, values, found.left_out)


def _estimator(settings: Settings, kind: str) -> Any:
    name = ESTIMATORS[settings.model, kind]
    model = getattr(estimators, name)(random_state=settings.seed, verbose=not settings.quiet)
    known = sorted(set(model.get_params()) - set(OWN))
    for parameter in settings.parameters:
        if parameter not in known:
            near = suggestion(parameter, known) or f"It has {', '.join(known)}."
            raise InputError(f"[parameters] {parameter}: {name} has no such parameter that can be given here. {near}")
    more = {} if settings.steps is None else {"max_iter": settings.steps}
    robust = "min-max" if settings.weighting == "min-avg" else settings.weighting
    return model.set_params(weighting=robust, **settings.parameters, **more)


def _ours(
    model: Any,
    found: Outcomes,
    train: np.ndarray,
    test: np.ndarray,
    matrices: tuple[np.ndarray, np.ndarray],
    say: Say,
    halted: Callable[[], bool],
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """What min-avg and robust say of the test rows, and the two models; they are one compiled program."""
    from sklearn.base import clone

    texts = found.tasks.texts()
    outputs, fitted = {}, {}
    for name, weighting in ((AVERAGE, "min-avg"), (ROBUST, model.weighting)):
        say(f"Fitting {name}: {type(model).__name__}(weighting={weighting!r}).")
        one: Any = clone(model)
        one.set_params(weighting=weighting)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            one.fit(matrices[0], found.target[train], task=texts[train])
        for message in {str(warning.message) for warning in warned}:
            say(f"warning: {message}")
        if halted() or (one.result_ is not None and one.result_.status == "interrupted"):
            raise KeyboardInterrupt
        use = one.predict_proba if found.kind == CLASSIFICATION else one.predict
        outputs[name] = use(matrices[1], task=texts[test])
        if not np.all(np.isfinite(outputs[name])):
            raise ValueError(f"{name} predicts numbers that are not finite: --steps or [parameters] may be the reason.")
        fitted[name] = one
    return outputs, fitted


class _Target:
    """Targets as numbers: of classes, or standardised by what training rows show."""

    def __init__(self, found: Outcomes, train: np.ndarray):
        self.classes, self.centre, self.scale = 0, 0.0, 1.0
        if found.kind == CLASSIFICATION:
            labels, self.numbers = np.unique(found.target, return_inverse=True)
            self.classes = len(labels)
            return
        own = found.target[train]
        self.centre, self.scale = float(own.mean()), float(own.std()) or 1.0
        self.numbers = self.standard(found.target)

    def standard(self, outputs: np.ndarray) -> np.ndarray:
        """Values in units of the spread; probabilities as they are."""
        return (outputs - self.centre) / self.scale if outputs.ndim == 1 else outputs


def _rivals(rows: list[rivals.Rows], tasks: int, settings: Settings, say: Say) -> dict[str, np.ndarray]:
    train, test = rows
    say("Fitting what they are compared with: one pooled model, with the task as a column, and one model a task.")
    shape = (len(test.target), train.classes) if train.classes else (len(test.target),)
    own = np.empty(shape)
    for places, outputs in rivals.one_each(train, test, tasks, settings.seed):
        own[places] = outputs
    return {POOLED: rivals.pooled(train, test, tasks, settings.seed), ONE_EACH: own}
