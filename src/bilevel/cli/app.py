"""The command itself, and how it says what can go wrong.

Exit codes: 0 all went well, 1 the run failed, 2 the command was not understood, 130 Ctrl-C.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

INTERRUPTED = 130  # 128 + SIGINT, as shells have it

app = typer.Typer(
    name="bilevel",
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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


@contextmanager
def errors(debug: bool, interrupted: str = "Interrupted.") -> Iterator[None]:
    """Says what the library refuses in one line, without a traceback unless that is wanted."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(interrupted, err=True)
        raise typer.Exit(INTERRUPTED) from None
    except (ValueError, TypeError, OSError) as error:
        if debug:
            raise
        typer.echo(f"error: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from None


@contextmanager
def interrupts() -> Iterator[threading.Event]:
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
