"""`bilevel watch`: a run as it goes, from any process."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bilevel.cli.app import app

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from bilevel._run.watching import Watched

SECONDS = 1.0  # between two looks


@app.command()
def watch(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="Of a run, of several, or of a `compare` or `reproduce`.",
            exists=True,
            file_okay=False,
        ),
    ],
    once: Annotated[bool, typer.Option("--once", help="Print what is there now, and exit.")] = False,
) -> None:
    """Watch a run that `solve(..., checkpoint=FOLDER)` keeps, or the runs of several seeds.

    Losses, weights, the worst tasks, rates and the time left, from the files of the folder alone: it can be on another
    machine, it disturbs no run, and it shows a run that was killed too. Ctrl-C leaves; it also ends with the runs.
    Without a terminal it prints what is there now.
    """
    from rich.console import Console

    from bilevel._run.watching import Watched

    console, watched = Console(highlight=False), Watched(folder)
    if not once and console.is_terminal:
        follow(watched, console)
    print_frame(watched, console)


def print_frame(watched: Watched, console: Console) -> None:
    """What is there now."""
    from bilevel.cli.watch_screen import frame

    console.print(frame(watched, watched.poll(), console))


def follow(watched: Watched, console: Console) -> None:
    """Shows the runs on a screen of their own, until they have ended or Ctrl-C."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from bilevel.cli.watch_screen import frame

    def screen(shown: RenderableType) -> RenderableType:
        return Group(shown, Text(f"\n{time.strftime('%H:%M:%S')}   Ctrl-C leaves", "dim"))

    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                runs = watched.poll()
                live.update(screen(frame(watched, runs, console)), refresh=True)
                if all(run.is_over for run in runs):
                    return
                time.sleep(SECONDS)
    except KeyboardInterrupt:
        return
