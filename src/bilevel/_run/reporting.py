"""Calls the loggers of a run. A logger that raises is switched off: a run does not depend on its loggers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bilevel._core.types import Json
from bilevel._run.loggers.base import Evaluation, Facts, Logger
from bilevel._run.loggers.progress import Progress

if TYPE_CHECKING:
    from bilevel._run.run import Run
    from bilevel._run.run_state import Row, RunState
    from bilevel.results.result import Result

FAILED = "failed"  # the status of a run that an exception ended


def check(loggers: object) -> tuple[Logger, ...]:
    if not isinstance(loggers, Sequence) or not all(isinstance(logger, Logger) for logger in loggers):
        raise TypeError(
            f"solve(loggers=...) got {loggers!r}: it needs a list of loggers, such as "
            "[bl.loggers.Progress('progress.jsonl')]."
        )
    return tuple(loggers)


class Report:
    """The loggers of one run. One that raises is switched off.

    Args:
        loggers: of this run alone.
    """

    def __init__(self, loggers: Sequence[Logger] = ()):
        self.loggers = list(loggers)
        self.folder: Path | None = None  # of the run, where it has one
        self._run: Run | None = None
        self._last: RunState | None = None  # the last state with news
        self._told = -1  # the last step whose evaluation was logged
        self._divergences = 0  # the number of divergences logged
        self._ended = False

    def keep_in(self, folder: Path) -> None:
        """Also logs to progress.jsonl in the folder of the run. Call it before the start."""
        self.folder = folder
        self.loggers.insert(0, Progress(folder / "progress.jsonl"))

    def start(self, run: Run, reached: RunState) -> None:
        """Logs the start of the run in this process; a new run also logs the evaluation at its start.

        A run that had ended before, and is only read, logs nothing.
        """
        if not self.loggers or not reached.running:
            return
        from bilevel import __version__

        self._run, self._last, self._divergences = run, reached, len(reached.divergences)
        facts = Facts(
            title=type(run.solver).__name__,
            solver=repr(run.solver),
            seed=int(run.seed),
            steps=int(run.steps),
            tasks=_names(run),
            version=__version__,
            comparable=run.problem.comparable_losses,
            step=reached.step,
            folder=None if self.folder is None else str(self.folder),
        )
        self._tell("start", lambda logger: logger.start(facts))
        self._told = reached.step or -1
        if reached.step == 0:
            self._log(reached.rows[0], np.nan)

    def move(self, reached: RunState) -> None:
        """Logs new evaluations and divergences after a call."""
        before = self._last
        if not self.loggers or before is None:
            return
        for divergence in reached.divergences[self._divergences :]:
            self.event("divergence", divergence._asdict())
        self._divergences = len(reached.divergences)
        if reached.step < before.step:  # it went back, and repeats these steps
            self._last, self._told = reached, min(self._told, reached.step)
            return
        rows = [row for row in reached.rows if row.step > self._told]
        if not rows:
            return
        seconds = (reached.seconds - before.seconds) - (reached.compile_seconds - before.compile_seconds)
        pace = (reached.step - before.step) / seconds if seconds > 0 and reached.step > before.step else np.nan
        self._last = reached
        for row in rows:
            self._log(row, pace)

    def event(self, kind: str, facts: Mapping[str, Json]) -> None:
        """Logs an event, if it comes between the start and the end."""
        if self._run is None or self._ended:
            return
        self._tell("event", lambda logger: logger.event(kind, facts))

    def conclude(self, result: Result) -> None:
        """Logs the findings of the run, and how it ended."""
        if self.loggers:
            for finding in result.findings:
                self.event("finding", {"step": result.steps, "kind": finding.kind, "message": finding.text})
        self.end(result.status, result.message)

    def end(self, status: str, message: str) -> None:
        if self._run is None or self._ended:
            return
        self._ended = True
        self._tell("end", lambda logger: logger.end(status, message))

    def _log(self, row: Row, pace: float) -> None:
        assert self._run is not None
        self._told = row.step
        known = {name: value for name, value in row._asdict().items() if name in Evaluation._fields}
        known["metrics"] = {name: np.copy(own) for name, own in row.metrics.items()}
        if row.largest_task is not None:
            known["largest_task"] = str(self._run.problem.names[row.largest_task])
        # Copies: a logger may keep or change them.
        copied: dict[str, Any] = {
            name: np.copy(value) if isinstance(value, np.ndarray) else value for name, value in known.items()
        }
        evaluation = Evaluation(names=_names(self._run), steps_per_second=float(pace), **copied)
        self._tell("log", lambda logger: logger.log(evaluation))

    def _tell(self, what: str, call: Callable[[Logger], None]) -> None:
        for logger in list(self.loggers):
            try:
                call(logger)
            except Exception as error:
                self.loggers.remove(logger)
                warnings.warn(
                    f"The logger {logger!r} raised in {what}() and is switched off; the run continues. "
                    f"{type(error).__name__}: {error}",
                    stacklevel=2,
                )


def _names(run: Run) -> tuple[str, ...]:
    """The names of the tasks that are evaluated along a run."""
    names = run.problem.names
    return tuple(map(str, names)) if run.part is None else tuple(str(names[int(i)]) for i in run.part.tasks)


def reports(loggers: Sequence[Logger], seeds: Sequence[int] | None) -> list[Report]:
    """The report of a run (`seeds` is None), or of each run of several."""
    if seeds is None:
        return [Report(loggers)]
    return [Report([logger.for_run(int(seed)) for logger in loggers]) for seed in seeds]


@contextmanager
def failures_told(runs: Sequence[Run]) -> Iterator[None]:
    """Logs the failure of all runs when an exception ends them, so that no reader waits for more."""
    try:
        yield
    except BaseException as error:
        for report in (run.report for run in runs if run.report is not None):
            report.end(FAILED, f"{type(error).__name__}: {error}")
        raise
