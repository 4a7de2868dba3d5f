"""The tables of docs/choosing.md, from those of comparisons."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bilevel.studies.comparison.benchmarks import BENCHMARKS, PAPER

Row = Mapping[str, Any]
Problems = Mapping[str, Sequence[Row]]


def number(text: str | float, digits: int = 3) -> str:
    """A number, shorter; a dash where there is none."""
    value = float(text)
    if math.isnan(value) or math.isinf(value):
        return "-" if math.isnan(value) else "diverged"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"


def spread(row: Row, name: str) -> str:
    """A mean and its standard deviation over the seeds; the median where some diverged."""
    if math.isnan(float(row[f"{name}_deviation"])):
        return number(row[name])
    return f"{number(row[name])} ± {number(row[f'{name}_deviation'], 2)}"


def share(text: str | float) -> str:
    """A share, in per cent."""
    return f"{float(text):.0%}"


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """For a page."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *lines])


def called(row: Row) -> str:
    """A solver, and whether it chose its rates."""
    return row["solver"] + (", automatic" if row["rates"] == "automatic" else "")


def rank(row: Row, of: str = "rank") -> str:
    """A rank and its interval; "test_rank" is that by test rows."""
    if math.isnan(float(row[f"{of}_low"])):
        return number(row[of])
    return f"{float(row[of]):.0f} [{float(row[f'{of}_low']):.0f}, {float(row[f'{of}_high']):.0f}]"


def by_selection(rows: Sequence[Row]) -> bool:
    """Whether solvers are ranked by selection rows, so that their ranks by test rows are others."""
    return rows[0]["ranked_by"] == "worst_selection"


def rank_everywhere(problems: Problems, solver: str) -> str:
    """The ranks of one solver, problem by problem."""
    found = [(name, row) for name, rows in problems.items() for row in rows if called(row) == solver]
    if not found:
        return "did not run"
    return "; ".join(f"{rank(row)} of {ranked(problems[name])} on {name}" for name, row in found)


def ranked(rows: Sequence[Row]) -> int:
    """How many have a rank."""
    return sum(row["solver"] != PAPER for row in rows)


def results(rows: Sequence[Row]) -> str:
    """All that was measured on one problem."""
    selected = by_selection(rows)
    head = ["rank", "solver", "rates x, y, weights", *["worst selection"] * selected, "worst test"]
    head += [*["rank by test", "worst test at `best`"] * selected, "worst validation", "mean validation", "steps"]
    head += ["calls", "calls to target", "seconds to target", "reached it", "state, MB", "diverged"]
    lines = [
        [
            rank(row),
            row["solver"],
            row["rates"] + (f" ({row['at_edge']} tried)" if row["at_edge"] else ""),
            *[spread(row, "worst_selection")] * selected,
            spread(row, "worst_test"),
            *[rank(row, "test_rank"), spread(row, "worst_test_at_best")] * selected,
            spread(row, "worst_validation"),
            *(number(row[name]) for name in ("mean_validation", "steps", "calls", "calls_to_target")),
            *(number(row["seconds_to_target"]), share(row["reached_target"]), number(row["state_megabytes"])),
            share(row["diverged"]),
        ]
        for row in rows
    ]
    return table(head, lines)


def one_program(rows: Sequence[Row]) -> str:
    """Solvers whose runs ended alike to the last digit, in a sentence; nothing where there are none."""
    alike: dict[tuple, list[str]] = {}
    for row in rows:
        alike.setdefault((row["worst_validation"], row["mean_validation"]), []).append(called(row))
    same = [" and ".join(names) for names in alike.values() if len(names) > 1]
    return f"One program under two names here: {'; '.join(same)}." if same else ""


def ranks(problems: Problems) -> str:
    """Where every solver comes in on every problem; the paper's own run, of another budget, is left out."""
    places = {name: {called(row): row for row in rows if row["solver"] != PAPER} for name, rows in problems.items()}
    solvers = list(dict.fromkeys(solver for rows in places.values() for solver in rows))

    def part(solver: str) -> float:
        """The mean place as a part of how many there are, as problems differ in how many ran."""
        parts = [float(rows[solver]["rank"]) / len(rows) for rows in places.values() if solver in rows]
        return sum(parts) / len(parts)

    columns = {(name, rows[0]["ranked_by"]): "rank" for name, rows in problems.items()}
    columns |= {(name, "worst_test"): "test_rank" for name, rows in problems.items() if by_selection(rows)}
    order = sorted(columns, key=lambda column: list(problems).index(column[0]))  # both of a problem side by side
    lines = []
    for solver in sorted(solvers, key=part):
        own = [rank(places[n][solver], columns[n, by]) if solver in places[n] else "-" for n, by in order]
        lines.append([solver, *own])
    return table(["solver", *(f"{name}, by {by.replace('_', ' ')}" for name, by in order)], lines)


def to_the_papers_end(problems: Problems) -> str:
    """What some need to get where the paper's run ends."""
    lines = []
    for name, rows in problems.items():
        paper = next((row for row in rows if row["solver"] == PAPER), None)
        if paper is None or float(paper["diverged"]) > 0:  # then it ends nowhere
            continue
        whole = [float(paper["calls"]), float(paper["seconds_per_step"]) * float(paper["steps"])]
        end = [name, f"{PAPER} (all of its run)", *(spread(paper, f"worst_{rows}") for rows in ("validation", "test"))]
        lines.append([*end, *map(number, whole), "all", "all", "-"])
        for row in [r for r in rows if r["solver"] in ("Tandem", "MORBiT", "SOBA", "SABA")]:
            to = [float(row["calls_to_target"]), float(row["seconds_to_target"])]
            parts = ["-" if math.isnan(t) else f"1/{all_ / t:.0f}" for t, all_ in zip(to, whole, strict=True)]
            cells = [name, called(row), *(spread(row, f"worst_{rows}") for rows in ("validation", "test"))]
            lines.append([*cells, *map(number, to), *parts, share(row["reached_target"])])
    head = ["problem", "solver", "worst validation at its end", "worst test at its end", "calls to the paper's end"]
    return table([*head, "seconds", "part of its calls", "part of its seconds", "seeds that get there"], lines)


def without_rates(problems: Problems) -> str:
    """Automatic rates against tuned ones."""
    lines = []
    for name, rows in problems.items():
        for solver in ("Tandem", "MORBiT"):
            of = {row["rates"] == "automatic": row for row in rows if row["solver"] == solver}
            if len(of) == 2:
                cells = [f"{spread(of[a], 'worst_test')}; {spread(of[a], 'worst_validation')}" for a in (True, False)]
                measured = float(of[True]["calls_besides_steps"]) / float(of[True]["calls"])
                steps = [number(of[a]["steps"]) for a in (True, False)]
                lines.append([name, solver, *cells, *steps, f"{measured:.0%}", share(of[True]["diverged"])])
    head = ["problem", "solver", "automatic: worst test; validation", "tuned", "steps, automatic", "steps, tuned"]
    return table([*head, "calls besides those of steps, automatic", "diverged, automatic"], lines)


def measuring(problems: Problems, skipped: Mapping[str, Mapping[str, str]]) -> str:
    """What measuring does to automatic MORBiT's budget, in a sentence."""
    found = []
    for name, rows in problems.items():
        row = next((row for row in rows if called(row) == "MORBiT, automatic"), None)
        if row is not None:
            part = float(row["calls_besides_steps"]) / float(row["calls"])
            found.append(f"{part:.0%} on {name}, where {number(row['steps'])} steps are left")
        elif "MORBiT, automatic" in skipped.get(name, {}):
            found.append(f"all of it on {name}, where it could not begin")
    return "; ".join(found) or "not measured"


def plain(rows: Sequence[Row], head: str) -> str:
    """Solvers as they are given."""
    return table([head, *ENDS], [[row["solver"], *_ends(row)] for row in rows])


def with_problem(rows: Sequence[Row]) -> str:
    """Likewise, on several problems."""
    return table(["problem", "solver", *ENDS], [[row["problem"], row["solver"], *_ends(row)] for row in rows])


ENDS = ("steps", "worst test", "worst validation", "diverged")


def _ends(row: Row) -> list[str]:
    return [number(row["steps"]), spread(row, "worst_test"), spread(row, "worst_validation"), share(row["diverged"])]


def everything(problems: Problems) -> str:
    """All numbers, problem by problem."""
    text = ""
    for name, rows in problems.items():
        own = next(row for row in rows if called(row) == "Tandem, automatic")
        picture = f"![worst loss against calls and seconds](figures/comparison-{name}.png)"
        said = f"Budget: {number(own['calls'])} calls per task. {one_program(rows)}".strip()
        text += f"\n### {name}: {BENCHMARKS[name].title}\n\n{said}\n\n{results(rows)}\n\n{picture}\n"
    return text


SECTIONS: Mapping[str, Callable[[Problems], str]] = {
    "RANKS": ranks,
    "PAPER": to_the_papers_end,
    "AUTOMATIC": without_rates,
}
