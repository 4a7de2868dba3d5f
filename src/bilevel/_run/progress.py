"""Progress of a run: a bar on a terminal, messages of `logging` elsewhere."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LOGGER = logging.getLogger("bilevel")
LOG_SECONDS = 10.0  # seconds between two messages, unless a tenth of the run passes sooner


class Bar:
    """Shows the progress of one or several runs."""

    def show(self, step: int, worst: float | None = None, mean: float | None = None) -> None:
        """Shows a step, and the losses if they were evaluated there."""

    def end(self, status: str) -> None:
        """Shows how the run ended."""

    def split(self, count: int) -> Sequence[Bar]:
        """A bar for each of several runs; together they move this one."""
        whole = _Whole(self, count)
        return [_Part(whole, number) for number in range(count)]


class Quiet(Bar):
    """Shows nothing."""


class Logged(Bar):
    """Logs the start, about each tenth or every ten seconds, and the end."""

    def __init__(self, title: str, steps: int):
        self.title, self.steps = title, steps
        self.began = self.last_time = time.monotonic()
        self.last_step, self.losses = 0, ""
        LOGGER.info("%s: %d steps, compiling", title, steps)

    def show(self, step: int, worst: float | None = None, mean: float | None = None) -> None:
        if worst is not None:
            self.losses = f", worst {worst:.4g}, mean {mean:.4g}"
        now = time.monotonic()
        tenth = 10 * step // self.steps > 10 * self.last_step // self.steps
        if step < self.steps and (tenth or now - self.last_time > LOG_SECONDS):
            self.last_time, self.last_step = now, step
            LOGGER.info("%s: step %d of %d, %.1f s%s", self.title, step, self.steps, now - self.began, self.losses)

    def end(self, status: str) -> None:
        LOGGER.info("%s: %s, %.1f s%s", self.title, status, time.monotonic() - self.began, self.losses)


class _Rich(Bar):
    def __init__(self, progress: Progress, task: TaskID):
        self.progress, self.task, self.losses = progress, task, ""

    def show(self, step: int, worst: float | None = None, mean: float | None = None) -> None:
        if worst is not None:
            self.losses = f"worst {worst:.4g}  mean {mean:.4g}"
        speed = self.progress.tasks[self.task].speed
        rate = "" if speed is None else f"{speed:,.0f} steps/s"
        self.progress.update(self.task, completed=step, rate=rate, losses=self.losses)


class _Whole:
    """Several runs on one bar: it shows their steps together and the means of their losses."""

    def __init__(self, bar: Bar, count: int):
        self.bar, self.count, self.lock = bar, count, threading.Lock()
        self.steps: dict[int, int] = {}
        self.losses: dict[int, tuple[float, float]] = {}
        self.statuses: dict[int, str] = {}

    def show(self, number: int, step: int, worst: float | None, mean: float | None) -> None:
        with self.lock:
            self.steps[number] = step
            if worst is not None and mean is not None:
                self.losses[number] = (worst, mean)
            worsts, means = zip(*(self.losses.values() or [(0.0, 0.0)]), strict=True)
            self.bar.show(sum(self.steps.values()), sum(worsts) / len(worsts), sum(means) / len(means))

    def end(self, number: int, status: str) -> None:
        with self.lock:
            self.statuses[number] = status
            if len(self.statuses) == self.count:
                self.bar.end(", ".join(f"{n} {status}" for status, n in Counter(self.statuses.values()).items()))


class _Part(Bar):
    def __init__(self, whole: _Whole, number: int):
        self.whole, self.number = whole, number

    def show(self, step: int, worst: float | None = None, mean: float | None = None) -> None:
        self.whole.show(self.number, step, worst, mean)

    def end(self, status: str) -> None:
        self.whole.end(self.number, status)


@contextmanager
def bar(title: str, steps: int, wanted: bool) -> Iterator[Bar]:
    """A progress bar where there is a terminal to show it on, messages of the logger "bilevel" elsewhere."""
    if not wanted:
        yield Quiet()
        return
    if not sys.stderr.isatty():
        yield Logged(title, steps)
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
