"""`bilevel report`: a kept result as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bilevel.cli.app import app, errors


@app.command()
def report(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FILE_OR_FOLDER",
            help="What `result.save` wrote, or the folder of a run or `bilevel fit`.",
            exists=True,
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The page. Default: report.html in FOLDER, or FILE with .html.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option("--against", help="A file or folder to compare with, such as that of a min-avg run.", exists=True),
    ] = None,
    title: Annotated[str | None, typer.Option("--title", help="Of the page. Default: the solver's name.")] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Write a result as one HTML page that opens offline: losses by task, charts of the run, findings, settings.

    It needs the extra: pip install "bilevel[report]".
    """
    with errors(debug):
        from bilevel.report import page
        from bilevel.report.page import results_of

        own = _of_table(source)
        shown = results_of(source)
        against = own.get("against") if against is None else against
        other = None if against is None else results_of(against)
        target = out or (source / "report.html" if source.is_dir() else source.with_suffix(".html"))
        page.write(shown, target, against=other, title=title or own.get("title"), section=own.get("section"))
        typer.echo(f"wrote {target}")


def _of_table(source: Path) -> dict[str, Any]:
    """What the folder of a `bilevel fit` has besides a result."""
    if not (source / "fit.json").is_file():
        return {}
    from bilevel.tables import folder

    kept = folder.read(source)
    return {"against": source / folder.OTHER, "title": folder.title(kept), "section": folder.section(kept)}
