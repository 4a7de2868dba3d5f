"""`bilevel demo`: min-avg against min-max on data that come with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bilevel.cli.app import INTERRUPTED, app, errors, interrupts, understood


def _check_figure(path: Path) -> None:
    """Raises where a figure could not be saved, before the long run."""
    from bilevel.results.plots import check_path

    check_path(path, "{!r}")


@app.command()
def demo(
    steps: Annotated[int, typer.Option(min=1, help="Steps of each run.")] = 1000,
    draws: Annotated[int, typer.Option(min=1, help="How many sets of tasks to draw.")] = 5,
    tasks: Annotated[int, typer.Option(min=1, help="Tasks in each set.")] = 16,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Save a figure here: .png, .pdf or .svg.", callback=understood(_check_figure)
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress bar.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Compare min-avg with min-max: hyperparameters shared by pairs of letters.

    Each task distinguishes two letters, with data that come with the package. All tasks share the hyperparameters
    of their models. min-avg chooses these for the average task, min-max for the worst one; the table shows what either
    gains and loses. Ctrl-C ends early and shows partial results.
    """
    from bilevel._run.compile_cache import compile_cache
    from bilevel.paper.commands import run_demo as run

    with compile_cache(), interrupts() as interrupted, errors(debug):
        text = run(steps=steps, draws=draws, tasks=tasks, out=out, seed=seed, progress=not quiet)
    typer.echo(text)
    if out is not None:
        typer.echo(f"\nThe figure is in {out}.")
    if interrupted.is_set():
        typer.echo("Interrupted: the runs ended early, some before others, and are no fair comparison.", err=True)
        raise typer.Exit(INTERRUPTED)
