"""`bilevel fit`: reads a file, infers its columns, holds rows out, fits the models and judges them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bilevel import estimators, split
from bilevel._core.values import suggestion
from bilevel.estimators.tables import baseline_models, columns, judging, reading
from bilevel.estimators.tables.columns import CLASSIFICATION, Encoder, Outcomes, TableColumns, others_than_numbers
from bilevel.estimators.tables.judging import AVERAGE, ONE_EACH, POOLED, ROBUST, TaskScores, Verdict
from bilevel.estimators.tables.reading import Coded, InputError, Table, rows_of
from bilevel.estimators.tables.settings import Settings

OWN = ("weighting", "max_iter", "random_state", "verbose", "network")  # set by options, or impossible in a file
SHOWN = 6  # names or classes in a line
WORDS = {"number": "numbers", "category": "categories", "date": "dates"}
OTHERWISE = "If this is wrong: --kind, --number, --category, --date, --exclude."

Say = Callable[[str], None]


class Fitted(NamedTuple):
    """The results of `bilevel fit`."""

    settings: Settings
    kind: str
    encoder: Encoder
    left_out: Mapping[str, str]
    lines: list[TaskScores]
    verdict: Verdict
    model: Any  # the estimator that is kept
    results: Mapping[str, Any]  # of the two runs, by name; none where no task could be validated
    rows: int
    seconds: float


def fit(settings: Settings, say: Say, halted: Callable[[], bool] = lambda: False) -> Fitted:
    """Fits the models and judges them. `halted` says that Ctrl-C has ended a run of the solver early."""
    began = time.monotonic()
    found, inputs = inferred(settings, say)
    model = _estimator(settings, found.kind)
    held = held_out(found, settings.test, settings.smallest, settings.seed)
    train, test = np.flatnonzero(~held), np.flatnonzero(held)
    encoder = Encoder.fitted(inputs.columns, inputs.values, train)
    say(f"Held out from everything: {len(test):,} of {len(held):,} rows; {encoder.width} inputs.")
    matrices = encoder.matrix(inputs.values, train), encoder.matrix(inputs.values, test)
    outputs, fitted = _ours(model, found, train, test, matrices, say, halted)
    codes, names = found.tasks
    target = baseline_models.StandardTarget(found.kind, found.target, train)
    known, asked = target.rows(matrices[0], train, codes[train]), target.rows(matrices[1], test, codes[test])
    say("Fitting the baseline models: one pooled model, with the task as a column, and one model a task.")
    outputs = {name: target.standard(own) for name, own in outputs.items()}
    outputs[ONE_EACH] = baseline_models.one_each(known, asked, len(names), settings.seed)
    outputs[POOLED] = baseline_models.pooled(known, asked, len(names), settings.seed)
    judged = judging.Outputs(asked.target, asked.task, {name: outputs[name] for name in judging.MODELS})
    weights = {str(label): weight for label, weight in fitted[ROBUST].task_weights_.items()}
    lines = judged.lines(names, np.bincount(codes, minlength=len(names)), weights)
    answer = judging.verdict(judged.losses(), judged.task, names, settings.seed)
    results = {name: one.result_ for name, one in fitted.items() if one.result_ is not None}
    kept = fitted[AVERAGE if settings.weighting == "min-avg" else ROBUST]
    if settings.refit:
        say("Fitting the heads to all rows.")
        kept.adapt(encoder.matrix(inputs.values, np.arange(len(held))), found.target, found.tasks.texts())
    took = time.monotonic() - began
    return Fitted(settings, found.kind, encoder, inputs.left_out, lines, answer, kept, results, len(held), took)


def inferred(settings: Settings, say: Say) -> tuple[Outcomes, TableColumns]:
    """Reads the file, infers its columns, and tells the user. Returns the rows that have a target and a task."""
    table = reading.read(Path(settings.data), settings.separator, settings.encoding)
    for option in ("exclude", "number", "category", "date"):
        for name in getattr(settings, option):
            table.column(name, f"--{option}")
    own = columns.read_outcomes(table, settings.target, settings.task, settings.kind)
    reasons = {settings.target: "the target", settings.task: "the task"}
    reasons = dict.fromkeys(settings.exclude, "as you say") | reasons
    found = columns.infer_columns(table, reasons, settings.kinds)
    for line in described(table, settings, own, found):
        say(line)
    if len(own.rows) < table.rows:
        found = found._replace(values={name: rows_of(values, own.rows) for name, values in found.values.items()})
    return own, found


def held_out(outcomes: Outcomes, share: float, smallest: int, seed: int) -> np.ndarray:
    """A mask of the rows to hold out before anything is fitted, stratified by task and class.

    Rows are held out from tasks with `smallest` rows or more. At least one row of each class of a task is left to fit
    to, so that no model is asked for a class that it could not see.
    """
    counts = np.bincount(outcomes.tasks.codes)
    if counts.max() < smallest:
        raise InputError(
            f"the largest of {len(counts):,} tasks has {counts.max():,} rows: with fewer than {smallest} a task is not "
            "scored, so that there is nothing to judge by; --smallest lowers that, or --task is another column."
        )
    classes = np.unique(outcomes.target, return_inverse=True)[1] if outcomes.kind == CLASSIFICATION else None
    parts = split(
        np.arange(len(outcomes.rows)),
        task=outcomes.tasks.texts(),
        stratify=classes,
        validation=share,
        selection=0,
        test=0,
        smallest=smallest,
        seed=seed,
    )
    held = np.zeros(len(outcomes.rows), bool)
    held[np.concatenate([np.asarray(part.validation) for part in parts])] = True
    if classes is not None:
        pair = outcomes.tasks.codes.astype(np.int64) * (classes.max() + 1) + classes
        held &= np.isin(pair, pair[~held])
    return held


def _estimator(settings: Settings, kind: str) -> Any:
    name = f"Robust{settings.model.title()}{'Classifier' if kind == CLASSIFICATION else 'Regressor'}"
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
    """The predictions of min-avg and robust for the test rows, and the two models, which share a compiled program."""
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


# ------------------------------------------------------------------ what was inferred, in words


def described(table: Table, settings: Settings, own: Outcomes, found: TableColumns) -> list[str]:
    """Lines for the user about the table, and what was inferred from it."""
    known = {None: "", ",": "", "\t": ", separated by tabs"}
    separated = known.get(table.separator, f", separated by {table.separator!r}")
    sizes = np.bincount(own.tasks.codes)
    count = int(np.sum(sizes < settings.smallest))
    small = f"; {count:,} with fewer than {settings.smallest} rows are fitted and not scored" if count else ""
    lines = [
        f"{table.path}: {table.rows:,} rows, {len(table.columns)} columns{separated}",
        f"  target      {settings.target}: {_described_target(own)}",
        f"  task        {settings.task}: {len(sizes):,} tasks of {sizes.min():,} to {sizes.max():,} rows{small}",
    ]
    for kind, word in WORDS.items():
        named = [column for column in found.columns if column.kind == kind]
        if named:
            gaps = sum(column.missing > 0 for column in named)
            missing = f"; values are missing in {gaps} of them" if gaps else ""
            shown = [f"{c.name} ({c.labels})" if kind == "category" else c.name for c in named]
            lines.append(f"  {word:<11} {len(named)}: {_some(shown)}{missing}")
    outcomes = (settings.target, settings.task)
    reasons = [f"{name} ({why})" for name, why in found.left_out.items() if name not in outcomes]
    if reasons:
        lines.append(f"  left out    {len(reasons)}: {_some(reasons)}")
    notes = [*own.notes, *nearly_numbers(found, settings.kinds), *nearly_alike(own)]
    return [*lines, *(f"  note        {note}" for note in notes), f"  {OTHERWISE}"]


def nearly_numbers(found: TableColumns, given: Mapping[str, str]) -> Iterator[str]:
    """Notes on categories that would be numbers but for a few values."""
    for column in found.columns:
        texts = found.values[column.name]
        if not isinstance(texts, Coded) or column.name in given:
            continue
        others = others_than_numbers(texts)
        if others:
            where = int(np.flatnonzero(texts.codes == [str(label) for label in texts.labels].index(others[0]))[0]) + 1
            yield (
                f"{column.name}: of its {column.labels:,} different values all are numbers but "
                f"{_some([repr(other) for other in others])} (first in row {where:,}): taken as a category"
            )


def nearly_alike(own: Outcomes) -> Iterator[str]:
    """Notes on classes that differ only in case or in surrounding spaces."""
    if own.kind != CLASSIFICATION:
        return
    alike: dict[str, list[str]] = {}
    for label in np.unique(own.target).tolist():
        alike.setdefault(str(label).strip().casefold(), []).append(str(label))
    for labels in alike.values():
        if len(labels) > 1:
            named = _some([repr(label) for label in labels])
            yield f"the classes {named} differ in case or spaces only, and are kept apart"


def _described_target(own: Outcomes) -> str:
    if own.kind != CLASSIFICATION:
        low, middle, high = np.quantile(own.target, [0, 0.5, 1])
        return f"a number, {low:.4g} to {high:.4g}, median {middle:.4g} (regression)"
    labels, counts = np.unique(own.target, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    shares = [f"{labels[k]} {counts[k] / counts.sum():.0%}" for k in order]
    return f"{len(labels)} classes, {_some(shares)} (classification)"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f", and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
