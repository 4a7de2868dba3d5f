"""`bilevel predict`, `bilevel adapt`, `bilevel show`: what `bilevel fit` wrote, on new rows."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from bilevel.cli.app import app, errors

_Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="That `bilevel fit` wrote.")]
_File = Annotated[Path, typer.Argument(metavar="FILE", help="CSV or Parquet.")]
_Separator = Annotated[str | None, typer.Option(help="Of the fields of a CSV. Default: as its first line looks.")]
_Encoding = Annotated[str, typer.Option(help="Of a CSV.")]
_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but what is asked for.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


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
    debug: _Debug = False,
) -> None:
    """Predict the rows of a file: its task, the prediction and the probability of each class, in the file's order.

    Without --out predictions are printed, as CSV, or JSON with --json. Where the file has the target too, it is said
    how good they are. A task that the model does not have is refused: `bilevel adapt` fits it.
    """
    with errors(debug, "Interrupted: nothing was written."):
        from bilevel._core.files import target_file, write_whole
        from bilevel.tables import new_rows
        from bilevel.tables.reading import InputError

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
    replace: Annotated[
        bool, typer.Option("--replace", help="Fit tasks anew that the model has, to these rows alone.")
    ] = False,
    separator: _Separator = None,
    encoding: _Encoding = "utf-8",
    quiet: _Quiet = False,
    as_json: _Json = False,
    debug: _Debug = False,
) -> None:
    """Fit new tasks, such as a clinic that was not there, from a file of their rows with the target.

    What tasks share stays as it is: a new task gets a head of its own. The model is replaced at once or not at all.
    Where a task has 20 rows or more, its head is first judged on a quarter of them.
    """
    with errors(debug, "Interrupted: nothing was changed."):
        from bilevel.tables import new_rows

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
def show(folder: _Folder, as_json: _Json = False, debug: _Debug = False) -> None:
    """Show the table of `bilevel fit` again: losses by task of four models, and whether robust was worth it."""
    with errors(debug):
        from bilevel.tables import folder as folders

        kept = folders.read(folder)
        width = shutil.get_terminal_size().columns
        typer.echo(json.dumps(kept.document, ensure_ascii=False) if as_json else folders.text_table(kept, width))
