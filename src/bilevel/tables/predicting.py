"""A kept model on new rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bilevel._core.words import suggestion
from bilevel.tables import columns, folder, outcomes, reading
from bilevel.tables.arrow_values import Coded, Values
from bilevel.tables.encoding import Encoder
from bilevel.tables.errors import InputError
from bilevel.tables.folder import Kept
from bilevel.tables.outcomes import CLASSIFICATION
from bilevel.tables.reading import Table


class Predicted(NamedTuple):
    """One entry a row of the file."""

    tasks: np.ndarray
    predictions: np.ndarray
    classes: list[str]  # none for regression
    probabilities: np.ndarray | None  # (rows, classes)
    notes: list[str]
    scores: dict[str, Any] | None  # where the file has the target


def predict(path: Path, file: Path, separator: str | None = None, encoding: str = "utf-8") -> Predicted:
    """What a kept model says of the rows of a file."""
    kept = folder.read(path)
    model = folder.model_of(kept)
    table = reading.read(file, separator, encoding)
    tasks = outcomes.tasks_of(table, kept.task)
    _check_tasks(kept, model, file, tasks)
    values = values_of(table, kept.encoder)
    X, texts = kept.encoder.matrix(values, np.arange(table.rows)), tasks.texts()
    probabilities = model.predict_proba(X, task=texts) if kept.kind == CLASSIFICATION else None
    found = model.predict(X, task=texts) if probabilities is None else model.classes_[np.argmax(probabilities, axis=1)]
    classes = [] if probabilities is None else [str(label) for label in model.classes_]
    notes, scores = _scored(kept, table, tasks, found, classes, probabilities)
    return Predicted(texts, found, classes, probabilities, notes, scores)


def values_of(table: Table, encoder: Encoder) -> dict[str, Values]:
    """The columns that a model was made from."""
    missing = [part.name for part in encoder.parts if part.name not in table.columns]
    if missing:
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        near = suggestion(missing[0], table.columns)
        raise InputError(
            f"{str(table.path)!r} has no column {missing[0]!r}{more}, which the model was fitted with. {near}"
        )
    return {part.name: columns.converted(table, part.name, part.kind) for part in encoder.parts}


def _check_tasks(kept: Kept, model: Any, file: Path, tasks: Coded) -> None:
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
    kept: Kept, table: Table, tasks: Coded, found: np.ndarray, classes: list[str], probabilities: np.ndarray | None
) -> tuple[list[str], dict[str, Any] | None]:
    """How good predictions are, where the file has the target; labels that no row had before are wrong in any case."""
    if kept.target not in table.columns:
        return [], None
    own = outcomes.targets_of(table, kept.target, kept.kind)
    present = own.codes >= 0 if isinstance(own, Coded) else ~np.isnan(own)
    if not present.any():
        return [], None
    notes = []
    if isinstance(own, Coded):
        unseen = [label for label in own.labels if label not in classes]
        if unseen:
            count = int(np.isin(own.codes, [own.labels.index(label) for label in unseen]).sum())
            notes.append(
                f"{count:,} rows have a {kept.target} that the model has not seen, such as {unseen[0]!r}: it predicts "
                f"{', '.join(classes[:10])}, so that these rows are wrong."
            )
        right = np.where(present, np.array(own.labels)[own.codes] == found.astype(str), False)
        by_task = {label: _mean(right, present & (tasks.codes == k)) for k, label in enumerate(tasks.labels)}
        whole, name = float(right[present].mean()), "accuracy"
    else:
        by_task = {label: _r2(own, found, present & (tasks.codes == k)) for k, label in enumerate(tasks.labels)}
        whole, name = _r2(own, found, present), "R2"
    known = {label: value for label, value in by_task.items() if value is not None}
    worst = min(known, key=lambda label: known[label]) if known else None
    notes.append(
        f"{int(present.sum()):,} rows have the target {kept.target}: {name} {whole:.3f}"
        + (f", the worst task {worst} {known[worst]:.3f}." if worst is not None else ".")
        + " Too good a figure if the model was fitted to some of these rows."
    )
    return notes, {"measure": name, "rows": int(present.sum()), "all": whole, "by_task": by_task}


def _mean(right: np.ndarray, rows: np.ndarray) -> float | None:
    return float(right[rows].mean()) if rows.any() else None


def _r2(target: np.ndarray, found: np.ndarray, rows: np.ndarray) -> float | None:
    own = target[rows]
    spread = float(np.sum((own - own.mean()) ** 2)) if len(own) else 0.0
    return 1 - float(np.sum((own - found[rows]) ** 2)) / spread if spread else None


# ------------------------------------------------------------------ files of predictions


def written(found: Predicted, suffix: str) -> bytes:
    """Predictions as the content of a file: CSV, Parquet or JSON, by the end of its name."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    named = (
        {}
        if found.probabilities is None
        else {f"probability {label}": found.probabilities[:, k] for k, label in enumerate(found.classes)}
    )
    predictions = found.predictions if found.probabilities is None else found.predictions.astype(str).tolist()
    table = pa.table({"task": found.tasks.tolist(), "prediction": predictions, **named})
    if suffix == ".json":
        return (json.dumps(table.to_pylist(), ensure_ascii=False) + "\n").encode()
    sink = pa.BufferOutputStream()
    if suffix in reading.PARQUET:
        pyarrow.parquet.write_table(table, sink)
    else:
        pyarrow.csv.write_csv(table, sink, pyarrow.csv.WriteOptions(quoting_style="needed"))
    return sink.getvalue().to_pybytes()
