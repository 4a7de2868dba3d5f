"""Writes docs/choosing.md and its figures from a folder that `bilevel compare` made.

python docs/make_choosing.py comparison             the whole page
python docs/make_choosing.py comparison relative    makes the runs of the section on relative rates that are missing in
                                                    the folder, and writes this section of the page alone
"""

from __future__ import annotations

import csv
import re
import shutil
import sys
from pathlib import Path

import bilevel as bl
from bilevel.comparison.benchmarks import BENCHMARKS, PAPER

DOCS = Path(__file__).parent
HEAD = DOCS / "choosing-head.md"
Row = dict[str, str]


def number(text: str, digits: int = 3) -> str:
    """A number of a CSV file, shorter; a dash where there is none."""
    value = float(text)
    return "-" if value != value else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"


def spread(row: Row, name: str) -> str:
    """A mean and its standard deviation over the seeds."""
    return "-" if row[name] == "nan" else f"{number(row[name])} ± {number(row[f'{name}_deviation'], 2)}"


def table(head: list[str], lines: list[list[str]]) -> str:
    """For a page."""
    return "\n".join(["| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *lines]])


def called(row: Row) -> str:
    """A solver, and whether it chose its rates."""
    return row["solver"] + (", automatic" if row["rates"] == "automatic" else "")


def results(rows: list[Row]) -> str:
    """All that was measured on one problem."""
    head = ["solver", "rates x, y, weights", "worst validation", "worst test", "mean validation", "calls to target"]
    head += ["seconds to target", "reached it", "state, MB", "diverged"]
    lines = [
        [
            row["solver"],
            row["rates"],
            *(spread(row, name) for name in ("worst_validation", "worst_test")),
            *(number(row[name]) for name in ("mean_validation", "calls_to_target", "seconds_to_target")),
            *(f"{float(row['reached_target']):.0%}", number(row["state_megabytes"]), f"{float(row['diverged']):.0%}"),
        ]
        for row in rows
    ]
    return table(head, lines)


def ranks(problems: dict[str, list[Row]]) -> str:
    """Where every solver comes in on every problem; the paper's own run, of another budget, is left out."""
    orders = {name: [called(r) for r in rows if r["solver"] != PAPER] for name, rows in problems.items()}
    solvers = list(dict.fromkeys(solver for order in orders.values() for solver in order))
    place = {s: [order.index(s) + 1 if s in order else None for order in orders.values()] for s in solvers}
    known = {s: [p for p in places if p is not None] for s, places in place.items()}
    solvers.sort(key=lambda s: sum(known[s]) / len(known[s]))
    lines = [[s, *("-" if p is None else str(p) for p in place[s])] for s in solvers]
    return table(["solver", *orders], lines)


def to_the_papers_end(problems: dict[str, list[Row]]) -> str:
    """What each of the best needs to get where the paper's run ends."""
    lines = []
    for name, rows in problems.items():
        paper = next((r for r in rows if r["solver"] == PAPER), None)
        if paper is None or float(paper["diverged"]) > 0:  # then it ends nowhere
            continue
        calls = float(paper["calls_per_step"]) * float(paper["steps"])
        seconds = float(paper["seconds_per_step"]) * float(paper["steps"])
        end = [name, "MORBiT, paper (all of its run)", spread(paper, "worst_validation"), spread(paper, "worst_test")]
        lines.append([*end, f"{calls:,.0f}", f"{seconds:.3g}", "1", "1", "-"])
        for row in [r for r in rows if r["solver"] in ("Tandem", "MORBiT", "SOBA", "SABA")]:
            to = [float(row["calls_to_target"]), float(row["seconds_to_target"])]
            parts = ["-" if t != t else f"1/{whole / t:.0f}" for t, whole in zip(to, (calls, seconds), strict=True)]
            cells = [name, called(row), spread(row, "worst_validation"), spread(row, "worst_test")]
            lines.append(
                [*cells, number(str(to[0])), number(str(to[1])), *parts, f"{float(row['reached_target']):.0%}"]
            )
    head = ["problem", "solver", "worst validation at its end", "worst test at its end", "calls to the paper's end"]
    return table([*head, "seconds", "part of its calls", "part of its seconds", "seeds that get there"], lines)


def without_rates(problems: dict[str, list[Row]]) -> str:
    """Automatic rates against tuned ones."""
    lines = []
    for name, rows in problems.items():
        for solver in ("Tandem", "MORBiT"):
            of = {r["rates"] == "automatic": r for r in rows if r["solver"] == solver}
            if len(of) == 2:
                ratio = float(of[True]["worst_validation"]) / float(of[False]["worst_validation"])
                ends = [spread(of[which], "worst_validation") for which in (True, False)]
                lines.append([name, solver, *ends, f"{ratio:.2f}", f"{float(of[True]['diverged']):.0%}"])
    head = ["problem", "solver", "automatic", "tuned", "automatic / tuned", "diverged, automatic"]
    return table(head, lines)


def relative_rates(folder: Path) -> str:
    """Other solvers with Tandem's rates, from runs that are made where they are missing."""
    options = {"rates": bl.rates.Relative(), "weighting": bl.weightings.SimplexAscent()}
    solvers = {kind.__name__: kind(**options) for kind in (bl.Tandem, bl.SOBA, bl.SABA, bl.MORBiT, bl.MASOBA)}
    out = folder / "relative"
    bl.compare("letter", solvers=solvers, grid=None, seeds=10, out=out, say=print)
    with (out / "letter" / "comparison.csv").open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    head = [
        "solver with `rates=bl.rates.Relative()`",
        "steps",
        "worst validation",
        "worst test",
        "mean test",
        "diverged",
    ]
    lines = [
        [row["solver"], row["steps"]]
        + [spread(row, name) for name in ("worst_validation", "worst_test", "mean_test")]
        + [f"{float(row['diverged']):.0%}"]
        for row in rows
    ]
    return table(head, lines)


def write_section(mark: str, text: str) -> None:
    """Puts a text between the two marks of a section of the page."""
    page = DOCS / "choosing.md"
    begin, end = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
    found = re.sub(f"{begin}.*{end}", lambda _: f"{begin}\n\n{text}\n\n{end}", page.read_text(), flags=re.DOTALL)
    page.write_text(found)


def main(folder: Path) -> None:
    """Writes the page and copies the figures."""
    problems = {}
    for name in BENCHMARKS:
        if (folder / name / "comparison.csv").is_file():
            with (folder / name / "comparison.csv").open(newline="") as opened:
                problems[name] = list(csv.DictReader(opened))
            shutil.copy(folder / name / "comparison.png", DOCS / "figures" / f"comparison-{name}.png")
    fill = {"RANKS": ranks, "PAPER": to_the_papers_end, "AUTOMATIC": without_rates}
    text = HEAD.read_text()
    for mark, make in fill.items():
        text = text.replace(f"<!-- {mark} -->", make(problems))
    for name, rows in problems.items():
        own = next(r for r in rows if called(r) == "Tandem, automatic")
        budget = f"Budget: {float(own['steps']) * float(own['calls_per_step']):,.0f} calls per task."
        picture = f"![worst loss against calls and seconds](figures/comparison-{name}.png)"
        text += f"\n### {name}: {BENCHMARKS[name].title}\n\n{budget}\n\n{results(rows)}\n\n{picture}\n"
    (DOCS / "choosing.md").write_text(text)
    write_section("RELATIVE", relative_rates(folder))


if __name__ == "__main__":
    if sys.argv[2:] == ["relative"]:
        write_section("RELATIVE", relative_rates(Path(sys.argv[1])))
    else:
        main(Path(sys.argv[1]))
