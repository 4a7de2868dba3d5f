"""The command `bilevel` and its errors, which take one line: `error: ...`.

Exit codes: 0 success, 1 the run failed, 2 wrong usage or input, 130 Ctrl-C, 143 SIGTERM.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM  # as in shells

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress bar.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]

T = TypeVar("T")


class _OneLineErrors(TyperGroup):
    """Prints errors of usage in the same form as `errors` prints errors of the library."""

    def main(self, *arguments: Any, standalone_mode: bool = True, **options: Any) -> Any:
        try:
            code = super().main(*arguments, standalone_mode=False, **options)
        except Exception as error:
            # Typer's errors of usage; their base class is in click or in Typer, depending on the version.
            if not standalone_mode or not hasattr(error, "format_message"):
                raise
            print_error(error.format_message())  # type: ignore[attr-defined]
            sys.exit(getattr(error, "exit_code", 2))
        if standalone_mode:
            sys.exit(code or 0)
        return code


app = typer.Typer(
    name="bilevel",
    cls=_OneLineErrors,
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
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Min-max multi-objective bilevel optimization: learn what tasks share so that the worst of them does well.

    Start with `bilevel demo`, or with a table of yours: `bilevel fit`. From Python: `import bilevel as bl`.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def print_error(message: str) -> None:
    """Prints `error: ...` in one line."""
    typer.echo(f"error: {' '.join(message.split())}", err=True)


def understood(parse: Callable[[T], object]) -> Callable[[T | None], T | None]:
    """A callback that turns an error of `parse` into an error of usage, with exit code 2."""

    def check(value: T | None) -> T | None:
        if value is not None:
            try:
                parse(value)
            except (ValueError, OSError) as error:
                raise typer.BadParameter(str(error)) from error
        return value

    return check


@contextmanager
def errors(debug: bool, interrupted: str = "Interrupted.") -> Iterator[None]:
    """Prints errors of the library in one line, or with a traceback if `debug`."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(interrupted, err=True)
        raise typer.Exit(INTERRUPTED) from None
    except SystemExit as ended:
        if ended.code == TERMINATED:
            typer.echo(interrupted, err=True)
        raise
    except (ValueError, TypeError, OSError, ImportError) as error:
        if debug:
            raise
        print_error(str(error))
        raise typer.Exit(getattr(error, "exit_code", 1)) from None


@contextmanager
def terminable() -> Iterator[None]:
    """Turns SIGTERM into an exception, so that half-written files are removed."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(TERMINATED)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def interrupts() -> Iterator[threading.Event]:
    """Remembers Ctrl-C, because an interrupted run returns partial results and raises nothing."""
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # other threads get no signals
        yield pressed
        return

    def note(number: int, frame: FrameType | None) -> None:
        pressed.set()
        signal.default_int_handler(number, frame)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)
