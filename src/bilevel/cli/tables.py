"""`bilevel fit`, and what follows it: `bilevel predict`, `bilevel adapt` and `bilevel show`."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from bilevel.cli.app import Debug, app, errors, interrupts, terminable

Names = list[str] | None
Flag = bool | None

SHARE = "min-max, min-avg, regret, or the share of the worst tasks that count, such as 0.2."
TEST = "Share of each task's rows that is held out from everything."
SMALLEST = "Tasks with fewer rows are fitted and not scored. Default: 40."
REFIT = "In the end, fit the heads of the saved model to all rows, held out or not. Default: yes."


def _weighting(text: str | None) -> str | float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


@app.command()
def fit(
    data: Annotated[Path | None, typer.Argument(metavar="FILE", help="CSV (also .gz) or Parquet.")] = None,
    target: Annotated[str | None, typer.Option(metavar="COLUMN", help="What to predict.")] = None,
    task: Annotated[str | None, typer.Option(metavar="COLUMN", help="The clinic, customer, ... of each row.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="Default: run.")] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="representation (the default) or kernel.")] = None,
    weighting: Annotated[str | None, typer.Option(metavar="WHICH", help=SHARE)] = None,
    kind: Annotated[str | None, typer.Option(help="classification or regression. Default: inferred.")] = None,
    exclude: Annotated[Names, typer.Option(metavar="COLUMN", help="Leave out; may be repeated.")] = None,
    number: Annotated[Names, typer.Option(metavar="COLUMN", help="A number; may be repeated.")] = None,
    category: Annotated[Names, typer.Option(metavar="COLUMN", help="A category; may be repeated.")] = None,
    date: Annotated[Names, typer.Option(metavar="COLUMN", help="A date; may be repeated.")] = None,
    separator: Annotated[str | None, typer.Option(help="Between fields. Default: inferred.")] = None,
    encoding: Annotated[str | None, typer.Option(help="Of a CSV. Default: utf-8.")] = None,
    test: Annotated[float | None, typer.Option(help=f"{TEST} Default: 0.2.")] = None,
    smallest: Annotated[int | None, typer.Option(help=SMALLEST)] = None,
    steps: Annotated[int | None, typer.Option(help="Of the solver. Default: the estimator's.")] = None,
    refit: Annotated[Flag, typer.Option("--refit/--no-refit", help=REFIT)] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random. Default: 0.")] = None,
    replace: Annotated[Flag, typer.Option("--replace", help="Replace a folder that `bilevel fit` wrote.")] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="A TOML file with any of these options.")] = None,
    quiet: Annotated[Flag, typer.Option("--quiet", "-q", help="Show nothing but the table.")] = None,
    as_json: Annotated[Flag, typer.Option("--json", help="Print JSON in place of the table.")] = None,
    debug: Debug = False,
) -> None:
    """Fit a model to a table so that the worst task does well, and say whether that was worth it.

    One column has the task of each row. Types of columns are inferred and printed. Some rows are held out from
    everything, and on them four models are judged, task by task: one pooled model, one model a task (both linear, by
    scikit-learn), and ours, learnt for the average task and for the worst. The folder is for `bilevel predict`,
    `adapt`, `show` and `report`. It needs the extra: pip install "bilevel[tables]".

    Exit codes: 0 done, 1 failed, 2 wrong usage or input, 130 Ctrl-C. Files are written only with 0.
    """
    given: dict[str, Any] = dict(locals())  # options by their names in `Settings`
    del given["config"], given["debug"]
    given |= {"json": given.pop("as_json"), "weighting": _weighting(weighting)}
    given |= {name: None if given[name] is None else str(given[name]) for name in ("data", "out")}
    given["separator"] = {"\\t": "\t", "tab": "\t"}.get(separator or "", separator)
    with interrupts() as pressed, terminable(), errors(debug, "Interrupted: nothing was written."):
        from bilevel._run.compiling import compile_cache
        from bilevel.estimators.tables import fitting, folder
        from bilevel.estimators.tables.settings import settings

        asked = settings({name: value for name, value in given.items() if value not in (None, [])}, config)
        target_folder = Path(asked.out)
        folder.check_target(target_folder, asked.replace)
        say = (lambda _: None) if asked.quiet else (lambda line: typer.echo(line, err=True))
        with compile_cache():
            fitted = fitting.fit(asked, say, pressed.is_set)
        document = folder.write(fitted, target_folder)
        if asked.json:
            typer.echo(json.dumps({**document, "out": str(target_folder)}, ensure_ascii=False))
            return
        width = shutil.get_terminal_size().columns
        typer.echo(f"\n{folder.text_table(folder.read(target_folder), width)}\n")
        say(f"Wrote {target_folder}: `bilevel predict {target_folder} FILE`, `bilevel report {target_folder}`.")


_Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="That `bilevel fit` wrote.")]
_File = Annotated[Path, typer.Argument(metavar="FILE", help="CSV or Parquet.")]
_Separator = Annotated[str | None, typer.Option(help="Between the fields of a CSV. Default: inferred.")]
_Encoding = Annotated[str, typer.Option(help="Of a CSV.")]
_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but what is asked for.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def predict(
    folder: _Folder,
    file: _File,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="CSV, Parquet or JSON, by its name.")
    ] = None,
    separator: _Separator = None,
    encoding: _Encoding = "utf-8",
    quiet: _Quiet = False,
    as_json: _Json = False,
    debug: Debug = False,
) -> None:
    """Predict the rows of a file: its task, the prediction and the probability of each class, in the file's order.

    Without --out predictions are printed, as CSV, or JSON with --json. If the file has the target too, the command says
    how good they are. A task that the model does not know is refused: `bilevel adapt` fits it.
    """
    with errors(debug, "Interrupted: nothing was written."):
        from bilevel._core.files import target_file, write_whole
        from bilevel.estimators.tables import new_rows
        from bilevel.estimators.tables.reading import InputError

        try:
            target = None if out is None else target_file(out, f"--out {str(out)!r}")
        except OSError as error:
            raise InputError(str(error)) from error
        found = new_rows.predict(folder, file, separator, encoding)
        if target is None:
            sys.stdout.write(new_rows.written(found, ".json" if as_json else ".csv").decode())
        else:
            write_whole(target, new_rows.written(found, target.suffix.lower()))
        if as_json and target is not None:
            typer.echo(
                json.dumps({"out": str(out), "rows": len(found.tasks), "scores": found.scores, "notes": found.notes})
            )
        if not quiet:
            for note in [*found.notes, *([] if out is None else [f"Wrote {len(found.tasks):,} predictions to {out}."])]:
                typer.echo(note, err=True)


@app.command()
def adapt(
    folder: _Folder,
    file: _File,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="A copy with the new tasks. Default: FOLDER.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Also fit known tasks anew, to these rows alone.")] = False,
    separator: _Separator = None,
    encoding: _Encoding = "utf-8",
    quiet: _Quiet = False,
    as_json: _Json = False,
    debug: Debug = False,
) -> None:
    """Fit new tasks, such as a new clinic, from a file of their rows with the target.

    What tasks share stays as it is; a new task gets its own head. The model is replaced in one step, or not at all. If
    a task has 20 rows or more, its head is first judged on a quarter of them.
    """
    with errors(debug, "Interrupted: nothing was changed."):
        from bilevel.estimators.tables import new_rows

        found, notes = new_rows.adapt(folder, file, out, replace, separator, encoding)
        if as_json:
            typer.echo(
                json.dumps({"out": str(out or folder), "tasks": [task._asdict() for task in found], "notes": notes})
            )
            return
        for line in [*notes, *(new_rows.said(task) for task in found)]:
            typer.echo(line)
        if not quiet:
            typer.echo(f"Wrote {out or folder}.", err=True)


@app.command()
def show(folder: _Folder, as_json: _Json = False, debug: Debug = False) -> None:
    """Show the table of `bilevel fit` again: losses by task of four models, and whether robust was worth it."""
    with errors(debug):
        from bilevel.estimators.tables import folder as folders

        kept = folders.read(folder)
        width = shutil.get_terminal_size().columns
        typer.echo(json.dumps(kept.document, ensure_ascii=False) if as_json else folders.text_table(kept, width))
