"""The progress bar: rich, on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol


class Bar(Protocol):
    """Shows where a run is, or several."""

    def show(self, step: int, worst: float | None = None, mean: float | None = None) -> None:
        """Updates the bar."""
        ...

    def split(self, count: int) -> Sequence[Bar]:
        """A bar for each of several runs, which move this one together."""
        ...


class Quiet:
    """Shows nothing."""

    def show(self, step: int, worst: float | None = None, mean: float | None = None) -> None:
        """Does nothing."""

    def split(self, count: int) -> Sequence[Bar]:
        """As quiet."""
        return [self] * count


class _Rich:
    def __init__(self, progress, task):
        self.progress, self.task, self.losses = progress, task, ""

    def show(self, step: int, worst: float | None = None, mean: float | None = None) -> None:
        if worst is not None:
            self.losses = f"worst {worst:.4g}  mean {mean:.4g}"
        speed = self.progress.tasks[self.task].speed
        rate = "" if speed is None else f"{speed:,.0f} steps/s"
        self.progress.update(self.task, completed=step, rate=rate, losses=self.losses)

    def split(self, count: int) -> Sequence[Bar]:
        seen: dict[int, tuple[int, float, float]] = {}
        return [_Part(self, seen, number) for number in range(count)]


class _Part:
    """One run of several: the bar shows their steps together and the means of their losses."""

    def __init__(self, whole: _Rich, seen: dict[int, tuple[int, float, float]], number: int):
        self.whole, self.seen, self.number = whole, seen, number

    def show(self, step: int, worst: float | None = None, mean: float | None = None) -> None:
        if worst is None or mean is None:
            _, worst, mean = self.seen.get(self.number, (0, 0.0, 0.0))
        self.seen[self.number] = (step, worst, mean)
        steps, worsts, means = zip(*list(self.seen.values()), strict=True)
        self.whole.show(sum(steps), sum(worsts) / len(worsts), sum(means) / len(means))

    def split(self, count: int) -> Sequence[Bar]:
        return self.whole.split(count)


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
