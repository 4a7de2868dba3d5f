"""Makes docs/when-it-pays.md and its figure from the records of benchmarks/when_it_pays.py.

python docs/make_when_it_pays.py
"""

from __future__ import annotations

import itertools
import string
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from bilevel.studies.statistics import Interval, interval

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent / "benchmarks"))

import when_it_pays as study  # noqa: E402

HEAD, PAGE, FIGURE = DOCS / "when-it-pays-head.md", DOCS / "when-it-pays.md", DOCS / "figures" / "when-it-pays.png"
FACTORS = {
    "features in x": ("width", study.WIDTHS),
    "rows a task, of each kind": ("rows", study.ROWS),
    "noise": ("apart", study.APART),
    "competition": ("compete", study.COMPETE),
    "tasks": ("tasks", study.TASKS),
}
SAYS = {"apart": {0: "equal", 1: "differs"}}
COMPARED = {  # objective, and what is compared on test rows
    "worst loss, min-max of losses": ("loss", "worst"),
    "worst loss, of regrets": ("regret", "worst"),
    "worst regret, of losses": ("loss", "regret"),
    "worst regret, of regrets": ("regret", "regret"),
    "mean loss, of losses": ("loss", "mean"),
}
Records = dict[study.Setting, dict[str, float]]
Chosen = Callable[[study.Setting], bool]


class Effect(NamedTuple):
    """A change against min-avg, in per cent, with its interval over draws."""

    change: Interval

    @property
    def helps(self) -> bool:
        """Whether the whole interval is below 0."""
        return self.change.high < 0

    @property
    def harms(self) -> bool:
        """Whether the whole interval is above 0."""
        return self.change.low > 0

    def __str__(self) -> str:
        return f"{self.change.mean:+.0f} [{self.change.low:+.0f}, {self.change.high:+.0f}]"


def effect(records: Records, objective: str, number: str, chosen: Chosen) -> Effect:
    """Of min-max against min-avg on the same draws: the mean logarithm of the ratio, as a change in per cent.

    Settings that share their rows (one draw of as many tasks) are averaged first: the interval is over draws.
    """
    logs: dict[tuple[int, ...], list[float]] = {}
    for setting, own in records.items():
        if setting.objective == objective and chosen(setting):
            usual = records[setting._replace(objective="average")]
            logs.setdefault((setting.draw, setting.rows, setting.tasks), []).append(np.log(own[number] / usual[number]))
    of = interval(np.array([np.mean(shared) for shared in logs.values()]))
    low, middle, high = (100 * np.expm1(v) for v in (of.low, of.mean, of.high))
    return Effect(of._replace(mean=float(middle), low=float(low), high=float(high)))


def is_at(**levels: object) -> Chosen:
    """Settings with these levels."""
    return lambda setting: all(getattr(setting, name) == level for name, level in levels.items())


def whole(records: Records) -> Records:
    """Settings that all three objectives have."""
    return {s: own for s, own in records.items() if all(s._replace(objective=o) in records for o in study.OBJECTIVES)}


# ------------------------------------------------------------------ the page


def table(records: Records) -> str:
    """One line for each level of each factor, all others averaged over."""
    lines = [f"| | | {' | '.join(COMPARED)} |", "|---|---|" + "---|" * len(COMPARED)]
    for title, (name, levels) in FACTORS.items():
        for level in levels:
            cells = [str(effect(records, *what, is_at(**{name: level}))) for what in COMPARED.values()]
            lines.append(f"| {title} | {SAYS.get(name, {}).get(level, level)} | {' | '.join(cells)} |")
    cells = [str(effect(records, *what, is_at())) for what in COMPARED.values()]
    return "\n".join([*lines, f"| all | | {' | '.join(cells)} |"])


def cells() -> list[dict[str, object]]:
    """All combinations but for the number of tasks, which intervals are taken over, with the draws."""
    names = ("width", "rows", "apart", "compete")
    levels = itertools.product(study.WIDTHS, study.ROWS, study.APART, study.COMPETE)
    return [dict(zip(names, own, strict=True)) for own in levels]


def counted(records: Records, objective: str, number: str, chosen: Chosen) -> str:
    """In how many cells it helps, and in how many it harms."""
    effects = [effect(records, objective, number, is_at(**own)) for own in cells() if chosen(_as_setting(own))]
    helps, harms = sum(own.helps for own in effects), sum(own.harms for own in effects)
    return f"lower in {helps} and higher in {harms} of {len(effects)}"


def _as_setting(own: dict[str, object]) -> study.Setting:
    return study.Setting(tasks=0, draw=0, objective="", **own)  # type: ignore[arg-type]


def is_narrow(setting: study.Setting) -> bool:
    """Whether x has fewer features than the tasks need, all together."""
    return setting.width < study.NEEDED * (2 if setting.compete else 1)


def fields(records: Records) -> dict[str, str]:
    """All figures of the text."""
    few, many = study.ROWS[0], study.ROWS[-1]
    noisy = is_at(apart=1)
    said = {
        "pays": effect(records, "loss", "worst", lambda s: is_narrow(s) and s.rows == many),
        "pays_equal": effect(records, "loss", "worst", lambda s: is_narrow(s) and s.rows == many and not s.apart),
        "narrow_few": effect(records, "loss", "worst", lambda s: is_narrow(s) and s.rows == few),
        "harms": effect(records, "loss", "worst", lambda s: not is_narrow(s) and s.rows == many),
        "harms_few": effect(records, "loss", "worst", lambda s: not is_narrow(s) and s.rows == few),
        "pays_regret": effect(records, "regret", "regret", lambda s: is_narrow(s) and s.rows == many),
        "harms_mean": effect(records, "loss", "mean", is_at()),
        "noisy_loss": effect(records, "loss", "regret", noisy),
        "noisy_regret": effect(records, "regret", "regret", noisy),
    }
    return {name: f"{own} %" for name, own in said.items()} | {
        "table": table(records),
        "cells_loss": counted(records, "loss", "worst", is_at()),
        "cells_regret": counted(records, "regret", "regret", is_at()),
        "runs": f"{len(records):,}",
        "draws": str(len({setting.draw for setting in records})),
        "few_rows": str(study.ROWS[0]),
        "many_rows": str(study.ROWS[-1]),
        "needed": str(study.NEEDED),
        "widths": _listed(study.WIDTHS),
        "rows": _listed(study.ROWS),
        "tasks": _listed(study.TASKS),
        "inputs": str(study.INPUTS),
        "steps": f"{study.STEPS:,}",
        "test": f"{study.TEST:,}",
        "quiet": f"{study.QUIET:g}",
        "loud": f"{study.LOUD:g}",
    }


def _listed(values: Sequence[object]) -> str:
    *first, last = map(str, values)
    return f"{', '.join(first)} and {last}"


# ------------------------------------------------------------------ the figure


def draw(records: Records) -> Figure:
    """Maps over width and competition: worst losses above, worst regrets below; bold where an interval is beside 0."""
    style = {"font.family": "serif", "font.size": 8, "axes.titlesize": 8, "figure.dpi": 200}
    with mpl.rc_context(style):
        figure = Figure(figsize=(7.0, 3.6), layout="constrained")
        columns = list(itertools.product(study.APART, study.ROWS))
        axes = figure.subplots(2, len(columns), sharex=True, sharey=True)
        image = None
        rows = [
            ("worst test loss,\nmin-max of losses", "loss", "worst"),
            ("worst test regret,\nof regrets", "regret", "regret"),
        ]
        for (title, *what), line in zip(rows, axes, strict=True):
            for (apart, count), ax in zip(columns, line, strict=True):
                image = _map(records, ax, *what, apart, count)
                if ax in axes[0]:
                    ax.set_title(f"{count} rows a task,\nnoise {SAYS['apart'][apart]}")
                if ax in axes[-1]:
                    ax.set_xlabel("features in x")
            line[0].set_ylabel(f"{title}\ncompetition")
        bar = figure.colorbar(image, ax=axes, shrink=0.8, aspect=30)
        bar.set_label("change against min-avg, %")
    return figure


def _map(records, ax, objective, number, apart, count):
    effects = [
        [effect(records, objective, number, is_at(width=w, compete=c, apart=apart, rows=count)) for w in study.WIDTHS]
        for c in study.COMPETE
    ]
    values = np.array([[own.change.mean for own in line] for line in effects])
    image = ax.imshow(values, cmap="RdBu_r", vmin=-40, vmax=40, origin="lower", aspect="auto")
    for (i, j), value in np.ndenumerate(values):
        own = effects[i][j]
        sure = own.helps or own.harms
        shade = "white" if abs(value) > 25 else "black"
        ax.text(j, i, f"{value:+.0f}", ha="center", va="center", color=shade, weight="bold" if sure else "normal",
                alpha=1.0 if sure else 0.55, fontsize=7)  # fmt: skip
    ax.set_xticks(range(len(study.WIDTHS)), study.WIDTHS)
    ax.set_yticks(range(len(study.COMPETE)), study.COMPETE)
    ax.tick_params(length=0)
    return image


def page(records: Records) -> str:
    """The head, with its figures."""
    return string.Template(HEAD.read_text()).substitute(fields(records))


def main() -> None:
    """Writes both."""
    records = whole(study.kept())
    PAGE.write_text(page(records))
    draw(records).savefig(FIGURE, metadata={"Software": None})
    print(f"{PAGE} and {FIGURE}, from {len(records)} runs")


if __name__ == "__main__":
    main()
