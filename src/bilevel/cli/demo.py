"""`bilevel demo`: min-avg against min-max on data that come with the package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from bilevel.cli.app import INTERRUPTED, app, errors, interrupts


def _default(name: str) -> Callable[[], int]:
    """A default of the demo, looked up when it is needed."""

    def look_up() -> int:
        from bilevel.cli.demo_runs import DEFAULTS

        return getattr(DEFAULTS, name)

    return look_up


class _ShowsDefaults(TyperCommand):
    """A command whose help shows the defaults that are looked up when needed."""

    def format_help(self, *arguments: Any) -> None:
        for option in self.params:
            if callable(option.default):
                option.default = option.default()
        super().format_help(*arguments)


def _writable(path: Path | None) -> Path | None:
    """Refuses a figure that could not be saved, before the long run."""
    if path is not None:
        from bilevel.results.plots import check_path

        try:
            check_path(path, "{!r}")
        except (ValueError, OSError) as error:
            raise typer.BadParameter(str(error)) from error
    return path


@app.command(cls=_ShowsDefaults)
def demo(
    steps: Annotated[int, typer.Option(min=1, help="Steps of each run.", default_factory=_default("steps"))],
    draws: Annotated[
        int, typer.Option(min=1, help="How many sets of tasks to draw.", default_factory=_default("draws"))
    ],
    tasks: Annotated[int, typer.Option(min=1, help="Tasks in each set.", default_factory=_default("tasks"))],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Save a figure here: .png, .pdf or .svg.", callback=_writable),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress bar.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Compare min-avg with min-max: hyperparameters shared by pairs of letters.

    Each task tells one letter from another, with data that come with the package. All tasks share the hyperparameters
    of their models. min-avg chooses these for the average task, min-max for the worst one; the table shows what either
    gains and loses. Ctrl-C ends early and shows what there is.
    """
    from bilevel._run.compile_cache import compile_cache
    from bilevel.cli.demo_runs import run

    with compile_cache(), interrupts() as interrupted, errors(debug):
        text = run(steps=steps, draws=draws, tasks=tasks, out=out, seed=seed, progress=not quiet)
    typer.echo(text)
    if out is not None:
        typer.echo(f"\nThe figure is in {out}.")
    if interrupted.is_set():
        typer.echo("Interrupted: the runs ended early, some before others, and are no fair comparison.", err=True)
        raise typer.Exit(INTERRUPTED)
