"""The folder of a fitted table. It is written as a whole or not at all, and is not trusted when it is read.

fit.json              what was inferred, the encoding of columns, the table by task, the verdict, versions
fit.toml              the settings, for `bilevel fit --config`
model.safetensors     the estimator
tasks.csv             the table by task
history.csv           the evaluations of the two runs
result.safetensors    the run of the saved model; min-avg.safetensors is the other run. `bilevel report` reads them
losses.png, run.png   figures

The losses by task are also shown as text, as a figure, and as the first section of the page of `bilevel report`.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import json
import math
import os
import secrets
import shutil
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bilevel import estimators
from bilevel._core import documents
from bilevel._core.documents import Fields
from bilevel._core.files import read_regular, sync_directory
from bilevel.estimators.tables import judging
from bilevel.estimators.tables.columns import CLASSIFICATION, REGRESSION, Encoder
from bilevel.estimators.tables.fitting import Fitted
from bilevel.estimators.tables.judging import AVERAGE, MODELS, ROBUST, TaskScores, Verdict, loss_unit
from bilevel.estimators.tables.reading import InputError
from bilevel.report.subject import shortened
from bilevel.report.tables import Cell, PageTable, Section
from bilevel.results import storage

FORMAT, VERSION = "bilevel.table", 1
LARGEST = 1_000_000_000  # bytes of fit.json, which has a line for each task
DOCUMENT, MODEL, RESULT, OTHER = "fit.json", "model.safetensors", "result.safetensors", "min-avg.safetensors"
TEXT_TASKS = 25  # shown as text, the worst ones
FIGURE_TASKS = 40  # drawn
PAGE_TASKS = 100  # shown on a page
NAME = 24  # letters of a task's name
WIDEST = 100  # letters in a line of words
ABOUT = (
    "The rest of this page is about the runs that learnt what tasks share. Each task is there in parts that change "
    "places: one trains while another validates. The model is not the last point of a run but the one with the lowest "
    "mean loss on selection rows, and its heads were then fitted to convergence. So the losses and findings below are "
    "not those of the model."
)


# ------------------------------------------------------------------ writing


def check_target(out: Path, replace: bool) -> None:
    """Raises an `InputError`, before the long work, if the folder cannot be written."""
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise InputError(f"--out {str(out)!r} is a file or a link: it needs a folder that is not there yet.")
    if out.exists() and not replace:
        raise InputError(f"--out {str(out)!r} is there already: give another, or --replace.")
    if out.exists() and not (out / DOCUMENT).is_file() and any(out.iterdir()):
        raise InputError(f"--out {str(out)!r} is no folder of `bilevel fit`: it is not replaced.")
    parent = out.absolute().parent
    if not parent.is_dir():
        raise InputError(f"--out {str(out)!r}: there is no folder {str(parent)!r}.")
    probe = parent / f".bilevel-{secrets.token_hex(8)}.tmp"
    try:
        probe.mkdir()  # permissions do not show everything: a disk may be mounted read-only
        probe.rmdir()
    except OSError as error:
        raise InputError(f"--out {str(out)!r} cannot be written in {str(parent)!r} ({error.strerror}).") from error


@contextlib.contextmanager
def whole(out: Path) -> Iterator[Path]:
    """A new folder to write to, which replaces `out` in the end. If anything fails, nothing is left behind."""
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
        _write_tasks(fitted.lines, folder / "tasks.csv")
        _write_history(fitted.results, folder / "history.csv")
        draw_losses(fitted.lines, fitted.kind, folder / "losses.png")
        kept, other = (AVERAGE, ROBUST) if fitted.settings.weighting == "min-avg" else (ROBUST, AVERAGE)
        if len(fitted.results) == 2:
            fitted.results[kept].save(folder / RESULT)
            fitted.results[other].save(folder / OTHER)
            fitted.results[kept].plot(folder / "run.png")
    return document


def described(fitted: Fitted) -> dict[str, Any]:
    """The content of fit.json."""
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
        "tasks": [judging.scores_as_json(line) for line in fitted.lines],
        "verdict": judging.verdict_as_json(fitted.verdict),
    }


def _write_tasks(lines: list[TaskScores], path: Path) -> None:
    measures = [f"{model} {what}" for what in ("loss", "score") for model in MODELS]
    rows: list[list[Any]] = [["task", "rows", "held out", *measures, "weight"]]
    for line in lines:
        shown = ["" if math.isnan(number) else repr(number) for number in line.numbers]
        rows.append([line.task, line.rows, line.held_out, *shown, line.weight])
    _write_csv(rows, path)


def _write_history(results: Mapping[str, Any], path: Path) -> None:
    rows: list[Any] = [["model", "step", "seconds", "worst validation", "mean validation", "worst selection"]]
    for name, result in results.items():
        history = result.history
        selection = history.selection_worst if history.selection_worst is not None else [""] * history.evaluations
        columns = [name] * history.evaluations, history.step, history.seconds, history.worst, history.mean, selection
        rows += zip(*columns, strict=True)
    _write_csv(rows, path)


def _write_csv(rows: Iterable[Iterable[Any]], path: Path) -> None:
    with path.open("w") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


# ------------------------------------------------------------------ reading


class FitFolder(NamedTuple):
    """The content of a folder."""

    path: Path
    document: dict[str, Any]
    kind: str
    target: str
    task: str
    encoder: Encoder
    lines: list[TaskScores]
    verdict: Verdict
    refitted: bool


def is_one(path: Path) -> bool:
    """Whether `bilevel fit` wrote this folder."""
    return (path / DOCUMENT).is_file()


def read(path: Path) -> FitFolder:
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
        return FitFolder(
            path,
            dict(fields.document),
            fields.take("kind", lambda own: own in kinds, " or ".join(kinds)),
            fields.text("target"),
            fields.text("task"),
            Encoder.restored(fields.items("columns"), where),
            [judging.scores_from_json(line, where) for line in fields.items("tasks")],
            judging.verdict_from_json(fields.mapping("verdict"), where),
            fields.take("refitted", lambda own: isinstance(own, bool), "true or false"),
        )
    except (OSError, ValueError) as error:
        said = str(error) if where in str(error) else f"{where} is damaged: {error}."
        raise InputError(said) from error


def model_of(kept: FitFolder) -> Any:
    """The estimator of a folder; an `InputError` if it does not belong to the other files."""
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


# ------------------------------------------------------------------ the figure

# Colours that people with any colour vision tell apart (Okabe, Ito), and marks that tell them apart without colour.
MARKS = dict(zip(MODELS, (("#0072B2", "s"), ("#E69F00", "^"), ("#CC79A7", "D"), ("#000000", "o")), strict=True))


def draw_losses(lines: Sequence[TaskScores], kind: str, path: Path) -> None:
    """Draws the losses of the worst tasks on held-out rows, by model."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = [line for line in lines if line.is_scored][:FIGURE_TASKS]
    figure = Figure(figsize=(7, 1.6 + 0.22 * len(shown)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    places = range(len(shown))
    for model, (colour, mark) in MARKS.items():
        values = [line.losses[model] for line in shown]
        # The marks of min-avg are hollow and larger, because our two models are often in the same place.
        look = {"s": 70, "facecolors": "none"} if model == AVERAGE else {"s": 22, "facecolors": colour}
        axes.scatter(values, places, marker=mark, label=model, edgecolors=colour, linewidths=1.2, **look)
    axes.set_yticks(places, [shortened(line.task, 28) for line in shown])
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel(f"loss on rows held out ({loss_unit(kind)})")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=len(MODELS), frameon=False)
    figure.savefig(path, dpi=120)


# ------------------------------------------------------------------ text


def text_table(kept: FitFolder, width: int) -> str:
    """The table by task, the verdict, and a remark on the saved model; on a wide screen scores stand beside losses."""
    measure = score(kept)
    scored = [line for line in kept.lines if line.is_scored]
    shown = scored[:TEXT_TASKS]
    names = [*(shortened(line.task, NAME) for line in shown), "worst", "mean"]
    begin = [["task", *names], ["rows", *(f"{line.rows:,}" for line in shown), "", ""]]
    weights = [["weight", *(f"{line.weight:.3f}" for line in shown), "", ""]]
    losses, scores = [], []
    for model in MODELS:
        loss, points = [line.losses[model] for line in scored], [line.scores[model] for line in scored]
        losses.append([model, *map(_short, [*loss[:TEXT_TASKS], *_worst_and_mean(loss, max)])])
        scores.append([model, *map(_short, [*points[:TEXT_TASKS], *_worst_and_mean(points, min)])])
    beside = _laid([*begin, *losses, *scores, *weights], {2: "loss", 2 + len(MODELS): measure})
    if max(map(len, beside)) > width:
        beside = [*_laid([*begin, *losses, *weights], {2: "loss"}), "", *_laid([*begin, *scores], {2: measure})]
    more = len(scored) - TEXT_TASKS
    beyond = [f"{more:,} more tasks are in {kept.path / 'tasks.csv'}."] if more > 0 else []
    words = [*beyond, *remarks(kept), "", kept.verdict.sentence(), kept.verdict.against(), saved(kept)]
    return "\n".join([*beside, "", *(textwrap.fill(line, min(width, WIDEST)) for line in words)])


def _worst_and_mean(values: list[float], worst: Callable[[list[float]], float]) -> list[float]:
    known = [value for value in values if not math.isnan(value)]
    return [worst(known), sum(known) / len(known)] if known else [math.nan, math.nan]


def _laid(columns: list[list[str]], headings: Mapping[int, str]) -> list[str]:
    """Aligns columns: names left, numbers right, headings above groups, and a rule above the last two lines."""
    widths = [max(map(len, column)) for column in columns]
    gaps = ["   " if place in headings or columns[place][0] in ("weight",) else "  " for place in range(len(columns))]
    top, rows = "", []
    for place, width in enumerate(widths):
        start = len(top) + len(gaps[place])
        top = top.ljust(start) + headings.get(place, "")
        top = top.ljust(start + width)
    for cells in zip(*columns, strict=True):
        aligned = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
        aligned[0] = cells[0].ljust(widths[0])
        rows.append("".join(gap + cell for gap, cell in zip(gaps, aligned, strict=True)).rstrip())
    rule = " " * len(gaps[0]) + "-" * (max(map(len, rows)) - len(gaps[0]))
    return [top.rstrip(), rows[0], rule, *rows[1:-2], rule, *rows[-2:]]


def score(kept: FitFolder) -> str:
    """The name of the scores."""
    return "accuracy" if kept.kind == CLASSIFICATION else "R2"


def remarks(kept: FitFolder) -> list[str]:
    """Remarks on the table."""
    small = sum(not line.is_scored for line in kept.lines)
    smallest = kept.document.get("smallest")
    found = [f"{small:,} tasks with fewer than {smallest} rows are fitted, and not scored."] if small else []
    rows, held = (sum(getattr(line, name) for line in kept.lines) for name in ("rows", "held_out"))
    where = f"on rows held out from everything ({held:,} of {rows:,})"
    return [*found, f"Loss ({loss_unit(kept.kind)}) and {score(kept)} {where}; the worst task first."]


def saved(kept: FitFolder) -> str:
    """Which rows the saved model has seen."""
    if kept.refitted:
        return "The saved model shares what was judged here; the heads of the tasks were fitted again to all rows."
    return "The saved model is the one that was judged: it has not seen the rows held out."


def _short(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}" if abs(value) < 100 else f"{value:.3g}"


# ------------------------------------------------------------------ the section of a page


def title(kept: FitFolder) -> str:
    """The title of the page."""
    return f"{kept.target} by {kept.task}"


def section(kept: FitFolder) -> Section:
    """The first section of the page: the table by task, the verdict, and a remark on the saved model."""
    scored = [line for line in kept.lines if line.is_scored]
    measures = [f"{model}: {what}" for what in ("loss", score(kept)) for model in MODELS]
    rows: list[list[Cell]] = [[line.task, line.rows, *line.numbers, line.weight] for line in scored[:PAGE_TASKS]]
    many = len(scored) > PAGE_TASKS
    caption = f"The worst {PAGE_TASKS} of {len(scored):,} tasks" if many else "Tasks, the worst first"
    found = {"worst loss": kept.verdict.worst, "mean loss": kept.verdict.mean}
    facts = [(f"{name}, {model}", f"{of[model]:.3f}") for model in (ROBUST, AVERAGE) for name, of in found.items()]
    return Section(
        title="On rows held out",
        verdict=kept.verdict.sentence(),
        facts=[*facts, ("tasks", f"{len(kept.lines):,}")],
        sentences=[*remarks(kept), saved(kept)],
        table=PageTable(caption, ["task", "rows", *measures, "weight"], rows),
        about=ABOUT,
        labels=(ROBUST, AVERAGE),
    )
