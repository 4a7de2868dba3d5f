"""The screen of `bilevel watch`: one run in full, or a line for each of several; and small charts of text."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bilevel._run import watching
from bilevel._run.watching import Watched, WatchedRun

CHART_ROWS = 5
WORST_TASKS = 5
MANY = 10  # with more evaluations than this, charts leave out the start
EIGHTHS = " ▁▂▃▄▅▆▇█"
ASCII = " .:-=+*#@"
LOG_RATIO = 10.0  # values further apart than this get a log scale, because the end of a falling loss matters
STATES = {  # a style, and which runs are shown first where there is no room for all
    watching.RUNNING: ("bold green", 1),
    watching.STARTING: ("green", 1),
    "converged": ("bold cyan", 2),
    "finished": ("bold cyan", 2),
    "stopped early": ("bold cyan", 2),
    "interrupted": ("bold yellow", 0),
    watching.SILENT: ("yellow", 0),
    watching.NOTHING: ("yellow", 3),
}
WENT_WRONG = ("bold red", 0)  # other states
NONE_UNDER_WAY = (
    "This is the folder of a `bilevel compare` or `bilevel reproduce`, and none of its runs is under way. Finished "
    "runs are below it, in seed-N.csv; `bilevel resume` makes the missing ones."
)
DEAD = "No process works on this run and it has no end: it was killed, or its machine went down."


def frame(watched: Watched, runs: Sequence[WatchedRun], console: Console) -> RenderableType:
    """The whole screen."""
    if len(runs) == 1:
        return _one(runs[0], str(runs[0].folder), console)
    return _several(runs, str(watched.folder), console)


# ------------------------------------------------------------------ one run


def _one(run: WatchedRun, folder: str, console: Console) -> RenderableType:
    name = " ".join([run.title or "a run", *([] if run.seed is None else [f"seed {run.seed}"])])
    parts: list[RenderableType] = [_ends(Text(name, "bold"), _state(run.state)), Text(folder, "dim", overflow="fold")]
    parts += [Text(line) for line in _words(run)]
    if run.steps:
        parts += [Text(), _progress(run, console)]
    if run.seen:
        parts += [Text(), _losses(run), Text(), *_chart(run, console), Text(), _tasks(run, console)]
        parts += [Text(), _rates(run, console)]
    happened = [*_happened("diverged", run.divergences), *_happened("trouble", run.problems)]
    found = [Padding(Text.assemble(("found: ", "yellow"), sentence), (1, 0, 0, 0)) for sentence in run.findings]
    return Group(*parts, *happened, *found)


def _state(state: str) -> Text:
    return Text(state, STATES.get(state, WENT_WRONG)[0])


def _ends(left: Text, right: Text) -> Table:
    table = Table.grid(expand=True, padding=(0, 1))
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column(justify="right", no_wrap=True)
    table.add_row(left, right)
    return table


def _words(run: WatchedRun) -> list[str]:
    if run.ended is not None:
        return [run.ended[1]] if run.ended[1] else []
    if run.state == watching.DEAD:
        again = "`bilevel resume`" if run.folder.name.endswith(watching.UNFINISHED) else "resume=True"
        kept = "" if run.checkpoint is None else f" Kept up to step {run.checkpoint[0]:,}; {again} goes on from there."
        return [DEAD + kept]
    if run.state == watching.SILENT:
        return [
            f"Nothing was written for {duration(run.age(run.heard))}, and no lock says whether a process works on it."
        ]
    if run.state == watching.NOTHING:
        return [NONE_UNDER_WAY if watching.is_of_command(run.folder) else "There is no run in this folder yet."]
    return ["Compiling; nothing is evaluated yet."] if run.state == watching.STARTING else []


def _progress(run: WatchedRun, console: Console) -> RenderableType:
    width = max(10, min(40, console.width // 3))
    full, empty = ("#", ".") if console.options.ascii_only else ("█", "░")
    done = min(width, run.step * width // run.steps)
    bar = Text.assemble((full * done, "green"), (empty * (width - done), "dim"))
    top = bar + Text(f"  {run.step:,} of {run.steps:,} steps  {_percent(run)}")
    facts = {
        "took" if run.ended else "for": "" if math.isnan(run.seconds) else duration(run.seconds),
        "left": "" if math.isnan(run.seconds_left) else f"about {duration(run.seconds_left)}",
        "speed": "" if math.isnan(run.pace) else f"{short(run.pace)} steps/s",
        "evaluated": ""
        if run.ended or not run.last
        else f"{duration(run.age(watching.number(run.last.get('time'))))} ago",
        "checkpoint": "" if run.checkpoint is None else f"{duration(run.age(run.checkpoint[1]))} ago",
        "resumed": f"{run.resumed} times" if run.resumed > 1 else "once" if run.resumed else "",
    }
    return Group(top, _pairs(facts, console))


def _percent(run: WatchedRun) -> str:
    return f"{min(100, 100 * run.step // run.steps)} %" if run.steps else ""


def _pairs(facts: dict[str, str], console: Console) -> Text:
    """Names and values; a line never ends inside a pair."""
    lines: list[Text] = []
    for pair in [Text.assemble((f"{name} ", "dim"), value) for name, value in facts.items() if value]:
        if lines and len(lines[-1]) + 3 + len(pair) <= console.width:
            lines[-1] = lines[-1] + Text("   ") + pair
        else:
            lines.append(pair)
    return Text("\n").join(lines)


def _table(gap: int) -> Table:
    return Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold dim")


def _losses(run: WatchedRun) -> Table:
    table, best, first = _table(3), run.best, run.seen[0]
    table.add_column("loss", style="dim")
    for title in ("now", "best", "at step", "at the start"):
        table.add_column(title, justify="right")

    def at_best(value: float) -> list[str]:
        return ["", ""] if best is None else [short(value), f"{best.step:,}"]

    worst, mean = run.number("validation/worst"), run.number("validation/mean")
    table.add_row("worst", Text(short(worst), "bold"), *at_best(best.worst if best else 0), short(first.worst))
    table.add_row("mean", short(mean), *at_best(best.mean if best else 0), short(first.mean))
    if "selection/worst" in run.last:
        now = short(run.number("selection/worst"))
        table.add_row("selection worst", now, *at_best(best.selection if best else 0), short(first.selection))
    if "test/worst" in run.last:
        table.add_row("test worst", short(run.number("test/worst")), "", "", "")
        table.add_row("test mean", short(run.number("test/mean")), "", "", "")
    return table


def _chart(run: WatchedRun, console: Console) -> list[RenderableType]:
    shown = run.seen[1:] if len(run.seen) > MANY else run.seen  # the start, far above the rest, would leave no room
    worst = [seen.worst for seen in shown]
    finite = [value for value in worst if math.isfinite(value)]
    if len(finite) < 2:
        return []
    labels = {0: short(max(finite)), CHART_ROWS - 1: short(min(finite))}
    margin = max(map(len, labels.values()))
    width = min(100, console.width - margin - 3)
    wide = [value for value in worst for _ in range(max(1, min(4, width // len(worst))))]  # few values get wide columns
    rows = bars(wide, width, CHART_ROWS, console.options.ascii_only)
    scale = ", log scale" if is_log(worst) else ""
    title = f"worst validation loss from step {shown[0].step:,} to {shown[-1].step:,}{scale}"
    side = "|" if console.options.ascii_only else "│"
    lines = [
        Text.assemble((f"{labels.get(i, ''):>{margin}} {side}", "dim"), (row, "cyan"), no_wrap=True)
        for i, row in enumerate(rows)
    ]
    return [Text(title, "dim"), *lines]


def _tasks(run: WatchedRun, console: Console) -> Table:
    told = run.tasks(50)
    table = _table(3)
    table.add_column("worst tasks", no_wrap=True, overflow="ellipsis", max_width=console.width // 2)
    table.add_column("loss", justify="right")
    table.add_column("weight", justify="right")
    table.add_column(no_wrap=True)
    largest = max([task.weight for task in told if math.isfinite(task.weight)], default=0.0)
    full = "#" if console.options.ascii_only else "█"
    for task in told[:WORST_TASKS]:
        share = task.weight / largest if largest > 0 and math.isfinite(task.weight) else 0.0
        table.add_row(Text(task.name), short(task.loss), short(task.weight, 3), Text(full * round(10 * share), "blue"))
    return table


def _rates(run: WatchedRun, console: Console) -> Text:
    low, high = run.number("rate/lower smallest"), run.number("rate/lower largest")
    lower = "" if math.isnan(low) else short(low, 3) if low == high else f"{short(low, 3)} to {short(high, 3)}"
    singles = {"rate of x": "rate/upper", "of weights": "rate/weights", "direction": "direction norm"}
    said = {name: "" if math.isnan(run.number(key)) else short(run.number(key), 3) for name, key in singles.items()}
    return _pairs({"rate of x": said["rate of x"], "of y": lower, **said}, console)


def _happened(word: str, found: Sequence[watching.Happened]) -> list[RenderableType]:
    """How often something happened, and the last message."""
    if not found:
        return []
    times = "once" if len(found) == 1 else f"{len(found)} times, the last"
    line = Text.assemble((f"{word} {times} at step {found[-1].step:,}: ", "yellow"), found[-1].message)
    return [Padding(line, (1, 0, 0, 0))]


# ------------------------------------------------------------------ several


def _several(runs: Sequence[WatchedRun], folder: str, console: Console) -> RenderableType:
    counts = Counter(run.state for run in runs)
    states = Text(", ").join([Text(f"{n} ") + _state(state) for state, n in counts.items()])
    head = _ends(Text(f"{len(runs)} runs", "bold"), states)
    fits = max(3, console.height - 8) if console.is_terminal else len(runs)
    table = _table(2)
    table.add_column("run", no_wrap=True, overflow="ellipsis", max_width=16)
    table.add_column("state", no_wrap=True)
    for title in ("steps", "left", "worst", "best"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("worst loss", no_wrap=True)
    if console.width >= 100:
        table.add_column("worst task", no_wrap=True, overflow="ellipsis", max_width=24)
    for run in _most_telling(runs, fits):
        table.add_row(*_row(run, console))
    left_out = len(runs) - min(fits, len(runs))
    parts = [head, Text(folder, "dim", overflow="fold"), Text(), table]
    return Group(*parts, *([Text(f"and {left_out} more", "dim")] if left_out else []), Text(), _together(runs, console))


def _most_telling(runs: Sequence[WatchedRun], count: int) -> list[WatchedRun]:
    """The runs to show if there is no room for all: first those that went wrong, then those that run, then the rest."""
    ranks = [STATES.get(run.state, WENT_WRONG)[1] for run in runs]
    kept = sorted(range(len(runs)), key=ranks.__getitem__)[:count]
    return [runs[i] for i in sorted(kept)]


def _row(run: WatchedRun, console: Console) -> list[RenderableType]:
    left = "" if math.isnan(run.seconds_left) else duration(run.seconds_left)
    worst = [seen.worst for seen in run.seen]
    width = 14 if console.width < 100 else 24
    [line] = bars(worst[1:] if len(worst) > MANY else worst, width, ascii_only=console.options.ascii_only)
    numbers = [short(worst[-1]) if worst else "", short(run.best.worst) if run.best else ""]
    task = [Text(task.name) for task in run.tasks(1)] or [Text()]
    name = f"{run.title} seed {run.seed}" if run.folder.name.endswith(watching.UNFINISHED) else run.folder.name
    cells = [Text(watching.text(name)), _state(run.state), _percent(run), left, *numbers, Text(line, "cyan")]
    return [*cells, *(task if console.width >= 100 else [])]


def _together(runs: Sequence[WatchedRun], console: Console) -> Text:
    now = [run.seen[-1].worst for run in runs if run.seen]
    left = [run.seconds_left for run in runs if not math.isnan(run.seconds_left)]
    paces = [run.pace for run in runs if run.state == watching.RUNNING and not math.isnan(run.pace)]
    facts = {
        "worst loss now, mean of runs": short(sum(now) / len(now)) if now else "",
        "left": f"about {duration(max(left))}" if left else "",
        "speed": f"{short(sum(paces))} steps/s" if paces else "",
        "diverged": ", ".join(watching.text(run.folder.name) for run in runs if run.divergences),
    }
    return _pairs(facts, console)


# ------------------------------------------------------------------ numbers and charts as text


def short(value: float, digits: int = 4) -> str:
    """A number as a short text.

    >>> short(0.123456), short(1234567.0), short(float("nan")), short(12.0)
    ('0.1235', '1,234,567', '-', '12')
    """
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.{digits}g}"


def duration(seconds: float) -> str:
    """A duration in two units.

    >>> duration(9.4), duration(125), duration(7260), duration(400000)
    ('9 s', '2 min 5 s', '2 h 1 min', '4 d 15 h')
    """
    if not math.isfinite(seconds):
        return "-"
    whole = int(seconds)
    for size, unit, smaller, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // smaller} {small}"
    return f"{whole} s"


def is_log(values: Sequence[float]) -> bool:
    """Whether values are drawn on a log scale."""
    finite = [value for value in values if math.isfinite(value)]
    return bool(finite) and min(finite) > 0 and max(finite) / min(finite) > LOG_RATIO


def bars(values: Sequence[float], width: int, height: int = 1, ascii_only: bool = False) -> list[str]:
    """Rows of text, from top to bottom: a column for each value, or for the mean of a few if there are too many.

    The lowest value is one eighth of a row high, so an empty column had no finite value.

    >>> bars([4, 3, 2, 1], width=4)
    ['█▆▃▁']
    >>> bars([1, float("nan"), 2, 2], width=8, height=2)
    ['  ██', '▁ ██']
    """
    blocks = ASCII if ascii_only else EIGHTHS
    heights = [math.log(v) if math.isfinite(v) else v for v in values] if is_log(values) else values
    columns = _columns(heights, width)
    finite = [value for value in columns if value is not None]
    if not finite:
        return [" " * len(columns)] * height
    low, high = min(finite), max(finite)
    top = height * (len(blocks) - 1) - 1  # eighths above the lowest
    levels = [0 if v is None else 1 + round(top * (v - low) / (high - low) if high > low else 0) for v in columns]
    full = len(blocks) - 1
    return ["".join(blocks[min(full, max(0, n - row * full))] for n in levels) for row in reversed(range(height))]


def _columns(values: Sequence[float], width: int) -> list[float | None]:
    """At most `width` values: means of the finite values, or None if there are none."""
    count = min(width, len(values))
    edges = [round(i * len(values) / count) for i in range(count + 1)] if count else [0]
    parts = [[v for v in values[a:b] if math.isfinite(v)] for a, b in itertools.pairwise(edges)]
    return [sum(part) / len(part) if part else None for part in parts]
