"""The folder of a fitted table: written whole or not at all, and read without being trusted.

fit.json              what was inferred, the columns as numbers, the table by task, the verdict, versions
fit.toml              the settings: `bilevel fit --config` takes it
model.safetensors     the estimator
tasks.csv             the table by task
history.csv           the two runs as they were evaluated
result.safetensors    the run that was kept, and min-avg.safetensors the other one: for `bilevel report`
losses.png, run.png   figures
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bilevel import estimators
from bilevel._core import documents
from bilevel._core.documents import Fields
from bilevel._core.files import read_regular, sync_directory
from bilevel.results import storage
from bilevel.tables import figures, judging, verdict
from bilevel.tables.encoding import Encoder
from bilevel.tables.errors import InputError
from bilevel.tables.fitting import Fitted
from bilevel.tables.judging import AVERAGE, MODELS, ROBUST, Line
from bilevel.tables.outcomes import CLASSIFICATION, REGRESSION
from bilevel.tables.verdict import Verdict

FORMAT, VERSION = "bilevel.table", 1
LARGEST = 1_000_000_000  # bytes of fit.json, which has a line for each task
DOCUMENT, MODEL, RESULT, OTHER = "fit.json", "model.safetensors", "result.safetensors", "min-avg.safetensors"


# ------------------------------------------------------------------ writing


def check_target(out: Path, replace: bool) -> None:
    """An `InputError` where a folder could not be written; before the long work."""
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise InputError(f"--out {str(out)!r} is a file or a link: it needs a folder that is not there yet.")
    if out.exists() and not replace:
        raise InputError(f"--out {str(out)!r} is there already: give another, or --replace.")
    if out.exists() and not (out / DOCUMENT).is_file() and any(out.iterdir()):
        raise InputError(f"--out {str(out)!r} is no folder of `bilevel fit`, so that it is not replaced.")
    parent = out.absolute().parent
    if not parent.is_dir():
        raise InputError(f"--out {str(out)!r}: there is no folder {str(parent)!r}.")
    probe = parent / f".bilevel-{secrets.token_hex(8)}.tmp"
    try:
        probe.mkdir()  # permissions do not say it all: a disk may be mounted to be read only
        probe.rmdir()
    except OSError as error:
        raise InputError(f"--out {str(out)!r} cannot be written in {str(parent)!r} ({error.strerror}).") from error


@contextlib.contextmanager
def whole(out: Path) -> Iterator[Path]:
    """A new folder to write to, which takes the place of `out` in the end; nothing is left where anything fails."""
    out = out.absolute()
    mark = secrets.token_hex(8)
    new, old = out.with_name(f".bilevel-{mark}.tmp"), out.with_name(f".bilevel-{mark}.old")
    try:
        new.mkdir()
        yield new
        sync_directory(new)
        if out.exists():
            os.replace(out, old)
        try:
            os.replace(new, out)
        except BaseException:
            if old.exists():
                os.replace(old, out)
            raise
        sync_directory(out.parent)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(f"{str(out)!r} cannot be written ({error.strerror}).") from error
    finally:
        for left in (new, old):
            shutil.rmtree(left, ignore_errors=True)


def write(fitted: Fitted, out: Path) -> dict[str, Any]:
    """Writes all files; returns what fit.json says."""
    document = described(fitted)
    with whole(out) as folder:
        fitted.model.save(folder / MODEL)
        (folder / DOCUMENT).write_text(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
        (folder / "fit.toml").write_text(fitted.settings.toml())
        (folder / "tasks.csv").write_text(_table(fitted.lines))
        (folder / "history.csv").write_text(_history(fitted.results))
        figures.losses(fitted.lines, fitted.kind, folder / "losses.png")
        kept, other = (AVERAGE, ROBUST) if fitted.settings.weighting == "min-avg" else (ROBUST, AVERAGE)
        if len(fitted.results) == 2:
            fitted.results[kept].save(folder / RESULT)
            fitted.results[other].save(folder / OTHER)
            fitted.results[kept].plot(folder / "run.png")
    return document


def described(fitted: Fitted) -> dict[str, Any]:
    """All that is to be said of a fit, as JSON."""
    settings = fitted.settings
    return {
        "format": FORMAT,
        "version": VERSION,
        "made with": storage.versions(),
        "settings": dataclasses.asdict(settings),
        "kind": fitted.kind,
        "target": settings.target,
        "task": settings.task,
        "rows": fitted.rows,
        "held_out": sum(line.held_out for line in fitted.lines),
        "smallest": settings.smallest,
        "refitted": settings.refit,
        "seconds": round(fitted.seconds, 3),
        "columns": fitted.encoder.describe(),
        "left_out": dict(fitted.left_out),
        "tasks": [judging.described(line) for line in fitted.lines],
        "verdict": verdict.described(fitted.verdict),
    }


def _table(lines: list[Line]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    measures = [f"{model} {what}" for what in ("loss", "score") for model in MODELS]
    writer.writerow(["task", "rows", "held out", *measures, "weight"])
    for line in lines:
        numbers = [by_model[model] for by_model in (line.losses, line.scores) for model in MODELS]
        shown = ["" if number != number else repr(number) for number in numbers]
        writer.writerow([line.task, line.rows, line.held_out, *shown, line.weight])
    return text.getvalue()


def _history(results: Any) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["model", "step", "seconds", "worst validation", "mean validation", "worst selection"])
    for name, result in results.items():
        history = result.history
        selection = history.selection_worst if history.selection_worst is not None else [""] * history.evaluations
        rows = zip(history.step, history.seconds, history.worst, history.mean, selection, strict=True)
        writer.writerows([name, *row] for row in rows)
    return text.getvalue()


# ------------------------------------------------------------------ reading


class Kept(NamedTuple):
    """What a folder says."""

    path: Path
    document: dict[str, Any]
    kind: str
    target: str
    task: str
    encoder: Encoder
    lines: list[Line]
    verdict: Verdict
    refitted: bool


def is_one(path: Path) -> bool:
    """Whether a folder is one of `bilevel fit`."""
    return (path / DOCUMENT).is_file()


def read(path: Path) -> Kept:
    """Reads fit.json."""
    where = repr(str(path / DOCUMENT))
    if not is_one(path):
        raise InputError(f"{str(path)!r}: there is no {DOCUMENT} in it: it needs a folder that `bilevel fit` wrote.")
    try:
        fields = Fields(documents.parse(read_regular(path / DOCUMENT, where, LARGEST)), where)
        if fields.document.get("format") != FORMAT:
            raise ValueError(f"{where} is not of `bilevel fit`.")
        version = fields.whole("version", least=1)
        if version > VERSION:
            made = fields.document.get("made with")
            by = f" {made.get('bilevel')}" if isinstance(made, dict) else ""
            raise ValueError(
                f"{where} is of version {version}, of a newer bilevel{by:.20}, and this one reads up to {VERSION}: "
                "upgrade bilevel."
            )
        kinds = (CLASSIFICATION, REGRESSION)
        return Kept(
            path,
            dict(fields.document),
            fields.take("kind", lambda own: own in kinds, " or ".join(kinds)),
            fields.text("target"),
            fields.text("task"),
            Encoder.restored(fields.items("columns"), where),
            [judging.restored(line, where) for line in fields.items("tasks")],
            verdict.restored(fields.mapping("verdict"), where),
            fields.take("refitted", lambda own: isinstance(own, bool), "true or false"),
        )
    except InputError:
        raise
    except (OSError, ValueError) as error:
        said = str(error) if where in str(error) else f"{where} is damaged: {error}."
        raise InputError(said) from error


def model_of(kept: Kept) -> Any:
    """The estimator; one that was changed, or is of other columns, is refused."""
    path = kept.path / MODEL
    try:
        model = estimators.load(path)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"the model of {str(kept.path)!r} cannot be used: {error}") from error
    classifies = hasattr(model, "classes_")
    if model.n_features_in_ != kept.encoder.width or classifies != (kept.kind == CLASSIFICATION):
        raise InputError(
            f"the model of {str(kept.path)!r} is not the one that was fitted there: it is of {model.n_features_in_} "
            f"inputs, and {DOCUMENT} says {kept.encoder.width}, for {kept.kind}."
        )
    return model
