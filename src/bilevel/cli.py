"""The command `bilevel`: parses, calls the library, prints.

Exit codes: 0 all went well, 1 the run failed, 2 the command was not understood, 130 Ctrl-C.
"""

from __future__ import annotations

import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

INTERRUPTED = 130  # 128 + SIGINT, as shells have it

app = typer.Typer(
    name="bilevel",
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """The console script."""
    app(prog_name="bilevel")


def _version(wanted: bool) -> None:
    if wanted:
        from bilevel import __version__

        typer.echo(f"bilevel {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Min-max multi-objective bilevel optimization: learn what tasks share so that the worst of them does well.

    Start with `bilevel demo`. Everything else is the Python library: `import bilevel as bl`.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


# ------------------------------------------------------------------ solvers


@app.command()
def solvers() -> None:
    """List the solvers: what each one does, and the paper it comes from."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("solver", "what it does", "reference", show_lines=True)
    for row in _described_solvers():
        table.add_row(*map(Text, row))
    Console().print(table)


def _described_solvers() -> list[tuple[str, str, str]]:
    """(name, what it does, reference) of every exported solver, from the first line and the reference of its module."""
    import bilevel

    rows = []
    for name in sorted(bilevel.solvers.__all__, key=str.lower):
        text = sys.modules[getattr(bilevel.solvers, name).__module__].__doc__ or ""
        what = text.partition("\n")[0].removeprefix(f"{name}:").strip()
        found = re.search(r"^References?:(.*?)(?:\n\s*\n|\Z)", text, re.MULTILINE | re.DOTALL)
        rows.append((name, what, " ".join(found[1].split()) if found else ""))
    return rows


# ------------------------------------------------------------------ demo


def _default(name: str) -> Callable[[], int]:
    """A default of the demo, looked up when it is needed."""

    def look_up() -> int:
        from bilevel.demo import DEFAULTS

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
        from bilevel.plotting import check_path

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
    from bilevel.cache import keep_compiled
    from bilevel.demo import run

    keep_compiled()
    with _interrupts() as interrupted, _errors(debug):
        text = run(steps=steps, draws=draws, tasks=tasks, out=out, seed=seed, progress=not quiet)
    typer.echo(text)
    if out is not None:
        typer.echo(f"\nThe figure is in {out}.")
    if interrupted.is_set():
        typer.echo("Interrupted: the runs ended early, some before others, and are no fair comparison.", err=True)
        raise typer.Exit(INTERRUPTED)


# ------------------------------------------------------------------ what can go wrong


@contextmanager
def _errors(debug: bool) -> Iterator[None]:
    """Says what the library refuses in one line, without a traceback unless that is wanted."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("Interrupted.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except (ValueError, TypeError, OSError) as error:
        if debug:
            raise
        typer.echo(f"error: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from None


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Remembers Ctrl-C: a run that is interrupted returns what there is, so that no exception tells of it."""
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # others get no signals
        yield pressed
        return

    def note(number: int, frame: Any) -> None:
        pressed.set()
        signal.default_int_handler(number, frame)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)
