"""Makes docs/unseen.md of the records: python benchmarks/unseen/page.py."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy import stats

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "unseen.md"
OURS = ("robust", "robust, regret", "min-avg")
BEFORE = ("min-max before",)
CROSS, PLAIN = "alone, cross-validated", "plain"
Records = dict[tuple[str, str], dict[int, dict[str, str]]]  # of a problem and a method, by draw
Value = Callable[[Records, str, str, int], float]


def read(path: Path = HERE / "records.csv") -> Records:
    """All lines."""
    found: Records = defaultdict(dict)
    for row in csv.DictReader(path.read_text().splitlines()):
        found[row["problem"], row["method"]][int(row["draw"])] = row
    return found


def losses(records: Records, problem: str, method: str, draw: int) -> np.ndarray:
    """Of the groups that are scored."""
    return np.array([float(loss) for loss in records[problem, method][draw]["losses"].split()])


def worst(records: Records, problem: str, method: str, draw: int) -> float:
    """The worst group's loss."""
    return float(records[problem, method][draw]["worst"])


def regret(records: Records, problem: str, method: str, draw: int) -> float:
    """The largest that a group's loss exceeds that of its own linear model by."""
    own = losses(records, problem, method, draw) - losses(records, problem, "alone, linear", draw)
    return float(own.max())


def accuracy(records: Records, problem: str, method: str, draw: int) -> float:
    """The lowest of the groups."""
    return float(records[problem, method][draw]["accuracy"])


def interval(values: np.ndarray) -> tuple[float, float]:
    """The mean, and half of its 95 % interval by Student's t."""
    if len(values) < 2:
        return float(values.mean()), np.nan
    return float(values.mean()), float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5)


def whole_draws(records: Records, problem: str, methods: list[str]) -> list[int]:
    """Those in which every method was scored."""
    return sorted(set.intersection(*(set(records[problem, method]) for method in methods)))


def difference(
    records: Records, problem: str, one: str, other: str, draws: list[int], value: Value
) -> tuple[float, float]:
    """Of two methods, paired over draws."""
    pairs = [value(records, problem, one, d) - value(records, problem, other, d) for d in draws]
    return interval(np.array(pairs))


def cell(mean: float, half: float, bold: bool = False, sign: str = "") -> str:
    """A number with its interval, which takes two draws."""
    text = f"{mean:{sign}.3f}" + ("" if np.isnan(half) else f" ± {half:.3f}")
    return f"**{text}**" if bold else text


def table(records: Records, problems: list[str], methods: list[str], value: Value, lowest: bool = True) -> list[str]:
    """Methods by problems, the best of each problem bold."""
    lines = ["| | " + " | ".join(problems) + " |", "|---" * (len(problems) + 1) + "|"]
    found = {}
    for problem in problems:
        draws = whole_draws(records, problem, methods)
        for method in methods:
            found[problem, method] = interval(np.array([value(records, problem, method, d) for d in draws]))
    pick = min if lowest else max
    best = {p: pick(methods, key=lambda m, p=p: found[p, m][0]) for p in problems}
    for method in methods:
        cells = [cell(*found[p, method], bold=best[p] == method) for p in problems]
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return lines


def against(records: Records, problems: list[str], methods: list[str], one: str, value: Value) -> list[str]:
    """One method less each of the others, paired, and on how many problems a whole interval is below or above 0."""
    lines = ["| less | " + " | ".join(problems) + " | lower | higher |", "|---" * (len(problems) + 3) + "|"]
    for other in (m for m in methods if m != one):
        found = [difference(records, p, one, other, whole_draws(records, p, methods), value) for p in problems]
        lower, higher = (sum(sign * mean > half for mean, half in found) for sign in (-1, 1))
        cells = " | ".join(cell(mean, half, sign="+") for mean, half in found)
        lines.append(f"| {other} | {cells} | {lower} | {higher} |")
    return lines


def named(problems: list[str]) -> str:
    """In a sentence."""
    return ", ".join(problems) or "none"


def counts(records: Records, problems: list[str], methods: list[str], one: str) -> list[str]:
    """What was hoped for, and what came."""
    means = {
        p: {m: np.mean([worst(records, p, m, d) for d in whole_draws(records, p, methods)]) for m in methods}
        for p in problems
    }
    others = [m for m in methods if m not in OURS and m not in BEFORE]
    best = [p for p in problems if means[p][one] <= min(means[p][m] for m in others)]
    lines = [
        f"- `{one}` has the lowest mean worst loss of all but our own variants on "
        f"{len(best)} of {len(problems)}: {named(best)}."
    ]
    far: dict[bool, list[str]] = {True: [], False: []}
    for p in problems:
        rival = min(others, key=lambda m, p=p: means[p][m])
        mean, half = difference(records, p, one, rival, whole_draws(records, p, methods), worst)
        if abs(mean) > half:
            far[mean > 0].append(f"{p} ({rival}, {mean:+.3f} ± {half:.3f})")
    for above, words in ((False, "below"), (True, "above")):
        said = ", ".join(far[above]) or "nowhere"
        lines.append(f"- `{one}` is {words} the best of the others with the whole interval: {said}.")
    for other in ("min-avg", "min-max before"):
        found = {p: difference(records, p, one, other, whole_draws(records, p, methods), worst) for p in problems}
        below = [p for p, (mean, half) in found.items() if -mean > half]
        above = [p for p, (mean, half) in found.items() if mean > half]
        mean_below = [p for p, (mean, _) in found.items() if mean < 0]
        lines.append(
            f"- `{one}` against `{other}`: below in the mean on {len(mean_below)}, below with the whole interval on "
            f"{len(below)} ({named(below)}), above with the whole interval on {len(above)} ({named(above)})."
        )
    return lines


def letters(records: Records) -> str:
    """How near the recommended way comes to the ideal moment, and to one cross-validated model a task."""
    lines = []
    for other, words in (("ideal moment", "a plain run stopped at the ideal moment"), (CROSS, "a model a task")):
        draws = whole_draws(records, "letters", ["robust", other])
        own, reached = (interval(np.array([worst(records, "letters", m, d) for d in draws])) for m in ("robust", other))
        apart = difference(records, "letters", "robust", other, draws, worst)
        lines.append(
            f"- `{other}` ({words}): {cell(*reached)}; `robust` {cell(*own)}, which is {cell(*apart, sign='+')} "
            f"({len(draws)} draws)."
        )
    return "\n".join(lines)


def remedies(objective: str, path: Path = HERE / "parts.csv") -> str:
    """The worst test loss of a plain run, and what each remedy changes it by, paired over draws."""
    found: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for row in csv.DictReader(path.read_text().splitlines()):
        if row["objective"] == objective:
            found[row["problem"], row["remedy"]][int(row["draw"])] = float(row["worst"])
    problems = list(dict.fromkeys(problem for problem, _ in found))
    lines = [f"| {objective} | " + " | ".join(problems) + " |", "|---" * (len(problems) + 1) + "|"]
    for remedy in dict.fromkeys(remedy for _, remedy in found):
        cells = []
        for problem in problems:
            own, plain = found[problem, remedy], found[problem, PLAIN]
            draws = sorted(set(own) & set(plain))
            values = np.array([own[d] - (plain[d] if remedy != PLAIN else 0) for d in draws])
            cells.append(cell(*interval(values), sign="" if remedy == PLAIN else "+"))
        lines.append(f"| {remedy} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def page() -> str:
    """The whole of it."""
    from methods import METHODS
    from parts import OBJECTIVES
    from problems import STUDIED

    records = read()
    methods = [m for m in METHODS if any((p, m) in records for p in STUDIED)]
    problems = [p for p in STUDIED if all(records.get((p, m)) for m in methods) and whole_draws(records, p, methods)]
    draws = {p: len(whole_draws(records, p, methods)) for p in problems}
    text = (HERE / "head.md").read_text().replace("DRAWS", ", ".join(f"{p} {n}" for p, n in draws.items()))
    sections = [
        text.rstrip(),
        "## What was hoped for, and what came",
        "\n".join(line for one in ("robust", "robust, regret") for line in counts(records, problems, methods, one)),
        "### The ten small pairs of letters",
        letters(records),
        "## Worst loss",
        "\n".join(table(records, problems, methods, worst)),
        "## Worst loss of `robust` less that of the others, paired over draws",
        "\n".join(against(records, problems, methods, "robust", worst)),
        "## Worst regret",
        "\n".join(table(records, problems, [m for m in methods if m != "alone, linear"], regret)),
        "## Worst regret of `robust, regret` less that of the others",
        "\n".join(against(records, problems, [m for m in methods if m != "alone, linear"], "robust, regret", regret)),
        "## Lowest accuracy, R2 for numbers",
        "\n".join(table(records, problems, methods, accuracy, lowest=False)),
        (HERE / "parts.md").read_text().rstrip(),
        *(remedies(objective) for objective in OBJECTIVES),
    ]
    return "\n\n".join(sections) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
