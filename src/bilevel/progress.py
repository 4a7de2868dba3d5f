"""The progress bar: rich, on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Bar(Protocol):
    """Shows where a run is."""

    def show(self, step: int, worst: float | None = None, mean: float | None = None) -> None:
        """Updates the bar."""


class Quiet:
    """Shows nothing."""

    def show(self, step: int, worst: float | None = None, mean: float | None = None) -> None:
        """Does nothing."""


class _Rich:
    def __init__(self, progress, task):
        self.progress, self.task, self.losses = progress, task, ""

    def show(self, step: int, worst: float | None = None, mean: float | None = None) -> None:
        if worst is not None:
            self.losses = f"worst {worst:.4g}  mean {mean:.4g}"
        speed = self.progress.tasks[self.task].speed
        rate = "" if speed is None else f"{speed:,.0f} steps/s"
        self.progress.update(self.task, completed=step, rate=rate, losses=self.losses)


@contextmanager
def bar(title: str, steps: int, wanted: bool) -> Iterator[Bar]:
    """A progress bar where there is a terminal to show it on, and silence elsewhere."""
    if not wanted or not sys.stderr.isatty():
        yield Quiet()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TextColumn("{task.fields[losses]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield _Rich(progress, progress.add_task(title, total=steps, rate="", losses="compiling"))
