"""A saved model on new rows: `bilevel predict`, and `bilevel adapt`, which fits heads for new tasks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bilevel._core.values import suggestion
from bilevel.estimators.tables import baseline_models, columns, folder, judging, reading
from bilevel.estimators.tables.columns import CLASSIFICATION, Encoder
from bilevel.estimators.tables.folder import MODEL, FitFolder
from bilevel.estimators.tables.reading import Coded, InputError, Table, Values, is_missing

FEWEST = 20  # a new task with this many rows is judged before its head is fitted to all of them
JUDGED = 4  # one of this many rows is held out for that


class Predicted(NamedTuple):
    """Predictions, with one entry for each row of the file."""

    tasks: np.ndarray
    predictions: np.ndarray
    classes: list[str]  # none for regression
    probabilities: np.ndarray | None  # (rows, classes)
    notes: list[str]
    scores: dict[str, Any] | None  # if the file has the target


def predict(path: Path, file: Path, separator: str | None = None, encoding: str = "utf-8") -> Predicted:
    """Predicts the rows of a file."""
    kept = folder.read(path)
    model = folder.model_of(kept)
    table = reading.read(file, separator, encoding)
    tasks = columns.tasks_of(table, kept.task)
    _check_tasks(kept, model, file, tasks)
    values = values_of(table, kept.encoder)
    X, texts = kept.encoder.matrix(values, np.arange(table.rows)), tasks.texts()
    probabilities = model.predict_proba(X, task=texts) if kept.kind == CLASSIFICATION else None
    found = model.predict(X, task=texts) if probabilities is None else model.classes_[np.argmax(probabilities, axis=1)]
    classes = [] if probabilities is None else [str(label) for label in model.classes_]
    notes, scores = _scored(kept, table, tasks, found, classes)
    return Predicted(texts, found, classes, probabilities, notes, scores)


def values_of(table: Table, encoder: Encoder) -> dict[str, Values]:
    """The inputs of the model, from the columns of a table."""
    missing = [part.name for part in encoder.parts if part.name not in table.columns]
    if missing:
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        first = f"{str(table.path)!r} has no column {missing[0]!r}{more}"
        raise InputError(f"{first}, which the model was fitted with. {suggestion(missing[0], table.columns)}")
    return {part.name: columns.converted(table, part.name, part.kind) for part in encoder.parts}


def _check_tasks(kept: FitFolder, model: Any, file: Path, tasks: Coded) -> None:
    without = int((tasks.codes < 0).sum())
    if without:
        raise InputError(f"{str(file)!r}: {without:,} rows have no task ({kept.task}): it needs one in each.")
    known = {str(label) for label in model.tasks_}
    present = [tasks.labels[k] for k in np.unique(tasks.codes)]
    unknown = [label for label in present if label not in known]
    if unknown:
        rows = int((tasks.codes == tasks.labels.index(unknown[0])).sum())
        more = f" and {len(unknown) - 1} more tasks" if len(unknown) > 1 else ""
        raise InputError(
            f"{str(file)!r}: the model has no task {unknown[0]!r} ({rows:,} rows){more}: `bilevel adapt {kept.path} "
            f"FILE` fits a new task from some rows of it that have the target. {suggestion(unknown[0], known)}"
        )


def _scored(
    kept: FitFolder, table: Table, tasks: Coded, found: np.ndarray, classes: list[str]
) -> tuple[list[str], dict[str, Any] | None]:
    """How good predictions are, if the file has the target. Labels that the model does not know count as wrong."""
    if kept.target not in table.columns:
        return [], None
    own = columns.targets_of(table, kept.target, kept.kind)
    present = ~is_missing(own)
    if not present.any():
        return [], None
    notes = []
    if isinstance(own, Coded):
        unseen = [label for label in own.labels if label not in classes]
        if unseen:
            count = int(np.isin(own.codes, [own.labels.index(label) for label in unseen]).sum())
            notes.append(
                f"{count:,} rows have a {kept.target} that the model has not seen, such as {unseen[0]!r}: it predicts "
                f"{', '.join(classes[:10])}, so these rows count as wrong."
            )
        right = np.array(own.labels)[own.codes] == found.astype(str)
        name, score = "accuracy", lambda rows: float(right[rows].mean()) if rows.any() else None
    else:
        name, score = "R2", lambda rows: judging.r2(own[rows], found[rows])
    whole = score(present)
    by_task = {label: score(present & (tasks.codes == k)) for k, label in enumerate(tasks.labels)}
    known = {label: value for label, value in by_task.items() if value is not None}
    worst = min(known, key=lambda label: known[label]) if known else None
    notes.append(
        f"{int(present.sum()):,} rows have the target {kept.target}: {name} {whole:.3f}"
        + (f", the worst task {worst} {known[worst]:.3f}." if worst is not None else ".")
        + " This is too optimistic if the model was fitted to some of these rows."
    )
    return notes, {"measure": name, "rows": int(present.sum()), "all": whole, "by_task": by_task}


# ------------------------------------------------------------------ files of predictions


def written(found: Predicted, suffix: str) -> bytes:
    """Predictions as the content of a CSV, Parquet or JSON file; its suffix says which."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    written: dict[str, Any] = {"task": found.tasks.tolist(), "prediction": found.predictions}
    if found.probabilities is not None:
        written["prediction"] = found.predictions.astype(str).tolist()
        written |= {f"probability {label}": found.probabilities[:, k] for k, label in enumerate(found.classes)}
    table = pa.table(written)
    if suffix == ".json":
        return (json.dumps(table.to_pylist(), ensure_ascii=False) + "\n").encode()
    sink = pa.BufferOutputStream()
    if suffix in reading.PARQUET:
        pyarrow.parquet.write_table(table, sink)
    else:
        pyarrow.csv.write_csv(table, sink, pyarrow.csv.WriteOptions(quoting_style="needed"))
    return sink.getvalue().to_pybytes()


# ------------------------------------------------------------------ new tasks


class AdaptedTask(NamedTuple):
    """A new task, and how good its head is."""

    task: str
    rows: int
    judged: int  # held-out rows, for a first head; 0 = too few rows
    loss: float | None  # on these rows
    alone: float | None  # the loss of a baseline model of its own, fitted to the same rows


def adapt(
    path: Path, file: Path, out: Path | None, replace: bool, separator: str | None = None, encoding: str = "utf-8"
) -> tuple[list[AdaptedTask], list[str]]:
    """Fits heads for the tasks of a file; what is shared does not change.

    The model file is replaced in one step; with `out`, only that in a copy of the folder. With `replace`, known tasks
    may be fitted anew, to these rows alone.
    """
    kept = folder.read(path)
    if out is not None:
        folder.check_target(out, replace=False)
    model = folder.model_of(kept)
    table = reading.read(file, separator, encoding)
    tasks = columns.tasks_of(table, kept.task)
    table.column(kept.target, "the target that the model was fitted to")
    own = columns.targets_of(table, kept.target, kept.kind)
    rows, target = columns.rows_with_both(table, (kept.target, own), (kept.task, tasks))
    tasks = tasks.take(rows).compact()
    left = table.rows - len(rows)
    notes = [f"{left:,} rows without a target or a task are left out."] if left else []
    known = {str(label) for label in model.tasks_}
    there = [label for label in tasks.labels if label in known]
    if there and not replace:
        raise InputError(
            f"{str(file)!r}: task {there[0]!r} is in the model already: --replace fits it anew, to these rows alone."
        )
    X = kept.encoder.matrix(values_of(table, kept.encoder), rows)
    found = [_judged(kept, X, target, tasks.codes == k, label) for k, label in enumerate(tasks.labels)]
    model.adapt(X, target, tasks.texts())
    if out is None:
        model.save(path / MODEL)
    else:
        with folder.whole(out) as new:
            shutil.copytree(path, new, dirs_exist_ok=True)
            model.save(new / MODEL)
    return found, notes


def said(task: AdaptedTask) -> str:
    """A sentence about a new task."""
    begin = f"{task.task}: {task.rows:,} rows"
    if not task.judged:
        return f"{begin}; these are too few, or have too few classes, to say how good it is."
    return (
        f"{begin}; a first head has a loss of {task.loss:.3f} on {task.judged} of them that it was not fitted to, and "
        f"a model of its own {task.alone:.3f}."
    )


def _judged(kept: FitFolder, X: np.ndarray, target: np.ndarray, own: np.ndarray, label: str) -> AdaptedTask:
    """Judges a head on every fourth row, which it is not fitted to, beside a baseline model of the task."""
    X, target = X[own], target[own]
    held = np.zeros(len(target), bool)
    held[baseline_models.shuffled_by_target(target, seed=0)[1::JUDGED]] = True
    classes = np.unique(target[~held])
    known = len(classes) > 1 and np.isin(target[held], classes).all()
    if len(target) < FEWEST or (kept.kind == CLASSIFICATION and not known):
        return AdaptedTask(label, len(target), 0, None, None)
    model = folder.model_of(kept).adapt(X[~held], target[~held], label)
    texts = np.full(int(held.sum()), label)
    standard = baseline_models.StandardTarget(kept.kind, target, ~held)
    if kept.kind == CLASSIFICATION:
        outputs = model.predict_proba(X[held], task=texts)[:, np.searchsorted(model.classes_, classes)]
    else:
        outputs = standard.standard(model.predict(X[held], task=texts))
    train, test = (standard.rows(X[rows], rows, np.zeros(int(rows.sum()), int)) for rows in (~held, held))
    both = (outputs, baseline_models.one_each(train, test, 1, seed=0))
    losses = [float(np.mean(baseline_models.losses(given, test.target))) for given in both]
    return AdaptedTask(label, len(target), int(held.sum()), *losses)
