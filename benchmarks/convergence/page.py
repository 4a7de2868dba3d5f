"""Makes docs/convergence.md of the lines that `run.py` writes and the times that `time_to_reference.py` writes.

    python -m benchmarks.convergence.page

Every figure on the page is computed here, from benchmarks/records: convergence.jsonl and convergence-times.json. Two of
its sections are kept as they were written, from runs of the version before `Descent`: convergence-before.md and
convergence-tandem.md.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

PAGE = Path(__file__).parents[2] / "docs" / "convergence.md"
RECORDS = Path(__file__).parents[1] / "records"
OVER = {False: 1.05, True: 1.10}  # of the reference, by whether steps see batches
DATA = {False: "all", True: "batches"}
Line = dict[str, Any]
Kind = tuple[str, bool, int]  # family, batches, steps

HEAD = """# Does it converge?

<!-- Made by benchmarks/convergence/page.py. Do not edit. -->

`bl.solve(problem, x=x, y=y, steps=steps)` with nothing else given, {runs} runs on {families} families of problems with
up to {draws} draws, in float64: does it end where it should? Steps see all the data, or batches of {lower} training and
{upper} validation rows.

- **Reference**: the worst loss that SciPy reaches from the same start, lower problems solved by Newton's method and
  gradients by the implicit function theorem. SLSQP on min t subject to l_i(x) <= t, and L-BFGS-B on a log-sum-exp that
  is made sharper; the lower of the two counts. From other starts it ends elsewhere, by more than 5 % in half of the
  draws or more, in the families {hard}: a run that is over the reference there may be at a solution of its own.
- **True** worst loss of an x: the largest upper loss with every lower problem solved for that x, by a solver that is
  not the library's. What the run reports is not used to judge it.
- **Over**: the true worst loss at `result.x` is more than {over} times the reference ({over_batches} with batches), or
  not finite, or the run raised an error. **Best over**: the same of `result.best.x`.
- **Elsewhere**: of the runs that are over, those that end at another local solution: the reference's own solvers gain
  less than 5 % when they start at that x. **Certified**: of the runs that are over, those of which `bl.certify` says
  that x is stationary: 100 steps of `bl.Descent` from there gain less than 1 %. That is the library's own judgement,
  and where "elsewhere" is fewer, SciPy's solvers do gain from there.
- Runs of "before" are of the version before `Descent`. For them, and for Tandem, ends elsewhere were not looked for.
- **Over the start**: it is larger than where x started.
- **Not finite**: it is infinite or NaN, or the run raised.
- **Left**: (true - reference) / (start - reference), the median: what is left of the way, 0 at the reference.
- **Off**: the largest |reported - true| / |true|: of `result.worst`, of `result.best.worst`, and of the worst losses in
  those rows of the history whose y was fitted to x (a dash: there are none).
- **Steps** taken and **seconds** without compilation are medians; one thread of a CPU, with other runs beside it.

| family | what it is |
|---|---|
{described}
"""

TIMES = """
## How long it takes

README's problem with more tasks and more numbers in y, float64, one thread, other work beside it. CPU seconds until
the worst loss is within 1 % of the reference and to the end, with compiled programs and without.

- `solve` is `bl.solve` with nothing given, there at its first evaluation that is (after 1, 2, 4, ... steps).
- `script` is what a user would write instead: y in closed form, derivatives through it, L-BFGS-B on a log-sum-exp that
  is made sharper three times.
- `slsqp` is SciPy's SLSQP on min t subject to l_i(x) <= t with the same losses.

"At" counts steps, or evaluations of all losses.

"""

TAIL = """
## Again

    records=benchmarks/records runs="--draws {draws} --steps {steps} --batches {batches}"
    python -m benchmarks.convergence.run $runs --out $records/convergence.jsonl
    python -m benchmarks.convergence.time_to_reference --out $records/convergence-times.json
    python -m benchmarks.convergence.page

The first can be stopped and goes on where it was. Data come from the folder that BILEVEL_DATA names, or from
../shared/data.
"""


def read(path: Path) -> list[Line]:
    """The lines of a file."""
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def kind(line: Line) -> Kind:
    return line["family"], line["batches"], line["steps"]


def is_over(line: Line, name: str = "true_worst") -> bool:
    true = line.get(name)
    return true is None or true > OVER[line["batches"]] * line["reference_same"]


def over_start(line: Line) -> bool:
    true = line.get("true_worst")
    return true is None or true > line["reference_start"] * (1 + 1e-9)


def is_elsewhere(line: Line) -> bool:
    return is_over(line) and bool(line.get("solution"))


def is_certified(line: Line) -> bool:
    gain = line.get("gain")
    return is_over(line) and gain is not None and gain < 0.01


def not_finite(line: Line) -> bool:
    return line.get("true_worst") is None or line.get("worst") is None


def left(line: Line) -> float:
    true = line.get("true_worst")
    way = line["reference_start"] - line["reference_same"]
    return np.inf if true is None else (true - line["reference_same"]) / max(way, 1e-12)


def off(line: Line, name: str) -> float:
    """|reported - true| / |true| of an iterate."""
    reported, true = line.get(name), line.get(f"true_{name}")
    return np.inf if reported is None or true is None else abs(reported - true) / abs(true)


def largest(values: Iterable[float]) -> str:
    values = list(values)
    return "-" if not values else number(max(values))


def number(value: float) -> str:
    """Two digits that count."""
    return "not finite" if not np.isfinite(value) else f"{value:.0f}" if 100 <= value < 1e5 else f"{value:.2g}"


def middle(lines: list[Line], name: str) -> str:
    found = [line[name] for line in lines if line.get(name) is not None]
    if not found:
        return "-"
    return f"{np.median(found):,.0f}" if name == "taken" else f"{np.median(found):.2f}"


def fitted_off(lines: list[Line]) -> str:
    # A line of an error that is not finite has rows and no number.
    told = [line for line in lines if line.get("fitted_rows")]
    return largest(np.inf if line["fitted_error"] is None else line["fitted_error"] for line in told)


COLUMNS: dict[str, Callable[[list[Line]], str]] = {
    "runs": lambda lines: str(len(lines)),
    "over": lambda lines: str(sum(map(is_over, lines))),
    "elsewhere": lambda lines: str(sum(map(is_elsewhere, lines))),
    "certified": lambda lines: str(sum(map(is_certified, lines))),
    "best over": lambda lines: str(sum(is_over(line, "true_best") for line in lines)),
    "over the start": lambda lines: str(sum(map(over_start, lines))),
    "not finite": lambda lines: str(sum(map(not_finite, lines))),
    "left": lambda lines: number(float(np.median([left(line) for line in lines]))),
    "worst off": lambda lines: largest(off(line, "worst") for line in lines),
    "best off": lambda lines: largest(off(line, "best") for line in lines),
    "history off": fitted_off,
    "steps": lambda lines: middle(lines, "taken"),
    "seconds": lambda lines: middle(lines, "run_seconds"),
}


def grouped(lines: list[Line]) -> dict[Kind, list[Line]]:
    """Lines by family, data and steps, families in the order in which they were run."""
    order = list(dict.fromkeys(line["family"] for line in lines))
    found: dict[Kind, list[Line]] = {}
    for line in sorted(lines, key=lambda line: (order.index(line["family"]), line["batches"], line["steps"])):
        found.setdefault(kind(line), []).append(line)
    return found


def row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def table(lines: list[Line]) -> str:
    """All figures of a file."""
    rows = [row(["family", "data", "steps given", *COLUMNS]), f"|{'---|' * (3 + len(COLUMNS))}"]
    for (family, batches, steps), own in grouped(lines).items():
        rows += [row([family, DATA[batches], f"{steps:,}", *(column(own) for column in COLUMNS.values())])]
    return "\n".join(rows)


def told(title: str, lines: list[Line]) -> str:
    """A file in sentences, and its table."""
    said = []
    for batches, steps in sorted({kind(line)[1:] for line in lines}):
        own = [line for line in lines if kind(line)[1:] == (batches, steps)]
        with_data = "With batches" if batches else "With all the data"
        said += [
            f"- {with_data} and {steps:,} steps, {sum(map(is_over, own))} of {len(own)} runs end over "
            f"{OVER[batches]:.2f} of the reference, {sum(map(is_elsewhere, own))} of them at solutions elsewhere "
            f"and {sum(map(is_certified, own))} certified as stationary, "
            f"{sum(map(over_start, own))} over the start, and "
            f"{sum(map(not_finite, own))} not finite; what is reported as the worst loss is off by "
            f"{largest(off(line, 'worst') for line in own)} at most."
        ]
    raised = [line for line in lines if line.get("status") == "raised"]
    said += [f"- {len(raised)} runs raised an error, the first: `{raised[0]['error'][:200]}`."] if raised else []
    return f"\n## {title}\n\n" + "\n".join(said) + "\n\n" + table(lines) + "\n"


def before_and_after(before: str, lines: list[Line]) -> str:
    """How many runs are over, before and after."""
    cells = [[cell.strip() for cell in text.strip("| ").split("|")] for text in before.splitlines() if text[:1] == "|"]
    old = {tuple(own[:3]): own[3:5] for own in cells[2:]}  # of family, data and steps: runs, over
    rows = [row(["family", "data", "steps given", "over, before", "over, after"]), f"|{'---|' * 5}"]
    for (family, batches, steps), own in grouped(lines).items():
        runs, over = old.get((family, DATA[batches], f"{steps:,}"), ("", ""))
        if runs:
            now = f"{sum(map(is_over, own))} of {len(own)}"
            rows += [row([family, DATA[batches], f"{steps:,}", f"{over} of {runs}", now])]
    return "\n## Before and after\n\n" + "\n".join(rows) + "\n"


def times(found: list[dict[str, Any]]) -> str:
    """CPU seconds until a method is within 1 % of the reference, and to its end."""
    head = [
        "tasks x numbers of y",
        "method",
        "within 1 %",
        "at",
        "whole",
        "within 1 %, compiling",
        "whole, compiling",
        "end / reference",
    ]
    rows = [row(head), f"|{'---|' * len(head)}"]
    for own in found:
        first, compiling = own["compiled"]["first"], own["compiling"]["first"]
        cells = ["never", "-"] if first is None else [f"{first['cpu']:.3f}", str(first["evaluations"])]
        cells += [f"{own['compiled']['cpu']:.3f}", "never" if compiling is None else f"{compiling['cpu']:.2f}"]
        cells += [f"{own['compiling']['cpu']:.2f}", f"{own['compiled']['ratio']:.4f}"]
        rows += [row([own["case"], own["method"], *cells])]
    return TIMES + "\n".join(rows) + "\n"


def several_solutions(lines: list[Line]) -> str:
    """Families whose references from other starts differ by more than 5 % in half of the draws or more."""
    apart: dict[str, dict[int, bool]] = {}
    for line in lines:
        values = [line["reference_same"], *line["reference_others"]]
        apart.setdefault(line["family"], {})[line["draw"]] = max(values) > 1.05 * min(values)
    names = [name for name, draws in apart.items() if np.mean(list(draws.values())) >= 0.5]
    return ", ".join(names) or "(none)"


def page(lines: list[Line], measured: list[dict[str, Any]], before: str, tandem: str) -> str:
    """The whole page."""
    families = importlib.import_module("benchmarks.convergence.families")
    names = list(dict.fromkeys(line["family"] for line in lines))
    count = len({line["draw"] for line in lines})
    listed = lambda batches: " ".join(map(str, sorted({line["steps"] for line in lines if line["batches"] is batches})))  # noqa: E731
    first = lambda name: (families.FAMILIES[name].__doc__ or "").split("\n")[0].replace("|", "\\|")  # noqa: E731
    text = HEAD.format(
        runs=f"{len(lines):,}",
        families=len(names),
        draws=count,
        lower=families.LOWER_BATCH,
        upper=families.UPPER_BATCH,
        hard=several_solutions(lines),
        over=f"{OVER[False]:.2f}",
        over_batches=f"{OVER[True]:.2f}",
        described="\n".join(row([name, first(name)]) for name in names),
    )
    text += before_and_after(before, lines) + f"\n{tandem}" + told("Now", lines) + times(measured) + f"\n{before}"
    return text + TAIL.format(draws=count, steps=listed(False), batches=listed(True))


def from_records() -> str:
    """The page of the records."""
    lines, measured = read(RECORDS / "convergence.jsonl"), json.loads((RECORDS / "convergence-times.json").read_text())
    kept = [(RECORDS / f"convergence-{name}.md").read_text() for name in ("before", "tandem")]
    return page(lines, measured, *kept)


if __name__ == "__main__":
    PAGE.write_text(from_records())
    print(f"wrote {PAGE}")
