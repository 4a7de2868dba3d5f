"""`bilevel fit`: from a table to a robust model, judged against what people do today."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from bilevel.cli.app import app, errors, interrupts, terminable

Names = list[str] | None
Flag = bool | None

SHARE = "min-max, min-avg, regret, or the share of the worst tasks that count, such as 0.2."
TEST = "Share of each task's rows that is held out from everything."
SMALLEST = "Tasks with fewer rows are fitted and not scored. Default: 40."
REFIT = "Fit the heads of the kept model to all rows in the end, held out or not. Default: yes."


def _weighting(text: str | None) -> str | float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


@app.command()
def fit(
    data: Annotated[Path | None, typer.Argument(metavar="FILE", help="CSV (also .gz) or Parquet.")] = None,
    target: Annotated[str | None, typer.Option(metavar="COLUMN", help="What to predict.")] = None,
    task: Annotated[str | None, typer.Option(metavar="COLUMN", help="Which clinic, customer, ... a row is of.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="Default: run.")] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="representation (the default) or kernel.")] = None,
    weighting: Annotated[str | None, typer.Option(metavar="WHICH", help=SHARE)] = None,
    kind: Annotated[str | None, typer.Option(help="classification or regression. Default: as it looks.")] = None,
    exclude: Annotated[Names, typer.Option(metavar="COLUMN", help="Leave out; may be repeated.")] = None,
    number: Annotated[Names, typer.Option(metavar="COLUMN", help="A number; may be repeated.")] = None,
    category: Annotated[Names, typer.Option(metavar="COLUMN", help="A category; may be repeated.")] = None,
    date: Annotated[Names, typer.Option(metavar="COLUMN", help="A date; may be repeated.")] = None,
    separator: Annotated[str | None, typer.Option(help="Of fields. Default: as the first line looks.")] = None,
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
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Fit a model to a table so that the worst task does well, and say whether that was worth it.

    One column says which task a row is of. Types are inferred and said. Rows are held out from everything, and on them
    four models are judged, task by task: one pooled model, one model a task (both scikit-learn's, linear), and ours,
    learnt for the average task and for the worst. The folder that is written is for `bilevel predict`, `adapt`, `show`
    and `report`. It needs the extra: pip install "bilevel[tables]".

    Exit codes: 0 done, 1 failed, 2 wrong usage or input, 130 Ctrl-C. Nothing is written but with 0.
    """
    given: dict[str, Any] = {
        "data": None if data is None else str(data),
        "target": target,
        "task": task,
        "out": None if out is None else str(out),
        "model": model,
        "weighting": _weighting(weighting),
        "kind": kind,
        "exclude": exclude,
        "number": number,
        "category": category,
        "date": date,
        "separator": {"\\t": "\t", "tab": "\t"}.get(separator or "", separator),
        "encoding": encoding,
        "test": test,
        "smallest": smallest,
        "steps": steps,
        "refit": refit,
        "seed": seed,
        "replace": replace,
        "quiet": quiet,
        "json": as_json,
    }
    with interrupts() as pressed, terminable(), errors(debug, "Interrupted: nothing was written."):
        from bilevel._run.compile_cache import compile_cache
        from bilevel.tables import fitting, folder
        from bilevel.tables.settings import settings

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
