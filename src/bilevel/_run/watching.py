"""Observes runs from outside, by their folders: progress.jsonl, run.json, and whether the lock is held."""

from __future__ import annotations

import json
import math
import os
import re
import time
from pathlib import Path
from typing import NamedTuple

from bilevel._core.types import Json
from bilevel._run.lock import is_held
from bilevel._run.loggers.progress import Lines, number

NOTHING, STARTING, RUNNING, DEAD, SILENT = "nothing yet", "starting", "running", "dead", "not known"
QUIET_SECONDS = 60.0  # seconds without a line after which a run without a lock no longer counts as running
UNFINISHED = ".unfinished"  # suffix of the folders of a command's runs while they are running
FILES = ("progress.jsonl", "run.json", "lock")
MOST_BYTES = 50_000_000  # of a run.json


class PastEvaluation(NamedTuple):
    step: int
    worst: float
    mean: float
    selection: float = math.nan  # the worst selection loss, where there is one


class Happened(NamedTuple):
    step: int
    message: str


class Task(NamedTuple):
    """A task at the last evaluation."""

    name: str
    loss: float
    weight: float


class WatchedRun:
    """One run, kept up to date by `poll`."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._lines = Lines(folder / "progress.jsonl")
        self._described = False
        self.held: bool | None = None  # whether a process holds its lock; None = there is no lock
        self._clear()

    def _clear(self) -> None:
        self.title, self.seed, self.steps, self.comparable = "", None, 0, True
        self.step, self.seconds, self.pace = 0, math.nan, math.nan
        self.seen: list[PastEvaluation] = []
        self.last: dict[str, Json] = {}  # the last evaluation
        self.heard = self._reached = math.nan  # times of the last line and of the last step
        self.checkpoint: tuple[int, float] | None = None  # the step, and when
        self.divergences: list[Happened] = []
        self.problems: list[Happened] = []
        self.findings: list[str] = []  # of a run that has ended
        self.ended: tuple[str, str] | None = None  # how, and in words
        self.resumed = 0
        self._described = False

    # ------------------------------------------------------------------ reading

    def poll(self) -> WatchedRun:
        again, lines = self._lines.poll()
        if again:
            self._clear()
        for line in lines:
            take = getattr(self, f"_take_{line.get('event')}", None)
            if take is not None:
                take(line)
            when = number(line.get("time"))
            self.heard = when if math.isfinite(when) else self.heard
        if not self._described:
            self._describe()
        self.held = is_held(self.folder / "lock") if self.ended is None else None
        return self

    def _describe(self) -> None:
        """Reads run.json as long as no line has the same facts."""
        path = self.folder / "run.json"
        try:
            found = json.loads(path.read_bytes()) if path.stat().st_size <= MOST_BYTES else None
        except (OSError, ValueError, RecursionError):
            return
        if isinstance(found, dict):
            self._name(found)

    def _name(self, facts: dict[str, Json]) -> None:
        self._described = True
        self.title, self.seed = text(facts.get("title")), whole(facts.get("seed"))
        self.steps = whole(facts.get("steps")) or 0
        self.comparable = facts.get("comparable") is not False

    def _take_start(self, line: dict[str, Json]) -> None:
        self._name(line)
        self.ended, self.pace, self.findings = None, math.nan, []
        step = whole(line.get("step")) or 0
        self.resumed += step > 0
        self._go_back(step)

    def _take_evaluation(self, line: dict[str, Json]) -> None:
        self.step, self.last, self._reached = whole(line.get("step")) or 0, line, number(line.get("time"))
        self.seconds, pace = number(line.get("seconds")), number(line.get("steps per second"))
        self.pace = pace if math.isfinite(pace) and pace > 0 else self.pace
        names = ("validation/worst", "validation/mean", "selection/worst")
        self.seen.append(PastEvaluation(self.step, *map(self.number, names)))

    def _take_divergence(self, line: dict[str, Json]) -> None:
        self.divergences.append(Happened(whole(line.get("step")) or 0, text(line.get("message"))))
        back = whole(line.get("back_to"))
        if back is not None:
            self._go_back(back)

    def _take_checkpoint(self, line: dict[str, Json]) -> None:
        step = whole(line.get("step")) or 0
        self.checkpoint = (step, number(line.get("time")))
        if step > self.step:
            self.step, self._reached = self.checkpoint

    def _take_problem(self, line: dict[str, Json]) -> None:
        self.problems.append(Happened(whole(line.get("step")) or self.step, text(line.get("message"))))

    def _take_finding(self, line: dict[str, Json]) -> None:
        self.findings.append(text(line.get("message")))

    def _take_end(self, line: dict[str, Json]) -> None:
        self.ended = (text(line.get("status")) or "ended", text(line.get("message")))

    def _go_back(self, step: int) -> None:
        """Drops later evaluations, which the run makes again."""
        self.step, self.seen = step, [seen for seen in self.seen if seen.step <= step]

    # ------------------------------------------------------------------ what is shown

    @property
    def state(self) -> str:
        """The status of the run: one of the words above, or how it ended."""
        if self.ended is not None:
            return self.ended[0]
        if self.held:
            return RUNNING if self.seen else STARTING
        if self.held is None:  # nobody knows whether a process works on it
            if math.isnan(self.heard):
                return STARTING if self._described else NOTHING
            return RUNNING if self.age(self.heard) < QUIET_SECONDS else SILENT
        return DEAD if self._described or self.seen else NOTHING

    @property
    def is_over(self) -> bool:
        """Whether no more lines can come; a run that was interrupted or died may be resumed."""
        return self.ended is not None and self.ended[0] != "interrupted"

    @property
    def best(self) -> PastEvaluation | None:
        """The evaluation with the lowest worst selection loss, or validation loss where there are no selection rows.

        None if a lower loss is not a better iterate.
        """
        by = "selection" if "selection/worst" in self.last else "worst"
        finite = [seen for seen in self.seen if math.isfinite(getattr(seen, by))]
        return min(finite, key=lambda seen: getattr(seen, by)) if finite and self.comparable else None

    @property
    def seconds_left(self) -> float:
        """Estimated seconds to the end at the present speed; NaN = not known."""
        if self.state != RUNNING or math.isnan(self.pace):
            return math.nan
        return max(0.0, (self.steps - self.step) / self.pace - self.age(self._reached))

    def tasks(self, count: int) -> list[Task]:
        told = self.last.get("tasks")
        told = told if isinstance(told, dict) else {}
        found = [
            Task(text(name), number(task.get("validation")), number(task.get("weight")))
            for name, task in told.items()
            if isinstance(task, dict)
        ]
        return sorted(found, key=lambda task: -math.inf if math.isnan(task.loss) else -task.loss)[:count]

    def number(self, name: str) -> float:
        """A number of the last evaluation; NaN if it has none."""
        return number(self.last.get(name))

    def age(self, when: float) -> float:
        return max(0.0, time.time() - when) if math.isfinite(when) else 0.0


def text(value: object) -> str:
    r"""Text of a file for a terminal: one line, without characters that move the cursor.

    >>> text("two\nlines \x1b[2J")
    'two lines ?[2J'
    """
    if not isinstance(value, str):
        return ""
    return "".join(c if c.isprintable() else "?" for c in " ".join(value[:10_000].split()))


def whole(value: object) -> int | None:
    """A whole number of a file; None if it is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


class Watched:
    """A folder of one run, of several, or of a command, whose runs are in deeper folders while they are running."""

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = Path(folder)
        self._runs: dict[Path, WatchedRun] = {}

    def poll(self) -> list[WatchedRun]:
        """The runs, up to date: the folder itself, or else the folders in it, or else those below them."""
        folders = _runs_in(self.folder)
        self._runs = {folder: self._runs.get(folder) or WatchedRun(folder) for folder in folders}
        return [run.poll() for run in self._runs.values()]


def _runs_in(folder: Path) -> list[Path]:
    if is_run(folder):
        return [folder]
    try:
        inside = [path for path in folder.iterdir() if path.is_dir() and is_run(path)]
        if not inside and is_of_command(folder):
            inside = [path for path in folder.rglob(f"seed-*{UNFINISHED}") if is_run(path)]
    except OSError:  # a folder may be removed meanwhile
        inside = []
    return sorted(inside, key=lambda path: (path.parent, _by_number(path))) or [folder]


def is_of_command(folder: Path) -> bool:
    """Whether a folder is that of a `bilevel compare` or `bilevel reproduce`, or of one problem in it."""
    return (folder / "command.json").is_file() or (folder / "runs").is_dir()


def is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in FILES)


def _by_number(path: Path) -> list[tuple[int, int, str]]:
    """The sort key of a folder: seed-2 comes before seed-10."""
    parts = re.split(r"(\d+)", path.name)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]
